"""Typed columns that are being built from encoded values, row by row, as the buffers of Arrow arrays.

Rules: a column knows how many values it has. Fields of a struct have as many as the struct while no row is being read;
in a row that is being read, a field that is one ahead has its value, one that is not yet so gets null at the end. So
`count` says which fields have come, and a row that is refused is undone by `truncate`. Whatever a message says, a row
has at most CELLS_PER_BYTE cells for each of its bytes, and FREE_CELLS more; cells that are written again, because a
field comes twice, count again.

| kind               | `values`                       | `data`    | columns below |
|--------------------|--------------------------------|-----------|---------------|
| numbers, BOOL      | `width` bytes a value          |           |               |
| TEXT, BINARY, …    | 4-byte offsets, one more       | the bytes |               |
| LIST               | 4-byte offsets, one more       |           | its elements  |
| MAP                | 4-byte offsets, one more       |           | keys, values  |
| STRUCT, CHOICE     |                                |           | its fields    |

`valid` is a byte a value until the end, 1 = not null.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.hot import cells, load, memory

_bytes = bytes
_int = int
_bool = bool

WIDTHS = {
    cells.BOOL: 1,
    cells.INT8: 1,
    cells.INT16: 2,
    cells.INT32: 4,
    cells.INT64: 8,
    cells.FLOAT: 4,
    cells.DOUBLE: 8,
    cells.DECIMAL: 16,
}
CELLS_PER_BYTE = 64  # a list of sparse structs has many cells for few bytes
FREE_CELLS = 1 << 16  # of a message, for lists of default values and the like

_CELLS_PER_BYTE = CELLS_PER_BYTE
_FREE_CELLS = FREE_CELLS
_FIRST_ROOM = 16
_UUID_SIZE = 36
_EMPTY = b""
_SCHEMA_ID_SIZE = 5  # with the byte before it


class Column:
    """A column of one kind, with the columns of its parts.

    `id` and `wire` are what the field's number and type are on the wire, `is_zigzag` whether its numbers are zigzag.
    `filling`: the encoded default of a field that is missing; of a decimal its bounds. `is_needed`: such a row is
    refused. `name`: of the field, where the encoding has names.
    """

    def __init__(
        self,
        kind: _int,
        children: Sequence[Column],
        id: _int = 0,  # noqa: A002 (the field's word)
        wire: _int = 0,
        flags: _int = 0,
        is_needed: _bool = False,
        filling: _bytes | None = None,
        name: _bytes = b"",
    ) -> None:
        self.kind = kind
        self.children = list(children)
        self.below = len(self.children)
        self.id = id
        self.wire = wire
        self.flags = flags
        self.is_needed = is_needed
        self.filling = filling
        self.name = name
        self.places = {child.name: place for place, child in enumerate(self.children)} if kind == cells.STRUCT else {}
        self.width = WIDTHS.get(kind, 0)
        self.has_offsets = cells.TEXT <= kind <= cells.MAP
        self.count = self.room = 0
        self.chosen = -1  # of the first member of a `oneof` in Protobuf: the place of the last that came
        self.data_size = self.data_room = 0
        # Cells of one value: its own, and those of the fields that are null with it.
        self.cells = 1
        if not self.has_offsets:
            for child in self.children:
                self.cells += child.cells
        self.valid_store = bytearray()
        self.values_store = bytearray()
        self.data_store = bytearray()
        self.data = self.data_store
        self.reserve(_FIRST_ROOM)

    def reserve(self, room: _int) -> None:
        """Make room for so many values."""
        if room > self.room:
            self._widen(room - self.room)

    def _widen(self, more: _int) -> None:
        """Make room for so many more values."""
        memory.widen(self.valid_store, more)
        self.valid = self.valid_store
        if not self.has_offsets:
            memory.widen(self.values_store, self.width * more)
        elif self.room:
            memory.widen(self.values_store, 4 * more)
        else:
            memory.widen(self.values_store, 4 * more + 4)
            memory.put_int32(self.values_store, 0, 0)
        self.values = self.values_store
        self.room += more

    def reserve_rows(self, rows: _int) -> None:
        """Make room for so many more values, of what has one for each row."""
        self.reserve(self.count + rows)
        if not self.has_offsets:
            for child in self.children:
                child.reserve_rows(rows)

    def grow(self) -> None:
        """Make room for another value."""
        self.reserve(2 * self.room)

    def reserve_data(self, size: _int) -> None:
        """Make room for so many bytes of data in all."""
        room = max(2 * self.data_room, size, 1024)
        memory.widen(self.data_store, room - self.data_room)
        self.data = self.data_store
        self.data_room = room

    def add_bytes(self, text: _bytes, begin: _int, end: _int) -> int:
        """Append text[begin:end] as a value; return EXPANDS if offsets cannot hold it."""
        size = self.data_size + end - begin
        if size > cells.INT32_MAX:
            return cells.EXPANDS
        if size > self.data_room:
            self.reserve_data(size)
        if self.count == self.room:
            self.grow()
        memory.put(self.data, self.data_size, text, begin, end)
        self.data_size = size
        memory.put_int32(self.values, 4 * self.count + 4, size)
        self.valid[self.count] = 1
        self.count += 1
        return cells.DECODED

    def add_uuid(self, text: _bytes, at: _int) -> int:
        """Append the text of the UUID that is at `at`."""
        size = self.data_size + _UUID_SIZE
        if size > cells.INT32_MAX:
            return cells.EXPANDS
        if size > self.data_room:
            self.reserve_data(size)
        if self.count == self.room:
            self.grow()
        cells.put_uuid(self.data, self.data_size, text, at)
        self.data_size = size
        memory.put_int32(self.values, 4 * self.count + 4, size)
        self.valid[self.count] = 1
        self.count += 1
        return cells.DECODED

    def add_number(self, number: _int) -> None:
        """Append a number, or a truth value."""
        if self.count == self.room:
            self.grow()
        cells.put_number(self.values, self.width * self.count, number, self.width)
        self.valid[self.count] = 1
        self.count += 1

    def add_real(self, real: float) -> None:
        """Append a floating-point number."""
        if self.count == self.room:
            self.grow()
        cells.put_real(self.values, self.width * self.count, real, self.width)
        self.valid[self.count] = 1
        self.count += 1

    def add_swapped(self, text: _bytes, at: _int) -> None:
        """Append a number of `width` bytes, which is big-endian in `text`."""
        if self.count == self.room:
            self.grow()
        cells.put_swapped(self.values, self.width * self.count, text, at, self.width)
        self.valid[self.count] = 1
        self.count += 1

    def add_fixed(self, text: _bytes, at: _int) -> None:
        """Append a number of `width` bytes, which is little-endian in `text`."""
        if self.count == self.room:
            self.grow()
        memory.put(self.values, self.width * self.count, text, at, at + self.width)
        self.valid[self.count] = 1
        self.count += 1

    def add_decimal(self, text: _bytes, begin: _int, end: _int) -> int:
        """Append a decimal: two's complement, big-endian; return NUMBER if it has over 16 bytes, or too many digits.

        `filling` has the bounds of its digits (`cells.is_within`).
        """
        size = end - begin
        if size > 16:
            return cells.NUMBER
        if self.count == self.room:
            self.grow()
        at = 16 * self.count
        is_negative = size > 0 and text[begin] >= 128
        cells.put_repeated(self.values, at, 255 if is_negative else 0, 16)
        cells.put_swapped(self.values, at, text, begin, size)
        bounds = self.filling
        if bounds is not None and not cells.is_within(self.values, at, cells.data_of(bounds)):
            return cells.NUMBER
        self.valid[self.count] = 1
        self.count += 1
        return cells.DECODED

    def add_null(self) -> None:
        """Append a null."""
        if self.count == self.room:
            self.grow()
        place = self.count
        if self.has_offsets:
            memory.put_int32(self.values, 4 * place + 4, cells.int32_at(self.values, 4 * place))
        else:
            memory.put_zeros(self.values, self.width * place, self.width)
            for child in self.children:
                child.add_null()
        self.valid[place] = 0
        self.count = place + 1

    def close_list(self) -> None:
        """Append a list or map of what its parts have beyond the one before it."""
        if self.count == self.room:
            self.grow()
        first = self.child(0)
        memory.put_int32(self.values, 4 * self.count + 4, first.count)
        self.valid[self.count] = 1
        self.count += 1

    def close_struct(self) -> None:
        """Append a struct, whose fields have their values."""
        if self.count == self.room:
            self.grow()
        self.valid[self.count] = 1
        self.count += 1

    def child(self, place: _int) -> Column:
        """Return a part."""
        column: Column = self.children[place]
        return column

    def place_of(self, id: _int) -> int:  # noqa: A002 (the field's word)
        """Return the place of the field with that number, or -1; fields are in the order of their numbers."""
        low = 0
        high = self.below
        while low < high:
            middle = (low + high) >> 1
            column = self.child(middle)
            if column.id < id:
                low = middle + 1
            elif column.id > id:
                high = middle
            else:
                return middle
        return -1

    def truncate(self, count: _int) -> None:
        """Remove all values but the first `count`, and what belongs to them."""
        if self.has_offsets:
            end = cells.int32_at(self.values, 4 * count)
            if self.kind < cells.LIST:
                self.data_size = end
            for child in self.children:
                child.truncate(end)
        else:
            for child in self.children:
                child.truncate(count)
        self.count = count

    def nulls(self) -> int:
        """Return the number of nulls."""
        return cells.zeros(self.valid, self.count)

    def validity(self) -> bytearray:
        """Return the validity bitmap."""
        return cells.packed(self.valid, self.count)

    def buffers(self) -> tuple[bytearray, bytearray]:
        """Return the buffers of values (bits, numbers or offsets) and of data; the column is done then."""
        if self.kind == cells.BOOL:
            return cells.packed(self.values, self.count), self.data_store
        size = 4 * self.count + 4 if self.has_offsets else self.width * self.count
        memory.cut(self.values_store, size)
        memory.cut(self.data_store, self.data_size)
        return self.values_store, self.data_store


class RowReader:
    """Reads rows of a binary array into the columns of `root`: a struct, or a struct of one field that is the value.

    Subclasses read a row, from `at` to `end` of `text`. `has_schema_id`: a zero byte and 4 bytes of a registry's schema
    id stand before each. `trail`: a list to which a refused row adds, from the inside out, each column in which it was
    refused: its parent, itself, and in a list or map its place there, else -1. `refused_at`: bytes of the last refused
    row that were read.
    """

    def __init__(self, root: Column) -> None:
        self.root = root
        self.text = cells.data_of(_EMPTY)
        self.at = self.end = 0
        self.cells_left = 0
        self.has_schema_id = False
        self.trail: list[tuple[Column, Column, int]] | None = None
        self.refused_at = 0

    def read(
        self,
        validity: memoryview | None,
        offsets: memoryview,
        data: memoryview,
        first: _int,
        count: _int,
    ) -> bytearray:
        """Append `count` rows, from row `first` of a binary array; return for each why it is refused, or 0.

        The buffers are those of the array. ValueError: its offsets are not within its data.
        """
        reasons = bytearray(count)
        target = reasons
        root = self.root
        root.reserve_rows(count)
        self.text = cells.bytes_of(data)
        size = len(data)
        if count == 0:
            return reasons
        if validity is not None and len(validity) < (first + count + 7) >> 3:
            raise ValueError("the validity of the values is shorter than they are")
        valid = cells.bytes_of(validity) if validity is not None else self.text
        ends = load.int32s(offsets, 4 * first, count + 1)
        for row in range(count):
            if validity is not None and not valid[(first + row) >> 3] >> ((first + row) & 7) & 1:
                root.add_null()
                continue
            begin = ends[row]
            end = ends[row + 1]
            if begin < 0 or end < begin or end > size:
                raise ValueError(f"value {first + row} of the array is from {begin} to {end} of {size} bytes")
            self.at = begin
            self.end = end
            self.cells_left = _FREE_CELLS + _CELLS_PER_BYTE * (end - begin)
            kept = root.count
            if self.has_schema_id and (end - begin < _SCHEMA_ID_SIZE or self.text[begin] != 0):
                reason = cells.FRAME
            else:
                if self.has_schema_id:
                    self.at += _SCHEMA_ID_SIZE
                reason = self._row()
            if reason == cells.DECODED and self.at != self.end:
                reason = cells.TRAILING
            if reason != cells.DECODED:
                self.refused_at = self.at - begin
                root.truncate(kept)
                root.add_null()
                target[row] = reason
        return reasons

    def blame(self, reason: _int, parent: Column, column: Column) -> int:
        """Return the reason why a row is refused in a part of `parent`, and note that part if a trail is wanted."""
        if self.trail is not None:
            is_many = parent.kind in (cells.LIST, cells.MAP)
            place = column.count - cells.int32_at(parent.values, 4 * parent.count) if is_many else -1
            self.trail.append((parent, column, place))
        return reason

    def _row(self) -> int:
        """Append one row; return why it is refused, or DECODED."""
        raise NotImplementedError
