"""Reads Avro values without their schema (schemaless) into typed columns.

Rules: a value has no marks of its own, so the columns are the writer's schema, field by field; bytes of another schema
are refused or read as something else. Sizes are checked against what is left of the message, and elements that take no
bytes against its cells.

| kind          | bytes                                                                                    |
|---------------|------------------------------------------------------------------------------------------|
| BOOL          | 1                                                                                        |
| INT32, INT64  | a zigzag varint; an enum's: `wire` is how many symbols it has                             |
| FLOAT, DOUBLE | 4 and 8, little-endian                                                                   |
| TEXT, BINARY  | a size and as many bytes; FIXED: `wire` bytes                                            |
| DECIMAL       | as BINARY: two's complement, big-endian                                                  |
| LIST, MAP     | blocks of a count, or of a negative count and a size in bytes, and elements; then a zero  |
| STRUCT        | its fields                                                                               |
| CHOICE        | the number of a branch and its value; `wire`: the branch that is null, or -1             |
| RAW           | a record around it, which is `records[wire]`                                             |
| NOTHING       | none                                                                                     |
"""

from __future__ import annotations

from penstock.hot import cells
from penstock.hot.typed_columns import Column, RowReader

_int = int

FIXED = 1  # flags
ENUM = 2
NAMED = 4  # a record that stands inside itself; its place in `records` is `wire`
ALONE = 8  # a choice of null and one more, whose column is that of the other
DEPTH_MAX = 64  # of records inside themselves

_FIXED = FIXED
_ENUM = ENUM
_NAMED = NAMED
_DEPTH_MAX = DEPTH_MAX
_VARINT_BYTES_MAX = 10


