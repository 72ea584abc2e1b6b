"""Looks up a few headers in the header blocks of many rows, and adds up what numbers their values stand for.

Rules: names match exactly, the first header of a name counts, and a block ends at its blank line, as in `headers`. A
row without headers, or without any of these, has the code 0.

    Penstock-Schema: 9f…   -> 2        a row with both has the code 2 + 16
    Content-Type: text/csv -> 16

So what is worked out for the headers of a batch is worked out for its few codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.hot import cells, load, memory

_bytes = bytes
_int = int

NAMES_MAX = 16

_CR = 0x0D
_LF = 0x0A
_SPACE = 0x20
_TAB = 0x09


class HeaderCodes:
    """The headers that are looked up. `known`: the number of each value; `other(place, value)`: that of another value.

    `place` counts the names from 0. Numbers are not negative, and the sum of the largest ones is below 2**31.
    """

    def __init__(
        self,
        names: Sequence[bytes],
        known: Sequence[dict[bytes, _int]],
        other: Callable[[_int, bytes], _int],
    ) -> None:
        if not 0 < len(names) == len(known) <= NAMES_MAX:
            raise ValueError(f"{len(names)} names of headers, and numbers for {len(known)}; at most {NAMES_MAX}")
        self._names = [name + b":" for name in names]
        self._known = list(known)
        self._other = other

    def read(
        self,
        validity: memoryview | None,
        offsets: memoryview,
        data: memoryview,
        first: _int,
        count: _int,
    ) -> bytearray:
        """Return the codes of `count` rows, 4 bytes each, from row `first` of a binary array of header blocks.

        The buffers are those of the array. ValueError: its offsets are not within its data.
        """
        codes = bytearray(4 * count)
        if count == 0:
            return codes
        text = cells.bytes_of(data)
        size = len(data)
        if validity is not None and len(validity) < (first + count + 7) >> 3:
            raise ValueError("the validity of the values is shorter than they are")
        valid = cells.bytes_of(validity) if validity is not None else text
        ends = load.int32s(offsets, 4 * first, count + 1)
        for row in range(count):
            if validity is not None and not valid[(first + row) >> 3] >> ((first + row) & 7) & 1:
                continue
            begin = ends[row]
            end = ends[row + 1]
            if begin < 0 or end < begin or end > size:
                raise ValueError(f"value {first + row} of the array is from {begin} to {end} of {size} bytes")
            load.put_int32(codes, 4 * row, self._code(text, begin, end))
        return codes

    def _code(self, text: bytes, begin: _int, end: _int) -> int:
        """Return the code of one block."""
        code = 0
        seen = 0
        line = _line_end(text, begin, end) + 2
        while line < end:
            line_end = _line_end(text, line, end)
            if line_end == line:
                break
            for place in range(len(self._names)):
                name = self._names[place]
                if not seen >> place & 1 and memory.begins(text, line, line_end, name):
                    seen |= 1 << place
                    code += self._number(place, text, line + len(name), line_end)
                    break
            line = line_end + 2
        return code

    def _number(self, place: _int, text: bytes, begin: _int, end: _int) -> int:
        """Return the number of a value, which stands between spaces."""
        while begin < end and (text[begin] == _SPACE or text[begin] == _TAB):
            begin += 1
        while end > begin and (text[end - 1] == _SPACE or text[end - 1] == _TAB):
            end -= 1
        value = memory.copied(text, begin, end)
        known = self._known[place]
        number = known.get(value)
        return self._other(place, value) if number is None else number


def _line_end(text: bytes, begin: _int, end: _int) -> int:
    """Return where the line's CR LF begins; `end` if it has none."""
    at = memory.find_byte(text, _CR, begin, end)
    while at >= 0:
        if at + 1 < end and text[at + 1] == _LF:
            return at
        at = memory.find_byte(text, _CR, at + 1, end)
    return end
