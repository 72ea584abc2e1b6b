"""What is judged of a log: by which rules, and which rows of a segment stay.

Rules: a batch has one row at least, and none of another leader epoch, or of a producer, covers its offsets. So of each
run of batches that may cover each other's one row stays, whatever else was judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.batch.header import NO_RUN, BatchHeader
from penstock.commitlog.segment import Segment

if TYPE_CHECKING:
    import pyarrow as pa


class Rules(NamedTuple):
    """By what a pass judges."""

    dirty_start: int  # where keys count, each key is there once in what comes before
    end: int
    tombstones_end: int = 0  # those before it may go, …
    forced_keys: frozenset[bytes] = frozenset()  # … but for those of these keys
    by_key: bool = True  # of each the last row stays
    rollups_start: int | None = None  # others of their subject go for rollups from there on; None: for none
    keys_go: bool = True  # the last row of a key may go for a rollup
    is_due: bool = True  # also without rollups


class Judged(NamedTuple):
    """One segment that has rows to go: which of its rows stay, as far as they were judged."""

    segment: Segment
    keep: pa.BooleanArray
    is_ordered: bool = False  # the names of those before it are to be durable first


class _Run:
    """Rows of a segment of which one must stay, because nothing else could cover their offsets."""

    __slots__ = ("end_row", "epoch", "last_key", "last_subject", "start_row")

    def __init__(self, epoch: int | None, start_row: int) -> None:
        self.epoch = epoch  # None: a batch of a producer, which stays one of its own
        self.start_row = self.end_row = start_row
        self.last_key: bytes | None = None
        self.last_subject: bytes | None = None


class Forced(NamedTuple):
    """Which rows of a segment stay, with those that were to go and cannot; keys and subjects of these, where asked."""

    keep: pa.BooleanArray
    keys: list[bytes]
    subjects: list[bytes]


class Found:
    """What is judged of one segment."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.keeps: list[pa.BooleanArray | None] = []
        self._runs: list[_Run] = []

    def batch(self, header: BatchHeader, last_key: bytes | None = None, last_subject: bytes | None = None) -> None:
        """The next batch of it, and the key and the subject of its last row."""
        is_alone = header.producer_id or header.run_id != NO_RUN
        epoch = None if is_alone else header.leader_epoch
        rows = self._runs[-1].end_row if self._runs else 0
        if not self._runs or epoch is None or self._runs[-1].epoch != epoch:
            self._runs.append(_Run(epoch, rows))
        self._runs[-1].end_row = rows + header.count
        self._runs[-1].last_key = last_key
        self._runs[-1].last_subject = last_subject

    def forced(self) -> Forced:
        """Which rows stay, once all are judged."""
        import pyarrow as pa

        keep = pa.concat_arrays(self.keeps)
        empty = [run for run in self._runs if not keep.slice(run.start_row, run.end_row - run.start_row).true_count]
        if not empty:
            return Forced(keep, [], [])
        bits = bytearray(keep.buffers()[1])
        for run in empty:
            bits[(run.end_row - 1) // 8] |= 1 << (run.end_row - 1) % 8
        keys = [run.last_key for run in empty if run.last_key is not None]
        subjects = [run.last_subject for run in empty if run.last_subject is not None]
        return Forced(pa.Array.from_buffers(pa.bool_(), len(keep), [None, pa.py_buffer(bits)]), keys, subjects)
