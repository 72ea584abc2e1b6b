"""Index: one fixed-width entry per batch, for lookup by offset, time and position.

Rules: an index may be deleted, short or corrupt: it is rebuilt from its segment. An entry reaches the file only after
its batch has reached the disk, so an index never claims more than the segment holds. Entries are in the order of the
segment; offset, position and time rise together, so each can be binary-searched.

One entry, 64 bytes, little-endian:

| byte | type | field              | byte | type | field                                    |
|------|------|--------------------|------|------|------------------------------------------|
| 0    | u64  | position           | 40   | u32  | size of the batch in bytes               |
| 8    | u64  | base offset        | 44   | u32  | count of rows                            |
| 16   | u64  | end offset         | 48   | u32  | leader epoch                             |
| 24   | i64  | min timestamp (µs) | 52   | u32  | CRC-32C of the batch                     |
| 32   | i64  | max timestamp (µs) | 56   | u32  | entry version, 1                         |
|      |      |                    | 60   | u32  | CRC-32C of the bytes 0 to 59 of the entry|
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from penstock.batch.header import BatchHeader
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog.errors import IndexDamagedError, IndexShortError
from penstock.commitlog.files.files import index_path
from penstock.hot.crc import crc32c
from penstock.vfs import Buffer, File, Vfs

ENTRY_BYTES = 64
ENTRY_VERSION = 1
_BODY = struct.Struct("<QQQqqIIIII")
_CRC = struct.Struct("<I")
_ENTRY_WORDS, _BASE_OFFSET_WORD = 8, 1  # of 64 bits
_ROWS_POSITION = 44
_ENTRIES_AT_ONCE = 16_384
_ENTRIES_AT_HAND = 128  # 8 KiB: one read of so many takes no longer than two of one, with their checks
_CRC_POSITION = ENTRY_BYTES - _CRC.size
assert _BODY.size == _CRC_POSITION


class BatchExtent(NamedTuple):
    """Position of one batch and what it covers."""

    position: int
    size_bytes: int
    base_offset: int
    end_offset: int
    min_timestamp_us: int
    max_timestamp_us: int

    @property
    def end_position(self) -> int:
        """Position after the batch."""
        return self.position + self.size_bytes


class IndexEntry(NamedTuple):
    """One entry as stored in the file, without its CRC."""

    position: int
    base_offset: int
    end_offset: int
    min_timestamp_us: int
    max_timestamp_us: int
    size_bytes: int
    rows: int
    leader_epoch: int
    batch_crc: int
    version: int

    def extent(self) -> BatchExtent:
        """Return the part of the entry that lookups use."""
        return BatchExtent(self[0], self[5], self[1], self[2], self[3], self[4])


def pack_entry(position: int, header: BatchHeader) -> bytes:
    """Return the ENTRY_BYTES bytes of the entry for the batch at `position`."""
    body = _BODY.pack(
        position,
        header.base_offset,
        header.end_offset,
        header.min_timestamp_us,
        header.max_timestamp_us,
        header.size_bytes,
        header.count,
        header.leader_epoch,
        header.crc,
        ENTRY_VERSION,
    )
    return body + _CRC.pack(crc32c(body))


def pack_entries(places: Iterable[tuple[int, BatchHeader]]) -> bytes:
    """Return the concatenated entries of several batches."""
    return b"".join([pack_entry(position, header) for position, header in places])


def unpack_entry(data: Buffer, *, file: str = "", position: int = 0) -> IndexEntry:
    """Parse an entry of ENTRY_BYTES bytes; raise IndexDamagedError if it is invalid."""
    if len(data) != ENTRY_BYTES:
        raise IndexShortError(file, position, f"an index entry of {ENTRY_BYTES} bytes", f"{len(data)} bytes")
    body = data[:_CRC_POSITION]
    (wanted,) = _CRC.unpack_from(data, _CRC_POSITION)
    if (crc := crc32c(body)) != wanted:
        raise IndexDamagedError(file, position, f"CRC-32C {wanted:08x}", f"{crc:08x}")
    entry = IndexEntry._make(_BODY.unpack(body))
    if entry.version != ENTRY_VERSION:
        raise IndexDamagedError(file, position, f"entry version {ENTRY_VERSION}", str(entry.version))
    return entry


class Entries(Protocol):
    """The batches of one segment, numbered from 0."""

    @property
    def count(self) -> int:
        """Number of batches."""

    def extent(self, number: int) -> BatchExtent:
        """Return batch `number`. IndexDamagedError if an index file is corrupt."""

    def last_at_or_below(self, offset: int) -> int:
        """Return the number of the last batch with base_offset <= offset, or -1."""

    def rows(self, first: int, stop: int) -> Sequence[int]:
        """Return the numbers of rows of the batches from `first` to `stop`. The CRCs of a file are not checked."""


class ActiveEntries:
    """Entries of contiguous batches in memory, such as the active segment: append-only arrays, to a fixed count."""

    __slots__ = ("_bases", "_end_offset", "_end_position", "_max", "_min", "_positions", "_rows", "count")
    BYTES_PER_BATCH = 36

    def __init__(self, columns: Columns, count: int, end_offset: int, end_position: int) -> None:
        self._bases, self._positions, self._min, self._max, self._rows = columns
        self.count = count
        self._end_offset = end_offset
        self._end_position = end_position

    def extent(self, number: int) -> BatchExtent:
        position = self._positions[number]
        if number + 1 < self.count:
            end_offset, end_position = self._bases[number + 1], self._positions[number + 1]
        else:
            end_offset, end_position = self._end_offset, self._end_position
        return BatchExtent(
            position, end_position - position, self._bases[number], end_offset, self._min[number], self._max[number]
        )

    def last_at_or_below(self, offset: int) -> int:
        return bisect_right(self._bases, offset, 0, self.count) - 1

    def rows(self, first: int, stop: int) -> Sequence[int]:
        return self._rows[first:stop]


class Columns(NamedTuple):
    """Columns that lookups need: arrays of signed 64-bit numbers, one value per batch; of rows, 32 bits."""

    base_offsets: array[int]
    positions: array[int]
    min_timestamps_us: array[int]
    max_timestamps_us: array[int]
    rows: array[int]

    @classmethod
    def empty(cls) -> Columns:
        return cls(array("q"), array("q"), array("q"), array("q"), array("I"))


class PackedEntries:
    """Entries in memory, in the file's layout. Gaps between them are corrupt ranges."""

    __slots__ = ("_data", "count")

    def __init__(self, data: Buffer) -> None:
        assert len(data) % ENTRY_BYTES == 0
        self._data = data
        self.count = len(data) // ENTRY_BYTES

    @property
    def data(self) -> Buffer:
        """All entries, concatenated."""
        return self._data

    def columns(self) -> Columns:
        """Return all entries as arrays. An entry is eight 64-bit words, and its first five fields are one word each."""
        numbers, step = _words(self._data), _ENTRY_WORDS
        rows = _row_numbers(bytes(self._data))
        return Columns(numbers[1::step], numbers[0::step], numbers[3::step], numbers[4::step], rows)

    def entry(self, number: int) -> IndexEntry:
        assert 0 <= number < self.count
        return IndexEntry._make(_BODY.unpack_from(self._data, number * ENTRY_BYTES))

    def extent(self, number: int) -> BatchExtent:
        return self.entry(number).extent()

    def last_at_or_below(self, offset: int) -> int:
        return bisect_right(range(self.count), offset, key=lambda number: self.extent(number).base_offset) - 1

    def rows(self, first: int, stop: int) -> Sequence[int]:
        return _row_numbers(bytes(self._data[first * ENTRY_BYTES : stop * ENTRY_BYTES]))


