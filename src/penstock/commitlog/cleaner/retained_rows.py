"""Decisions of compaction and expiry: the rules of a pass, and which rows of a segment stay.

Rules: a batch has at least one row, and its offsets can be covered neither by a batch of another leader epoch nor by a
producer's batch. So of each run of batches that may cover each other at least one row stays. Where rows are hidden by
marks, none has to: what covers offsets is blank by then (`FoundRows`).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.batch.header import NO_RUN, BatchHeader
from penstock.commitlog.segment.segment import Segment
from penstock.live.row_set import NONE, RowSet

if TYPE_CHECKING:
    import pyarrow as pa


_FEW = 1_024  # offsets of a chunk that are taken one by one


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
    by_marks: bool = False  # rows that go are collected to be hidden; no segment is to be rewritten


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


class FoundRows:
    """Collects the offsets of rows that a survey found to go, in any order, and of gaps. Memory is that of the set."""

    def __init__(self, hidden: RowSet | None) -> None:
        """`hidden`: rows that are hidden already."""
        self._hidden = NONE if hidden is None else hidden
        self._rows = NONE
        self._parts: list[pa.Int64Array] = []
        self._count = 0

    def add(self, offsets: pa.Int64Array) -> None:
        """Add offsets, which rise."""
        if len(offsets):
            self._parts.append(offsets)
            self._count += len(offsets)
            if self._count >= limits.FOUND_ROWS_AT_ONCE:
                self._put_together()

    def add_gaps(self, header: BatchHeader, offsets: pa.Int64Array) -> None:
        """Add the offsets of a batch that it only covers: rows that this replica has lost, and others may have."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.may_have_gaps(header):
            return
        before = pa.concat_arrays([pa.array([header.base_offset - 1], pa.int64()), offsets])
        behind = pa.concat_arrays([offsets, pa.array([header.end_offset], pa.int64())])
        begins = pc.add(before, 1)
        is_gap = pc.less(begins, behind)
        gaps = zip(begins.filter(is_gap).to_pylist(), behind.filter(is_gap).to_pylist(), strict=True)
        self._rows |= RowSet.of_runs(gap for gap in gaps if self._hidden.count_in(*gap) < gap[1] - gap[0])

    def may_have_gaps(self, header: BatchHeader) -> bool:
        """True if a batch covers more offsets than those of its rows and of hidden ones."""
        begin, end = header.base_offset, header.end_offset
        return header.count < end - begin and header.count + self._hidden.count_in(begin, end) < end - begin

    def finish(self) -> RowSet:
        """Return all that was added."""
        self._put_together()
        return self._rows

    def _put_together(self) -> None:
        import pyarrow as pa

        if not self._parts:
            return
        self._rows |= _row_set(pa.concat_arrays(self._parts).sort())
        self._parts, self._count = [], 0


def _row_set(offsets: pa.Int64Array) -> RowSet:
    """Return the set of these offsets, which rise."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = memoryview(offsets.buffers()[1]).cast("B").cast("q")[offsets.offset : offsets.offset + len(offsets)]
    found = NONE
    at = 0
    while at < len(numbers):
        chunk = numbers[at] >> 16
        stop = bisect_left(numbers, (chunk + 1) << 16, at)
        if stop - at < _FEW:
            found |= RowSet.of(numbers[at:stop])
        else:
            places = pa.array(range(chunk << 16, (chunk + 1) << 16), pa.int64())
            bits = pc.is_in(places, value_set=offsets.slice(at, stop - at)).buffers()[1]
            found |= RowSet.of_bits(chunk << 16, bits.to_pybytes())
        at = stop
    return found
