"""Encodes a record batch in one pass, and checks one without parsing a flatbuffer.

Rules: the output of `encode` is final: it goes to disk, to followers and to consumers unchanged. Bytes from a disk or
the network reach an Arrow reader only after `verify` (layout and CRC-32C); rows built by a client are also checked one
by one (`check_rows`), because Arrow readers follow a bad value offset into other memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import astuple, replace

from penstock.base import limits
from penstock.base.config import Compression
from penstock.base.errors import CorruptionError
from penstock.batch import compression, layout, mistakes
from penstock.batch.header import (
    COMPRESSED_LZ4,
    COMPRESSION_FLAGS,
    CRC_HEX_BYTES,
    CRC_POSITION,
    HEADER_POSITION,
    HEADER_VERSION,
    INCOMPRESSIBLE,
    KNOWN_FLAGS,
    NO_RUN,
    PACKING,
    RUN_FLAGS,
    BatchHeader,
)
from penstock.batch.header import PREFIX_BYTES as PREFIX_BYTES
from penstock.batch.keys import without_empty
from penstock.batch.schema import arrow_schema
from penstock.hot.columns import VarColumn, int64_range
from penstock.hot.crc import crc32c
from penstock.hot.encode import Encoder
from penstock.hot.message import MessageChecker, MessageLayout, MetadataMistake
from penstock.hot.message_group import MessageGroup
from penstock.hot.numbers import NumberMistake, number_mistake
from penstock.hot.rows import BatchRows, RowMistake, copied, put_numbers

if TYPE_CHECKING:
    import pyarrow as pa

Buffer = bytes | bytearray | memoryview

_PADDING = (b"", *(bytes(n) for n in range(1, 8)))
_VAR_COLUMNS = ("subject", "key", "value", "headers")
_OFFSETS, _TIMESTAMPS = 1, 3  # their buffers, in the order of Arrow


class BatchProducer(NamedTuple):
    """The idempotent producer of a batch, or the query run it is published or staged for; zeros if neither."""

    producer_id: int = 0
    producer_epoch: int = 0
    producer_sequence: int = 0
    run_id: bytes = NO_RUN
    run_plan: int = 0


def producer_of(header: BatchHeader) -> BatchProducer:
    """Return the producer fields of a header."""
    return BatchProducer(
        header.producer_id, header.producer_epoch, header.producer_sequence, header.run_id, header.run_plan
    )


NOBODY = BatchProducer()


def encode(
    group: MessageGroup, start: int, end: int, *, base_offset: int, timestamp_us: int, leader_epoch: int, flags: int = 0
) -> tuple[bytearray, BatchHeader]:
    """Encode the rows [start, end) of `group` as one encapsulated Arrow message; all rows get the same timestamp.

    At least one row, at most BATCH_ROWS_MAX, and at most BATCH_BYTES_MAX in total: the caller splits beforehand.
    """
    assert 0 < end - start <= limits.BATCH_ROWS_MAX, (start, end)
    message, fields = _ENCODER.encode(group, start, end, base_offset, timestamp_us, leader_epoch, flags)
    assert len(message) <= limits.BATCH_BYTES_MAX, len(message)
    return message, BatchHeader(*fields)


def encode_at(group: MessageGroup, offsets: array[int], timestamps_us: array[int]) -> bytearray:
    """Encode all rows of `group` with their offsets, which rise, and their timestamps: of an answer, not of a log."""
    first, end, count = offsets[0], offsets[-1] + 1, len(offsets)
    message, header = encode(group, 0, count, base_offset=first, timestamp_us=timestamps_us[0], leader_epoch=0)
    if count == 1:
        return message
    places = layout.BUFFERS.unpack_from(message, layout.BUFFERS_POSITION)
    for buffer, numbers in ((_OFFSETS, offsets), (_TIMESTAMPS, timestamps_us)):
        begin = layout.BODY_POSITION + places[2 * buffer]
        message[begin : begin + 8 * count] = numbers.tobytes()
    _seal(
        message,
        replace(header, end_offset=end, min_timestamp_us=min(timestamps_us), max_timestamp_us=max(timestamps_us)),
    )
    return message


def own_copy(data: Buffer) -> bytearray:
    """Copy the rows of a verified message into a new one with the same numbers; see `renumber`.

    Nearly all of it runs outside the interpreter, so that another thread can do it.
    """
    _refuse_compressed(data)
    message = copied(data)
    # In a verified message, these numbers are the only metadata that varies.
    numbers = message[: layout.BODY_POSITION]
    message[: layout.BODY_POSITION] = layout.TEMPLATE
    for begin, end in layout.PATCHED:
        message[begin:end] = numbers[begin:end]
    places = layout.BUFFERS.unpack_from(message, layout.BUFFERS_POSITION)
    for begin, size in zip(places[::2], places[1::2], strict=True):
        if unused := -size & 7:
            end = layout.BODY_POSITION + begin + size
            message[end : end + unused] = _PADDING[unused]
    return message


def renumber(
    message: bytearray,
    *,
    base_offset: int,
    timestamp_us: int,
    leader_epoch: int,
    flags: int = 0,
    producer: BatchProducer | None = None,
) -> BatchHeader:
    """Give the rows of a message made here new offsets, a timestamp and flags; return the new header.

    Without `producer` the message keeps its own.
    """
    _refuse_compressed(message)
    header = read_header(message)
    if producer is not None:
        header = replace(header, **producer._asdict())
    else:
        flags |= header.flags & RUN_FLAGS
    count = header.count
    places = layout.BUFFERS.unpack_from(message, layout.BUFFERS_POSITION)
    put_numbers(message, layout.BODY_POSITION + places[2], base_offset, 1, count)
    put_numbers(message, layout.BODY_POSITION + places[6], timestamp_us, 0, count)
    return _seal(
        message,
        replace(
            header,
            flags=flags,
            leader_epoch=leader_epoch,
            base_offset=base_offset,
            end_offset=base_offset + count,
            min_timestamp_us=timestamp_us,
            max_timestamp_us=timestamp_us,
        ),
    )


def restamped(message: bytearray, *, leader_epoch: int, flags: int) -> BatchHeader:
    """Give a message made here another leader epoch and flags, and clear its producer; rows keep their offsets and
    timestamps. Return the new header.
    """
    _refuse_compressed(message)
    header = replace(read_header(message), **NOBODY._asdict())
    return _seal(message, replace(header, flags=flags, leader_epoch=leader_epoch))


def reencode(data: Buffer, *, base_offset: int, timestamp_us: int, leader_epoch: int) -> bytearray:
    """Return the rows of a verified message with new offsets, timestamp and epoch, as a new message."""
    message = own_copy(data)
    renumber(message, base_offset=base_offset, timestamp_us=timestamp_us, leader_epoch=leader_epoch)
    return message


def encode_arrow(batch: pa.RecordBatch, *, producer: BatchProducer | None = None) -> bytearray:
    """Encode the columns subject, key, value and headers of `batch`; the leader assigns offsets later.

    The columns must have the types of `arrow_schema()`; at least one row. A broker accepts at most APPEND_BYTES_MAX.
    """
    schema = arrow_schema()
    assert all(batch.column(name).type == schema.field(name).type for name in _VAR_COLUMNS), batch.schema
    packed = tuple(var_column(batch.column(name)) for name in _VAR_COLUMNS)
    return _assemble(packed, batch.num_rows, producer or NOBODY)


def encode_arrow_at(batch: pa.RecordBatch, base_offset: int, end_offset: int) -> bytearray:
    """Encode rows that keep their offsets and timestamps as a message that covers these offsets.

    The columns must have the types of `arrow_schema()`, offset and timestamp without nulls; at least one row.
    """
    schema = arrow_schema()
    assert batch.schema.equals(schema), batch.schema
    offsets_of_rows, timestamps_of_rows = (_numbers(batch.column(name)) for name in ("offset", "timestamp"))
    packed = tuple(var_column(batch.column(name)) for name in _VAR_COLUMNS)
    bounds = memoryview(timestamps_of_rows).cast("q")
    return assemble(
        offsets_of_rows,
        timestamps_of_rows,
        packed,
        batch.num_rows,
        offset_range=(base_offset, end_offset),
        timestamp_range_us=(bounds[0], bounds[-1]),
        leader_epoch=0,
        flags=0,
    )[0]


def _numbers(column: pa.Array) -> memoryview:
    """Return a numeric column's values, 8 bytes per row."""
    assert not column.null_count
    return memoryview(column.buffers()[1]).cast("B")[8 * column.offset : 8 * (column.offset + len(column))]


