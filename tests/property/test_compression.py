"""Whatever is compressed unpacks to what it was, and whatever else comes is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.config import Compression
from penstock.base.errors import CorruptionError
from penstock.batch import codec, compression, layout
from penstock.batch.header import COMPRESSION_FLAGS
from penstock.batch.schema import arrow_schema
from penstock.client.read.batches import OffsetRange, batches_of
from tests.batch_samples import (
    ROWS,
    Row,
    message_of,
    numbers_of,
    opened,
    rows_of,
    sealed,
    segment_of,
    with_header,
)

CODECS = st.sampled_from([Compression.LZ4, Compression.ZSTD])
BATCHES = st.tuples(ROWS, st.integers(1, 20), st.integers(0, 9), CODECS | st.none())
"""Rows, how often they are there, how many offsets are missing behind them, and the codec."""
MANY = st.tuples(ROWS, st.integers(1, 30)).map(lambda found: found[0] * found[1])


@given(rows=MANY, wished=CODECS)
def test_any_rows_come_back(rows: list[Row], wished: Compression) -> None:
    plain = message_of(rows)
    message, header = codec.compressed(plain, wished)
    assert codec.verify(message) == header
    assert header.flags & COMPRESSION_FLAGS
    assert codec.as_appended(message) == plain
    assert rows_of(codec.check_rows(message)) == rows == rows_of(opened(segment_of(message)))
    assert len(message) <= len(plain)
    again, _ = codec.compressed(codec.as_appended(message), wished)
    assert again == message


@given(
    batches=st.lists(
        st.tuples(ROWS, st.integers(1, 20), st.integers(0, 9), CODECS | st.none()), min_size=1, max_size=6
    ),
    first=st.floats(0, 1),
    last=st.floats(0, 1),
    rows_max=st.sampled_from([1, 7, 10_000]),
)
def test_a_client_gets_the_same_of_compressed_batches(
    batches: list[tuple[list[Row], int, int, Compression | None]], first: float, last: float, rows_max: int
) -> None:
    offset = 0
    plain, mixed = [], []
    for rows, times, gap, wished in batches:
        count = len(rows) * times
        message = with_header(message_of(rows * times, base_offset=offset), end_offset=offset + count + gap)
        plain.append(bytes(message))
        mixed.append(plain[-1] if wished is None else bytes(codec.compressed(message, wished)[0]))
        offset += count + gap
    wanted = OffsetRange(round(first * offset), round(max(first, last) * offset))
    found = [
        pa.Table.from_batches(
            batches_of(b"".join(data), OffsetRange(0, offset), wanted, rows_max, source="here"), arrow_schema()
        )
        for data in (plain, mixed)
    ]
    assert found[0].equals(found[1])
    assert all(wanted.start <= one < wanted.end for one in numbers_of(found[1], "offset"))
    if wanted == (0, offset):
        assert rows_of(found[1]) == [row for rows, times, _, _ in batches for row in rows * times]


@st.composite
def forged(draw: st.DrawFn) -> bytearray:
    """Compressed messages with a checksum that fits, and something wrong in what they say or hold."""
    plain = message_of(draw(ROWS) * draw(st.integers(10, 60)))
    data, _ = codec.compressed(plain, draw(CODECS))
    message = bytearray(data)
    places = layout.BUFFERS.unpack_from(message, layout.BUFFERS_POSITION)
    begins = [layout.BODY_POSITION + begin for begin, size in zip(places[::2], places[1::2], strict=True) if size]
    for _ in range(draw(st.integers(1, 4))):
        match draw(st.sampled_from(["length", "bytes", "nodes", "places", "layout"])):
            case "length":
                number = draw(st.sampled_from([-(2**63), -2, -1, 0, 1, 8, 2**31, 2**62]) | st.integers(0, 5_000))
                layout.INT64.pack_into(message, draw(st.sampled_from(begins)), number)
            case "bytes":
                position = draw(st.integers(layout.BODY_POSITION, len(message) - 1))
                message[position] = draw(st.integers(0, 255))
            case "nodes":
                position = layout.NODES_POSITION + 8 * draw(st.integers(0, 11))
                layout.INT64.pack_into(message, position, draw(st.integers(0, 300)))
            case "places":
                position = layout.BUFFERS_POSITION + 8 * draw(st.integers(0, 31))
                layout.INT64.pack_into(message, position, draw(st.integers(0, 300)))
            case "layout":
                message[draw(st.sampled_from([310, 344, 348, 349]))] ^= draw(st.integers(0, 255))
    return sealed(message)


@given(forged())
def test_what_is_forged_is_refused_or_sound(message: bytearray) -> None:
    try:
        header = codec.verify(message)
        rows = codec.check_rows(message)
    except CorruptionError:
        return
    rows.validate(full=True)
    assert rows.num_rows == header.count
    if compression.is_compressed(message):
        with pytest.raises(ValueError, match="unpacked"):
            codec.offsets(message)
        codec.verify(codec.uncompressed(message))
