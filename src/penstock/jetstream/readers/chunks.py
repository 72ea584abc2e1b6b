"""Decode the answer of a fetch into rows that all readers share. It runs in disk threads.

Rules: bytes are verified (layout, CRC-32C, value offsets, text) before compiled code follows them. Small batches are
joined, so that a tail of single messages costs one object, not one for each. Texts stay where they came, unless most of
what came is something else, such as keys: all of that would stay in memory for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from penstock.base.errors import CorruptionError
from penstock.batch import codec, joining, masking, projecting
from penstock.hot.deliveries import DecodedRows, Texts
from penstock.live.row_set import RowSet
from penstock.messages import FetchResponse
from penstock.node.step import FileRange, Payload

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: tuple[Literal["offset", "timestamp", "subject", "value", "headers"], ...] = (
    "offset",
    "timestamp",
    "subject",
    "value",
    "headers",
)
"""Columns of a fetch with a filter."""
KEYED_COLUMNS: tuple[Literal["offset", "timestamp", "subject", "value", "headers", "key"], ...] = (*COLUMNS, "key")
"""The same for a stream with an order by key."""
_ROWS_MAX = 16_384
_CHUNK_BYTES = 200  # of the objects of one chunk


class Chunk:
    """All rows in [begin, end) that a filter (None: no filter) has let through, decoded."""

    __slots__ = ("begin", "end", "filters", "has_keys", "hidden", "rows", "size_bytes")

    def __init__(
        self,
        begin: int,
        end: int,
        rows: Sequence[DecodedRows],
        filters: tuple[str, ...] | None,
        *,
        has_keys: bool = False,
    ) -> None:
        self.begin = begin
        self.end = end
        self.rows = rows
        self.filters = filters
        self.has_keys = has_keys  # they were read, too
        self.hidden: RowSet | None = None  # the rows in it are marked
        self.size_bytes = _CHUNK_BYTES + sum(one.size_bytes() for one in rows)

    def mask(self, hidden: RowSet | None) -> None:
        """Mark the rows that are deleted by now."""
        if hidden is self.hidden:
            return
        self.hidden = hidden
        for one in self.rows:
            one.skip(_marks(one.offsets, hidden))


def _marks(offsets: bytes, hidden: RowSet | None) -> bytes:
    """Return a byte for each row, 1 if it is hidden; empty: none is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not hidden:
        return b""
    column = pa.Array.from_buffers(pa.int64(), len(offsets) // 8, [None, pa.py_buffer(offsets)])
    shown = masking.shown(column, hidden)
    if shown is None:
        return b""
    return bytes(memoryview(pc.cast(pc.invert(shown), pa.uint8()).buffers()[1])[: len(column)])


def without_hidden(offsets: bytes, hidden: RowSet | None) -> bytes:
    """Return the offsets (8 bytes each, rising) that are not hidden."""
    import pyarrow as pa

    if not hidden or not offsets:
        return offsets
    column = pa.Array.from_buffers(pa.int64(), len(offsets) // 8, [None, pa.py_buffer(offsets)])
    shown = masking.shown(column, hidden)
    if shown is None:
        return offsets
    found = column.filter(shown)
    return bytes(memoryview(found.buffers()[1])[: 8 * len(found)])


def decoded(
    begin: int, response: FetchResponse, payload: Payload, filters: tuple[str, ...] | None, *, has_keys: bool = False
) -> Chunk:
    """Return the rows from `begin` on in the answer of a fetch. CorruptionError, OSError."""
    raw = read_payload(payload)
    end = int(response.end_offset)
    if filters is None:
        batches = _batches(raw, int(response.base_offset), (begin, end))
    else:
        batches = _projected(raw, response, has_keys=has_keys)
    found = [batch for batch in batches if batch.num_rows]
    names = ("subject", "value", "headers", "key") if has_keys else ("subject", "value", "headers")
    copies = 2 * sum(_text_bytes(batch, names) for batch in found) < len(raw)
    rows, position = [], begin
    for batch in found:
        rows.append(_rows(batch, position, copies=copies, has_keys=has_keys))
        position = rows[-1].end_offset
    return Chunk(begin, end, rows, filters, has_keys=has_keys)


def keyed_batches(response: FetchResponse, payload: Payload) -> Iterator[pa.RecordBatch]:
    """Return the rows in the answer of a fetch of KEYED_COLUMNS. CorruptionError, OSError."""
    return _projected(read_payload(payload), response, has_keys=True)


def _projected(raw: bytes | bytearray, response: FetchResponse, *, has_keys: bool) -> Iterator[pa.RecordBatch]:
    if not raw:
        return iter(())
    schema = projecting.schema_of(KEYED_COLUMNS if has_keys else COLUMNS)
    return projecting.from_stream(memoryview(raw), response.raw_crc, schema, source="the log")


def read_payload(payload: Payload) -> bytes | bytearray:
    """Return the raw part of an answer."""
    if payload is None:
        return b""
    if isinstance(payload, bytes | bytearray):
        return payload
    if isinstance(payload, FileRange):
        file = payload.vfs.open(payload.path, read_only=True)
        try:
            return file.read_at(payload.position, payload.length)
        finally:
            file.close()
    return b"".join(map(read_payload, payload))


def _batches(raw: bytes | bytearray, base_offset: int, wanted: tuple[int, int]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of whole batches of the log that lie in `wanted`."""
    view = memoryview(raw).cast("B")
    position, offset = 0, base_offset
    while position < len(view):
        found = joining.gather(view, position, offset, wanted, _ROWS_MAX)
        if found.begins:
            yield joining.join(view, found, file="the log")
            position, offset = found.end, found.end_offset
            continue
        header = codec.read_header(view[position:], file="the log", position=position)
        message = view[position : position + header.size_bytes]
        codec.verify(message, file="the log", position=position)
        if header.base_offset != offset:
            raise CorruptionError("the log", position, f"a batch from offset {offset}", f"from {header.base_offset}")
        batch = codec.check_rows(message, header=header, file="the log", position=position)
        if not wanted[0] <= header.base_offset <= header.end_offset <= wanted[1]:
            batch = _between(batch, *wanted)
        yield batch
        position, offset = position + header.size_bytes, header.end_offset


def _between(batch: pa.RecordBatch, begin: int, end: int) -> pa.RecordBatch:
    import pyarrow.compute as pc

    offsets = batch.column("offset")
    return batch.filter(pc.and_(pc.greater_equal(offsets, begin), pc.less(offsets, end)))


def _text_bytes(batch: pa.RecordBatch, names: Sequence[str]) -> int:
    return sum(int(batch.column(name).nbytes) for name in names)


def _rows(batch: pa.RecordBatch, begin: int, *, copies: bool, has_keys: bool) -> DecodedRows:
    """Return the rows of a checked batch; they are all from offset `begin` on up to the last of them."""
    headers = batch.column("headers")
    return DecodedRows(
        begin,
        _numbers(batch.column("offset")),
        _numbers(batch.column("timestamp")),
        _texts(batch.column("subject"), copies=copies),
        _texts(batch.column("value"), copies=copies),
        None if headers.null_count == len(headers) else _texts(headers, copies=copies),
        _texts(batch.column("key"), copies=copies) if has_keys else None,
    )


def _numbers(column: pa.Array) -> bytes:
    return bytes(memoryview(column.buffers()[1]).cast("B")[8 * column.offset : 8 * (column.offset + len(column))])


def _texts(column: pa.Array, *, copies: bool) -> Texts:
    """Return the texts of a column; a null is empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count:
        column = pc.fill_null(column.cast(pa.binary()), b"")
    _, ends, data = column.buffers()
    bounds = bytes(memoryview(ends).cast("B")[4 * column.offset : 4 * (column.offset + len(column) + 1)])
    text = memoryview(b"" if data is None else data).cast("B")
    return Texts(bounds, bytes(text) if copies else text)