def _assemble(columns: Iterable[VarColumn], count: int, producer: BatchProducer) -> bytearray:
    """Assemble a message with offsets from 0 and timestamps 0."""
    message = _unsealed(int64_range(0, count), bytes(8 * count), columns, count)
    _seal(message, BatchHeader(HEADER_VERSION, 0, len(message), 0, count, 0, 0, count, 0, 0, *producer))
    return message


def assemble(
    offsets_of_rows: Buffer,
    timestamps_of_rows: Buffer,
    columns: Iterable[VarColumn],
    count: int,
    *,
    offset_range: tuple[int, int],
    timestamp_range_us: tuple[int, int],
    leader_epoch: int,
    flags: int,
    producer: BatchProducer = NOBODY,
) -> tuple[bytearray, BatchHeader]:
    """Assemble a message of rows that keep their offsets and timestamps; return it with its header.

    `offset_range` is half-open, and what the message covers; rows may be missing in it.
    """
    message = _unsealed(offsets_of_rows, timestamps_of_rows, columns, count)
    header = BatchHeader(
        HEADER_VERSION, flags, len(message), 0, count, leader_epoch, *offset_range, *timestamp_range_us
    )
    return message, _seal(message, replace(header, **producer._asdict()))


def covering(message: bytearray, base_offset: int, end_offset: int) -> BatchHeader:
    """Set the offsets that a message made here covers; its rows must lie in them. Return the new header."""
    return _seal(message, replace(read_header(message), base_offset=base_offset, end_offset=end_offset))


