"""Reads Thrift values, binary or compact, bare or in Frugal's frames, into typed columns.

Rules: a field that the columns do not have is skipped, as is one of another type than theirs; of a field that comes
twice the last one counts. A list whose elements have another type is skipped, too. Sizes are checked against what is
left of the message, of which every element takes a byte at least. Nothing recurses deeper than the columns, or than
DEPTH_MAX where it skips.

| frame   | bytes before the value                                                                          |
|---------|-------------------------------------------------------------------------------------------------|
| BARE    | none                                                                                            |
| MESSAGE | Thrift's message begin: version and type, name, sequence id                                     |
| FRUGAL  | size (4 bytes) of what follows; version 0; size (4 bytes) of the headers; headers; as MESSAGE   |

Defaults of missing fields are encoded in the binary protocol, whatever the values are encoded in.
"""

from __future__ import annotations

from penstock.hot import cells, memory
from penstock.hot.typed_columns import Column, RowReader

_bytes = bytes
_int = int
_bool = bool

BARE = 0
MESSAGE = 1
FRUGAL = 2
DEPTH_MAX = 64  # Thrift's own limit

_BARE = BARE
_FRUGAL = FRUGAL
_DEPTH_MAX = DEPTH_MAX
_VERSION_1 = -32767  # 0x8001, the upper half of a binary message's first number
_COMPACT_PROTOCOL = 0x82
_COMPACT_VERSION = 1
_VARINT_BYTES_MAX = 10
_SMALL_DEFAULT = 8  # bytes: a number

STOP, BOOL, I8, DOUBLE, I16, I32, I64, TEXT = 0, 2, 3, 4, 6, 8, 10, 11
STRUCT, MAP, SET, LIST, UUID = 12, 13, 14, 15, 16

_STOP = 0
_BOOL = 2
_BYTE = 3
_DOUBLE = 4
_SHORT = 6
_INT = 8
_LONG = 10
_STRING = 11
_STRUCT = 12
_MAP = 13
_SET = 14
_LIST = 15
_UUID = 16
# Binary type ids by those of the compact protocol, which has two for booleans.
_COMPACT_TYPES = bytes((0, 2, 2, 3, 6, 8, 10, 4, 11, 15, 14, 13, 12, 16, 255, 255))
_OF_COMPACT = cells.data_of(_COMPACT_TYPES)
# Bytes of a value in the binary protocol, of what has always as many; uuid: 16.
_VALUE_SIZES = bytes((0, 0, 1, 1, 8, 0, 2, 0, 4, 0, 8, 0, 0, 0, 0, 0, 16))
_SIZES = cells.data_of(_VALUE_SIZES)