def _words(entries: Buffer) -> array[int]:
    """Return concatenated entries as 64-bit words."""
    words = array("q", bytes(entries))
    if sys.byteorder == "big":
        words.byteswap()
    return words


def _row_numbers(entries: bytes) -> array[int]:
    """Return the numbers of rows in concatenated entries."""
    words = array("I", entries)
    if sys.byteorder == "big":
        words.byteswap()
    return words[_ROWS_POSITION // words.itemsize :: ENTRY_BYTES // words.itemsize]


class FileEntries:
    """Entries read one by one from an index file, each checked; they take no memory per batch.

    `count` entries, or all in the file. IndexDamagedError if they do not end at `end_position` and `end_offset`.
    """

    __slots__ = ("_file", "_last", "count")

    def __init__(self, file: File, *, end_position: int, end_offset: int, count: int | None = None) -> None:
        self._file = file
        self._last: tuple[int, IndexEntry] | None = None  # the entry found last
        size = file.size() if count is None else count * ENTRY_BYTES
        if size % ENTRY_BYTES or not size:
            kind = IndexDamagedError if size % ENTRY_BYTES else IndexShortError
            raise kind(file.path, size, f"one or more entries of {ENTRY_BYTES} bytes", f"{size} bytes")
        self.count = size // ENTRY_BYTES
        last = self.extent(self.count - 1)
        if (last.end_position, last.end_offset) != (end_position, end_offset):
            wanted, found = f"an end at offset {end_offset}, byte {end_position}", f"{last}"
            kind = IndexShortError if last.end_position < end_position else IndexDamagedError
            raise kind(file.path, size - ENTRY_BYTES, wanted, found)

    def rows(self, first: int, stop: int) -> Sequence[int]:
        found = array("I")
        for number in range(first, stop, _ENTRIES_AT_ONCE):
            count = min(_ENTRIES_AT_ONCE, stop - number)
            found.extend(_row_numbers(bytes(self._file.read_at(number * ENTRY_BYTES, count * ENTRY_BYTES))))
        return found

    def in_memory(self) -> ActiveEntries | None:
        """Return all entries as arrays; None if batches lie apart. IndexDamagedError if one is invalid."""
        data = self._file.read_at(0, self.count * ENTRY_BYTES)
        columns, end = Columns.empty(), None
        for position in range(0, self.count * ENTRY_BYTES, ENTRY_BYTES):
            one = unpack_entry(data[position : position + ENTRY_BYTES], file=self._file.path, position=position)
            if end is not None and end != (one.position, one.base_offset):
                return None
            end = one.position + one.size_bytes, one.end_offset
            numbers = one.base_offset, one.position, one.min_timestamp_us, one.max_timestamp_us, one.rows
            for column, number in zip(columns, numbers, strict=True):
                column.append(number)
        assert end is not None, "there is at least one entry"
        return ActiveEntries(columns, self.count, end[1], end[0])

    def entry(self, number: int) -> IndexEntry:
        """Return entry `number`; IndexDamagedError if it is invalid."""
        assert 0 <= number < self.count
        if self._last is not None and self._last[0] == number:
            return self._last[1]
        position = number * ENTRY_BYTES
        data = self._file.read_at(position, ENTRY_BYTES)
        return unpack_entry(data, file=self._file.path, position=position)

    def extent(self, number: int) -> BatchExtent:
        """Return batch `number`; IndexDamagedError if its entry is invalid."""
        return self.entry(number).extent()

    def last_at_or_below(self, offset: int) -> int:
        low, high = 0, self.count
        while high - low > _ENTRIES_AT_HAND:
            middle = (low + high) // 2
            if self.extent(middle).base_offset <= offset:
                low = middle
            else:
                high = middle
        # The last steps are in memory. A base offset that is read there is not checked, but the entry that is found is:
        # an offset that it does not hold is looked for again, entry by entry.
        data = self._file.read_at(low * ENTRY_BYTES, (high - low) * ENTRY_BYTES)
        number = bisect_right(_words(data)[_BASE_OFFSET_WORD::_ENTRY_WORDS], offset) - 1
        if number >= 0:
            begin = number * ENTRY_BYTES
            entry = data[begin : begin + ENTRY_BYTES]
            found = unpack_entry(entry, file=self._file.path, position=low * ENTRY_BYTES + begin)
            if found.base_offset <= offset < found.end_offset:
                self._last = low + number, found
                return low + number
        return bisect_right(range(self.count), offset, key=lambda number: self.extent(number).base_offset) - 1


class IndexHead:
    """The first `count` batches of a segment, at least one. Immutable except for `entries`.

    `entries`: rebuilt from the segment after the index file has failed; None before.
    """

    __slots__ = ("count", "end_offset", "end_position", "entries", "first_timestamp_us", "last_timestamp_us")

    def __init__(
        self, count: int, end_offset: int, end_position: int, first_timestamp_us: int, last_timestamp_us: int
    ) -> None:
        self.count = count
        self.end_offset = end_offset
        self.end_position = end_position
        self.first_timestamp_us = first_timestamp_us
        self.last_timestamp_us = last_timestamp_us
        self.entries: PackedEntries | None = None


class ResumedEntries:
    """Entries of a resumed segment, for any thread: its first batches are in the index file, later ones in memory.

    After a start, and for an idle log, batches in the index file take no memory. Lookups in the tail open no file.

        batches   0 1 2 3 4 5 6 7 8 | 9 10 11
                  head: index file  | tail: memory
    """

    __slots__ = ("_tail", "head")

    def __init__(self, head: IndexHead, tail: Entries) -> None:
        self.head = head
        self._tail = tail

    def in_memory(self, offset: int) -> bool:
        """True if lookups from `offset` on need no file."""
        return offset >= self.head.end_offset or self.head.entries is not None

    @contextmanager
    def opened(self, vfs: Vfs, segment_path: str) -> Iterator[Entries]:
        """Yield all entries as one sequence; the index file is opened on first use and closed at the end."""
        if (rebuilt := self.head.entries) is not None:
            yield _Joined(rebuilt, self.head.end_offset, self._tail)
            return
        index_file = _IndexFile(vfs, index_path(segment_path), self.head)
        try:
            yield _Joined(index_file, self.head.end_offset, self._tail)
        finally:
            index_file.close()


class _IndexFile:
    """Entries of a head, from an index file that is opened on first use."""

    __slots__ = ("_entries", "_file", "_head", "_path", "_vfs", "count")

    def __init__(self, vfs: Vfs, path: str, head: IndexHead) -> None:
        self._vfs = vfs
        self._path = path
        self._head = head
        self._file: File | None = None
        self._entries: FileEntries | None = None
        self.count = head.count

    def _opened(self) -> FileEntries:
        if self._entries is None:
            head = self._head
            self._file = self._vfs.open(self._path, read_only=True)
            self._entries = FileEntries(
                self._file, end_position=head.end_position, end_offset=head.end_offset, count=head.count
            )
        return self._entries

    def extent(self, number: int) -> BatchExtent:
        return self._opened().extent(number)

    def last_at_or_below(self, offset: int) -> int:
        return self._opened().last_at_or_below(offset)

    def rows(self, first: int, stop: int) -> Sequence[int]:
        return self._opened().rows(first, stop)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Joined:
    """Two sequences of entries as one; the second begins at `offset`."""

    __slots__ = ("_first", "_offset", "_second", "count")

    def __init__(self, first: Entries, offset: int, second: Entries) -> None:
        self._first = first
        self._offset = offset
        self._second = second
        self.count = first.count + second.count

    def extent(self, number: int) -> BatchExtent:
        later = number - self._first.count
        return self._first.extent(number) if later < 0 else self._second.extent(later)

    def last_at_or_below(self, offset: int) -> int:
        if offset < self._offset:
            return self._first.last_at_or_below(offset)
        return self._first.count + self._second.last_at_or_below(offset)

    def rows(self, first: int, stop: int) -> Sequence[int]:
        count = self._first.count
        head = self._first.rows(first, min(stop, count)) if first < count else ()
        tail = self._second.rows(max(first, count) - count, stop - count) if stop > count else ()
        return [*head, *tail]


def write_index(vfs: Vfs, segment_path: str, entries: Buffer, first_entry: int = 0, *, are_last: bool = True) -> None:
    """Write `entries` to the index file from number `first_entry` on; truncate it behind them if `are_last`. OSError.

    The file is changed only where it differs. It is not synced.
    """
    file = vfs.open(index_path(segment_path), create=True, make_folders=False)
    try:
        position = first_entry * ENTRY_BYTES
        end_position = position + len(entries)
        if file.read_at(position, len(entries)) != entries:
            file.write_at(position, entries)
        if are_last and file.size() != end_position:
            file.truncate(end_position)
    finally:
        file.close()


def last_sound_entry(file: File, *, base_offset: int, end_position: int) -> tuple[int, IndexEntry, IndexEntry] | None:
    """Return the number of entries whose batches end at or before `end_position`, with the first and the last of them.

    None if there is none, if an entry read here is invalid, or if the first one is not at the beginning of a segment
    with this `base_offset`. The entries in between are checked when they are used.
    """

    def entry(number: int) -> IndexEntry:
        return unpack_entry(file.read_at(number * ENTRY_BYTES, ENTRY_BYTES))

    count = file.size() // ENTRY_BYTES
    try:
        if count and (last := entry(count - 1)).extent().end_position > end_position:
            count = bisect_right(range(count), end_position, key=lambda number: entry(number).extent().end_position)
            last = entry(count - 1) if count else last
        if not count:
            return None
        first = last if count == 1 else entry(0)
    except IndexDamagedError:
        return None
    return (count, first, last) if (first.position, first.base_offset) == (SCHEMA_BYTES, base_offset) else None


def first_not_before(entries: Entries, timestamp_us: int) -> int:
    """Return the number of the first batch that holds a row at or after `timestamp_us`; `count` if there is none."""
    return bisect_left(range(entries.count), timestamp_us, key=lambda number: entries.extent(number).max_timestamp_us)


def last_ending_at_or_below_position(entries: Entries, position: int, first: int = 0) -> int:
    """Return the number of the last batch, from `first` on, that ends at or before `position`, or `first` - 1."""
    numbers = range(first, entries.count)
    return first + bisect_right(numbers, position, key=lambda number: entries.extent(number).end_position) - 1


def last_ending_at_or_below(entries: Entries, offset: int, first: int = 0) -> int:
    """Return the number of the last batch, from `first` on, with end_offset <= offset, or `first` - 1."""
    numbers = range(first, entries.count)
    return first + bisect_right(numbers, offset, key=lambda number: entries.extent(number).end_offset) - 1