def _unsealed(
    offsets_of_rows: Buffer, timestamps_of_rows: Buffer, columns: Iterable[VarColumn], count: int
) -> bytearray:
    """Assemble a message without a header."""
    assert 0 < count <= limits.BATCH_ROWS_MAX, count
    buffers: list[Buffer] = [b"", offsets_of_rows, b"", timestamps_of_rows]
    nodes = [count, 0, count, 0]
    for column in columns:
        nodes += (count, column.null_count)
        buffers += (column.validity, column.offsets, column.data)
    return _laid_out(layout.TEMPLATE, buffers, nodes, count)


def _laid_out(template: bytes, buffers: Iterable[Buffer], nodes: Iterable[int], count: int) -> bytearray:
    head = bytearray(template)
    places: list[int] = []
    parts: list[Buffer] = [head]
    position = 0
    for buffer in buffers:
        size = len(buffer)
        places += (position, size)
        parts += (buffer, _PADDING[-size & 7])
        position += layout.padded(size)
    layout.INT64.pack_into(head, layout.BODY_LENGTH_POSITION, position)
    layout.INT64.pack_into(head, layout.ROWS_POSITION, count)
    layout.NODES.pack_into(head, layout.NODES_POSITION, *nodes)
    layout.BUFFERS.pack_into(head, layout.BUFFERS_POSITION, *places)
    return bytearray().join(parts)


