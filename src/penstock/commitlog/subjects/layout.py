"""Trailer and directory of a subject index, byte by byte.

All numbers are little-endian and unsigned. The trailer is the last 96 bytes of the file; everything before it has no
gaps, so its numbers give the position of each part.

| byte | type | trailer                        | byte | type | trailer                                     |
|------|------|--------------------------------|------|------|---------------------------------------------|
| 0    | 8 B  | `PNSTSUBJ`                     | 48   | u64  | size of the segment in bytes                |
| 8    | u32  | version, 1                     | 56   | u64  | subjects                                    |
| 12   | u32  | generation of the segment      | 64   | u64  | rows                                        |
| 16   | u64  | stream id                      | 72   | u32  | blocks                                      |
| 24   | u32  | partition                      | 76   | u32  | pages of the filter                         |
| 28   | u32  | CRC-32C of the last batch      | 80   | u32  | size of the directory in bytes              |
| 32   | u64  | base offset of the segment     | 84   | u32  | CRC-32C of the directory                    |
| 40   | u64  | end offset of the segment      | 88   | u32  | pages of checksums of blocks; 0: none       |
|      |      |                                | 92   | u32  | CRC-32C of the bytes 0 to 91                |

The directory has 24 bytes for each block, then the first subjects of all blocks without separators:

| byte | type | entry                          | byte | type | entry                                       |
|------|------|--------------------------------|------|------|---------------------------------------------|
| 0    | u64  | position of the block          | 16   | u32  | CRC-32C of the block                        |
| 8    | u32  | size of the block in bytes     | 20   | u32  | end of its first subject among all of them  |
| 12   | u32  | subjects in it                 |      |      |                                             |

A page of the filter is 252 bytes of bits and the CRC-32C of these and of the number of the page as u32. The pages with
checksums of the segment's blocks, if there are any, follow those of the filter: see `block_sums`.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.hot import subject_filter
from penstock.hot.crc import crc32c
from penstock.hot.subject_filter import BITS_BYTES, PAGE_BYTES

MAGIC = b"PNSTSUBJ"
VERSION = 1
SCHEMA = bytes.fromhex(
    "ffffffff200100001000000000000a000c000600050008000a000000000104000c0000000800080000000400080000000400000004000000"
    "c4000000780000003c000000040000005cffffff00000002100000001c00000004000000000000000b0000006c6173745f6f666673657400"
    "98ffffff000000014000000090ffffff00000002100000002000000004000000000000000c00000066697273745f6f666673657400000000"
    "d0ffffff0000000140000000c8ffffff000000021000000020000000040000000000000005000000636f756e7400000008000c0008000700"
    "080000000000000140000000100014000800000007000c00000010001000000000000005100000001c000000040000000000000007000000"
    "7375626a656374000400040004000000"
)
"""The schema message, as Arrow C++ writes it."""
BLOCKS_POSITION = len(SCHEMA)
SUMS_PER_PAGE = BITS_BYTES // 4
"""Checksums of blocks of the segment in a page."""
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_TRAILER = struct.Struct("<8s 2I Q 2I 5Q 5I")
_ENTRY = struct.Struct("<Q4I")
_U32 = struct.Struct("<I")
TRAILER_BYTES = _TRAILER.size + _U32.size
assert TRAILER_BYTES == 96


class UnknownVersionError(CorruptionError):
    """The trailer is whole, and of a version that this Penstock does not know."""


def sum_pages_of(size_bytes: int) -> int:
    """Return how many pages the checksums of the blocks of a segment take, if it has them."""
    return -(-size_bytes // (limits.SUM_BLOCK_BYTES * SUMS_PER_PAGE))


class SegmentIdentity(NamedTuple):
    """The segment of an index. `last_crc`: CRC-32C of its last batch."""

    generation: int
    stream_id: int
    partition: int
    last_crc: int
    base_offset: int
    end_offset: int
    size_bytes: int


class Trailer(NamedTuple):
    """A valid trailer, and the size of its file."""

    segment: SegmentIdentity
    subjects: int
    rows: int
    blocks: int
    pages: int
    directory_bytes: int
    directory_crc: int
    file_bytes: int
    sum_pages: int = 0

    @property
    def directory_position(self) -> int:
        """Begin of the directory."""
        return self.file_bytes - TRAILER_BYTES - self.directory_bytes

    @property
    def filter_position(self) -> int:
        """Begin of the filter."""
        return self.directory_position - PAGE_BYTES * (self.pages + self.sum_pages)

    @property
    def blocks_end(self) -> int:
        """End of the last block."""
        return self.filter_position - len(END_OF_STREAM)


def pack_trailer(trailer: Trailer) -> bytes:
    """Return the TRAILER_BYTES bytes of the trailer."""
    numbers = trailer[1:7]
    body = _TRAILER.pack(MAGIC, VERSION, *trailer.segment, *numbers, trailer.sum_pages)
    return body + _U32.pack(crc32c(body))


def unpack_trailer(data: bytes, file_bytes: int, *, file: str) -> Trailer:
    """Return the trailer of a file of that size, whose parts then lie within the file; CorruptionError."""
    position = max(0, file_bytes - TRAILER_BYTES)
    if len(data) != TRAILER_BYTES:
        raise CorruptionError(file, position, f"a trailer of {TRAILER_BYTES} bytes", f"{len(data)} bytes")
    body = data[: _TRAILER.size]
    (wanted,) = _U32.unpack_from(data, _TRAILER.size)
    if (crc := crc32c(body)) != wanted:
        raise CorruptionError(file, position, f"CRC-32C {wanted:08x}", f"{crc:08x}")
    magic, version, *numbers = _TRAILER.unpack(body)
    if (magic, version) != (MAGIC, VERSION):
        raise UnknownVersionError(file, position, f"{MAGIC!r}, version {VERSION}", f"{magic!r}, version {version}")
    *rest, sum_pages = numbers[7:]
    trailer = Trailer._make((SegmentIdentity._make(numbers[:7]), *rest, file_bytes, sum_pages))
    room = trailer.blocks_end - BLOCKS_POSITION
    is_plausible = (
        0 < trailer.blocks <= trailer.subjects <= trailer.rows <= limits.OFFSET_MAX
        and trailer.segment.base_offset < trailer.segment.end_offset <= limits.OFFSET_MAX
        and trailer.pages > 0
        and trailer.directory_bytes >= trailer.blocks * _ENTRY.size  # the first subject is empty if rows were erased
        and trailer.directory_bytes <= limits.SUBJECT_DIRECTORY_BYTES_MAX
        and room >= trailer.blocks * 8
        and sum_pages in (0, sum_pages_of(trailer.segment.size_bytes))
    )
    if not is_plausible:
        raise CorruptionError(file, position, "parts that fill the file", str(trailer))
    return trailer


class BlockPlace(NamedTuple):
    """Position of one block."""

    position: int
    size_bytes: int
    rows: int
    crc: int


class Directory:
    """The directory of an index, whose checksum is valid; single entries are checked when they are used."""

    def __init__(self, data: bytes, trailer: Trailer, *, file: str) -> None:
        """`data`: the bytes of the directory. CorruptionError."""
        if len(data) != trailer.directory_bytes or (crc := crc32c(data)) != trailer.directory_crc:
            found = f"{len(data)} bytes" if len(data) != trailer.directory_bytes else f"{crc:08x}"
            wanted = f"{trailer.directory_bytes} bytes with CRC-32C {trailer.directory_crc:08x}"
            raise CorruptionError(file, trailer.directory_position, wanted, found)
        self._data = data
        self._trailer = trailer
        self._file = file
        self._names = trailer.blocks * _ENTRY.size
        self.blocks = trailer.blocks

    @property
    def size_bytes(self) -> int:
        """Its size, in the file and in memory."""
        return len(self._data)

    def first_subject(self, number: int) -> bytes:
        """Return the first subject of a block."""
        begin = 0 if number == 0 else self._end(number - 1)
        return self._data[self._names + begin : self._names + self._end(number)]

    def _end(self, number: int) -> int:
        end: int = _U32.unpack_from(self._data, number * _ENTRY.size + 20)[0]
        return end

    def number_of(self, subject: bytes) -> int:
        """Return the number of the only block that may hold `subject`; -1: none may."""
        return bisect_right(range(self.blocks), subject, key=self.first_subject) - 1

    def place(self, number: int) -> BlockPlace:
        """Return the place of a block, which lies among the blocks; CorruptionError."""
        position, size_bytes, rows, crc, _ = _ENTRY.unpack_from(self._data, number * _ENTRY.size)
        fits = BLOCKS_POSITION <= position <= position + size_bytes <= self._trailer.blocks_end
        if not fits or not 0 < rows <= limits.SUBJECT_BLOCK_ROWS or size_bytes > limits.SUBJECT_BLOCK_BYTES_MAX:
            at = self._trailer.directory_position + number * _ENTRY.size
            found = f"{rows} subjects in {size_bytes} bytes from byte {position} on"
            raise CorruptionError(self._file, at, "a block within the file", found)
        return BlockPlace(position, size_bytes, rows, crc)

    def check(self) -> None:
        """Check that the blocks fill their part of the file, and that their first subjects rise; CorruptionError."""
        position, subjects, end, before = BLOCKS_POSITION, 0, 0, b""
        at = self._trailer.directory_position
        for number in range(self.blocks):
            place, first = self.place(number), self.first_subject(number)
            if place.position != position or self._end(number) < end or (number and first <= before):
                raise CorruptionError(
                    self._file, at + number * _ENTRY.size, f"a block from byte {position} on, in order", str(place)
                )
            position, subjects, end, before = (
                position + place.size_bytes, subjects + place.rows, self._end(number), first
            )  # fmt: skip
        found = position, subjects, self._names + end
        wanted = self._trailer.blocks_end, self._trailer.subjects, len(self._data)
        if found != wanted:
            raise CorruptionError(self._file, at, f"blocks that end at {wanted}", str(found))


def pack_directory(places: list[BlockPlace], firsts: list[bytes]) -> bytes:
    """Return the directory of these blocks."""
    entries, end = bytearray(), 0
    for place, first in zip(places, firsts, strict=True):
        end += len(first)
        entries += _ENTRY.pack(*place, end)
    return bytes(entries) + b"".join(firsts)


class FilterBits:
    """A filter while it is made."""

    def __init__(self, pages: int) -> None:
        self._bits = bytearray(pages * PAGE_BYTES)
        self._pages = pages

    def add(self, count: int, ends: memoryview, text: memoryview) -> None:
        """Add so many subjects, at least one: the buffers of an Arrow array."""
        subject_filter.add(self._bits, self._pages, ends, text, count)

    def page(self, number: int) -> bytes:
        """Return a page with its checksum."""
        begin = number * PAGE_BYTES
        return with_crc(bytes(self._bits[begin : begin + BITS_BYTES]), number)


def with_crc(content: bytes, number: int) -> bytes:
    """Return the page of that number with its checksum."""
    return content + _page_crc(content, number)


def _page_crc(bits: bytes, number: int) -> bytes:
    """Return the checksum of a page of the filter."""
    return _U32.pack(crc32c(_U32.pack(number), crc32c(bits)))


def checked_page(page: bytes, number: int, trailer: Trailer, *, file: str) -> bytes:
    """Return a page of the filter if its checksum is valid; CorruptionError."""
    if len(page) != PAGE_BYTES or page[BITS_BYTES:] != _page_crc(page[:BITS_BYTES], number):
        raise wrong_page(trailer.filter_position + number * PAGE_BYTES, file=file)
    return page


def wrong_page(position: int, *, file: str) -> CorruptionError:
    """Return the error of a page of the filter whose checksum is wrong."""
    return CorruptionError(file, position, "a page of the filter with its CRC-32C", "other bytes")
