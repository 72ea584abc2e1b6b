"""Checksums of rows by offset range, to compare replicas without transferring their rows.

Rules: a checksum depends on the rows alone, not on batch boundaries or compression, which each replica's cleaner
decides by itself. Null and empty differ. Ranges begin at the multiples of VERIFY_RANGE_OFFSETS and at the offsets given
as `cuts`; a range without rows has no checksum. Rows come in offset order, already checked (`codec.check_rows`), and
are processed as whole buffers, many small batches at a time. An unfinished checksum can be sent elsewhere and continued
there.

Theory: a CRC can be continued over pieces, so different batch boundaries give the same result. Arrow's value offsets
restart in each batch, so lengths are hashed in their place, with -1 for null.

| number | CRC-32C of, over all rows of the range, one after the other                     |
|--------|---------------------------------------------------------------------------------|
| 0      | offsets, 8 bytes each, little-endian                                            |
| 1      | timestamps, 8 bytes each                                                        |
| 2, 3   | lengths of the subjects, 4 bytes each; their bytes                              |
| 4, 5   | the same of the keys                                                            |
| 6, 7   | the same of the values                                                          |
| 8, 9   | the same of the headers                                                         |
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.base.ids import Offset
from penstock.batch.layout import COLUMNS
from penstock.hot.crc import crc32c

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_STRINGS = 2  # columns 0 and 1 hold numbers
CRCS = _FIRST_STRINGS + 2 * (len(COLUMNS) - _FIRST_STRINGS)
_NONE_YET = (0,) * CRCS

Row = tuple[int, int, str, bytes | None, bytes | None, bytes | None]
"""Offset, timestamp (µs), subject, key, value, headers."""


class RangeSum(NamedTuple):
    """Row count, first and last offset and CRCs of the rows from `begin` to `end` (exclusive)."""

    begin: int
    end: int
    rows: int
    first_offset: int
    last_offset: int
    crcs: tuple[int, ...]


class RangeSums:
    """Computes the checksums of a log's rows from `begin` up to `end`, batch by batch.

    Rows before `start` were counted elsewhere; `carried` is the unfinished checksum to continue.
    """

    __slots__ = ("_cuts", "_end", "_start", "_waiting", "_waiting_bytes", "done", "going_on")

    def __init__(
        self,
        begin: int = 0,
        end: int = limits.OFFSET_MAX,
        *,
        cuts: Iterable[int] = (),
        start: int | None = None,
        carried: RangeSum | None = None,
    ) -> None:
        self._start = begin if start is None else start
        self._end = end
        self._cuts = tuple(sorted({*cuts, begin, end}))
        self._waiting: list[pa.RecordBatch] = []  # rows not counted yet
        self._waiting_bytes = 0
        self.done: tuple[RangeSum, ...] = ()
        self.going_on = carried

    def range_of(self, offset: int) -> tuple[int, int]:
        """Return the begin and end of the range that holds an offset."""
        begin = offset - offset % limits.VERIFY_RANGE_OFFSETS
        number = bisect_right(self._cuts, offset)
        earlier, later = self._cuts[:number], self._cuts[number:]
        return max([begin, *earlier[-1:]]), min([begin + limits.VERIFY_RANGE_OFFSETS, *later[:1]])

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows that follow the previous ones. Rows before `start` or from `end` on are ignored.

        They count in `done` and `going_on` only after `settle`.
        """
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= limits.VERIFY_JOINED_BYTES or len(self._waiting) >= limits.VERIFY_JOINED_BATCHES:
            self.settle()

    def settle(self) -> None:
        """Count all buffered rows."""
        import pyarrow as pa

        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if waiting:
            self._count(waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting))

    def _count(self, rows: pa.RecordBatch) -> None:
        offsets = memoryview(_numbers(rows.column(0))).cast("q")
        first, stop = bisect_left(offsets, self._start), bisect_left(offsets, self._end)
        while first < stop:
            begin, end = self.range_of(offsets[first])
            after = bisect_left(offsets, end, first, stop)
            self._add(begin, end, rows.slice(first, after - first), offsets[first], offsets[after - 1])
            first = after

    def _add(self, begin: int, end: int, rows: pa.RecordBatch, first_offset: int, last_offset: int) -> None:
        found = self.going_on
        if found is None or found.begin != begin:
            self._end_range()
            found = RangeSum(begin, end, 0, first_offset, first_offset, _NONE_YET)
        assert not found.rows or found.last_offset < first_offset, (found, first_offset)
        crcs = tuple(crc32c(piece, crc) for piece, crc in zip(_pieces(rows), found.crcs, strict=True))
        self.going_on = RangeSum(begin, end, found.rows + rows.num_rows, found.first_offset, last_offset, crcs)

    def finish(self) -> tuple[RangeSum, ...]:
        """Finish the last range and return all checksums."""
        self.settle()
        self._end_range()
        return self.done

    def _end_range(self) -> None:
        if self.going_on is not None:
            self.done += (self.going_on,)
            self.going_on = None

    def state(self) -> tuple[tuple[RangeSum, ...], RangeSum | None]:
        """Return the state that `back_to` restores."""
        self.settle()
        return self.done, self.going_on

    def back_to(self, state: tuple[tuple[RangeSum, ...], RangeSum | None]) -> None:
        """Restore an earlier state, dropping the rows added since."""
        self._waiting, self._waiting_bytes = [], 0
        self.done, self.going_on = state