def _seal(message: bytearray, header: BatchHeader) -> BatchHeader:
    """Write the header, and the CRC-32C of the whole message into it."""
    message[HEADER_POSITION:PREFIX_BYTES] = PACKING.pack(*astuple(replace(header, crc=0))).hex().encode()
    crc = crc32c(message)  # its digits are still zeros
    message[CRC_POSITION : CRC_POSITION + CRC_HEX_BYTES] = b"%08x" % crc
    return replace(header, crc=crc)


def read_header(data: Buffer, *, file: str = "", position: int = 0) -> BatchHeader:
    """Return the header of the message that `data` begins with; only the first PREFIX_BYTES are read.

    CorruptionError (with `file` and `position`, for the report) if it cannot be the start of a batch message.
    """
    found = _CHECKER.header(data)
    if isinstance(found, int):
        raise mistakes.corruption(MetadataMistake(found), data, file, position)
    return BatchHeader(*found)


def verify(data: Buffer, *, file: str = "", position: int = 0) -> BatchHeader:
    """Return the header of the message `data` if its layout and CRC-32C are valid; otherwise raise CorruptionError."""
    found = _CHECKER.message(data)
    if isinstance(found, int):
        raise mistakes.corruption(MetadataMistake(found), data, file, position)
    return BatchHeader(*found)


def _refuse_compressed(data: Buffer) -> None:
    """Raise ValueError if the message is compressed: reading its rows would be an internal error."""
    if compression.is_compressed(data):
        raise ValueError("a compressed message must be unpacked before its rows are read")


def uncompressed(data: Buffer, *, file: str = "", position: int = 0) -> Buffer:
    """Return a verified message uncompressed: `data` itself if it is plain, or a new message whose header differs only
    in size, checksum and flag.

    CorruptionError (with `file` and `position`, for the report) if the buffers do not match the rows, or exceed
    BATCH_BYTES_MAX.
    """
    if not compression.is_compressed(data):
        return data
    header = read_header(data, file=file, position=position)
    parts = compression.unpacked(data, header, file=file, position=position)
    message = _unsealed(*parts, header.count)
    _seal(message, replace(header, flags=header.flags & ~COMPRESSION_FLAGS, size_bytes=len(message)))
    return message


def compressed(data: Buffer, codec: Compression) -> tuple[Buffer, BatchHeader]:
    """Compress a verified, plain message, or mark it as incompressible; return it with its header."""
    header = read_header(data)
    parts = compression.packed(buffers(data), codec)
    if parts is None:
        message = bytearray(data)
        return message, _seal(message, replace(header, flags=header.flags | INCOMPRESSIBLE))
    flags = header.flags & ~COMPRESSION_FLAGS | compression.FLAGS[codec]
    nodes = layout.NODES.unpack_from(data, layout.NODES_POSITION)
    message = _laid_out(compression.template(flags), parts, nodes, header.count)
    return message, _seal(message, replace(header, flags=flags, size_bytes=len(message)))


def as_appended(data: Buffer) -> Buffer:
    """Return a verified message without compression and without its flags. CorruptionError as in `uncompressed`."""
    if not read_header(data).flags & COMPRESSION_FLAGS:
        return data
    message = bytearray(uncompressed(data))
    header = read_header(message)
    _seal(message, replace(header, flags=header.flags & ~COMPRESSION_FLAGS))
    return message


def buffers(data: Buffer) -> list[memoryview]:
    """Return views of the buffers of a verified, plain message, in Arrow's order. See FORMAT.md."""
    _refuse_compressed(data)
    body = memoryview(data)[layout.BODY_POSITION :]
    places = layout.BUFFERS.unpack_from(data, layout.BUFFERS_POSITION)
    return [body[begin : begin + size] for begin, size in zip(places[::2], places[1::2], strict=True)]


def _buffer(data: memoryview, number: int) -> memoryview:
    start, size = layout.BUFFERS.unpack_from(data, layout.BUFFERS_POSITION)[2 * number : 2 * number + 2]
    return data[layout.BODY_POSITION + start : layout.BODY_POSITION + start + size]


