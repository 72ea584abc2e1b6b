"""Checksums of a segment's blocks of SUM_BLOCK_BYTES, in its subject index: a few rows of a large batch are read, and
verified, without the rest of it.

Rules: what is summed up was verified as batches before. A block is used only if its bytes have its checksum; if not,
the batch is read as a whole, whose own checksum decides. Without an index they are in memory (`SubjectMemory`), of
batches that were read. The pages are like those of the filter, and follow them:

| byte | type     | page                                                                  |
|------|----------|-----------------------------------------------------------------------|
| 0    | 63 × u32 | CRC-32C of a block each; of the last block as far as the segment goes |
| 252  | u32      | CRC-32C of these and of the number of the page, the filter's included |
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.commitlog.subjects.layout import SUMS_PER_PAGE
from penstock.commitlog.subjects.reading import SubjectIndex
from penstock.hot.crc import crc32c
from penstock.hot.subject_filter import BITS_BYTES
from penstock.vfs import Buffer, File

_U32 = struct.Struct("<I")
_KEPT_BLOCKS_MAX = 256


class BlockSums:
    """Sums up a segment whose bytes are added in order."""

    def __init__(self) -> None:
        self._sums = bytearray()
        self._crc = self._filled = 0  # of the block that is not complete

    def add(self, data: Buffer) -> None:
        """Add the next bytes of the segment, which were verified."""
        view = memoryview(data)
        begin = 0
        while begin < len(view):
            part = view[begin : begin + limits.SUM_BLOCK_BYTES - self._filled]
            self._crc = crc32c(part, self._crc)
            self._filled += len(part)
            begin += len(part)
            if self._filled == limits.SUM_BLOCK_BYTES:
                self._end_block()

    def _end_block(self) -> None:
        self._sums += _U32.pack(self._crc)
        self._crc = self._filled = 0

    def pages(self) -> list[bytes]:
        """Return the pages without their checksums. Nothing may be added afterwards."""
        if self._filled:
            self._end_block()
        self._sums += bytes(-len(self._sums) % BITS_BYTES)
        return [bytes(self._sums[begin : begin + BITS_BYTES]) for begin in range(0, len(self._sums), BITS_BYTES)]


def sums_of(data: Buffer) -> array[int]:
    """Return the CRC-32C of each block of a batch that was verified; the first block begins with the batch."""
    view, size = memoryview(data), limits.SUM_BLOCK_BYTES
    return array("I", [crc32c(view[begin : begin + size]) for begin in range(0, len(view), size)])


class VerifiedBlocks:
    """Reads bytes of a file whose blocks have checksums: each read block is verified. `read_bytes`: so many."""

    def __init__(self, file: File, begin: int, size_bytes: int, sum_of: Callable[[int], int]) -> None:
        """The blocks begin at byte `begin` of the file, and take `size_bytes`; `sum_of` returns the checksum of one."""
        self.read_bytes = 0
        self._file = file
        self._begin = begin
        self._size_bytes = size_bytes
        self._sum_of = sum_of
        self._blocks: dict[int, bytes] = {}

    def read(self, position: int, length: int) -> bytes:
        """Return these bytes, from a position behind `begin`. CorruptionError (with the position in the file if a block
        has another checksum); OSError.
        """
        if length <= 0:
            return b""
        if position + length > self._size_bytes:
            raise CorruptionError(self._file.path, self._begin + position, f"{length} bytes", "the end of the segment")
        size = limits.SUM_BLOCK_BYTES
        first, last = position // size, (position + length - 1) // size
        if first == last:
            if first not in self._blocks:
                self._load(first, first)
            at = position - first * size
            return self._blocks[first][at : at + length]
        self._load(first, last)
        data = b"".join([self._blocks[number] for number in range(first, last + 1)])
        return data[position - first * size : position - first * size + length]

    def _load(self, first: int, last: int) -> None:
        if all(number in self._blocks for number in range(first, last + 1)):
            return
        if len(self._blocks) > _KEPT_BLOCKS_MAX:
            self._blocks.clear()
        size = limits.SUM_BLOCK_BYTES
        begin, end = first * size, min((last + 1) * size, self._size_bytes)
        data = memoryview(self._file.read_at(self._begin + begin, end - begin))
        self.read_bytes += len(data)
        for number in range(first, last + 1):
            block = bytes(data[number * size - begin : (number + 1) * size - begin])
            if (found := crc32c(block)) != (wanted := self._sum_of(number)):
                at = self._begin + number * size
                raise CorruptionError(self._file.path, at, f"a block with CRC-32C {wanted:08x}", f"{found:08x}")
            self._blocks[number] = block


class IndexedBlocks(VerifiedBlocks):
    """Blocks of a segment whose checksums are in its subject index. `read_bytes` counts these, too."""

    def __init__(self, file: File, index: SubjectIndex) -> None:
        """`file`: the segment; `index`: its own, open."""
        super().__init__(file, 0, index.trailer.segment.size_bytes, self._in_page)
        self._index = index
        self._pages: dict[int, bytes] = {}

    def _in_page(self, block: int) -> int:
        number, place = divmod(block, SUMS_PER_PAGE)
        if number not in self._pages:
            self._pages[number] = self._index.sum_page(number)
            self.read_bytes += len(self._pages[number])
        found: int = _U32.unpack_from(self._pages[number], place * _U32.size)[0]
        return found
