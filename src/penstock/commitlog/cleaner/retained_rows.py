"""Decisions of compaction and expiry: the rules of a pass, and which rows of a segment stay.

Rules: a batch has at least one row, and its offsets can be covered neither by a batch of another leader epoch nor by a
producer's batch. So of each run of batches that may cover each other at least one row stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.batch.header import NO_RUN, BatchHeader
from penstock.commitlog.segment.segment import Segment
from penstock.live.row_set import RowSet

if TYPE_CHECKING:
    import pyarrow as pa


class CompactionRules(NamedTuple):
    """Rules of one compaction pass."""

    dirty_start: int  # with compaction by key, each key is unique before it
    end: int
    tombstones_end: int = 0  # tombstones before it may be removed, …
    forced_keys: frozenset[bytes] = frozenset()  # … except those of these keys
    by_key: bool = True  # keep the last row of each key
    rollups_start: int | None = None  # first offset of rollups that remove older rows; None: none do
    keys_go: bool = True  # a rollup may remove the last row of a key
    is_due: bool = True  # the pass runs also if there are no rollups
    hidden: RowSet | None = None  # rows that no reader is shown: they are no current ones of their keys


class RetainedRows(NamedTuple):
    """One segment that has rows to remove. `keep`: which of its rows stay, as far as decided."""

    segment: Segment
    keep: pa.BooleanArray
    is_ordered: bool = False  # the renames of earlier segments must be durable first


class _Run:
    """Rows of a segment of which one must stay, because nothing else could cover their offsets."""

    __slots__ = ("end_row", "epoch", "last_key", "last_subject", "start_row")

    def __init__(self, epoch: int | None, start_row: int) -> None:
        self.epoch = epoch  # None: a producer's batch, which is never merged
        self.start_row = self.end_row = start_row
        self.last_key: bytes | None = None
        self.last_subject: bytes | None = None


class ForcedRows(NamedTuple):
    """Rows of a segment that stay, including forced ones; keys and subjects of the forced rows."""

    keep: pa.BooleanArray
    keys: list[bytes]
    subjects: list[bytes]


class RetainedRowsBuilder:
    """Collects the decisions on one segment."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.keeps: list[pa.BooleanArray | None] = []
        self._runs: list[_Run] = []

    def batch(self, header: BatchHeader, last_key: bytes | None = None, last_subject: bytes | None = None) -> None:
        """Add the next batch, with the key and the subject of its last row."""
        is_alone = header.producer_id or header.run_id != NO_RUN
        epoch = None if is_alone else header.leader_epoch
        rows = self._runs[-1].end_row if self._runs else 0
        if not self._runs or epoch is None or self._runs[-1].epoch != epoch:
            self._runs.append(_Run(epoch, rows))
        self._runs[-1].end_row = rows + header.count
        self._runs[-1].last_key = last_key
        self._runs[-1].last_subject = last_subject

    def forced(self) -> ForcedRows:
        """Return which rows stay, once all are decided."""
        import pyarrow as pa

        keep = pa.concat_arrays(self.keeps)
        empty = [run for run in self._runs if not keep.slice(run.start_row, run.end_row - run.start_row).true_count]
        if not empty:
            return ForcedRows(keep, [], [])
        bits = bytearray(keep.buffers()[1])
        for run in empty:
            bits[(run.end_row - 1) // 8] |= 1 << (run.end_row - 1) % 8
        keys = [run.last_key for run in empty if run.last_key is not None]
        subjects = [run.last_subject for run in empty if run.last_subject is not None]
        return ForcedRows(pa.Array.from_buffers(pa.bool_(), len(keep), [None, pa.py_buffer(bits)]), keys, subjects)
