"""Walk through a Thrift value in binary or compact protocol, and make nothing: count its objects, check its texts.

Theory: a struct takes a byte at least, and some microseconds and hundreds of bytes of memory to make. So a message of
1 MiB can hold a loop for seconds. The count of structs and containers stops at the limit. And Apache thrift's decoder
replaces what is no UTF-8: a look at the bytes costs much less than one at all texts of the decoded value.

Rules: the walk needs no contract: types stand in the bytes. It checks each size against the bytes that are left. Where
it cannot go on, the value is unreadable: a decoder that knew a way would not be bounded by this count.
"""

from __future__ import annotations

from penstock.hot import cells, subjects

WITHIN, EXCEEDS, UNREADABLE = 0, 1, 2
_BOOL, _BYTE, _DOUBLE, _I16, _I32, _I64 = 2, 3, 4, 6, 8, 10
_STRING, _STRUCT, _MAP, _SET, _LIST, _UUID = 11, 12, 13, 14, 15, 16
_DEPTH_MAX = 128  # more than any decoder takes
# Bytes of a value of each type in the binary protocol; 0: it depends.
_VALUE_SIZES = bytes((0, 0, 1, 1, 8, 0, 2, 0, 4, 0, 8, 0, 0, 0, 0, 0, 16))
_SIZES = cells.data_of(_VALUE_SIZES)
# The type of the binary protocol for each of the compact one.
_COMPACT_TYPES = bytes((0, 2, 2, 3, 6, 8, 10, 4, 11, 15, 14, 13, 12, 16, 0, 0))
_OF_COMPACT = cells.data_of(_COMPACT_TYPES)
_VARINT_BYTES_MAX = 10

_int = int  # of C, when compiled


class ObjectCounter:
    """Walks through one value. `count` has the structs and containers so far; `is_text`: all strings are UTF-8."""

    __slots__ = ("at", "count", "end", "is_compact", "is_text", "limit", "size", "text")

    def __init__(self, text: bytes, limit: _int, is_compact: bool) -> None:
        self.text = text
        self.at = 0
        self.end = len(text)
        self.count = 0
        self.limit = limit
        self.is_compact = is_compact
        self.is_text = True
        self.size = 0  # the last number that was read

    def walk(self, kind: _int, depth: _int) -> bool:
        """Go behind a value; False: it cannot be read on."""
        if kind in (_STRUCT, _LIST, _SET, _MAP):
            self.count += 1
            if self.count > self.limit or depth > _DEPTH_MAX:
                return False
            if kind == _STRUCT:
                return self._walk_struct(depth)
            return self._walk_map(depth) if kind == _MAP else self._walk_list(depth)
        if kind == _STRING:
            return self._walk_string()
        if self.is_compact and kind in (_I16, _I32, _I64):
            return self._read_varint()
        if kind < 0 or kind > _UUID or _SIZES[kind] == 0:
            return False
        return self._skip(_SIZES[kind])

    def _walk_string(self) -> bool:
        if not self._read_size():
            return False
        begin = self.at
        if not self._skip(self.size):
            return False
        if self.is_text:
            self.is_text = subjects.is_text(self.text, begin, self.at)
        return True

    def _walk_struct(self, depth: _int) -> bool:
        text = self.text
        while self.at < self.end:
            byte = text[self.at]
            self.at += 1
            if byte == 0:
                return True
            if not self.is_compact:
                if not self._skip(2) or not self.walk(byte, depth + 1):
                    return False
                continue
            if byte >> 4 == 0 and not self._read_varint():
                return False
            kind = _OF_COMPACT[byte & 15]
            if kind != _BOOL and not self.walk(kind, depth + 1):  # a bool is in the field's type
                return False
        return False

    def _walk_list(self, depth: _int) -> bool:
        if self.at >= self.end:
            return False
        text = self.text
        kind = text[self.at]
        self.at += 1
        if self.is_compact:
            self.size = kind >> 4
            kind = _OF_COMPACT[kind & 15]
            if self.size == 15 and not self._read_size():
                return False
        elif not self._read_size():
            return False
        return self._walk_elements(kind, 0, self.size, depth)

    def _walk_map(self, depth: _int) -> bool:
        text = self.text
        if self.is_compact:
            if not self._read_size():
                return False
            if self.size == 0:
                return True
            if self.at >= self.end:
                return False
            kinds = text[self.at]
            self.at += 1
            return self._walk_elements(_OF_COMPACT[kinds >> 4], _OF_COMPACT[kinds & 15], self.size, depth)
        if self.end - self.at < 6:
            return False
        key = text[self.at]
        value = text[self.at + 1]
        self.at += 2
        return self._read_size() and self._walk_elements(key, value, self.size, depth)

    def _walk_elements(self, kind: _int, other: _int, count: _int, depth: _int) -> bool:
        """Go behind the elements of a list, or the keys and values of a map."""
        if count > self.end - self.at:
            return False
        for _place in range(count):
            if not self.walk(kind, depth + 1):
                return False
            if other and not self.walk(other, depth + 1):
                return False
        return True

    def _skip(self, size: _int) -> bool:
        if size > self.end - self.at:
            return False
        self.at += size
        return True

    def _read_size(self) -> bool:
        """Read the size of a text or container; False: it is beyond the bytes that are left."""
        if self.is_compact:
            return self._read_varint() and self.size <= self.end - self.at
        if self.end - self.at < 4:
            return False
        at = self.at
        text = self.text
        first = text[at]
        self.size = first << 24 | text[at + 1] << 16 | text[at + 2] << 8 | text[at + 3]
        self.at = at + 4
        return self.size <= self.end - self.at

    def _read_varint(self) -> bool:
        """Read a number of the compact protocol; one that cannot be a size is a large one."""
        text = self.text
        value = 0
        for place in range(_VARINT_BYTES_MAX):
            if self.at >= self.end:
                return False
            byte = text[self.at]
            self.at += 1
            if place < 5:
                value |= (byte & 127) << 7 * place
            if byte < 128:
                self.size = value
                return True
        return False


def find_excess(text: bytes, kind: _int, limit: _int, is_compact: bool) -> _int:
    """Return `WITHIN`, or `EXCEEDS` for a value of wire type `kind` with more than `limit` structs and containers.

    `UNREADABLE`: it has a size beyond its end, a type that Thrift does not have, or nests too deep.
    """
    counter = ObjectCounter(text, limit, is_compact)
    is_whole = counter.walk(kind, 0)
    if counter.count > limit:
        return EXCEEDS
    return WITHIN if is_whole else UNREADABLE


def has_texts_only(text: bytes, kind: _int, is_compact: bool) -> bool:
    """True if each string in a value of wire type `kind` is UTF-8; False: one is not, or unreadable."""
    counter = ObjectCounter(text, len(text), is_compact)
    return counter.walk(kind, 0) and counter.is_text
