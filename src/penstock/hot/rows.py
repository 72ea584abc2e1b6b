"""Check the rows of a batch message from an untrusted client, and measure them.

Rules: the message's metadata must have passed `hot.message`: so its buffers lie within it and have the right sizes. A
value offset is used only after all of its column have been checked. All other methods require that `mistake` has
passed.

Theory: an Arrow reader finds a value by two neighbouring value offsets without further checks, so a wrong one makes it
read other memory. If they begin at 0, never fall and end at the end of the bytes, none can be wrong, and all bytes are
covered. Text that is UTF-8 as a whole is UTF-8 in every value if no value begins within a character.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.hot import lifetimes, load, subjects
from penstock.hot.headers import HeaderFields
from penstock.hot.message import MessageLayout
from penstock.hot.message_ids import key_of

_int = int

_SUBJECT = 0  # numbers of the four string columns, in this module
_KEY = 1
_VALUE = 2
_HEADERS = 3
_COLUMNS = 4
_FIRST_NODE = 2  # the number columns come before
_FIRST_BUFFER = 4

_NODES = 6
_BUFFERS = 16
_VALIDITY = 0  # the three buffers of a string column
_ENDS = 1
_VALUES = 2

_CONTINUES = 0x80  # the two upper bits of a UTF-8 continuation byte
_UPPER_TWO = 0xC0
_DOT = 0x2E
_STAR = 0x2A
_GREATER = 0x3E
_S_US = 1_000_000
_INVALID = lifetimes.INVALID
_NEVER = lifetimes.NEVER
_OF_SUBJECT = lifetimes.OF_SUBJECT
_OF_ALL = lifetimes.OF_ALL


class RowMistake(IntEnum):
    """Mistakes in a column."""

    BOUNDS = 1  # value offsets do not go from 0 to the end of the bytes
    FALL = 2
    NULLS = 3  # the number of nulls differs from the metadata
    TEXT = 4


class RowFault(NamedTuple):
    """A mistake in a string column; `expected` and `found` are numbers for the report."""

    mistake: RowMistake
    column: int
    expected: int
    found: int


class HeaderRequests(NamedTuple):
    """Requests in the headers of a batch's rows.

    `ids`: rows with a message id, and its key (see `message_ids.key_of`), in order. `has_ttls`: some have a time to
    live, or `never`; `has_rollups`: some are subject rollups; `rollup_row`: the last row that rolls up the whole
    partition, or -1. `is_bad`: some such header is invalid.
    """

    ids: list[tuple[int, bytes]]
    has_ttls: bool
    has_rollups: bool
    rollup_row: int
    is_bad: bool


class BatchRows:
    """The string columns of one message. It reads the message's own memory, which must not change."""

    def __init__(self, data: bytes | bytearray | memoryview, layout: MessageLayout) -> None:
        self._data = memoryview(data).cast("B")  # pyarrow exports signed bytes
        self._metadata = bytes(self._data[: len(layout.template)])
        place = layout.compression_field_position
        if self._metadata[place : place + 2] != layout.template[place : place + 2]:
            raise ValueError("a compressed message must be unpacked before its rows are read")
        self._body_position = len(layout.template)
        self._nodes_position = layout.nodes_position
        self._buffers_position = layout.buffers_position
        self._count = load.int64s(self._metadata, layout.rows_position, 1)[0]

    def mistake(self) -> RowFault | None:
        """Return the mistake in the first column that is not sound, or None."""
        for column in range(_COLUMNS):
            found = self._column_mistake(column)
            if found is not None:
                return found
        return None

    def _column_mistake(self, column: _int) -> RowFault | None:
        ends = self._ends(column)
        count = self._count
        size = self._size(column, _VALUES)
        if ends[0] != 0 or ends[count] != size:
            return RowFault(RowMistake.BOUNDS, column, size, ends[count] if ends[0] == 0 else ends[0])
        if load.falls(ends, count + 1):
            return RowFault(RowMistake.FALL, column, 0, 0)
        nulls = load.int64s(self._metadata, self._nodes_position, 2 * _NODES)[2 * (_FIRST_NODE + column) + 1]
        if nulls:
            absent = count - load.ones(self._bytes(column, _VALIDITY), count)
            if absent != nulls:
                return RowFault(RowMistake.NULLS, column, nulls, absent)
        if column == _SUBJECT and not self._is_text(self._bytes(column, _VALUES)):
            return RowFault(RowMistake.TEXT, column, 0, 0)
        return None

    def _is_text(self, text: bytes) -> bool:
        if text.isascii():
            return True
        try:
            text.decode()
        except UnicodeDecodeError:
            return False
        ends = self._ends(_SUBJECT)
        data = text
        size = len(text)
        for row in range(self._count):
            at = ends[row]
            if at < size and data[at] & _UPPER_TWO == _CONTINUES:
                return False
        return True

    def refused_subject(self, pattern: bytes) -> bytes | None:
        """Return the first subject that is not plain or not covered by the stream's `pattern`, or None.

        A stream has several patterns if there are spaces in it: they separate them.
        """
        patterns = pattern.split(b" ")
        text = self._bytes(_SUBJECT, _VALUES)
        ends = self._ends(_SUBJECT)
        if not cython.compiled:
            for subject in _different(text, ends):
                if not _is_taken(subject, 0, len(subject), patterns):
                    return subject
            return None
        last_begin = last_end = 0
        for row in range(self._count):
            begin = ends[row]
            end = ends[row + 1]
            if row and end - begin == last_end - last_begin and load.equal(text, begin, last_begin, end - begin):
                continue  # most batches have few subjects
            last_begin = begin
            last_end = end
            if not _is_taken(text, begin, end, patterns):
                return text[begin:end]
        return None

    def widest_message(self, limit: _int) -> int:
        """Return the size of the largest value plus headers of a row; of all rows, if that is within `limit`."""
        size = self._size(_VALUE, _VALUES) + self._size(_HEADERS, _VALUES)
        return size if size <= limit else load.widest_pair(self._ends(_VALUE), self._ends(_HEADERS), self._count + 1)

    def widest_key(self, limit: _int) -> int:
        """Return the size of the largest key; of all keys, if that is within `limit`."""
        size = self._size(_KEY, _VALUES)
        return size if size <= limit else load.widest(self._ends(_KEY), self._count + 1)

    def has_empty_key(self) -> bool:
        """True if some row has an empty key that is not null."""
        nulls = load.int64s(self._metadata, self._nodes_position, 2 * _NODES)[2 * (_FIRST_NODE + _KEY) + 1]
        count = self._count
        if nulls == count:
            return False
        ends = self._ends(_KEY)
        bits = self._bytes(_KEY, _VALIDITY) if nulls else b""
        valid = bits
        for row in range(count):
            if ends[row] == ends[row + 1] and (nulls == 0 or valid[row >> 3] >> (row & 7) & 1):
                return True
        return False

    def widest_headers(self, limit: _int) -> int:
        """Return the size of the largest header block; of all, if that is within `limit`."""
        size = self._size(_HEADERS, _VALUES)
        return size if size <= limit else load.widest(self._ends(_HEADERS), self._count + 1)

    def asked(self) -> HeaderRequests:
        """Return what the headers ask for."""
        found: list[tuple[int, bytes]] = []
        has_ttls = has_rollups = is_bad = False
        rollup_row = -1
        if not self._size(_HEADERS, _VALUES):
            return HeaderRequests(found, has_ttls, has_rollups, rollup_row, is_bad)
        text = self._bytes(_HEADERS, _VALUES)
        ends = self._ends(_HEADERS)
        fields = HeaderFields()
        for row in range(self._count):
            begin = ends[row]
            end = ends[row + 1]
            if end > begin:
                fields.read(text, begin, end)
                if fields.id >= 0 and fields.id_end > fields.id:
                    found.append((row, key_of(text, fields.id, fields.id_end)))
                if fields.ttl >= 0 and fields.ttl_end > fields.ttl:
                    ttl = lifetimes.ttl_s(text, fields.ttl, fields.ttl_end)
                    is_bad = is_bad or ttl == _INVALID
                    has_ttls = has_ttls or ttl != 0
                if fields.rollup >= 0 and fields.rollup_end > fields.rollup:
                    rollup = lifetimes.rollup(text, fields.rollup, fields.rollup_end)
                    is_bad = is_bad or rollup == _INVALID
                    has_rollups = has_rollups or rollup == _OF_SUBJECT
                    if rollup == _OF_ALL:
                        rollup_row = row
        return HeaderRequests(found, has_ttls, has_rollups, rollup_row, is_bad)

    def has_header(self, line: bytes) -> bool:
        """True if some row may have a header that begins so; `line` begins with CR LF."""
        return line in self._bytes(_HEADERS, _VALUES)

    def lifetimes_us(self, least_us: _int, shortest_us: _int, longest_us: _int) -> bytearray:
        """Return each row's time to live in µs, as int64; 0: for ever. With a message id it is at least `least_us`.

        A time to live counts as `shortest_us` at least. `longest_us`: of all rows but those that are never to expire;
        0: there is none.
        """
        out = bytearray(8 * self._count)
        target = out
        text = self._bytes(_HEADERS, _VALUES)
        ends = self._ends(_HEADERS)
        fields = HeaderFields()
        for row in range(self._count):
            begin = ends[row]
            end = ends[row + 1]
            lifetime_us = longest_us
            if end > begin:
                fields.read(text, begin, end)
                if fields.ttl >= 0 and fields.ttl_end > fields.ttl:
                    ttl = lifetimes.ttl_s(text, fields.ttl, fields.ttl_end)
                    if ttl > 0:
                        lifetime_us = max(_S_US * ttl, shortest_us)
                        if lifetime_us < least_us and fields.id >= 0:
                            lifetime_us = least_us
                        if 0 < longest_us < lifetime_us:
                            lifetime_us = longest_us
                    elif ttl == _NEVER:
                        lifetime_us = 0
            if lifetime_us:
                load.put_int64s(target, 8 * row, lifetime_us, 0, 1)
        return out

    def rollups(self) -> bytearray:
        """Return a byte per row: OF_SUBJECT or OF_ALL of `lifetimes` if it is a rollup, else 0."""
        out = bytearray(self._count)
        target = out
        text = self._bytes(_HEADERS, _VALUES)
        ends = self._ends(_HEADERS)
        fields = HeaderFields()
        for row in range(self._count):
            begin = ends[row]
            end = ends[row + 1]
            if end > begin:
                fields.read(text, begin, end)
                if fields.rollup >= 0 and fields.rollup_end > fields.rollup:
                    target[row] = max(0, lifetimes.rollup(text, fields.rollup, fields.rollup_end))
        return out

    def subjects(self) -> tuple[memoryview, memoryview]:
        """Return value offsets and bytes of the subjects: views of the message."""
        ends, text = self._place(_SUBJECT, _ENDS), self._place(_SUBJECT, _VALUES)
        return self._data[ends : ends + 4 * (self._count + 1)], self._data[text : text + self._size(_SUBJECT, _VALUES)]

    def _place(self, column: _int, part: _int) -> int:
        number = _FIRST_BUFFER + 3 * column + part
        return self._body_position + load.int64s(self._metadata, self._buffers_position, 2 * _BUFFERS)[2 * number]

    def _size(self, column: _int, part: _int) -> int:
        number = _FIRST_BUFFER + 3 * column + part
        return load.int64s(self._metadata, self._buffers_position, 2 * _BUFFERS)[2 * number + 1]

    def _ends(self, column: _int) -> list[int]:
        return load.int32s(self._data, self._place(column, _ENDS), self._count + 1)

    def _bytes(self, column: _int, part: _int) -> bytes:
        begin = self._place(column, part)
        return bytes(self._data[begin : begin + self._size(column, part)])