def _int64_buffer(data: Buffer, number: int) -> array[int]:
    _refuse_compressed(data)
    out = array("q")
    out.frombytes(_buffer(memoryview(data), number))
    return out


def offsets(data: Buffer) -> array[int]:
    """Return the offset of each row of a verified, plain message."""
    return _int64_buffer(data, _OFFSETS)


def timestamps(data: Buffer) -> array[int]:
    """Return the timestamp of each row of a verified, plain message, in microseconds."""
    return _int64_buffer(data, _TIMESTAMPS)


def check_values(data: Buffer, *, file: str = "", position: int = 0) -> BatchRows:
    """Return the rows of a verified, plain message after checking each: value offsets in order and in bounds, subjects
    UTF-8.

    CorruptionError (with `file` and `position`, for the report) names the error. A batch that passes is safe in any
    Arrow reader.
    """
    rows = BatchRows(data, LAYOUT)
    if (found := rows.mistake()) is None:
        return rows
    name = _VAR_COLUMNS[found.column]
    match found.mistake:
        case RowMistake.BOUNDS:
            wanted, got = f"values of {name!r} end to end in {found.expected} bytes", f"a bound at {found.found}"
        case RowMistake.FALL:
            wanted, got = f"values of {name!r} end to end", "one that ends before it begins"
        case RowMistake.NULLS:
            wanted, got = f"{found.expected} nulls in {name!r}", str(found.found)
        case RowMistake.TEXT:
            wanted, got = f"UTF-8 in {name!r}", "other bytes"
    raise CorruptionError(file, position, wanted, got)


def check_numbers(
    offsets_of_rows: memoryview,
    timestamps_of_rows: memoryview,
    header: BatchHeader,
    *,
    file: str = "",
    position: int = 0,
) -> None:
    """Raise CorruptionError if these columns are not in order, or not within the header's ranges.

    A CRC proves that bytes are as they were written, not that they were right.
    """
    bounds = (header.base_offset, header.end_offset, header.min_timestamp_us, header.max_timestamp_us)
    match number_mistake(offsets_of_rows, timestamps_of_rows, *bounds):
        case NumberMistake.OFFSETS:
            wanted, got = f"offsets in order from {bounds[0]}, all below {bounds[1]}", "others"
        case NumberMistake.TIMESTAMPS:
            wanted, got = f"timestamps in order from {bounds[2]} to {bounds[3]}", "others"
        case _:
            return
    raise CorruptionError(file, position, wanted, got)


def check_rows(data: Buffer, *, header: BatchHeader | None = None, file: str = "", position: int = 0) -> pa.RecordBatch:
    """Check the rows of a verified message and return them as an Arrow batch; zero-copy unless compressed.

    `header`: that of the message, if the caller has it already.
    """
    data = uncompressed(data, file=file, position=position)
    check_values(data, file=file, position=position)
    batch = read_rows(data, file=file, position=position)
    view = memoryview(data).cast("B")  # pyarrow exports signed bytes
    if header is None:
        header = read_header(view, file=file, position=position)
    check_numbers(_buffer(view, _OFFSETS), _buffer(view, _TIMESTAMPS), header, file=file, position=position)
    return batch


def read_rows(data: Buffer, *, file: str = "", position: int = 0) -> pa.RecordBatch:
    """Return a message checked by `check_values` as an Arrow batch; its offsets and timestamps are not checked."""
    import pyarrow as pa

    try:
        return pa.ipc.read_record_batch(pa.py_buffer(data), arrow_schema())
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptionError(file, position, "a batch that Arrow can read", str(error)) from None


def rest_of(data: Buffer, offset: int, *, file: str = "", position: int = 0) -> bytearray | None:
    """Return the rows of a verified message from `offset` on; see `part_of`."""
    return part_of(data, offset, read_header(data).end_offset, file=file, position=position)


