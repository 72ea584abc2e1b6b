"""Walk through a Thrift value in binary or compact protocol, and make nothing: count its objects, find what is wrong.

Theory: a struct takes a byte at least, and some microseconds and hundreds of bytes of memory to make. So a message of
1 MiB can hold a loop for seconds. The count of structs and containers stops at the limit. And Apache thrift's decoder
replaces what is no UTF-8, and tells no field of what it cannot read: a second walk, by the types of the contract, does.

Rules: the count needs no contract: types stand in the bytes. It checks each size against the bytes that are left. Where
it cannot go on, the value is unreadable: a decoder that knew a way would not be bounded by this count. A fault is None,
or the path to the field, the reason and the byte of the value; entries of maps and elements are counted from 0.
"""

from __future__ import annotations

from penstock.hot import cells, subjects, thrift_values
from penstock.hot.thrift_values import Shape

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
    """Walks through one value. `count` has the structs and containers so far."""

    __slots__ = ("at", "count", "end", "is_compact", "limit", "size", "text")

    def __init__(self, text: bytes, limit: _int, is_compact: bool) -> None:
        self.text = text
        self.at = 0
        self.end = len(text)
        self.count = 0
        self.limit = limit
        self.is_compact = is_compact
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
            return self._read_size() and self._skip(self.size)
        if self.is_compact and kind in (_I16, _I32, _I64):
            return self._read_varint()
        if kind < 0 or kind > _UUID or _SIZES[kind] == 0:
            return False
        return self._skip(_SIZES[kind])

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