def copied(message: bytes | bytearray | memoryview) -> bytearray:
    """Return a writable copy. Compiled, it releases the GIL meanwhile: large ones take milliseconds."""
    return load.copied(message)


def put_numbers(message: bytearray, at: _int, first: _int, step: _int, count: _int) -> None:
    """Write first, first + step, … as int64 at `at`. Raise IndexError if they do not all lie within the message."""
    if at < 0 or count < 0 or count > (len(message) - at) // 8:
        raise IndexError(f"{count} numbers from {at} on in {len(message)} bytes")
    out = message
    load.put_int64s(out, at, first, step, count)


def _different(text: bytes, ends: list[int]) -> Iterable[bytes]:
    """Return each subject once, with C loops: plain Python is slow row by row."""
    width = ends[1]
    if ends == [*range(0, len(text), width or 1), len(text)] and text == text[:width] * (len(ends) - 1):
        return [text[:width]]
    return dict.fromkeys([text[begin:end] for begin, end in pairwise(ends)])


def _is_taken(text: bytes, begin: _int, end: _int, patterns: list[bytes]) -> bool:
    if not subjects.is_plain(text, begin, end):
        return False
    for one in patterns:
        pattern = one
        size = len(one)
        if subjects.covers(pattern, size, text, begin, end):
            names_first = pattern[0] != _GREATER and (pattern[0] != _STAR or (size > 1 and pattern[1] != _DOT))
            if names_first or not subjects.is_reserved(text, begin, end):
                return True
    return False
