"""Reads Protobuf messages into typed columns.

Rules: a field that the columns do not have is skipped, as is one of another wire type than theirs. Numbers are packed
or not, whatever the schema says. Of a number or text that comes twice the last one counts; messages are merged, which
is the same as reading their bytes end to end. Of the members of a `oneof` the last one counts, and what came for the
others before is not kept. A list or map that does not come is empty. Groups are skipped.

| wire type | bytes                        | kinds                                     |
|-----------|------------------------------|-------------------------------------------|
| 0         | a varint                     | whole numbers, BOOL; zigzag if `flags` is |
| 1         | 8, little-endian             | DOUBLE, INT64                             |
| 2         | a size and as many bytes     | TEXT, BINARY, STRUCT, MAP, packed numbers |
| 3, 4      | fields between two tags      | none                                      |
| 5         | 4, little-endian             | FLOAT, INT32                              |
"""

from __future__ import annotations

from penstock.hot import cells, memory
from penstock.hot.thrift_columns import ThriftReader
from penstock.hot.typed_columns import Column, RowReader

_int = int
_bool = bool

VARINT, FIXED64, SIZED, GROUP, GROUP_END, FIXED32 = range(6)
ZIGZAG = 1
ONEOF = 2
"""A flag of a `oneof`'s members, times the place of its first one and one more; that one's `chosen` is the place of the
last that came."""
DEPTH_MAX = 64  # of groups that are skipped; Protobuf's own limit is 100

_VARINT = 0
_FIXED64 = 1
_SIZED = 2
_GROUP = 3
_FIXED32 = 5
_ZIGZAG = ZIGZAG
_ONEOF = ONEOF
_DEPTH_MAX = DEPTH_MAX
_VARINT_BYTES_MAX = 10
_ID_MAX = 2**29 - 1


