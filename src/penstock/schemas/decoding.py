"""Decodes encoded values to typed Arrow columns, a batch at a time.

Rules: every row is kept, in order. A null value, which is a tombstone, is null in all columns; so is a row that does
not decode, and that row has a reason. A batch is one call of compiled code; no Python object is made for a row.

| framing      | what stands before the value                                                       |
|--------------|------------------------------------------------------------------------------------|
| `BARE`       | nothing                                                                            |
| `MESSAGE`    | Thrift's message begin                                                             |
| `FRUGAL`     | Frugal's headers (`frugal-v0`), and Thrift's message begin                         |
| `CONFLUENT`  | a zero byte and a schema id of 4 bytes; for Protobuf, message indexes follow       |
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.hot import cells
from penstock.hot.typed_columns import Column, RowReader
from penstock.schemas.plans import Plan, array_of

FIRST_REFUSED_MAX = 10  # positions that are kept for a report
SLICE_ROWS_MAX = 1 << 17  # decoded at once: other threads wait meanwhile
SLICE_BYTES_MAX = 16 << 20  # of more than one value; columns have offsets of 4 bytes
SLICE_CELLS_MAX = 1 << 24  # rows times columns: room is made for them before they are read

_OFFSETS = struct.Struct("<2i")


class ValueFraming(StrEnum):
    """Bytes before a value in its message. `frugal.framing` has the forms of calls, `frugal.scopes` those of events."""

    BARE = "bare"
    MESSAGE = "message"
    FRUGAL = "frugal-v0"
    CONFLUENT = "confluent"


class Reason(IntEnum):
    """Why a row was refused; numbers are never reused. Those from 64 up are of rows of a stream, not of values."""

    ENDS = cells.ENDS
    SIZE = cells.SIZE
    DEEP = cells.DEEP
    ENCODING = cells.ENCODING
    MISSING = cells.MISSING
    TRAILING = cells.TRAILING
    FRAME = cells.FRAME
    NAME = cells.NAME
    EXPANDS = cells.EXPANDS
    WIRE_TYPE = cells.WIRE_TYPE
    NUMBER = cells.NUMBER
    FORM = cells.FORM
    SYNTAX = cells.SYNTAX
    SUBJECT = 64
    VERSION = 65
    CONTENT_TYPE = 66
    CHANGED = 67
    UNVERSIONED = 68

    @property
    def text(self) -> str:
        """The reason in words."""
        return _TEXTS[self]


_TEXTS = {
    Reason.ENDS: "the bytes end within a value",
    Reason.SIZE: "a size is negative or too large",
    Reason.DEEP: "values are nested too deep",
    Reason.ENCODING: "a string is not UTF-8",
    Reason.MISSING: "a required field is missing",
    Reason.TRAILING: "bytes follow the value",
    Reason.FRAME: "it is not framed as the schema says",
    Reason.NAME: "it is a message of another operation",
    Reason.EXPANDS: "it stands for many more values than it has bytes",
    Reason.WIRE_TYPE: "it has a type that the encoding does not know or the schema does not expect",
    Reason.NUMBER: "a number is larger than its type",
    Reason.FORM: "it does not have the form that the schema asks for",
    Reason.SYNTAX: "it is not JSON",
    Reason.SUBJECT: "no schema for this subject",
    Reason.VERSION: "the subject's schemas have no version of the header's hash",
    Reason.CONTENT_TYPE: "its content type is none that is decoded to columns",
    Reason.UNVERSIONED: "no header says which version it was written by, and Avro's bytes differ between versions",
    Reason.CHANGED: "a field of the version by which it was written does not fit the newest version's type",
}


@dataclass(frozen=True, slots=True)
class Refused:
    """The rows that did not decode: how many, the first FIRST_REFUSED_MAX of them with their reasons.

    `codes`: by row the number of its `Reason`, 0 for one that is decoded or null; uint8. Rows count from 0, through
    all chunks.
    """

    count: int
    first: tuple[tuple[int, Reason], ...]
    codes: pa.ChunkedArray

    def reasons(self) -> pa.ChunkedArray:
        """Return by row the reason in words, null where there is none: `dictionary<int8, string>`."""
        texts = pa.array([each.text for each in Reason], pa.string())
        known = pa.array([int(each) for each in Reason], pa.uint8())
        made = [
            pa.DictionaryArray.from_arrays(pc.index_in(codes, known).cast(pa.int8()), texts)
            for codes in self.codes.chunks
        ]
        return pa.chunked_array(made, pa.dictionary(pa.int8(), pa.string()))


@dataclass(frozen=True, slots=True)
class Decoded:
    """`columns`: a struct array, or a chunked one if the values were chunked, with as many rows as they."""

    columns: pa.StructArray | pa.ChunkedArray
    refused: Refused

    def arrays(self) -> list[pa.Array | pa.ChunkedArray]:
        """Return the columns by themselves; rows that are null as a whole are null in each."""
        columns: list[pa.Array | pa.ChunkedArray] = self.columns.flatten()
        return columns

    def table(self) -> pa.Table:
        """Return the columns as a table."""
        return pa.Table.from_arrays(self.arrays(), schema=pa.schema(list(self.columns.type)))


class Decoder:
    """Decodes the values of one plan. `reader` makes what reads one encoding into the columns of a batch."""

    def __init__(self, plan: Plan, reader: Callable[[Column], RowReader]) -> None:
        self.plan = plan
        self._reader = reader
        self._rows_max = max(1, min(SLICE_ROWS_MAX, SLICE_CELLS_MAX // plan.root.column().cells))

    @property
    def schema(self) -> pa.Schema:
        """The schema of the decoded columns."""
        return self.plan.schema

    def decode(self, values: pa.Array | pa.ChunkedArray) -> Decoded:
        """Decode values of any binary or string type. ValueError: they are of another type, or have bad offsets."""
        return decoded(values, self.plan.root.type, self._part, self._rows_max)

    def reasons(self, values: pa.Array) -> pa.Array:
        """Return by row the number of its `Reason`, 0 for one that decodes or is null: uint8. No array is made."""
        parts = _parts(_binary(values), self._rows_max)
        codes = b"".join([self._read(self.plan.root.column(), part) for part in parts])
        return pa.Array.from_buffers(pa.uint8(), len(values), [None, pa.py_buffer(codes)], 0)

    def traced(self, value: bytes) -> tuple[RowReader, int]:
        """Read one value; return the reader, with its trail if it is refused, and the number of the reason, or 0."""
        reader = self._reader(self.plan.root.column())
        reader.trail = []
        reasons = reader.read(None, memoryview(_OFFSETS.pack(0, len(value))), memoryview(value), 0, 1)
        return reader, reasons[0]

    def _part(self, values: pa.Array) -> tuple[pa.Array, bytearray]:
        root = self.plan.root.column()
        reasons = self._read(root, values)
        return array_of(root, self.plan.root), reasons

    def _read(self, root: Column, values: pa.Array) -> bytearray:
        validity, offsets, data = values.buffers()
        return self._reader(root).read(
            _view(validity) if validity is not None and values.null_count else None,
            _view(offsets),
            _view(data),
            values.offset,
            len(values),
        )


def decoded(
    values: pa.Array | pa.ChunkedArray,
    kind: pa.DataType,
    decode_part: Callable[[pa.Array], tuple[pa.Array, bytearray]],
    rows_max: int = SLICE_ROWS_MAX,
) -> Decoded:
    """Decode in parts of bounded size; `decode_part` returns the struct array of a part, and reasons by row."""
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    columns: list[pa.Array] = []
    codes: list[pa.Array] = []
    count, first, row = 0, list[tuple[int, Reason]](), 0
    for chunk in chunks:
        made = [pa.array([], kind)] if not len(chunk) else []
        for part in _parts(_binary(chunk), rows_max):
            array, reasons = decode_part(part)
            made.append(array)
            codes.append(pa.Array.from_buffers(pa.uint8(), len(part), [None, pa.py_buffer(reasons)], 0))
            refused = len(reasons) - reasons.count(0)
            if refused and len(first) < FIRST_REFUSED_MAX:
                places = (place for place, code in enumerate(reasons) if code)
                wanted = min(refused, FIRST_REFUSED_MAX - len(first))
                first += [
                    (row + place, Reason(reasons[place])) for place, _ in zip(places, range(wanted), strict=False)
                ]
            count += refused
            row += len(part)
        columns.append(made[0] if len(made) == 1 else pa.concat_arrays(made))
    joined = pa.chunked_array(columns, kind) if isinstance(values, pa.ChunkedArray) else columns[0]
    return Decoded(joined, Refused(count, tuple(first), pa.chunked_array(codes, pa.uint8())))


def _binary(values: pa.Array) -> pa.Array:
    """Return the values with offsets of 4 bytes. ValueError: they are neither bytes nor text."""
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return values
    if kind in (pa.large_binary(), pa.large_string(), pa.binary_view(), pa.string_view()) or (
        pa.types.is_fixed_size_binary(kind) or pa.types.is_null(kind)
    ):
        return values.cast(pa.binary())
    raise ValueError(f"values of type {kind} cannot be decoded; binary or string is expected")


def _parts(values: pa.Array, rows_max: int) -> Iterator[pa.Array]:
    """Yield slices of bounded rows and, but for single values, bytes."""
    waiting = [values]
    while waiting:
        part = waiting.pop()
        rows = len(part)
        if rows > 1 and (rows > rows_max or part.nbytes > SLICE_BYTES_MAX):
            waiting += [part.slice(rows // 2), part.slice(0, rows // 2)]
        elif rows:
            yield part


def _view(buffer: Any) -> memoryview:
    return memoryview(b"") if buffer is None else memoryview(buffer).cast("B")
