"""Reads single rows out of a plain batch, without the rest of it.

Rules: the bytes come from a function that returns only verified ones, as the checksum of the batch covers all of it.
Every position that was read is bounded before use; the values are copied, so that no Arrow reader follows foreign
numbers.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.base.errors import CorruptionError
from penstock.batch import codec, compression, layout
from penstock.batch.header import BatchHeader

if TYPE_CHECKING:
    import pyarrow as pa

Read = Callable[[int, int], bytes]
"""Position in the message, number of bytes."""

_OFFSETS, _TIMESTAMPS = 1, 3  # buffers
_SUBJECTS = 5  # buffer: bounds of the subjects, behind which is their text
_OF_BYTES = range(2, 6)  # columns
_FIRST_OF_BYTES, _FIRST_BUFFER_OF_BYTES = 2, 4  # column, buffer
_ENDS = struct.Struct("<2i")


class PickedRow(NamedTuple):
    """One row. `subject` None: the cleaner has removed what the row held."""

    offset: int
    timestamp_us: int
    subject: bytes | None
    key: bytes | None
    value: bytes | None
    headers: bytes | None


class RowPicker:
    """Reads single rows of a plain batch. CorruptionError if it cannot be one."""

    def __init__(self, read: Read, size_bytes: int) -> None:
        head = read(0, layout.BODY_POSITION)
        self.header: BatchHeader = codec.read_header(head)
        if self.header.size_bytes != size_bytes or compression.is_compressed(head):
            raise CorruptionError("", 0, f"a plain batch of {size_bytes} bytes", "another one")
        self._read = read
        self._nulls = layout.NODES.unpack_from(head, layout.NODES_POSITION)[1::2]
        places = layout.BUFFERS.unpack_from(head, layout.BUFFERS_POSITION)
        self._buffers = [
            (layout.BODY_POSITION + begin, size) for begin, size in zip(places[::2], places[1::2], strict=True)
        ]
        for position, size in self._buffers:
            if position < layout.BODY_POSITION or size < 0 or position + size > size_bytes:
                raise CorruptionError("", 0, "buffers within the batch", "others")

    @classmethod
    def of(cls, message: codec.Buffer) -> RowPicker:
        """Return that of a whole message, which was verified."""
        view = memoryview(message).cast("B")

        def read(begin: int, length: int) -> bytes:
            return bytes(view[begin : begin + length])

        return cls(read, len(view))

    def row(self, place: int) -> PickedRow:
        """Return the row at this place; CorruptionError."""
        header = self.header
        offset, timestamp_us = header.base_offset + place, header.min_timestamp_us
        if not self._has_all_offsets:
            offset = self.offset(place)
            if not header.base_offset <= offset < header.end_offset:
                text = f"an offset from {header.base_offset} to {header.end_offset - 1}"
                raise CorruptionError("", 0, text, str(offset))
        if header.max_timestamp_us != timestamp_us:
            (timestamp_us,) = layout.INT64.unpack(self._bytes(_TIMESTAMPS, 8 * place, 8))
            if not header.min_timestamp_us <= timestamp_us <= header.max_timestamp_us:
                text = f"a timestamp from {header.min_timestamp_us} to {header.max_timestamp_us}"
                raise CorruptionError("", 0, text, str(timestamp_us))
        subject, key, value, headers = [self._value(column, place) for column in _OF_BYTES]
        return PickedRow(offset, timestamp_us, subject, key, value, headers)

    def rows(self, places: Sequence[int], numbers: Sequence[int], schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows at these places: the columns of these numbers."""
        import pyarrow as pa

        columns: list[pa.Array] = []
        for number, field in zip(numbers, schema, strict=True):
            if number < _FIRST_OF_BYTES:
                raw = b"".join([self._bytes(2 * number + 1, 8 * row, 8) for row in places])
                columns.append(pa.Array.from_buffers(field.type, len(places), [None, pa.py_buffer(raw)]))
                continue
            values = pa.array([self._value(number, row) for row in places], pa.binary())
            try:
                columns.append(values.cast(field.type))
            except pa.ArrowInvalid as error:
                raise CorruptionError("", 0, f"UTF-8 in {field.name!r}", str(error)[:200]) from None
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    @property
    def subject_bytes(self) -> int:
        """Bytes that `subjects` reads."""
        return sum(size for _, size in self._buffers[_SUBJECTS : _SUBJECTS + 2])

    def subjects(self) -> pa.Array:
        """Return the subjects of all rows, which must be valid."""
        import pyarrow as pa

        ends, text = (pa.py_buffer(self._read(*one)) for one in self._buffers[_SUBJECTS : _SUBJECTS + 2])
        try:
            found = pa.Array.from_buffers(pa.utf8(), self.header.count, [None, ends, text])
            found.validate(full=True)
        except (pa.ArrowException, ValueError) as error:
            raise CorruptionError("", 0, "subjects", str(error)[:200]) from None
        return found

    @property
    def _has_all_offsets(self) -> bool:
        """True if there is a row for each offset, as none was compacted away: a row's offset says its place."""
        return self.header.end_offset - self.header.base_offset == self.header.count

    def find(self, offset: int) -> int | None:
        """Return the place of the row with this offset; None: there is none."""
        header, row = self.header, offset - self.header.base_offset
        if self._has_all_offsets:
            return row if 0 <= row < header.count else None
        row = bisect_left(range(header.count), offset, key=self.offset)
        return row if row < header.count and self.offset(row) == offset else None

    def place_of(self, offset: int) -> int:
        """Return the place of the row with this offset, which must be there."""
        if (row := self.find(offset)) is None:
            raise CorruptionError("", 0, f"a row with the offset {offset}", "none")
        return row

    def offset(self, row: int) -> int:
        """Return the offset of the row at this place."""
        found: int = layout.INT64.unpack(self._bytes(_OFFSETS, 8 * row, 8))[0]
        return found

    def _value(self, column: int, row: int) -> bytes | None:
        validity = _FIRST_BUFFER_OF_BYTES + 3 * (column - _FIRST_OF_BYTES)
        nulls = self._nulls[column]
        if nulls == self.header.count:
            return None
        if nulls and not self._bytes(validity, row >> 3, 1)[0] >> (row & 7) & 1:
            return None
        begin, end = _ENDS.unpack(self._bytes(validity + 1, 4 * row, 8))
        if not 0 <= begin <= end:
            raise CorruptionError("", 0, "values end to end", f"one from {begin} to {end}")
        return self._bytes(validity + 2, begin, end - begin)

    def _bytes(self, buffer: int, begin: int, length: int) -> bytes:
        position, size = self._buffers[buffer]
        if begin + length > size:
            raise CorruptionError("", 0, f"{length} bytes in buffer {buffer}", f"{size - begin}")
        return self._read(position + begin, length) if length else b""