class ProtobufReader(RowReader):
    """Reads Protobuf rows. `has_indexes`: a registry's list of message indexes stands before each message."""

    def __init__(self, root: Column, has_indexes: _bool = False) -> None:
        super().__init__(root)
        self.has_indexes = has_indexes
        self.varint = 0
        self.tag = 0
        self.filler = ThriftReader(root)

    def _row(self) -> int:
        if self.has_indexes:
            reason = self._skip_indexes()
            if reason:
                return reason
        return self._message(self.root)

    def _skip_indexes(self) -> int:
        """Go behind the indexes that name the message in its file: a count and as many numbers, all zigzag."""
        reason = self._varint()
        if reason:
            return reason
        count = cells.unzigzag(self.varint)
        if count < 0 or count > self.end - self.at:
            return cells.FRAME
        for _place in range(count):
            reason = self._varint()
            if reason:
                return reason
        return cells.DECODED

    def _varint(self) -> int:
        """Read a number of 7 bits a byte into `varint`; bits beyond the 64th are lost, as in Protobuf's libraries."""
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
                return cells.DECODED
        return cells.NUMBER

    def _size(self) -> int:
        """Read a size into `varint`: no more than what is left."""
        reason = self._varint()
        if reason:
            return reason
        if self.varint > cells.unsigned64(cells.INT32_MAX):
            return cells.SIZE
        return cells.ENDS if cells.signed64(self.varint) > self.end - self.at else cells.DECODED

    def _tag(self) -> int:
        """Read a field's number and wire type into `tag`."""
        reason = self._varint()
        if reason:
            return reason
        if self.varint >> 3 < 1 or self.varint >> 3 > cells.unsigned64(_ID_MAX):
            return cells.WIRE_TYPE
        self.tag = cells.signed64(self.varint)
        return cells.DECODED

    def _message(self, column: Column) -> int:
        """Append the message that is from `at` to `end`."""
        count = column.count
        below = column.below
        children = column.children
        begin = self.at
        is_merged = False
        place = 0
        while self.at < self.end:
            reason = self._tag()
            if reason:
                return reason
            id_ = self.tag >> 3
            wire = self.tag & 7
            if place < below:
                child = children[place]
                if child.id != id_:
                    place = column.place_of(id_)
            else:
                place = column.place_of(id_)
            if place < 0:
                reason = self._skip(id_, wire, 0)
                if reason:
                    return reason
                place = 0
                continue
            child = children[place]
            if child.kind in (cells.LIST, cells.MAP):
                reason = self._elements(child, id_, wire)
                if reason:
                    return self.blame(reason, column, child)
                continue  # its next element may follow
            if wire != child.wire:
                reason = self._skip(id_, wire, 0)
                if reason:
                    return reason
                place += 1
                continue
            if child.flags >= _ONEOF:
                reason = self._choose(column, child, place)
                if reason:
                    return reason
            if child.count == count:
                reason = self._value(child)
            elif child.kind in (cells.STRUCT, cells.RAW):
                is_merged = True
                reason = self._skip(id_, wire, 0)
            else:
                child.truncate(count)
                reason = self._value(child)
            if reason:
                return self.blame(reason, column, child)
            place += 1
        if is_merged:
            reason = self._merge(column, begin)
            if reason:
                return reason
        return self._close_message(column)

    def _choose(self, column: Column, child: Column, place: _int) -> int:
        """Note the member of a `oneof` that comes, and remove the one that came before it in the message, if any."""
        first = column.child(child.flags // _ONEOF - 1)
        before = first.chosen
        first.chosen = place
        if before < 0 or before == place:
            return cells.DECODED
        other = column.child(before)
        if other.count == column.count:  # it came in an earlier message
            return cells.DECODED
        self.cells_left -= other.cells
        if self.cells_left < 0:
            return cells.EXPANDS
        other.truncate(column.count)
        return cells.DECODED

    def _close_message(self, column: Column) -> int:
        """Append a message; fields that did not come get their defaults, or null."""
        count = column.count
        for child in column.children:
            if child.count == count:
                if child.kind in (cells.LIST, cells.MAP):
                    child.close_list()
                elif child.filling is not None:
                    self.filler.cells_left = self.cells_left
                    reason = self.filler.fill(child)
                    if reason:
                        return reason
                    self.cells_left = self.filler.cells_left
                elif child.is_needed:
                    return self.blame(cells.MISSING, column, child)
                else:
                    child.add_null()
        column.close_struct()
        return cells.DECODED

    def _merge(self, column: Column, begin: _int) -> int:
        """Read the fields again that are messages, each as one message of all the bytes that came for it."""
        count = column.count
        joined: dict[int, bytearray] = {}
        self.at = begin
        while self.at < self.end:
            reason = self._tag()
            if reason:
                return reason
            id_ = self.tag >> 3
            wire = self.tag & 7
            place = column.place_of(id_)
            if place >= 0 and wire == column.child(place).wire:
                child = column.child(place)
                if child.flags >= _ONEOF:
                    reason = self._drop(column, child, place, joined)
                    if reason:
                        return reason
                if child.kind in (cells.STRUCT, cells.RAW):
                    reason = self._size()
                    if reason:
                        return reason
                    size = cells.signed64(self.varint)
                    part = joined.setdefault(place, bytearray())
                    memory.append(part, self.text, self.at, self.at + size)
                    self.at += size
                    continue
            reason = self._skip(id_, wire, 0)
            if reason:
                return reason
        for key, part in joined.items():
            place = key
            child = column.child(place)
            child.truncate(count)
            reason = self._joined(child, bytes(part))
            if reason:
                return self.blame(reason, column, child)
        return cells.DECODED

    def _drop(self, column: Column, child: Column, place: _int, joined: dict[_int, bytearray]) -> int:
        """Forget what came for the member of a `oneof` before the one that comes; it must be sound nevertheless."""
        first = column.child(child.flags // _ONEOF - 1)
        before = first.chosen
        first.chosen = place
        part = None if before == place else joined.pop(before, None)
        if part is None:
            return cells.DECODED
        other = column.child(before)
        other.truncate(column.count)
        reason = self._joined(other, bytes(part))
        if reason:
            return reason
        other.truncate(column.count)
        return cells.DECODED

    def _joined(self, column: Column, message: bytes) -> int:
        """Append a message that lies by itself. It is read again, and so are those in it: each time, that costs."""
        self.cells_left -= column.cells + len(message)
        if self.cells_left < 0:
            return cells.EXPANDS
        text = self.text
        at = self.at
        end = self.end
        self.text = cells.data_of(message)
        self.at = 0
        self.end = len(message)
        is_raw = column.kind == cells.RAW
        reason = column.add_bytes(self.text, 0, self.end) if is_raw else self._message(column)
        self.text = text
        self.at = at
        self.end = end
        return reason

    def _elements(self, column: Column, id_: _int, wire: _int) -> int:
        """Append to the parts of a list or map what a field brings; the list is closed with its message."""
        element = column.child(0)
        if column.kind == cells.MAP:
            return self._entry(column) if wire == _SIZED else self._skip(id_, wire, 0)
        if wire == element.wire:
            reason = self._value(element) if self._has_room(element) else cells.EXPANDS
            return self.blame(reason, column, element) if reason else cells.DECODED
        if wire != _SIZED:
            return self._skip(id_, wire, 0)
        reason = self._size()
        if reason:
            return reason
        outer = self.end
        self.end = self.at + cells.signed64(self.varint)
        while self.at < self.end:
            if not self._has_room(element):
                return cells.EXPANDS
            reason = self._value(element)
            if reason:
                return self.blame(reason, column, element)
        self.end = outer
        return cells.DECODED

    def _entry(self, column: Column) -> int:
        """Append a map's key and value: a message of two fields, each of which may be missing."""
        reason = self._size()
        if reason:
            return reason
        outer = self.end
        self.end = self.at + cells.signed64(self.varint)
        key = column.child(0)
        value = column.child(1)
        if not self._has_room(key) or not self._has_room(value):
            return cells.EXPANDS
        count = key.count
        while self.at < self.end:
            reason = self._tag()
            if reason:
                return reason
            id_ = self.tag >> 3
            wire = self.tag & 7
            part = key if id_ == 1 else value
            if id_ > 2 or wire != part.wire:
                reason = self._skip(id_, wire, 0)
            else:
                if part.count != count:
                    self.cells_left -= part.cells
                    if self.cells_left < 0:
                        return cells.EXPANDS
                    part.truncate(count)
                reason = self._value(part)
            if reason:
                return self.blame(reason, column, part)
        self.end = outer
        reason = self._missing(key, count)
        return reason if reason else self._missing(value, count)

    def _missing(self, column: Column, count: _int) -> int:
        """Append what a key or value is that did not come."""
        if column.count != count:
            return cells.DECODED
        if column.filling is not None:
            return self.filler.fill(column)
        if column.kind != cells.STRUCT:
            column.add_null()
            return cells.DECODED
        outer = self.end  # a message without fields
        self.end = self.at
        reason = self._message(column)
        self.end = outer
        return reason

    def _has_room(self, element: Column) -> bool:
        """True if a list may have one more element."""
        self.cells_left -= element.cells
        return self.cells_left >= 0 and element.count < cells.INT32_MAX

    def _value(self, column: Column) -> int:
        """Append the value that is at `at`, of the column's wire type."""
        kind = column.kind
        if column.wire == _VARINT:
            reason = self._varint()
            if reason:
                return reason
            number = cells.signed64(self.varint)
            if column.flags & _ZIGZAG:
                number = cells.unzigzag(self.varint)
            column.add_number(number != 0 if kind == cells.BOOL else number)
            return cells.DECODED
        if kind <= cells.DOUBLE:
            if self.end - self.at < column.width:
                return cells.ENDS
            column.add_fixed(self.text, self.at)
            self.at += column.width
            return cells.DECODED
        reason = self._size()
        if reason:
            return reason
        begin = self.at
        end = begin + cells.signed64(self.varint)
        if kind == cells.STRUCT:
            outer = self.end
            self.end = end
            reason = self._message(column)
            self.end = outer
            return reason
        self.at = end
        if kind == cells.TEXT and not cells.is_utf8(self.text, begin, end):
            return cells.ENCODING
        return column.add_bytes(self.text, begin, end)

    def _skip(self, id_: _int, wire: _int, depth: _int) -> int:
        """Go behind a value of a wire type; of a group, behind the end that has its number."""
        if depth >= _DEPTH_MAX:
            return cells.DEEP
        if wire == _VARINT:
            return self._varint()
        if wire == _GROUP:
            while True:
                reason = self._tag()
                if reason:
                    return reason
                inner = self.tag >> 3
                kind = self.tag & 7
                if kind == 4:
                    return cells.DECODED if inner == id_ else cells.WIRE_TYPE
                reason = self._skip(inner, kind, depth + 1)
                if reason:
                    return reason
        size = 8
        if wire == _FIXED32:
            size = 4
        elif wire == _SIZED:
            reason = self._size()
            if reason:
                return reason
            size = cells.signed64(self.varint)
        elif wire != _FIXED64:
            return cells.WIRE_TYPE
        if size > self.end - self.at:
            return cells.ENDS
        self.at += size
        return cells.DECODED