class FaultFinder:
    """Walks through one value by its shape. `only_texts`: nothing but texts that are no UTF-8 is a fault."""

    __slots__ = ("counter", "only_texts")

    def __init__(self, counter: ObjectCounter, only_texts: bool) -> None:
        self.counter = counter
        self.only_texts = only_texts

    def fault(self, shape: Shape, depth: _int) -> str | None:
        """Return the path within the value and the reason, and stay at the byte; None: it can be read."""
        counter = self.counter
        kind = shape.kind
        if depth > _DEPTH_MAX:
            return ": it nests too deep"
        if kind == _STRUCT:
            return self._struct_fault(shape, depth)
        if kind in (_LIST, _SET, _MAP):
            return self._elements_fault(shape, depth)
        begin = counter.at
        if kind == _STRING:
            if not counter._read_size():  # noqa: SLF001 (of this module)
                counter.at = begin
                return ": its size is beyond the end of the value"
            begin = counter.at
            counter._skip(counter.size)  # noqa: SLF001 (of this module)
            if not shape.is_binary and not subjects.is_text(counter.text, begin, counter.at):
                counter.at = begin
                return ": it is no UTF-8"
            return None
        if not counter.walk(kind, depth):
            counter.at = begin
            return ": the value ends in it"
        return None

    def _struct_fault(self, shape: Shape, depth: _int) -> str | None:
        counter = self.counter
        if not shape.is_filled:
            shape.fill()
        found = [0] * len(shape.names)  # 1: it was there; else the negative type that it came as
        number = 0
        while True:
            begin = counter.at
            kind = self._next_field(number)
            if kind < 0:
                counter.at = begin
                return ": it does not end"
            if kind == 0:
                break
            number = counter.size
            place = shape.places[number] if 0 <= number < len(shape.places) else -1
            is_read = counter.is_compact and kind == _BOOL  # a bool is in the field's type
            field = shape.shapes[place] if place >= 0 else shape
            if place >= 0 and field.kind == kind:
                found[place] = 1
                inner = None if is_read else self.fault(field, depth + 1)
                if inner is not None:
                    return f".{shape.names[place]}{inner}"
                continue
            if place >= 0 and found[place] == 0:
                found[place] = -kind
            if not is_read and not counter.walk(kind, depth + 1):
                counter.at = begin
                return f", the unknown field {number}: it cannot be read"
        return None if self.only_texts else self._missing(shape, found)

    def _next_field(self, last: _int) -> _int:
        """Read the head of a field: return its type, 0 at the end of the struct; -1: there is none. `size`: its id."""
        counter = self.counter
        text = counter.text
        if counter.at >= counter.end:
            return -1
        byte = text[counter.at]
        counter.at += 1
        if byte == 0:
            return 0
        if not counter.is_compact:
            at = counter.at
            if not counter._skip(2):  # noqa: SLF001 (of this module)
                return -1
            counter.size = text[at] << 8 | text[at + 1]
            return byte
        if byte >> 4:
            counter.size = last + (byte >> 4)
        elif not counter._read_varint():  # noqa: SLF001 (of this module)
            return -1
        else:
            counter.size = counter.size >> 1 ^ -(counter.size & 1)
        kind = _OF_COMPACT[byte & 15]
        return kind if kind else -1

    def _missing(self, shape: Shape, found: list[int]) -> str | None:
        """Return what the fields of a struct lack; None: nothing."""
        count = 0
        for place in range(len(found)):
            if found[place] == 1:
                count += 1
            elif shape.required[place]:
                name, wanted = shape.names[place], shape.shapes[place].name
                if found[place]:
                    other = thrift_values.name_of(-found[place])
                    return f".{name}: it is {other} in the bytes, where the contract says {wanted}"
                return f".{name}: the required field is missing"
        if shape.is_union and count != 1:
            return shape.union_misfit([name for name, one in zip(shape.names, found, strict=True) if one == 1])
        return None

    def _elements_fault(self, shape: Shape, depth: _int) -> str | None:
        """Return the fault of a list, set or map."""
        counter = self.counter
        begin = counter.at
        kind, other = self._container_head(shape.kind == _MAP)
        size = counter.size
        if kind < 0 or size > counter.end - counter.at:
            counter.at = begin
            return ": its size is beyond the end of the value"
        element = shape.element
        assert element is not None
        values = shape.other
        if size and (kind != element.kind or (values is not None and other != values.kind)):
            counter.at = begin
            said, wanted = thrift_values.name_of(kind), element.name
            if values is not None:
                said, wanted = f"{said} to {thrift_values.name_of(other)}", f"{wanted} to {values.name}"
            return f": its elements are {said}, where the contract says {wanted}"
        for place in range(size):
            inner = self.fault(element, depth + 1)
            if inner is not None:
                return f"[{place}]{inner}" if values is None else f"[key of entry {place}]{inner}"
            if values is not None:
                inner = self.fault(values, depth + 1)
                if inner is not None:
                    return f"[entry {place}]{inner}"
        return None

    def _container_head(self, is_map: bool) -> tuple[int, int]:
        """Read types and size of a container; (-1, 0): there are none. `size`: its size."""
        counter = self.counter
        text = counter.text
        if is_map and counter.is_compact:
            if not counter._read_size():  # noqa: SLF001 (of this module)
                return -1, 0
            if counter.size == 0:
                return 0, 0
        if counter.at >= counter.end:
            return -1, 0
        first = text[counter.at]
        counter.at += 1
        if counter.is_compact:
            if is_map:
                return _OF_COMPACT[first >> 4], _OF_COMPACT[first & 15]
            counter.size = first >> 4
            if counter.size == 15 and not counter._read_size():  # noqa: SLF001 (of this module)
                return -1, 0
            return _OF_COMPACT[first & 15], 0
        other = 0
        if is_map:
            if counter.at >= counter.end:
                return -1, 0
            other = text[counter.at]
            counter.at += 1
        if not counter._read_size():  # noqa: SLF001 (of this module)
            return -1, 0
        return first, other


def find_fault(text: bytes, shape: Shape, is_compact: bool, only_texts: bool) -> str | None:
    """Return the path, the reason and the byte of what is wrong with a value of a type; None: nothing is found.

    `only_texts`: only a text that is no UTF-8 is wrong.
    """
    counter = ObjectCounter(text, len(text), is_compact)
    found = FaultFinder(counter, only_texts).fault(shape, 0)
    if found is None or (only_texts and not found.endswith(": it is no UTF-8")):
        return None
    return f"{found}, at byte {counter.at}"