class AvroReader(RowReader):
    """Reads Avro rows; `records` are those that stand inside themselves."""

    def __init__(self, root: Column) -> None:
        super().__init__(root)
        self.number = 0
        self.records: dict[int, Column] = {}
        self._note(root)

    def _note(self, column: Column) -> None:
        """Note the records that stand inside themselves."""
        if column.kind == cells.STRUCT and column.flags & _NAMED:
            self.records[column.wire] = column
        for child in column.children:
            self._note(child)

    def _row(self) -> int:
        return self._struct(self.root)

    def _number(self) -> int:
        """Read a zigzag varint into `number`."""
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
                self.number = cells.unzigzag(cells.unsigned64(value))
                self.at = at
                return cells.DECODED if place < 9 or byte < 2 else cells.NUMBER
        return cells.NUMBER

    def _size(self) -> int:
        """Read a size into `number`: no more than what is left."""
        reason = self._number()
        if reason:
            return reason
        if self.number < 0:
            return cells.SIZE
        return cells.ENDS if self.number > self.end - self.at else cells.DECODED

    def _bytes_size(self, column: Column) -> int:
        """Get the size of bytes into `number`: that of a fixed type, or the one that stands before them."""
        if not column.flags & _FIXED:
            return self._size()
        self.number = column.wire
        return cells.ENDS if self.number > self.end - self.at else cells.DECODED

    def _struct(self, column: Column) -> int:
        for child in column.children:
            reason = self._value(child)
            if reason:
                return self.blame(reason, column, child)
        column.close_struct()
        return cells.DECODED

    def _value(self, column: Column) -> int:
        """Append the value that is at `at`."""
        kind = column.kind
        if kind in (cells.INT64, cells.INT32):
            reason = self._number()
            if reason:
                return reason
            number = self.number
            if kind == cells.INT32 and number != cells.wrap32(number):
                return cells.NUMBER
            if column.flags & _ENUM and not 0 <= number < column.wire:
                return cells.NUMBER
            column.add_number(number)
            return cells.DECODED
        if kind in (cells.TEXT, cells.BINARY, cells.DECIMAL):
            reason = self._bytes_size(column)
            if reason:
                return reason
            begin = self.at
            self.at = begin + self.number
            if kind == cells.DECIMAL:
                return column.add_decimal(self.text, begin, self.at)
            if kind == cells.TEXT and not cells.is_utf8(self.text, begin, self.at):
                return cells.ENCODING
            return column.add_bytes(self.text, begin, self.at)
        if kind == cells.CHOICE:
            return self._choice(column)
        if kind == cells.STRUCT:
            return self._struct(column)
        if kind in (cells.LIST, cells.MAP):
            return self._blocks(column)
        if kind == cells.RAW:
            begin = self.at
            reason = self._skip(self.records[column.wire], 0)
            return reason if reason else column.add_bytes(self.text, begin, self.at)
        if kind == cells.NOTHING:
            column.add_null()
            return cells.DECODED
        if self.end - self.at < column.width:
            return cells.ENDS
        if kind == cells.BOOL:
            column.add_number(self.text[self.at] != 0)
        else:
            column.add_fixed(self.text, self.at)
        self.at += column.width
        return cells.DECODED

    def _branch(self, column: Column) -> int:
        """Read the place of a choice's branch among its columns into `number`; -1: null."""
        reason = self._number()
        if reason:
            return reason
        branches = column.below + (column.wire >= 0)
        if self.number < 0 or self.number >= branches:
            return cells.NUMBER
        if column.wire >= 0 and self.number >= column.wire:
            self.number = -1 if self.number == column.wire else self.number - 1
        return cells.DECODED

    def _choice(self, column: Column) -> int:
        reason = self._branch(column)
        if reason:
            return reason
        chosen = self.number
        if chosen < 0:
            column.add_null()
            return cells.DECODED
        for place in range(column.below):
            child = column.child(place)
            if place != chosen:
                child.add_null()
                continue
            reason = self._value(child)
            if reason:
                return self.blame(reason, column, child)
        column.close_struct()
        return cells.DECODED

    def _count(self) -> int:
        """Read the count of a block into `number`."""
        reason = self._number()
        if reason:
            return reason
        if self.number >= 0:
            return cells.DECODED
        if self.number < -cells.INT32_MAX:
            return cells.SIZE
        count = -self.number
        reason = self._size()
        self.number = count
        return reason

    def _blocks(self, column: Column) -> int:
        while True:
            reason = self._count()
            if reason:
                return reason
            count = self.number
            if count == 0:
                column.close_list()
                return cells.DECODED
            if count > cells.INT32_MAX:
                return cells.SIZE
            for child in column.children:
                self.cells_left -= count * child.cells
                if self.cells_left < 0 or count > cells.INT32_MAX - child.count:
                    return cells.EXPANDS
            for _place in range(count):
                for child in column.children:
                    reason = self._value(child)
                    if reason:
                        return self.blame(reason, column, child)

    def _skip(self, column: Column, depth: _int) -> int:
        """Go behind a value of a column's kind."""
        if depth >= _DEPTH_MAX:
            return cells.DEEP
        kind = column.kind
        if kind in (cells.INT64, cells.INT32):
            return self._number()
        if kind in (cells.TEXT, cells.BINARY, cells.DECIMAL):
            reason = self._bytes_size(column)
            self.at += 0 if reason else self.number
            return reason
        if kind == cells.RAW:
            return self._skip(self.records[column.wire], depth + 1)
        if kind == cells.CHOICE:
            reason = self._branch(column)
            if reason or self.number < 0:
                return reason
            return self._skip(column.child(self.number), depth + 1)
        if kind in (cells.LIST, cells.MAP):
            return self._skip_blocks(column, depth)
        if kind == cells.STRUCT:
            for child in column.children:
                reason = self._skip(child, depth + 1)
                if reason:
                    return reason
            return cells.DECODED
        if self.end - self.at < column.width:
            return cells.ENDS
        self.at += column.width
        return cells.DECODED

    def _skip_blocks(self, column: Column, depth: _int) -> int:
        while True:
            reason = self._count()
            if reason or self.number == 0:
                return reason
            count = self.number
            if count > cells.INT32_MAX:
                return cells.SIZE
            self.cells_left -= count
            if self.cells_left < 0:
                return cells.EXPANDS
            for _place in range(count):
                for child in column.children:
                    reason = self._skip(child, depth + 1)
                    if reason:
                        return reason
