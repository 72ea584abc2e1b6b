"""Converts an error code of the compiled batch checks to a CorruptionError."""

from __future__ import annotations

from binascii import unhexlify

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.batch import compression, layout
from penstock.batch.header import (
    CRC_POSITION,
    HEADER_POSITION,
    HEADER_VERSION,
    PACKING,
    PREFIX_BYTES,
    BatchHeader,
)
from penstock.hot.crc import crc32c_with_gap
from penstock.hot.message import MetadataMistake

Buffer = bytes | bytearray | memoryview


def corruption(mistake: MetadataMistake, data: Buffer, file: str, position: int) -> CorruptionError:
    """Return the CorruptionError, with its exact position."""
    view = memoryview(data).cast("B")  # pyarrow exports signed bytes
    if mistake is MetadataMistake.TOO_SHORT:
        return CorruptionError(file, position, f"a batch header of {PREFIX_BYTES} bytes", f"{len(view)} bytes")
    if mistake is MetadataMistake.PREFIX:
        return CorruptionError(file, position, "the start of a batch message", view[:16].hex())
    digits = bytes(view[HEADER_POSITION:PREFIX_BYTES])
    if mistake is MetadataMistake.DIGITS:
        return CorruptionError(file, position + HEADER_POSITION, "192 hex digits", repr(digits[:24]))
    if mistake is MetadataMistake.SPELLING:
        expected = "lower-case hex digits and zeros where nothing is defined"
        return CorruptionError(file, position + HEADER_POSITION, expected, repr(digits))
    header = BatchHeader(*PACKING.unpack(unhexlify(digits)))
    if mistake < MetadataMistake.SPELLING:
        return CorruptionError(file, position + HEADER_POSITION, *_header_mistake(mistake, header))
    if mistake is MetadataMistake.LENGTH:
        return CorruptionError(file, position, f"{header.size_bytes} bytes", f"{len(view)} bytes")
    if mistake is MetadataMistake.CRC:
        crc = crc32c_with_gap(view, CRC_POSITION)
        return CorruptionError(file, position, f"CRC-32C {header.crc:08x}", f"{crc:08x}")
    if mistake is MetadataMistake.FIXED:
        template = compression.template(header.flags)
        place = next(start for start, end in layout.FIXED if view[start:end] != template[start:end])
        return CorruptionError(file, position + place, "the fixed layout of a batch message", "another layout")
    return CorruptionError(file, position, *_layout_mistake(mistake, view, header))


def _header_mistake(mistake: MetadataMistake, header: BatchHeader) -> tuple[str, str]:
    if mistake is MetadataMistake.VERSION:
        return f"header version {HEADER_VERSION}", str(header.version)
    if mistake is MetadataMistake.FLAGS:
        return "flags that this version knows", hex(header.flags)
    if mistake is MetadataMistake.SIZE:
        return f"a size below {limits.BATCH_BYTES_MAX} in steps of 8", str(header.size_bytes)
    if mistake is MetadataMistake.COUNT:
        return f"1 to {limits.BATCH_ROWS_MAX} rows", str(header.count)
    if mistake is MetadataMistake.OFFSETS:
        return f"room for {header.count} offsets", f"{header.base_offset} to {header.end_offset}"
    assert mistake is MetadataMistake.TIMESTAMPS, mistake
    return "timestamps in order", f"{header.min_timestamp_us} to {header.max_timestamp_us}"


def _layout_mistake(mistake: MetadataMistake, view: memoryview, header: BatchHeader) -> tuple[str, str]:
    (body_bytes,) = layout.INT64.unpack_from(view, layout.BODY_LENGTH_POSITION)
    (rows,) = layout.INT64.unpack_from(view, layout.ROWS_POSITION)
    nodes = layout.NODES.unpack_from(view, layout.NODES_POSITION)
    if mistake is MetadataMistake.ROWS:
        return f"a body of {header.count} rows as the header says", f"{rows} rows in {body_bytes} bytes, nodes {nodes}"
    if mistake is MetadataMistake.NULLS:
        return "null counts between 0 and the rows, none for offset, timestamp and subject", str(nodes[1::2])
    places = layout.BUFFERS.unpack_from(view, layout.BUFFERS_POSITION)
    sizes = tuple(zip(places[::2], places[1::2], strict=True))
    if mistake is MetadataMistake.FILLING:
        return f"buffers that fill {body_bytes} bytes", f"(position, bytes) {sizes}"
    assert mistake is MetadataMistake.PLACES, mistake
    return "a buffer at the end of the one before it, as large as the rows want it", f"(position, bytes) {sizes}"
