"""Checksums of rows by ranges of offsets, for comparing replicas without sending what they hold.

Rules: a checksum depends on the rows alone: not on how they are grouped into batches, nor on whether these are
compressed, which each replica's cleaner decides by itself. Null and empty differ. Ranges begin at the multiples of
VERIFY_RANGE_OFFSETS, and at the places given as `cuts`; one in which there is no row has no checksum. Rows come in
their order, checked (`codec.check_rows`), and are looked at in whole buffers, small batches many at a time. A checksum
that is not finished can be sent elsewhere, and gone on with.

Theory: a CRC runs on over bytes that come in pieces, so rows that are cut into other batches end in the same one.
Bounds of values are counted anew in each batch, so their lengths take the place of the bounds, with -1 for null.

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

_FIRST_STRINGS = 2  # before it come the columns of numbers
CRCS = _FIRST_STRINGS + 2 * (len(COLUMNS) - _FIRST_STRINGS)
_NONE_YET = (0,) * CRCS

Row = tuple[int, int, str, bytes | None, bytes | None, bytes | None]
"""Offset, timestamp (µs), subject, key, value, headers."""


class RangeSum(NamedTuple):
    """What lies between two offsets, `end` not included: so many rows, from the first to the last, and their CRCs."""

    begin: int
    end: int
    rows: int
    first_offset: int
    last_offset: int
    crcs: tuple[int, ...]

    def differing_columns(self, other: RangeSum) -> tuple[str, ...]:
        """The columns in which another one of the same range differs."""
        numbers = (number for number in range(CRCS) if self.crcs[number] != other.crcs[number])
        return tuple(dict.fromkeys(COLUMNS[_column_of(number)] for number in numbers))


def _column_of(number: int) -> int:
    return number if number < _FIRST_STRINGS else _FIRST_STRINGS + (number - _FIRST_STRINGS) // 2


class RangeSums:
    """The checksums of a log's rows from `begin` up to `end`, as they come.

    Those before `start` have been counted: in `carried`, which goes on, if that is not done.
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
        self._waiting: list[pa.RecordBatch] = []  # not counted yet
        self._waiting_bytes = 0
        self.done: tuple[RangeSum, ...] = ()
        self.going_on = carried

    def range_of(self, offset: int) -> tuple[int, int]:
        """Where the range begins and ends that holds an offset."""
        begin = offset - offset % limits.VERIFY_RANGE_OFFSETS
        number = bisect_right(self._cuts, offset)
        earlier, later = self._cuts[:number], self._cuts[number:]
        return max([begin, *earlier[-1:]]), min([begin + limits.VERIFY_RANGE_OFFSETS, *later[:1]])

    def add(self, rows: pa.RecordBatch) -> None:
        """Rows that follow those of before; what lies before `start`, or at or behind `end`, is left out.

        They are counted in `done` and `going_on` once `settle` was called.
        """
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= limits.VERIFY_JOINED_BYTES or len(self._waiting) >= limits.VERIFY_JOINED_BATCHES:
            self.settle()

    def settle(self) -> None:
        """Count all rows that have come."""
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
        """All of them; the last one does not go on."""
        self.settle()
        self._end_range()
        return self.done

    def _end_range(self) -> None:
        if self.going_on is not None:
            self.done += (self.going_on,)
            self.going_on = None

    def state(self) -> tuple[tuple[RangeSum, ...], RangeSum | None]:
        """What `back_to` takes."""
        self.settle()
        return self.done, self.going_on

    def back_to(self, state: tuple[tuple[RangeSum, ...], RangeSum | None]) -> None:
        """Forget the rows that came since."""
        self._waiting, self._waiting_bytes = [], 0
        self.done, self.going_on = state


def _pieces(rows: pa.RecordBatch) -> Iterator[memoryview]:
    for number, column in enumerate(rows.columns):
        if number < _FIRST_STRINGS:
            yield _numbers(column)
        else:
            yield from _strings(column)


def _numbers(column: pa.Array) -> memoryview:
    """The values of a column of numbers, as bytes."""
    return _cut(column.buffers()[1], 8 * column.offset, 8 * (column.offset + len(column)))


def _strings(column: pa.Array) -> Iterator[memoryview]:
    """Lengths, -1 for null, and values end to end."""
    import pyarrow.compute as pc

    lengths = pc.binary_length(column)
    filled = pc.fill_null(lengths, -1)
    yield _cut(filled.buffers()[1], 4 * filled.offset, 4 * (filled.offset + len(filled)))
    begin, end = _bounds(column)
    if column.null_count and end - begin != (pc.sum(lengths).as_py() or 0):
        # Nobody sees the bytes beneath a null, and a replica that has taken out rows may have left them out.
        column = column.drop_null()
        begin, end = _bounds(column)
    yield _cut(column.buffers()[2], begin, end)


def _bounds(column: pa.Array) -> tuple[int, int]:
    bounds = _cut(column.buffers()[1], 4 * column.offset, 4 * (column.offset + len(column) + 1)).cast("i")
    return bounds[0], bounds[-1]


def _cut(buffer: pa.Buffer | None, begin: int, end: int) -> memoryview:
    return memoryview(b"" if buffer is None else buffer).cast("B")[begin:end]


def rows_between(batches: Iterable[pa.RecordBatch], begin: int, end: int) -> Iterator[Row]:
    """The rows of checked batches that have these offsets, one by one."""
    import pyarrow as pa

    for batch in batches:
        offsets = memoryview(_numbers(batch.column(0))).cast("q")
        first, stop = bisect_left(offsets, begin), bisect_left(offsets, end)
        part = batch.slice(first, stop - first)
        columns = [part.column(0), part.column(1).cast(pa.int64()), *part.columns[2:]]
        yield from zip(*(column.to_pylist() for column in columns), strict=True)


def cuts_of(extents: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Where replicas that hold these offsets begin and end: so every range lies in each replica, or outside."""
    return tuple(sorted({Offset(place) for extent in extents for place in extent}))