def part_of(data: Buffer, begin: int, end: int, *, file: str = "", position: int = 0) -> bytearray | None:
    """Return the checked rows of a verified message from offset `begin` up to `end`, as a message that covers just
    these offsets; None if there is no row.

    The producer and run are cleared, the rest of the header is kept, and it is plain. CorruptionError as in
    `check_rows`.
    """
    data = uncompressed(data, file=file, position=position)
    rows = check_rows(data, file=file, position=position)
    first, last = bisect_left(offsets(data), begin), bisect_left(offsets(data), end)
    if first == last:
        return None
    header = read_header(data)
    times = timestamps(data)[first:last]
    part = rows.slice(first, last - first)
    message, _ = assemble(
        offsets(data)[first:last].tobytes(),
        times.tobytes(),
        [var_column(part.column(name)) for name in _VAR_COLUMNS],
        part.num_rows,
        offset_range=(begin, end),
        timestamp_range_us=(times[0], times[-1]),
        leader_epoch=header.leader_epoch,
        flags=header.flags & ~(COMPRESSION_FLAGS | RUN_FLAGS),
    )
    return message


def without_empty_keys(data: Buffer) -> bytearray:
    """Return a plain message checked by `check_values` with null in place of each empty key."""
    rows, header = read_rows(data), read_header(data)
    _, offsets_of_rows, _, timestamps_of_rows, *_ = buffers(data)
    columns = {name: rows.column(name) for name in _VAR_COLUMNS}
    columns["key"] = without_empty(columns["key"])
    message, _ = assemble(
        offsets_of_rows,
        timestamps_of_rows,
        [var_column(column) for column in columns.values()],
        header.count,
        offset_range=(header.base_offset, header.end_offset),
        timestamp_range_us=(header.min_timestamp_us, header.max_timestamp_us),
        leader_epoch=header.leader_epoch,
        flags=header.flags,
        producer=producer_of(header),
    )
    return message


def var_column(column: pa.Array) -> VarColumn:
    """Convert a column of text or bytes for `assemble`; copied only if it is a slice of a larger array."""
    import pyarrow as pa

    _, offsets_buffer, _ = column.buffers()
    begin = 4 * column.offset
    if column.offset or memoryview(offsets_buffer)[begin : begin + 4].cast("i")[0]:
        # A slice of a larger array: concatenating two chunks rewrites it from offset 0.
        column = pa.concat_arrays([column, column.slice(0, 0)])
        if column.offset:
            column = pa.array(column.to_pylist(), column.type)
    count = len(column)
    validity_buffer, offsets_buffer, data_buffer = column.buffers()
    offsets_view = memoryview(offsets_buffer)[: 4 * (count + 1)]
    data_bytes = offsets_view.cast("i")[count]
    data_view = memoryview(data_buffer)[:data_bytes] if data_buffer is not None else memoryview(b"")
    validity = memoryview(validity_buffer)[: (count + 7) // 8] if column.null_count else memoryview(b"")
    return VarColumn(column.null_count, validity, offsets_view, data_view)


LAYOUT = MessageLayout(
    template=layout.TEMPLATE,
    body_length_position=layout.BODY_LENGTH_POSITION,
    header_position=HEADER_POSITION,
    header_packing=PACKING,
    rows_position=layout.ROWS_POSITION,
    nodes_position=layout.NODES_POSITION,
    buffers_position=layout.BUFFERS_POSITION,
    header_version=HEADER_VERSION,
    known_flags=KNOWN_FLAGS,
    rows_max=limits.BATCH_ROWS_MAX,
    size_bytes_max=limits.BATCH_BYTES_MAX,
    crc_position=CRC_POSITION,
    templates=layout.TEMPLATES,
    compression_shift=COMPRESSED_LZ4.bit_length() - 1,
    compression_field_position=layout.COMPRESSION_FIELD_POSITION,
)
"""Positions and limits for the compiled checks."""

_CHECKER = MessageChecker(LAYOUT)
_ENCODER = Encoder(LAYOUT)
