"""The fixed layout of a batch message's metadata: a template with numbers patched in.

Rules: every batch message has the same 720 bytes of metadata; only the places in `FORMAT.md`'s table differ. So
routing, verification and truncation parse no flatbuffer, and a message with any other metadata is refused before an
Arrow reader sees it. If the body is compressed, two more bytes differ, as the flags of the batch header predict.

Theory: a flatbuffer is a tree of tables that point forward to their children. The writer chooses where each child lies;
this writer puts the batch header first, at byte 88, and everything of fixed size behind it.
"""

from __future__ import annotations

import struct
import sys

from penstock.batch.header import HEADER_HEX_BYTES, HEADER_POSITION

assert sys.byteorder == "little", "the log is little-endian, as Arrow's files are; this machine is not"

COLUMNS = ("offset", "timestamp", "subject", "key", "value", "headers")
BUFFER_COUNT = 2 * 2 + 4 * 3  # two columns of numbers (validity, data), four of strings (validity, offsets, data)
CONTINUATION = b"\xff\xff\xff\xff"

# Positions within the encapsulated message; see the table in FORMAT.md.
METADATA_LENGTH_POSITION = 4
BODY_LENGTH_POSITION = 32
ROWS_POSITION = 320
COMPRESSION_FIELD_POSITION = 310
"""In the vtable of the RecordBatch: position of the compression field in the table; 0: absent."""
COMPRESSION_POSITION = 332
CODEC_POSITION = 348
NODES_POSITION = 360
BUFFERS_POSITION = 464
BODY_POSITION = BUFFERS_POSITION + 16 * BUFFER_COUNT
"""Position of the body in every batch message: 720."""

_METADATA_V5 = 4
_HEADER_IS_RECORD_BATCH = 3
_HEADER_KEY = b"penstock"
_COMPRESSION_FIELD = COMPRESSION_POSITION - 312  # the table begins at 312
_LZ4_FRAME, _ZSTD = 0, 1  # Arrow's codes

INT64 = struct.Struct("<q")
NODES = struct.Struct(f"<{2 * len(COLUMNS)}q")
"""Per column: rows, nulls."""
BUFFERS = struct.Struct(f"<{2 * BUFFER_COUNT}q")
"""Per buffer: position in the body, bytes without padding."""


def _template() -> bytes:
    out = bytearray(BODY_POSITION)

    def put(position: int, form: str, *numbers: int) -> None:
        struct.pack_into("<" + form, out, position, *numbers)

    def point(position: int, target: int) -> None:
        put(position, "I", target - position)

    out[0:4] = CONTINUATION
    put(METADATA_LENGTH_POSITION, "i", BODY_POSITION - 8)
    point(8, 28)
    # Message. A table's vtable: its own bytes, the table's bytes, then each field's place in the table.
    put(12, "7H", 14, 24, 20, 22, 12, 4, 16)  # version, header_type, header, bodyLength, custom_metadata
    put(28, "i", 28 - 12)
    point(40, 312)
    point(44, 52)
    put(48, "hB", _METADATA_V5, _HEADER_IS_RECORD_BATCH)
    # custom_metadata: a vector of one KeyValue, whose value is the batch header.
    key_position = HEADER_POSITION + HEADER_HEX_BYTES + 4
    put(52, "I", 1)
    point(56, 68)
    put(60, "4H", 8, 12, 4, 8)  # key, value
    put(68, "i", 68 - 60)
    point(72, key_position)
    point(76, HEADER_POSITION - 4)
    put(HEADER_POSITION - 4, "I", HEADER_HEX_BYTES)
    out[HEADER_POSITION : HEADER_POSITION + HEADER_HEX_BYTES] = b"0" * HEADER_HEX_BYTES
    put(key_position, "I", len(_HEADER_KEY))
    out[key_position + 4 : key_position + 4 + len(_HEADER_KEY)] = _HEADER_KEY
    # RecordBatch. Its compression field is absent (0 in the vtable); the BodyCompression table is prepared at 344.
    put(300, "6H", 12, 24, 8, 4, 16, 0)  # length, nodes, buffers, compression
    put(312, "i", 312 - 300)
    point(316, NODES_POSITION - 4)
    point(328, BUFFERS_POSITION - 4)
    point(COMPRESSION_POSITION, 344)
    put(336, "4H", 8, 8, 4, 5)  # codec, method
    put(344, "i", 344 - 336)
    put(NODES_POSITION - 4, "I", len(COLUMNS))
    put(BUFFERS_POSITION - 4, "I", BUFFER_COUNT)
    return bytes(out)


def _compressed(arrow_codec: int) -> bytes:
    out = bytearray(TEMPLATE)
    struct.pack_into("<H", out, COMPRESSION_FIELD_POSITION, _COMPRESSION_FIELD)
    out[CODEC_POSITION] = arrow_codec
    return bytes(out)


TEMPLATE = _template()
TEMPLATES = (TEMPLATE, _compressed(_LZ4_FRAME), _compressed(_ZSTD), TEMPLATE)
"""Templates by the compression flags; see `batch.header`."""

PATCHED = (
    (BODY_LENGTH_POSITION, BODY_LENGTH_POSITION + 8),
    (HEADER_POSITION, HEADER_POSITION + HEADER_HEX_BYTES),
    (ROWS_POSITION, ROWS_POSITION + 8),
    (NODES_POSITION, NODES_POSITION + NODES.size),
    (BUFFERS_POSITION, BUFFERS_POSITION + BUFFERS.size),
)
"""The only byte ranges in which two messages' metadata may differ."""

FIXED = tuple(
    (start, end)
    for start, end in zip(
        (0, *(end for _, end in PATCHED)), (*(start for start, _ in PATCHED), BODY_POSITION), strict=True
    )
    if start < end
)
"""The byte ranges that equal the template in every message."""


def padded(size: int) -> int:
    """Round `size` up to the 8 bytes on which every buffer begins."""
    return (size + 7) & ~7