def _pieces(rows: pa.RecordBatch) -> Iterator[memoryview]:
    for number, column in enumerate(rows.columns):
        if number < _FIRST_STRINGS:
            yield _numbers(column)
        else:
            yield from _strings(column)


def _numbers(column: pa.Array) -> memoryview:
    """Return a numeric column's values as bytes."""
    return _cut(column.buffers()[1], 8 * column.offset, 8 * (column.offset + len(column)))


def _strings(column: pa.Array) -> Iterator[memoryview]:
    """Yield the lengths (-1 for null), then the values end to end."""
    import pyarrow.compute as pc

    lengths = pc.binary_length(column)
    filled = pc.fill_null(lengths, -1)
    yield _cut(filled.buffers()[1], 4 * filled.offset, 4 * (filled.offset + len(filled)))
    begin, end = _bounds(column)
    if column.null_count and end - begin != (pc.sum(lengths).as_py() or 0):
        # Bytes beneath a null are not visible, and a replica that removed rows may have dropped them.
        column = column.drop_null()
        begin, end = _bounds(column)
    yield _cut(column.buffers()[2], begin, end)


def _bounds(column: pa.Array) -> tuple[int, int]:
    bounds = _cut(column.buffers()[1], 4 * column.offset, 4 * (column.offset + len(column) + 1)).cast("i")
    return bounds[0], bounds[-1]


def _cut(buffer: pa.Buffer | None, begin: int, end: int) -> memoryview:
    return memoryview(b"" if buffer is None else buffer).cast("B")[begin:end]


def rows_between(batches: Iterable[pa.RecordBatch], begin: int, end: int) -> Iterator[Row]:
    """Yield the rows of checked batches from offset `begin` up to `end`, one by one."""
    import pyarrow as pa

    for batch in batches:
        offsets = memoryview(_numbers(batch.column(0))).cast("q")
        first, stop = bisect_left(offsets, begin), bisect_left(offsets, end)
        part = batch.slice(first, stop - first)
        columns = [part.column(0), part.column(1).cast(pa.int64()), *part.columns[2:]]
        yield from zip(*(column.to_pylist() for column in columns), strict=True)


def cuts_of(extents: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return the begins and ends of the replicas' extents: no range then lies partly in a replica."""
    return tuple(sorted({Offset(place) for extent in extents for place in extent}))
