"""The blocks of an encrypted file: how they are found and read, where the file ends, and what begins another one.

Rules: what a file shows follows from its bytes as they are; nothing is remembered beside it. What does not open, and
what a crash has left behind the last whole record, reads as zeros.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.vfs import Buffer, File
from penstock.vfs import encrypted_format as form
from penstock.vfs.encrypted_format import AREA_BYTES, BLOCK_BYTES, BLOCK_HEADER_BYTES

_BLOCKS_AT_ONCE = 16  # read and opened, so that a large read holds no more


class Tail(NamedTuple):
    """Where the next record goes."""

    end: int  # plain bytes of the file
    place: int  # in the file
    block: int  # the number of the block there
    block_begin: int  # its first plain byte; -1: it has no header yet, and what lies before `place` is not to be used


NEW = Tail(0, AREA_BYTES, 0, -1)


class Blocks:
    """The blocks of a file as it is now; some are read at once. What was seen of it counts, whatever becomes of it."""

    __slots__ = ("_at_once", "_begins", "_data", "_file", "_first", "_opener", "count", "size")

    def __init__(self, opener: form.Opener, file: File, expected: int) -> None:
        """`expected`: how many will be read."""
        self.size = file.size()
        self.count = max(0, -(-(self.size - AREA_BYTES) // BLOCK_BYTES))
        self._opener = opener
        self._file = file
        self._at_once = min(expected, _BLOCKS_AT_ONCE)
        self._begins: dict[int, int | None] = {}
        self._first = 0
        self._data = memoryview(b"")

    def data(self, number: int) -> memoryview:
        """All of a block that there is."""
        offset = (number - self._first) * BLOCK_BYTES
        if not 0 <= offset < len(self._data) - BLOCK_HEADER_BYTES:
            self._first, offset = number, 0
            place = place_of(number)
            # With the header of the one behind them, which says where the last of them ends.
            length = min(self._at_once * BLOCK_BYTES + BLOCK_HEADER_BYTES, self.size - place)
            self._data = memoryview(self._file.read_at(place, length))
        return self._data[offset : offset + BLOCK_BYTES]

    def begin(self, number: int) -> int | None:
        """The first plain byte of a block; None: its header is not whole."""
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
        """The last whole block that begins at or before that plain byte, else the first whole one; None: none is."""
        low, high = 0, self.count  # the one that is looked for lies in there
        guess = min(position // form.PLAIN_BYTES_MAX, high - 1)  # where all blocks are full, it is there
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
        """The next whole block behind that one, and its first plain byte."""
        for behind in range(number + 1, self.count):
            if (begin := self.begin(behind)) is not None:
                return behind, begin
        return None, 0

    def cut_by(self, number: int, end: int) -> int | None:
        """Which block gives up some of that one, whose records go up to `end`; None: none does."""
        following, next_begin = self.following(number)
        return following if next_begin < end else None

    def span(self, number: int) -> tuple[int, int | None]:
        """Where what belongs to a whole block ends, in plain bytes; and which one is the next."""
        following, next_begin = self.following(number)
        if following is not None:
            return next_begin, following
        begin = self.begin(number)
        assert begin is not None
        walked = form.walk(self._opener, begin, self.data(number))
        return begin + walked.end + self.size - place_of(number) - walked.place, None


def read_block(opener: form.Opener, begin: int, data: memoryview, at: int, end: int) -> list[bytes]:
    """Plain bytes from `at` up to `end`, as far as the block's records have them; zeros for the rest."""
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
    """The header of the tail's block, into `pieces`, and how the file ends then."""
    pieces.append(_filling(tail.place, place_of(tail.block)))
    pieces.append(opener.block_header(tail.block, tail.end))
    return Tail(tail.end, place_of(tail.block) + BLOCK_HEADER_BYTES, tail.block, tail.end)


def tail_of(opener: form.Opener, file: File) -> Tail:
    """How a file ends."""
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
        if walked.ends_with_cut:  # a crash has taken the block that was to say so, too
            return Tail(begin + walked.end, place, number + 1, -1)
        return Tail(begin + walked.end, place, number, begin)
    # The next record goes into a block of its own, so that its place says where it begins.
    return Tail(begin + walked.end + blocks.size - place, blocks.size, blocks.count, -1)


def _filling(place: int, end: int) -> bytes:
    """Zeros; but where a crash has left the begin of a block's header, they could make it whole: what it lacks are the
    zeros of a number's upper bytes.
    """
    offset = (place - AREA_BYTES) % BLOCK_BYTES
    marked = min(BLOCK_HEADER_BYTES - offset, end - place) if 0 < offset < BLOCK_HEADER_BYTES else 0
    return b"\xff" * marked + bytes(end - place - marked)


def place_of(number: int) -> int:
    """Where the block of that number lies in the file."""
    return AREA_BYTES + number * BLOCK_BYTES
