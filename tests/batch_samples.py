"""Record batches for tests: rows, Hypothesis strategies, and messages with one invalid field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st
from msgspec.structs import astuple, replace

from penstock.batch import codec, layout, schema
from penstock.batch.header import CRC_HEX_BYTES, CRC_POSITION, HEADER_HEX_BYTES, HEADER_POSITION, PACKING
from penstock.hot.crc import crc32c, crc32c_with_gap
from tests.groups import Columns, encoded


class Row(NamedTuple):
    subject: bytes
    key: bytes | None
    value: bytes | None
    headers: bytes | None


SMALL = [Row(b"a.b", None, b"hello", None)]
MIXED = [
    Row(b"orders.eu", b"\x00\xff", b"payload", b"NATS/1.0\r\nA: 1\r\n\r\n"),
    Row("größe.→".encode(), None, b"", None),
    Row(b"orders.us", b"", None, b""),
    Row(b"x", b"key", bytes(range(256)), None),
]


def message_of(
    rows: Sequence[Row], *, base_offset: int = 0, timestamp_us: int = 1_700_000_000_000_000, leader_epoch: int = 1
) -> bytearray:
    """Encode `rows` as one batch message."""
    subjects, keys, values, headers = zip(*rows, strict=True)
    columns = Columns(subjects, keys, values, headers)
    return encoded(columns, base_offset=base_offset, timestamp_us=timestamp_us, leader_epoch=leader_epoch)


def segment_of(*messages: bytes | bytearray, stream_id: int = 7, partition: int = 0) -> bytes:
    """Return the bytes of a segment file."""
    return b"".join([schema.schema_message(stream_id, partition), *messages])


def opened(segment: bytes) -> pa.Table:
    """Read a segment with Arrow's own reader."""
    with pa.ipc.open_stream(pa.BufferReader(segment)) as reader:
        return reader.read_all()


def rows_of(table: pa.Table | pa.RecordBatch) -> list[Row]:
    """Return the rows of a table, without offset and timestamp."""
    columns = [table.column(name).to_pylist() for name in ("subject", "key", "value", "headers")]
    return [Row(subject.encode(), *rest) for subject, *rest in zip(*columns, strict=True)]


def numbers_of(table: pa.Table | pa.RecordBatch, name: str) -> list[int]:
    """Return an integer column, or a timestamp column in microseconds."""
    numbers: list[int] = table.column(name).cast(pa.int64()).to_pylist()
    return numbers


def sealed(message: bytearray) -> bytearray:
    """Update the CRC of `message` in place."""
    message[CRC_POSITION : CRC_POSITION + 8] = b"%08x" % crc32c_with_gap(message, CRC_POSITION)
    return message


def with_header(message: bytes | bytearray, **fields: Any) -> bytearray:
    """Replace fields of the batch header, and update the CRC."""
    out = bytearray(message)
    header = replace(codec.read_header(message), **fields)
    out[HEADER_POSITION : codec.PREFIX_BYTES] = PACKING.pack(*astuple(header)).hex().encode()
    return sealed(out)


def with_node(message: bytes | bytearray, number: int, value: int) -> bytearray:
    """Replace one of the row and null counts of the columns, and update the CRC."""
    out = bytearray(message)
    layout.INT64.pack_into(out, layout.NODES_POSITION + 8 * number, value)
    return sealed(out)


def with_place(message: bytes | bytearray, number: int, value: int) -> bytearray:
    """Replace one of the positions and sizes of the buffers, and update the CRC."""
    out = bytearray(message)
    layout.INT64.pack_into(out, layout.BUFFERS_POSITION + 8 * number, value)
    return sealed(out)


def with_buffer(message: bytes | bytearray, number: int, position: int, content: bytes) -> bytearray:
    """Replace bytes within one buffer, and update the CRC."""
    out = bytearray(message)
    (begin,) = layout.INT64.unpack_from(out, layout.BUFFERS_POSITION + 16 * number)
    start = layout.BODY_POSITION + begin + position
    out[start : start + len(content)] = content
    return sealed(out)


SUBJECTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).map(str.encode)
ROWS = st.lists(
    st.builds(
        Row,
        SUBJECTS,
        st.none() | st.binary(max_size=12),
        st.none() | st.binary(max_size=40),
        st.none() | st.binary(max_size=20),
    ),
    min_size=1,
    max_size=40,
)
OFFSETS = st.integers(0, 2**63 - 100)
TIMESTAMPS_US = st.integers(-(2**63), 2**63 - 1)
LEADER_EPOCHS = st.integers(0, 2**32 - 1)


def resealed(message: bytes, **fields: Any) -> bytes:
    """Replace fields of the header, and compute the CRC of the whole message anew; the result must verify."""
    header = replace(codec.read_header(message), crc=0, **fields)
    out = bytearray(message)
    out[HEADER_POSITION : HEADER_POSITION + HEADER_HEX_BYTES] = PACKING.pack(*astuple(header)).hex().encode()
    out[CRC_POSITION : CRC_POSITION + CRC_HEX_BYTES] = b"%08x" % crc32c(bytes(out))
    codec.verify(out)
    return bytes(out)
