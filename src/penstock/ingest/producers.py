"""Idempotent producers of a log: the batches that each has appended last, to recognise retries.

Rules: a producer numbers the rows of its batches. A batch is stored if it begins where the previous one ended; a known
duplicate gets the place of the stored batch; all others are refused. Known are the last PRODUCER_BATCHES_KEPT
consecutive batches of a producer, of its latest epoch, and no older than the window; of more than PRODUCERS_MAX
producers those that appended last. So this state is a function of the log and the time, on every leader.

| a batch of a producer  | of an older epoch | of the same epoch   | of a newer epoch  |
|------------------------|-------------------|---------------------|-------------------|
| begins at 0            | `producer_fenced` | by the rows below   | is stored         |
| begins where it should | `producer_fenced` | is stored           |                   |
| is one of those known  | `producer_fenced` | is there: its place | `out_of_sequence` |
| ends before that       | `producer_fenced` | `already_appended`  | `out_of_sequence` |
| anything else          | `producer_fenced` | `out_of_sequence`   | `out_of_sequence` |

A batch of an unknown producer is stored if it begins at 0; otherwise it is refused with `unknown_producer`.

Idea: Kafka's idempotent producer (KIP-98), which also keeps five batches. In Kafka a snapshot has what was known when a
segment was rolled; here the log alone does.
"""

from __future__ import annotations

from collections import deque
from heapq import nsmallest
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.batch.codec import BatchProducer
from penstock.batch.header import BatchHeader


class ProducerBatch(NamedTuple):
    """Position of a producer's batch. Its rows have the sequences from `sequence` up to `end_sequence`."""

    sequence: int
    end_sequence: int
    base_offset: int
    end_offset: int
    timestamp_us: int


def _place_of(header: BatchHeader) -> ProducerBatch:
    sequence = header.producer_sequence
    end_sequence = sequence + header.end_offset - header.base_offset  # also after compaction has removed rows
    return ProducerBatch(sequence, end_sequence, header.base_offset, header.end_offset, header.max_timestamp_us)


class _Known:
    """The last batches of one producer, consecutive, at least one."""

    __slots__ = ("epoch", "places")

    def __init__(self, epoch: int, place: ProducerBatch) -> None:
        self.epoch = epoch
        self.places = deque((place,), limits.PRODUCER_BATCHES_KEPT)


class Producers:
    """The producers of one leadership: being read from the log, known, or unavailable; see `node.api.producers`.

    `failure`: why they could not be read; empty if they are known or still being read.
    """

    __slots__ = ("_known", "failure")

    def __init__(self) -> None:
        self.failure = ""
        self._known: dict[int, _Known] | None = None  # ordered by last append

    @property
    def is_reading(self) -> bool:
        """True if they are not known yet."""
        return self._known is None and not self.failure

    @property
    def count(self) -> int:
        """Number of known producers."""
        return 0 if self._known is None else len(self._known)

    def known(self, found: ProducerCollector) -> None:
        """Take the result of reading the log."""
        self._known = found.in_order()

    def page(self, after: int, count: int, now_us: int) -> list[tuple[int, int, ProducerBatch]]:
        """Return id, epoch and last batch of up to `count` producers with an id above `after`, ordered by id."""
        assert self._known is not None
        since_us = now_us - _WINDOW_US
        ids = [one for one, known in self._known.items() if one > after and known.places[-1].timestamp_us >= since_us]
        return [(one, self._known[one].epoch, self._known[one].places[-1]) for one in nsmallest(count, ids)]

    def find(self, producer: BatchProducer, rows: int, now_us: int) -> ProducerBatch | None:
        """Return the place of a stored duplicate of this batch, or None if the batch is to be stored.

        Raise RemoteError producer_fenced, out_of_sequence, already_appended or unknown_producer: it must not be stored.
        """
        assert self._known is not None
        since_us = now_us - _WINDOW_US
        known = self._known.get(producer.producer_id)
        sequence = producer.producer_sequence
        if known is None or known.places[-1].timestamp_us < since_us:
            if sequence:
                text = f"producer {producer.producer_id} is not known (any more): what it appended is too long ago"
                raise _refused(ErrorCode.UNKNOWN_PRODUCER, f"{text}; it begins anew, in a higher epoch, with 0")
            return None
        if producer.producer_epoch < known.epoch:
            text = f"producer {producer.producer_id} is in epoch {known.epoch}, and this comes from its"
            text += f" epoch {producer.producer_epoch}: another one has taken its place"
            raise _refused(ErrorCode.PRODUCER_FENCED, text, producer_epoch=known.epoch)
        expected = known.places[-1].end_sequence if producer.producer_epoch == known.epoch else 0
        if sequence == expected:
            return None
        if sequence + rows <= expected:
            for place in known.places:
                if (place.sequence, place.end_sequence) == (sequence, sequence + rows):
                    if place.timestamp_us < since_us:
                        break
                    return place
            text = f"the rows from {sequence} on are stored already, but their offsets are not known (any more)"
            raise _refused(ErrorCode.ALREADY_APPENDED, text, next_sequence=expected)
        text = f"producer {producer.producer_id} is to go on with the sequence {expected}, and this begins with"
        raise _refused(ErrorCode.OUT_OF_SEQUENCE, f"{text} {sequence}", next_sequence=expected)

    def appended(self, header: BatchHeader) -> None:
        """Record a batch that `find` let pass and that was appended at the end of the log."""
        if self._known is None or not header.producer_id:
            return
        place = _place_of(header)
        known = self._known.pop(header.producer_id, None)
        if known is None or known.epoch != header.producer_epoch or known.places[-1].end_sequence != place.sequence:
            known = _Known(header.producer_epoch, place)
        else:
            known.places.append(place)
        self._known[header.producer_id] = known
        since_us = place.timestamp_us - _WINDOW_US
        while len(self._known) > limits.PRODUCERS_MAX or self._oldest_us() < since_us:
            del self._known[next(iter(self._known))]

    def _oldest_us(self) -> int:
        assert self._known is not None
        return next(iter(self._known.values())).places[-1].timestamp_us


class ProducerCollector:
    """Collects producers from the headers of a log, the last batch first, back to `since_us`."""

    def __init__(self, since_us: int) -> None:
        self._since_us = since_us
        self._found: dict[int, _Known] = {}
        self._complete: set[int] = set()  # producers for which older batches do not matter

    def wants(self, header: BatchHeader) -> bool:
        """True if the batch matters: then verify and `add` it."""
        producer_id = header.producer_id
        if not producer_id or producer_id in self._complete or header.max_timestamp_us < self._since_us:
            return False
        known = self._found.get(producer_id)
        if known is None:
            return len(self._found) < limits.PRODUCERS_MAX
        if (
            known.epoch == header.producer_epoch
            and known.places[0].sequence == _place_of(header).end_sequence
            and len(known.places) < limits.PRODUCER_BATCHES_KEPT
        ):
            return True
        self._complete.add(producer_id)
        return False

    def add(self, header: BatchHeader) -> None:
        """Add a batch for which `wants` is true."""
        known = self._found.get(header.producer_id)
        if known is None:
            self._found[header.producer_id] = _Known(header.producer_epoch, _place_of(header))
        else:
            known.places.appendleft(_place_of(header))

    def in_order(self) -> dict[int, _Known]:
        """Return all producers found, ordered by last append."""
        return dict(reversed(self._found.items()))


_WINDOW_US = limits.PRODUCER_WINDOW_MS * 1_000


def _refused(code: ErrorCode, text: str, **details: int) -> RemoteError:
    return RemoteError(code, f"nothing was stored: {text}", **details)
