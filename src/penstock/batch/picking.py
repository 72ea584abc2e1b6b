"""Reads single rows out of a large plain batch, without the rest of it.

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

_OFFSETS, _SUBJECTS = 1, 5  # buffers: offsets of the rows; bounds of the subjects, behind which is their text
_FIRST_OF_BYTES, _FIRST_BUFFER_OF_BYTES = 2, 4  # column, buffer
_ENDS = struct.Struct("<2i")


class _Buffer(NamedTuple):
    position: int
    size_bytes: int


class LargeBatch:
    """A plain batch, of which single rows are read. CorruptionError if it cannot be one."""

    def __init__(self, read: Read, size_bytes: int) -> None:
        head = read(0, layout.BODY_POSITION)
        self.header: BatchHeader = codec.read_header(head)
        if self.header.size_bytes != size_bytes or compression.is_compressed(head):
            raise CorruptionError("", 0, f"a plain batch of {size_bytes} bytes", "another one")
        self._read = read
        self._nulls = layout.NODES.unpack_from(head, layout.NODES_POSITION)[1::2]
        places = layout.BUFFERS.unpack_from(head, layout.BUFFERS_POSITION)
        self._buffers = [
            _Buffer(layout.BODY_POSITION + begin, size) for begin, size in zip(places[::2], places[1::2], strict=True)
        ]
        if any(one.size_bytes < 0 or one.position + one.size_bytes > size_bytes for one in self._buffers):
            raise CorruptionError("", 0, "buffers within the batch", "others")

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
        return sum(one.size_bytes for one in self._buffers[_SUBJECTS : _SUBJECTS + 2])

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

    def place_of(self, offset: int) -> int:
        """Return the place of the row with this offset, which must be there."""
        header, row = self.header, offset - self.header.base_offset
        if header.end_offset - header.base_offset != header.count:  # compaction has left gaps
            row = bisect_left(range(header.count), offset, key=self.offset)
        if not 0 <= row < header.count or self.offset(row) != offset:
            raise CorruptionError("", 0, f"a row with the offset {offset}", "none")
        return row

    def offset(self, row: int) -> int:
        """Return the offset of the row at this place."""
        found: int = layout.INT64.unpack(self._bytes(_OFFSETS, 8 * row, 8))[0]
        return found

    def _value(self, column: int, row: int) -> bytes | None:
        validity = _FIRST_BUFFER_OF_BYTES + 3 * (column - _FIRST_OF_BYTES)
        if self._nulls[column] and not self._bytes(validity, row >> 3, 1)[0] >> (row & 7) & 1:
            return None
        begin, end = _ENDS.unpack(self._bytes(validity + 1, 4 * row, 8))
        if not 0 <= begin <= end:
            raise CorruptionError("", 0, "values end to end", f"one from {begin} to {end}")
        return self._bytes(validity + 2, begin, end - begin)

    def _bytes(self, buffer: int, begin: int, length: int) -> bytes:
        place = self._buffers[buffer]
        if begin + length > place.size_bytes:
            raise CorruptionError("", 0, f"{length} bytes in buffer {buffer}", f"{place.size_bytes - begin}")
        return self._read(place.position + begin, length)