class ThriftReader(RowReader):
    """Reads Thrift rows. `is_value`: the only field of the root is the value, which is no struct.

    `name`: that of the message, any if it is empty.
    """

    def __init__(
        self,
        root: Column,
        is_compact: _bool = False,
        frame: _int = BARE,
        name: _bytes = b"",
        is_value: _bool = False,
    ) -> None:
        super().__init__(root)
        self.is_compact = is_compact
        self.frame = frame
        self.name = name
        self.is_value = is_value
        self.varint = 0

    def _row(self) -> int:
        reason = cells.DECODED
        if self.frame != _BARE:
            reason = self._open()
            if reason:
                return reason
        root = self.root
        if not self.is_value:
            return self._compact_struct(root) if self.is_compact else self._binary_struct(root)
        child = root.child(0)
        kept = child.count
        reason = self._compact_value(child) if self.is_compact else self._binary_value(child)
        if reason:
            return self.blame(reason, root, child)
        if child.count == kept:
            return self.blame(cells.WIRE_TYPE, root, child)
        root.close_struct()
        return cells.DECODED

    def _open(self) -> int:
        """Go to the value in a frame; return why there is none."""
        text = self.text
        at = self.at
        if self.frame == _FRUGAL:
            if self.end - at < 9:
                return cells.ENDS
            if cells.int32_be(text, at) != self.end - at - 4:
                return cells.ENDS if cells.int32_be(text, at) > self.end - at - 4 else cells.FRAME
            if text[at + 4] != 0:
                return cells.FRAME
            size = cells.int32_be(text, at + 5)
            at += 9
            if size < 0:
                return cells.SIZE
            if size > self.end - at:
                return cells.ENDS
            self.at = at + size
        return self._compact_begin() if self.is_compact else self._binary_begin()

    def _binary_begin(self) -> int:
        text = self.text
        at = self.at
        if self.end - at < 4:
            return cells.ENDS
        size = cells.int32_be(text, at)
        is_strict = size < 0
        at += 4
        if is_strict:
            if size >> 16 != _VERSION_1:
                return cells.FRAME
            if self.end - at < 4:
                return cells.ENDS
            size = cells.int32_be(text, at)
            at += 4
            if size < 0:
                return cells.SIZE
        if size > self.end - at:
            return cells.ENDS
        if self.name and not memory.equals(text, at, at + size, self.name):
            return cells.NAME
        # Without a version, the type comes behind the name.
        at += size + (4 if is_strict else 5)
        if at > self.end:
            return cells.ENDS
        self.at = at
        return cells.DECODED

    def _compact_begin(self) -> int:
        text = self.text
        if self.end - self.at < 2:
            return cells.ENDS
        if text[self.at] != _COMPACT_PROTOCOL or text[self.at + 1] & 31 != _COMPACT_VERSION:
            return cells.FRAME
        self.at += 2
        reason = self._varint()
        if reason:
            return reason
        reason = self._size()
        if reason:
            return reason
        size = cells.signed64(self.varint)
        if self.name and not memory.equals(text, self.at, self.at + size, self.name):
            return cells.NAME
        self.at += size
        return cells.DECODED

    def fill(self, column: Column) -> int:
        """Append the default of a column, which has one; a long one counts as more cells."""
        filling = column.filling
        assert filling is not None
        size = len(filling)
        if size > _SMALL_DEFAULT:
            self.cells_left -= size - _SMALL_DEFAULT
            if self.cells_left < 0:
                return cells.EXPANDS
        text = self.text
        at = self.at
        end = self.end
        self.text = cells.data_of(filling)
        self.at = 0
        self.end = size
        reason = self._binary_value(column)
        self.text = text
        self.at = at
        self.end = end
        return reason

    def _close_struct(self, column: Column) -> int:
        """Append a struct; fields that did not come get their defaults, or null."""
        count = column.count
        for child in column.children:
            if child.count == count:
                if child.filling is not None:
                    reason = self.fill(child)
                    if reason:
                        return reason
                elif child.is_needed:
                    return self.blame(cells.MISSING, column, child)
                else:
                    child.add_null()
        column.close_struct()
        return cells.DECODED

    # The binary protocol.

    def _binary_struct(self, column: Column) -> int:
        text = self.text
        count = column.count
        below = column.below
        children = column.children
        place = 0
        while True:
            at = self.at
            if at >= self.end:
                return cells.ENDS
            kind = text[at]
            if kind == _STOP:
                self.at = at + 1
                return self._close_struct(column)
            if self.end - at < 3:
                return cells.ENDS
            id_ = cells.int16_be(text, at + 1)
            self.at = at + 3
            if place < below:
                child = children[place]
                if child.id != id_:
                    place = column.place_of(id_)
            else:
                place = column.place_of(id_)
            if place >= 0:
                child = children[place]
            if place < 0 or child.wire != kind:
                reason = self._skip_binary(kind, 0)
                if reason:
                    return reason
                place = max(place, 0)
                continue
            if child.count != count:
                self.cells_left -= child.cells
                if self.cells_left < 0:
                    return cells.EXPANDS
                child.truncate(count)
            reason = self._binary_value(child)
            if reason:
                return self.blame(reason, column, child)
            place += 1

    def _binary_value(self, column: Column) -> int:
        """Append the value that is at `at`; a list of another type is skipped, and nothing appended."""
        kind = column.kind
        at = self.at
        left = self.end - at
        if kind in (cells.TEXT, cells.BINARY):
            if left < 4:
                return cells.ENDS
            size = cells.int32_be(self.text, at)
            if size < 0:
                return cells.SIZE
            if size > left - 4:
                return cells.ENDS
            self.at = at + 4 + size
            if kind == cells.TEXT and not cells.is_utf8(self.text, at + 4, at + 4 + size):
                return cells.ENCODING
            return column.add_bytes(self.text, at + 4, at + 4 + size)
        if kind <= cells.DOUBLE:
            size = column.width
            if left < size:
                return cells.ENDS
            self.at = at + size
            if kind == cells.BOOL:
                column.add_number(self.text[at] != 0)
            else:
                column.add_swapped(self.text, at)
            return cells.DECODED
        if kind == cells.STRUCT:
            return self._binary_struct(column)
        if kind == cells.LIST:
            return self._binary_list(column)
        if kind == cells.MAP:
            return self._binary_map(column)
        if kind == cells.UUID:
            if left < 16:
                return cells.ENDS
            self.at = at + 16
            return column.add_uuid(self.text, at)
        if kind == cells.RAW:
            reason = self._skip_binary(column.wire, 0)
            return reason if reason else column.add_bytes(self.text, at, self.at)
        return cells.WIRE_TYPE

    def _binary_list(self, column: Column) -> int:
        at = self.at
        if self.end - at < 5:
            return cells.ENDS
        kind = self.text[at]
        size = cells.int32_be(self.text, at + 1)
        if size < 0:
            return cells.SIZE
        self.at = at + 5
        if size > self.end - self.at:
            return cells.ENDS
        element = column.child(0)
        if size and kind != element.wire:
            return self._skip_binary_values(kind, 0, size, 0)
        if not self._has_room(element, size):
            return cells.EXPANDS
        for _place in range(size):
            count = element.count
            reason = self._binary_value(element)
            if reason:
                return self.blame(reason, column, element)
            if element.count == count:
                element.add_null()
        column.close_list()
        return cells.DECODED

    def _binary_map(self, column: Column) -> int:
        at = self.at
        if self.end - at < 6:
            return cells.ENDS
        text = self.text
        size = cells.int32_be(text, at + 2)
        if size < 0:
            return cells.SIZE
        self.at = at + 6
        if size > (self.end - self.at) >> 1:
            return cells.ENDS
        key = column.child(0)
        value = column.child(1)
        if size and (text[at] != key.wire or text[at + 1] != value.wire):
            return self._skip_binary_values(text[at], text[at + 1], size, 0)
        if not self._has_room(key, size) or not self._has_room(value, size):
            return cells.EXPANDS
        for _place in range(size):
            count = value.count
            reason = self._binary_value(key)
            if reason:
                return self.blame(reason, column, key)
            if key.count == count:  # Arrow has no null keys
                return self.blame(cells.WIRE_TYPE, column, key)
            reason = self._binary_value(value)
            if reason:
                return self.blame(reason, column, value)
            if value.count == count:
                value.add_null()
        column.close_list()
        return cells.DECODED

    def _has_room(self, element: Column, size: _int) -> bool:
        """True if a list may have that many more elements."""
        if size > cells.INT32_MAX - element.count:
            return False
        self.cells_left -= size * element.cells
        return self.cells_left >= 0

    def _skip_binary(self, kind: _int, depth: _int) -> int:
        """Go behind a value of a type that is a number on the wire."""
        if depth >= _DEPTH_MAX:
            return cells.DEEP
        if kind > _UUID:
            return cells.WIRE_TYPE
        text = self.text
        left = self.end - self.at
        size = _SIZES[kind]
        if size == 0:
            if kind == _STRUCT:
                return self._skip_binary_struct(depth)
            if kind in (_LIST, _SET):
                if left < 5:
                    return cells.ENDS
                self.at += 5
                return self._skip_binary_values(text[self.at - 5], 0, cells.int32_be(text, self.at - 4), depth)
            if kind == _MAP:
                if left < 6:
                    return cells.ENDS
                self.at += 6
                key = text[self.at - 6]
                return self._skip_binary_values(key, text[self.at - 5], cells.int32_be(text, self.at - 4), depth)
            if kind != _STRING:
                return cells.WIRE_TYPE
            if left < 4:
                return cells.ENDS
            size = cells.int32_be(text, self.at)
            if size < 0:
                return cells.SIZE
            self.at += 4
            left -= 4
        if size > left:
            return cells.ENDS
        self.at += size
        return cells.DECODED

    def _skip_binary_struct(self, depth: _int) -> int:
        while True:
            if self.at >= self.end:
                return cells.ENDS
            kind = self.text[self.at]
            self.at += 1
            if kind == _STOP:
                return cells.DECODED
            if self.end - self.at < 2:
                return cells.ENDS
            self.at += 2
            reason = self._skip_binary(kind, depth + 1)
            if reason:
                return reason

    def _skip_binary_values(self, kind: _int, other: _int, count: _int, depth: _int) -> int:
        """Go behind the values of a list, or the keys and values of a map."""
        if count < 0:
            return cells.SIZE
        if count > self.end - self.at:
            return cells.ENDS
        for _place in range(count):
            reason = self._skip_binary(kind, depth + 1)
            if reason:
                return reason
            if other:
                reason = self._skip_binary(other, depth + 1)
                if reason:
                    return reason
        return cells.DECODED

    # The compact protocol.

    def _varint(self) -> int:
        """Read a number of 7 bits a byte into `varint`."""
        text = self.text
        at = self.at
        value = cells.unsigned64(0)
        for place in range(_VARINT_BYTES_MAX):
            if at >= self.end:
                return cells.ENDS
            byte = text[at]
            at += 1
            value |= cells.unsigned64(byte & 127) << (7 * place)
            if byte < 128:
                self.varint = cells.unsigned64(value)
                self.at = at
                return cells.DECODED if place < 9 or byte < 2 else cells.NUMBER
        return cells.NUMBER

    def _size(self) -> int:
        """Read a size into `varint`: no more than what is left of the message."""
        reason = self._varint()
        if reason:
            return reason
        if self.varint > cells.unsigned64(cells.INT32_MAX):
            return cells.SIZE
        return cells.ENDS if cells.signed64(self.varint) > self.end - self.at else cells.DECODED

    def _compact_struct(self, column: Column) -> int:
        text = self.text
        count = column.count
        below = column.below
        children = column.children
        place = 0
        id_ = 0
        while True:
            if self.at >= self.end:
                return cells.ENDS
            byte = text[self.at]
            self.at += 1
            if byte == _STOP:
                return self._close_struct(column)
            if byte >> 4:
                id_ += byte >> 4
            else:
                reason = self._varint()
                if reason:
                    return reason
                id_ = cells.unzigzag(self.varint)
                if not -32768 <= id_ <= 32767:
                    return cells.NUMBER
            kind = _OF_COMPACT[byte & 15]
            if place < below:
                child = children[place]
                if child.id != id_:
                    place = column.place_of(id_)
            else:
                place = column.place_of(id_)
            if place >= 0:
                child = children[place]
            if place < 0 or child.wire != kind:
                if kind != _BOOL:
                    reason = self._skip_compact(kind, 0)
                    if reason:
                        return reason
                place = max(place, 0)
                continue
            if child.count != count:
                self.cells_left -= child.cells
                if self.cells_left < 0:
                    return cells.EXPANDS
                child.truncate(count)
            if kind == _BOOL:
                child.add_number(byte & 15 == 1)
            else:
                reason = self._compact_value(child)
                if reason:
                    return self.blame(reason, column, child)
            place += 1

    def _compact_value(self, column: Column) -> int:
        """Append the value that is at `at`; a list of another type is skipped, and nothing appended."""
        kind = column.kind
        at = self.at
        if kind in (cells.TEXT, cells.BINARY):
            reason = self._size()
            if reason:
                return reason
            at = self.at
            self.at += cells.signed64(self.varint)
            if kind == cells.TEXT and not cells.is_utf8(self.text, at, self.at):
                return cells.ENCODING
            return column.add_bytes(self.text, at, self.at)
        if cells.INT16 <= kind <= cells.INT64:
            reason = self._varint()
            if reason:
                return reason
            number = cells.unzigzag(self.varint)
            if kind == cells.INT32 and number != cells.wrap32(number):
                return cells.NUMBER
            if kind == cells.INT16 and not -32768 <= number <= 32767:
                return cells.NUMBER
            column.add_number(number)
            return cells.DECODED
        if kind <= cells.DOUBLE:
            if self.end - at < column.width:
                return cells.ENDS
            self.at = at + column.width
            if kind == cells.BOOL:
                column.add_number(self.text[at] == 1)
            else:
                column.add_fixed(self.text, at)
            return cells.DECODED
        if kind == cells.STRUCT:
            return self._compact_struct(column)
        if kind == cells.LIST:
            return self._compact_list(column)
        if kind == cells.MAP:
            return self._compact_map(column)
        if kind == cells.UUID:
            if self.end - at < 16:
                return cells.ENDS
            self.at = at + 16
            return column.add_uuid(self.text, at)
        if kind == cells.RAW:
            reason = self._skip_compact(column.wire, 0)
            return reason if reason else column.add_bytes(self.text, at, self.at)
        return cells.WIRE_TYPE

    def _compact_sizes(self) -> int:
        """Read the head of a list: its size to `varint`, its type stays in the byte that `at` was at."""
        if self.at >= self.end:
            return cells.ENDS
        byte = self.text[self.at]
        self.at += 1
        if byte >> 4 == 15:
            return self._size()
        self.varint = cells.unsigned64(byte >> 4)
        return cells.ENDS if byte >> 4 > self.end - self.at else cells.DECODED

    def _compact_list(self, column: Column) -> int:
        at = self.at
        reason = self._compact_sizes()
        if reason:
            return reason
        kind = _OF_COMPACT[self.text[at] & 15]
        size = cells.signed64(self.varint)
        element = column.child(0)
        if size and kind != element.wire:
            return self._skip_compact_values(kind, 0, size, 0)
        if not self._has_room(element, size):
            return cells.EXPANDS
        for _place in range(size):
            count = element.count
            reason = self._compact_value(element)
            if reason:
                return self.blame(reason, column, element)
            if element.count == count:
                element.add_null()
        column.close_list()
        return cells.DECODED

    def _compact_map(self, column: Column) -> int:
        reason = self._size()
        if reason:
            return reason
        size = cells.signed64(self.varint)
        key = column.child(0)
        value = column.child(1)
        if size:
            kinds = self.text[self.at]
            self.at += 1
            if _OF_COMPACT[kinds >> 4] != key.wire or _OF_COMPACT[kinds & 15] != value.wire:
                return self._skip_compact_values(_OF_COMPACT[kinds >> 4], _OF_COMPACT[kinds & 15], size, 0)
        if not self._has_room(key, size) or not self._has_room(value, size):
            return cells.EXPANDS
        for _place in range(size):
            count = value.count
            reason = self._compact_value(key)
            if reason:
                return self.blame(reason, column, key)
            if key.count == count:  # Arrow has no null keys
                return self.blame(cells.WIRE_TYPE, column, key)
            reason = self._compact_value(value)
            if reason:
                return self.blame(reason, column, value)
            if value.count == count:
                value.add_null()
        column.close_list()
        return cells.DECODED

    def _skip_compact(self, kind: _int, depth: _int) -> int:
        """Go behind a value of a type, named as in the binary protocol; a boolean as it is in a list."""
        if depth >= _DEPTH_MAX:
            return cells.DEEP
        size = 0
        if kind == _STRUCT:
            return self._skip_compact_struct(depth)
        if kind in (_SHORT, _INT, _LONG):
            return self._varint()
        if kind in (_LIST, _SET, _MAP):
            return self._skip_compact_list(kind, depth)
        if kind == _STRING:
            reason = self._size()
            if reason:
                return reason
            size = cells.signed64(self.varint)
        elif kind in (_BOOL, _BYTE, _DOUBLE, _UUID):
            size = _SIZES[kind]
        else:
            return cells.WIRE_TYPE
        if size > self.end - self.at:
            return cells.ENDS
        self.at += size
        return cells.DECODED

    def _skip_compact_struct(self, depth: _int) -> int:
        while True:
            if self.at >= self.end:
                return cells.ENDS
            byte = self.text[self.at]
            self.at += 1
            if byte == _STOP:
                return cells.DECODED
            if not byte >> 4:
                reason = self._varint()
                if reason:
                    return reason
            kind = _OF_COMPACT[byte & 15]
            if kind != _BOOL:
                reason = self._skip_compact(kind, depth + 1)
                if reason:
                    return reason

    def _skip_compact_list(self, kind: _int, depth: _int) -> int:
        at = self.at
        reason = self._size() if kind == _MAP else self._compact_sizes()
        if reason:
            return reason
        size = cells.signed64(self.varint)
        if kind != _MAP:
            return self._skip_compact_values(_OF_COMPACT[self.text[at] & 15], 0, size, depth)
        if not size:
            return cells.DECODED
        kinds = self.text[self.at]
        self.at += 1
        return self._skip_compact_values(_OF_COMPACT[kinds >> 4], _OF_COMPACT[kinds & 15], size, depth)

    def _skip_compact_values(self, kind: _int, other: _int, count: _int, depth: _int) -> int:
        """Go behind the values of a list, or the keys and values of a map."""
        if count > self.end - self.at:
            return cells.ENDS
        for _place in range(count):
            reason = self._skip_compact(kind, depth + 1)
            if reason:
                return reason
            if other:
                reason = self._skip_compact(other, depth + 1)
                if reason:
                    return reason
        return cells.DECODED
