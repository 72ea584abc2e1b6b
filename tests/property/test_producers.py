"""The producers that are known, against a list of all batches that were ever stored; forwards, and read backwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.batch.codec import BatchProducer
from penstock.batch.header import HEADER_VERSION, BatchHeader
from penstock.ingest.producers import ProducerBatch, ProducerCollector, Producers
from tests.extent import examples

WINDOW_US = limits.PRODUCER_WINDOW_MS * 1_000
KEPT = limits.PRODUCER_BATCHES_KEPT


class Batch(NamedTuple):
    """One that is in the log."""

    producer: BatchProducer
    place: ProducerBatch

    @property
    def header(self) -> BatchHeader:
        first, end, base, end_offset, at_us = self.place
        numbers = (HEADER_VERSION, 0, 0, 0, end - first, 1, base, end_offset, at_us, at_us)
        return BatchHeader(*numbers, *self.producer)


class Model:
    """A log, and what the rules say of it."""

    def __init__(self, producers_max: int) -> None:
        self.producers_max = producers_max
        self.log: list[Batch] = []
        self.now_us = 10 * WINDOW_US
        self.forgotten: dict[int, int] = {}  # producer → the batches of it that were pushed out, by their number

    def of(self, producer_id: int) -> list[tuple[int, Batch]]:
        """Its batches that count, the last ones of its last epoch that follow each other."""
        since_us = self.now_us - WINDOW_US
        own = [
            (number, one)
            for number, one in enumerate(self.log)
            if one.producer.producer_id == producer_id
            and one.place.timestamp_us >= since_us
            and number >= self.forgotten.get(producer_id, 0)
        ]
        found: list[tuple[int, Batch]] = []
        for number, one in reversed(own):
            if found:
                behind = found[0][1]
                same = one.producer.producer_epoch == behind.producer.producer_epoch
                if not (same and one.place.end_sequence == behind.place.sequence):
                    break
            found.insert(0, (number, one))
        return found[-KEPT:]

    def answer(self, producer: BatchProducer, rows: int) -> ProducerBatch | ErrorCode | None:
        known = [one for _, one in self.of(producer.producer_id)]
        first, end = producer.producer_sequence, producer.producer_sequence + rows
        if not known:
            return ErrorCode.UNKNOWN_PRODUCER if first else None
        epoch = known[-1].producer.producer_epoch
        if producer.producer_epoch < epoch:
            return ErrorCode.PRODUCER_FENCED
        if producer.producer_epoch > epoch:
            return ErrorCode.OUT_OF_SEQUENCE if first else None
        expected = known[-1].place.end_sequence
        if first == expected:
            return None
        if end > expected:
            return ErrorCode.OUT_OF_SEQUENCE
        for one in known:
            if (one.place.sequence, one.place.end_sequence) == (first, end):
                return one.place
        return ErrorCode.ALREADY_APPENDED

    def store(self, producer: BatchProducer, rows: int) -> Batch:
        base = self.log[-1].place.end_offset if self.log else 0
        first = producer.producer_sequence
        batch = Batch(producer, ProducerBatch(first, first + rows, base, base + rows, self.now_us))
        self.log.append(batch)
        since_us = self.now_us - WINDOW_US
        last = {one.producer.producer_id: number for number, one in enumerate(self.log)
                if one.place.timestamp_us >= since_us and one.producer.producer_id
                and number >= self.forgotten.get(one.producer.producer_id, 0)}  # fmt: skip
        for producer_id in sorted(last, key=last.__getitem__)[: -self.producers_max]:
            self.forgotten[producer_id] = len(self.log)
        return batch


@contextmanager
def known_at_most(count: int) -> Iterator[None]:
    before, limits.PRODUCERS_MAX = limits.PRODUCERS_MAX, count
    try:
        yield
    finally:
        limits.PRODUCERS_MAX = before


def asked(producers: Producers, producer: BatchProducer, rows: int, now_us: int) -> ProducerBatch | str | None:
    try:
        return producers.find(producer, rows, now_us)
    except RemoteError as error:
        return error.code


def read(model: Model) -> Producers:
    """What a leader that begins now finds in the log."""
    found = ProducerCollector(model.now_us - WINDOW_US)
    for batch in reversed(model.log):
        if found.wants(batch.header):
            found.add(batch.header)
    producers = Producers()
    assert producers.is_reading
    producers.known(found)
    return producers


ACTS = st.lists(
    st.tuples(
        st.integers(1, 4),  # who
        st.integers(0, 2),  # in which epoch
        st.integers(-9, 2),  # where it begins, from where it should on
        st.integers(1, 3),  # how many rows
        st.sampled_from([0, 0, 0, 1, WINDOW_US // 3, WINDOW_US, WINDOW_US + 1]),  # and how much later
        st.booleans(),  # whether it counts from 0
    ),
    max_size=40,
)


@given(ACTS, st.integers(1, 4))
@example([(1, 0, 0, 1, 0, False)] * 8 + [(1, 0, back, 1, 0, False) for back in range(-8, 0)], 4)
@settings(max_examples=examples(300))
def test_what_is_known_is_what_the_log_says(
    acts: list[tuple[int, int, int, int, int, bool]], producers_max: int
) -> None:
    with known_at_most(producers_max):
        model = Model(producers_max)
        kept = read(model)
        for who, epoch, shift, rows, later_us, from_zero in acts:
            model.now_us += later_us
            own = [one for one in model.log if one.producer.producer_id == who]
            expected = own[-1].place.end_sequence if own and not from_zero else 0
            producer = BatchProducer(who, epoch, max(0, expected + shift))
            wanted = model.answer(producer, rows)
            assert asked(kept, producer, rows, model.now_us) == wanted
            assert asked(read(model), producer, rows, model.now_us) == wanted
            if wanted is None:
                kept.appended(model.store(producer, rows).header)
            assert kept.count <= producers_max
        # Whoever leads next knows the same.
        fresh = read(model)
        for who in range(1, 5):
            for epoch in range(4):
                for sequence in range(12):
                    producer = BatchProducer(who, epoch, sequence)
                    assert asked(kept, producer, 1, model.now_us) == asked(fresh, producer, 1, model.now_us)


@given(ACTS)
@settings(max_examples=examples(200))
def test_no_row_of_a_producer_is_stored_twice_or_left_out(acts: list[tuple[int, int, int, int, int, bool]]) -> None:
    """Within a window: in the log each epoch of a producer counts from 0 without gaps."""
    model = Model(limits.PRODUCERS_MAX)
    producers = read(model)
    for number, (who, epoch, shift, rows, _, _) in enumerate(acts):
        if number % 7 == 3:
            producers = read(model)
        own = [one.place.end_sequence for one in model.log if one.producer[:2] == (who, epoch)]
        producer = BatchProducer(who, epoch, max(0, max(own, default=0) + shift))
        if asked(producers, producer, rows, model.now_us) is None:
            producers.appended(model.store(producer, rows).header)
    for who in range(1, 5):
        epochs = [one.producer.producer_epoch for one in model.log if one.producer.producer_id == who]
        assert epochs == sorted(epochs)
        for epoch in set(epochs):
            ends = [one.place for one in model.log if one.producer[:2] == (who, epoch)]
            assert [place.sequence for place in ends] == [0, *(place.end_sequence for place in ends[:-1])]


def test_batches_of_nobody_are_passed_over() -> None:
    producers = read(Model(1))
    producers.appended(Batch(BatchProducer(), ProducerBatch(0, 1, 0, 1, 0)).header)
    assert producers.count == 0
