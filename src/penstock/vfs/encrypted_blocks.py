"""Blocks of an encrypted file: finding and reading them, the end of the file, and starting a block.

Rules: the content follows from the file's bytes alone. Records that do not decrypt, and remains of a crash behind the
last complete record, read as zeros.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.vfs import Buffer, File
from penstock.vfs import encrypted_format as form
from penstock.vfs.encrypted_format import AREA_BYTES, BLOCK_BYTES, BLOCK_HEADER_BYTES

_BLOCKS_AT_ONCE = 16  # limit of blocks read and decrypted at once


class Tail(NamedTuple):
    """Position of the next record."""

    end: int  # plain size of the file
    place: int  # position in the file
    block: int  # number of the block there
    block_begin: int  # its first plain byte; -1: it has no header yet, and bytes before `place` are unusable


NEW = Tail(0, AREA_BYTES, 0, -1)


class Blocks:
    """The blocks of a file as of now; several are read at once. Values once read are kept, even if the file changes."""

    __slots__ = ("_at_once", "_begins", "_data", "_file", "_first", "_opener", "count", "size")

    def __init__(self, opener: form.Opener, file: File, expected: int) -> None:
        """`expected`: number of blocks to be read."""
        self.size = file.size()
        self.count = max(0, -(-(self.size - AREA_BYTES) // BLOCK_BYTES))
        self._opener = opener
        self._file = file
        self._at_once = min(expected, _BLOCKS_AT_ONCE)
        self._begins: dict[int, int | None] = {}
        self._first = 0
        self._data = memoryview(b"")

    def data(self, number: int) -> memoryview:
        """Return the block's bytes, as far as the file has them."""
        offset = (number - self._first) * BLOCK_BYTES
        if not 0 <= offset < len(self._data) - BLOCK_HEADER_BYTES:
            self._first, offset = number, 0
            place = place_of(number)
            # Includes the next block's header, which tells where the last block ends.
            length = min(self._at_once * BLOCK_BYTES + BLOCK_HEADER_BYTES, self.size - place)
            self._data = memoryview(self._file.read_at(place, length))
        return self._data[offset : offset + BLOCK_BYTES]

    def begin(self, number: int) -> int | None:
        """Return the first plain byte of a block; None: its header is invalid."""
        if number not in self._begins:
            self._begins[number] = self._begin(number)
        return self._begins[number]

    def _begin(self, number: int) -> int | None:
        offset = (number - self._first) * BLOCK_BYTES
        if 0 <= offset <= len(self._data) - BLOCK_HEADER_BYTES:
            header: Buffer = self._data[offset : offset + BLOCK_HEADER_BYTES]
        else:
            header = self._file.read_at(place_of(number), BLOCK_HEADER_BYTES)
        return self._opener.begin_of(number, header)

    def find(self, position: int) -> int | None:
        """Return the last valid block that begins at or before `position`, else the first valid one, or None."""
        low, high = 0, self.count  # bounds of the search
        guess = min(position // form.PLAIN_BYTES_MAX, high - 1)  # exact if all blocks are full
        found: int | None = None
        while low < high:
            middle = guess if guess >= 0 else (low + high) // 2
            guess = -1
            number = self._whole_before(middle, low)
            if number is None:
                low = middle + 1
                continue
            begin = self.begin(number)
            assert begin is not None
            if begin <= position:
                found, low = number, middle + 1
                following = self.begin(low) if low < high else None
                if following is not None and following > position:
                    break
            else:
                high = number
        return self.following(-1)[0] if found is None else found

    def _whole_before(self, number: int, low: int) -> int | None:
        while number >= low:
            if self.begin(number) is not None:
                return number
            number -= 1
        return None

    def following(self, number: int) -> tuple[int | None, int]:
        """Return the next valid block and its first plain byte."""
        for behind in range(number + 1, self.count):
            if (begin := self.begin(behind)) is not None:
                return behind, begin
        return None, 0

    def cut_by(self, number: int, end: int) -> int | None:
        """Return the block that truncates this one, whose records go up to `end`; None: there is none."""
        following, next_begin = self.following(number)
        return following if next_begin < end else None

    def span(self, number: int) -> tuple[int, int | None]:
        """Return the plain end of a valid block, and the number of the next one."""
        following, next_begin = self.following(number)
        if following is not None:
            return next_begin, following
        begin = self.begin(number)
        assert begin is not None
        walked = form.walk(self._opener, begin, self.data(number))
        return begin + walked.end + self.size - place_of(number) - walked.place, None


def read_block(opener: form.Opener, begin: int, data: memoryview, at: int, end: int) -> list[bytes]:
    """Return the plain bytes from `at` up to `end` from the block's records, with zeros for missing ones."""
    parts = []
    for record in form.walk(opener, begin, data).records:
        record_begin, record_end = begin + record.begin, min(begin + record.end, end)
        if record_begin <= at < record_end:
            plain = form.opened(opener, begin, data, record)
            if plain is None:
                plain = bytes(record.whole_end - record.begin)
            if (at, record_end) == (record_begin, begin + record.whole_end):
                parts.append(plain)
            else:
                parts.append(plain[at - record_begin : record_end - record_begin])
            at = record_end
        if at >= end:
            break
    if at < end:
        parts.append(bytes(end - at))
    return parts


def begin_block(opener: form.Opener, tail: Tail, pieces: list[Buffer]) -> Tail:
    """Append the header of the tail's block to `pieces`; return the new end of the file."""
    pieces.append(_filling(tail.place, place_of(tail.block)))
    pieces.append(opener.block_header(tail.block, tail.end))
    return Tail(tail.end, place_of(tail.block) + BLOCK_HEADER_BYTES, tail.block, tail.end)


def tail_of(opener: form.Opener, file: File) -> Tail:
    """Return the end of a file."""
    blocks = Blocks(opener, file, 1)
    number = blocks.count - 1
    while number >= 0 and (begin := blocks.begin(number)) is None:
        number -= 1
    if number < 0:
        torn = max(0, blocks.size - AREA_BYTES)
        return NEW if not torn else Tail(torn, blocks.size, blocks.count, -1)
    assert begin is not None
    walked = form.walk(opener, begin, blocks.data(number))
    place = place_of(number) + walked.place
    if place == blocks.size:
        if walked.ends_with_cut:  # a crash has also removed the block that should record the truncation
            return Tail(begin + walked.end, place, number + 1, -1)
        return Tail(begin + walked.end, place, number, begin)
    # Use a new block for the next record, so that its position tells where it begins.
    return Tail(begin + walked.end + blocks.size - place, blocks.size, blocks.count, -1)


def _filling(place: int, end: int) -> bytes:
    """Return padding: zeros, except where a crash left the begin of a block header. Zeros could complete that header,
    as it may lack only the zero upper bytes of a number.
    """
    offset = (place - AREA_BYTES) % BLOCK_BYTES
    marked = min(BLOCK_HEADER_BYTES - offset, end - place) if 0 < offset < BLOCK_HEADER_BYTES else 0
    return b"\xff" * marked + bytes(end - place - marked)


def place_of(number: int) -> int:
    """Return the position of a block in the file."""
    return AREA_BYTES + number * BLOCK_BYTES
