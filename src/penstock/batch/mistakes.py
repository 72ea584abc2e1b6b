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
from penstock.hot.message import Mistake

Buffer = bytes | bytearray | memoryview


def corruption(mistake: Mistake, data: Buffer, file: str, position: int) -> CorruptionError:
    """Return the CorruptionError, with its exact position."""
    view = memoryview(data).cast("B")  # pyarrow exports signed bytes
    if mistake is Mistake.TOO_SHORT:
        return CorruptionError(file, position, f"a batch header of {PREFIX_BYTES} bytes", f"{len(view)} bytes")
    if mistake is Mistake.PREFIX:
        return CorruptionError(file, position, "the start of a batch message", view[:16].hex())
    digits = bytes(view[HEADER_POSITION:PREFIX_BYTES])
    if mistake is Mistake.DIGITS:
        return CorruptionError(file, position + HEADER_POSITION, "192 hex digits", repr(digits[:24]))
    if mistake is Mistake.SPELLING:
        expected = "lower-case hex digits and zeros where nothing is defined"
        return CorruptionError(file, position + HEADER_POSITION, expected, repr(digits))
    header = BatchHeader(*PACKING.unpack(unhexlify(digits)))
    if mistake < Mistake.SPELLING:
        return CorruptionError(file, position + HEADER_POSITION, *_header_mistake(mistake, header))
    if mistake is Mistake.LENGTH:
        return CorruptionError(file, position, f"{header.size_bytes} bytes", f"{len(view)} bytes")
    if mistake is Mistake.CRC:
        crc = crc32c_with_gap(view, CRC_POSITION)
        return CorruptionError(file, position, f"CRC-32C {header.crc:08x}", f"{crc:08x}")
    if mistake is Mistake.FIXED:
        template = compression.template(header.flags)
        place = next(start for start, end in layout.FIXED if view[start:end] != template[start:end])
        return CorruptionError(file, position + place, "the fixed layout of a batch message", "another layout")
    return CorruptionError(file, position, *_layout_mistake(mistake, view, header))


def _header_mistake(mistake: Mistake, header: BatchHeader) -> tuple[str, str]:
    if mistake is Mistake.VERSION:
        return f"header version {HEADER_VERSION}", str(header.version)
    if mistake is Mistake.FLAGS:
        return "flags that this version knows", hex(header.flags)
    if mistake is Mistake.SIZE:
        return f"a size below {limits.BATCH_BYTES_MAX} in steps of 8", str(header.size_bytes)
    if mistake is Mistake.COUNT:
        return f"1 to {limits.BATCH_ROWS_MAX} rows", str(header.count)
    if mistake is Mistake.OFFSETS:
        return f"room for {header.count} offsets", f"{header.base_offset} to {header.end_offset}"
    assert mistake is Mistake.TIMESTAMPS, mistake
    return "timestamps in order", f"{header.min_timestamp_us} to {header.max_timestamp_us}"


def _layout_mistake(mistake: Mistake, view: memoryview, header: BatchHeader) -> tuple[str, str]:
    (body_bytes,) = layout.INT64.unpack_from(view, layout.BODY_LENGTH_POSITION)
    (rows,) = layout.INT64.unpack_from(view, layout.ROWS_POSITION)
    nodes = layout.NODES.unpack_from(view, layout.NODES_POSITION)
    if mistake is Mistake.ROWS:
        return f"a body of {header.count} rows as the header says", f"{rows} rows in {body_bytes} bytes, nodes {nodes}"
    if mistake is Mistake.NULLS:
        return "null counts between 0 and the rows, none for offset, timestamp and subject", str(nodes[1::2])
    places = layout.BUFFERS.unpack_from(view, layout.BUFFERS_POSITION)
    sizes = tuple(zip(places[::2], places[1::2], strict=True))
    if mistake is Mistake.FILLING:
        return f"buffers that fill {body_bytes} bytes", f"(position, bytes) {sizes}"
    assert mistake is Mistake.PLACES, mistake
    return "a buffer at the end of the one before it, as large as the rows want it", f"(position, bytes) {sizes}"
