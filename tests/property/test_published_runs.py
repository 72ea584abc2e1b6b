"""The runs that are known, against a list of all pieces that were ever stored; forwards, and read backwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.staged import is_once, once_id
from penstock.batch.header import ENDS_RUN, HEADER_VERSION, OF_RUN, BatchHeader
from penstock.ingest.published import PublishedRun, PublishedRuns, RunCollector, RunPiece
from tests.extent import examples

WINDOW_US = limits.PUBLISHED_WINDOW_MS * 1_000


class Model:
    """A log, and what the rules say of it."""

    def __init__(self, queries_max: int) -> None:
        self.queries_max = queries_max
        self.log: list[BatchHeader] = []
        self.now_us = 10 * WINDOW_US

    def of(self, query_id: bytes) -> list[BatchHeader]:
        """Its last batch, piece by piece, if it counts."""
        since_us = self.now_us - WINDOW_US
        recent = [one for one in self.log if one.max_timestamp_us >= since_us]
        kind = is_once(query_id)  # those who publish once oust no queries, and the other way round
        last = {one.run_id: number for number, one in enumerate(recent) if is_once(one.run_id) == kind}
        if query_id not in sorted(last, key=last.__getitem__)[-self.queries_max - kind :]:
            return []
        batch_id = recent[last[query_id]].producer_sequence
        return [one for one in self.log if (one.run_id, one.producer_sequence) == (query_id, batch_id)]

    def answer(self, piece: RunPiece) -> tuple[int, int, bool, int] | str | None:
        pieces = self.of(piece.query_id)
        if not pieces:
            return ErrorCode.OUT_OF_SEQUENCE if piece.number else None
        last = pieces[-1]
        is_complete = bool(last.flags & ENDS_RUN)
        if piece.batch_id > last.producer_sequence:
            if not is_complete:
                return ErrorCode.RUN_UNFINISHED
            return ErrorCode.OUT_OF_SEQUENCE if piece.number else None
        there = (last.producer_sequence, last.producer_epoch + 1, is_complete, last.run_plan)
        is_next = piece.batch_id == last.producer_sequence and not is_complete
        if is_next and piece.number > last.producer_epoch + 1:
            return ErrorCode.OUT_OF_SEQUENCE
        if is_next and piece.number == last.producer_epoch + 1 and piece.plan == last.run_plan:
            return None
        return there

    def store(self, piece: RunPiece, *, is_last: bool) -> BatchHeader:
        base = self.log[-1].end_offset if self.log else 0
        flags = OF_RUN | (ENDS_RUN if is_last else 0)
        numbers = (HEADER_VERSION, flags, 0, 0, 3, 1, base, base + 3, self.now_us, self.now_us)
        header = BatchHeader(*numbers, 0, piece.number, piece.batch_id, piece.query_id, piece.plan)
        self.log.append(header)
        return header


@contextmanager
def known_at_most(count: int) -> Iterator[None]:
    before = limits.PUBLISHED_QUERIES_MAX, limits.PUBLISHED_ONCE_MAX
    limits.PUBLISHED_QUERIES_MAX, limits.PUBLISHED_ONCE_MAX = count, count + 1
    try:
        yield
    finally:
        limits.PUBLISHED_QUERIES_MAX, limits.PUBLISHED_ONCE_MAX = before


def asked(runs: PublishedRuns, piece: RunPiece, now_us: int) -> tuple[int, int, bool, int] | str | None:
    try:
        found: PublishedRun | None = runs.find(piece, now_us)
    except RemoteError as error:
        return error.code
    return None if found is None else found[:4]


def read(model: Model) -> PublishedRuns:
    """What a leader that begins now finds in the log."""
    found = RunCollector(model.now_us - WINDOW_US)
    for header in reversed(model.log):
        if found.wants(header):
            found.add(header)
    runs = PublishedRuns()
    assert runs.is_reading
    runs.known(found)
    return runs


ACTS = st.lists(
    st.tuples(
        st.integers(1, 6),  # which query
        st.integers(-1, 1),  # which batch, from its last one on
        st.integers(-1, 1),  # which piece, from the next one on
        st.sampled_from([0, 7, 7, 9]),  # of which plan
        st.booleans(),  # whether it is the last
        st.sampled_from([0, 0, 0, 1, WINDOW_US // 3, WINDOW_US, WINDOW_US + 1]),  # and how much later
    ),
    max_size=40,
)


@given(ACTS, st.integers(1, 4))
@settings(max_examples=examples(300))
def test_what_is_known_is_what_the_log_says(acts: list[tuple[int, int, int, int, bool, int]], queries_max: int) -> None:
    with known_at_most(queries_max):
        model = Model(queries_max)
        kept = read(model)
        query_ids = [bytes([one]) * 16 for one in (0, 1, 2, 0x83, 0x84, 0x85, 3)]
        assert [is_once(one) for one in query_ids] == [False, False, False, True, True, True, False]
        for query, batch_shift, piece_shift, plan, is_last, later_us in acts:
            model.now_us += later_us
            query_id = query_ids[query]
            own = [one for one in model.log if one.run_id == query_id]
            batch_id = max(0, (own[-1].producer_sequence if own else 0) + batch_shift)
            number = sum(one.producer_sequence == batch_id for one in own)
            piece = RunPiece(query_id, batch_id, max(0, number + piece_shift), plan)
            wanted = model.answer(piece)
            assert asked(kept, piece, model.now_us) == wanted
            assert asked(read(model), piece, model.now_us) == wanted
            if wanted is None:
                kept.appended(model.store(piece, is_last=is_last))
            assert kept.count <= 2 * queries_max + 1
        page = kept.page(b"", 10, model.now_us)
        assert page == read(model).page(b"", 10, model.now_us)
        assert [one for one, _ in page] == sorted(one for one in {h.run_id for h in model.log} if model.of(one))


@given(ACTS)
@settings(max_examples=examples(200))
def test_no_piece_is_stored_twice_or_left_out(acts: list[tuple[int, int, int, int, bool, int]]) -> None:
    """Within a window: batches rise, pieces count from 0 by one plan, and no batch begins before the last ended."""
    model = Model(limits.PUBLISHED_QUERIES_MAX)
    runs = read(model)
    for turn, (query, batch_shift, piece_shift, plan, is_last, _) in enumerate(acts):
        if turn % 7 == 3:
            runs = read(model)
        query_id = bytes([query]) * 16
        own = [one for one in model.log if one.run_id == query_id]
        batch_id = max(0, (own[-1].producer_sequence if own else 0) + batch_shift)
        number = max(0, sum(one.producer_sequence == batch_id for one in own) + piece_shift)
        piece = RunPiece(query_id, batch_id, number, plan)
        if asked(runs, piece, model.now_us) is None:
            runs.appended(model.store(piece, is_last=is_last))
    for query in range(1, 7):
        own = [one for one in model.log if one.run_id == bytes([query]) * 16]
        batches = [one.producer_sequence for one in own]
        assert batches == sorted(batches)
        for batch_id in set(batches):
            pieces = [one for one in own if one.producer_sequence == batch_id]
            assert [one.producer_epoch for one in pieces] == list(range(len(pieces)))
            assert len({one.run_plan for one in pieces}) == 1
            ends = [bool(one.flags & ENDS_RUN) for one in pieces]
            assert not any(ends[:-1])
            assert ends[-1] or batch_id == batches[-1]


def test_batches_of_no_run_are_passed_over() -> None:
    runs = read(Model(1))
    runs.appended(BatchHeader(HEADER_VERSION, 0, 0, 0, 1, 1, 0, 1, 0, 0, 7, 0, 0))
    assert runs.count == 0


@given(st.binary(min_size=16, max_size=16))
def test_an_id_for_one_batch_is_told_by_its_version(chance: bytes) -> None:
    found = once_id(chance)
    assert is_once(found)
    assert found.hex()[:12] + found.hex()[13:] == chance.hex()[:12] + chance.hex()[13:]
    assert is_once(chance) == (UUID(bytes=chance).hex[12] == "8")
