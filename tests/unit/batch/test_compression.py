"""Compressed messages: what they hold, and what strangers may have made of them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from penstock.base import limits
from penstock.base.config import Compression
from penstock.base.errors import CorruptionError
from penstock.batch import codec, compression, joining, layout, merging
from penstock.batch.header import COMPRESSED_LZ4, COMPRESSED_ZSTD, INCOMPRESSIBLE, MAY_HOLD_IDS
from penstock.hot.rows import BatchRows
from tests.batch_samples import MIXED, Row, message_of, numbers_of, opened, rows_of, sealed, segment_of, with_header
from tests.extent import each_change

ROWS = [
    Row(b"a.%d" % (n % 5), b"key-%d" % n if n % 3 else None, b'{"n":%d}' % n * 9 if n % 7 else None, None)
    for n in range(400)
]
CODECS = [Compression.LZ4, Compression.ZSTD]
both = pytest.mark.parametrize("wished", CODECS)
OFFSETS, VALUES_ENDS, VALUES = 1, 11, 12
"""Some of its buffers."""


def compressed_of(rows: list[Row], wished: Compression = Compression.ZSTD, base_offset: int = 7) -> bytearray:
    message, header = codec.compressed(message_of(rows, base_offset=base_offset), wished)
    assert header == codec.verify(message)
    return bytearray(message)


def place_of(message: bytes | bytearray, number: int) -> tuple[int, int]:
    """Where a buffer lies in a message, and how many bytes it has."""
    begin, size = layout.BUFFERS.unpack_from(message, layout.BUFFERS_POSITION)[2 * number : 2 * number + 2]
    return layout.BODY_POSITION + begin, size


def with_length(message: bytearray, number: int, length: int) -> bytearray:
    """Another number in front of a compressed buffer."""
    struct.pack_into("<q", message, place_of(message, number)[0], length)
    return sealed(message)


@both
def test_what_is_compressed_unpacks_to_the_same_bytes(wished: Compression) -> None:
    plain = with_header(message_of(ROWS, base_offset=7), flags=MAY_HOLD_IDS, producer_id=9, end_offset=500)
    message, header = codec.compressed(plain, wished)
    assert header == codec.verify(message)
    assert header.size_bytes == len(message) < len(plain) / 2
    assert (compression.of(header), header.flags & MAY_HOLD_IDS) == (wished, MAY_HOLD_IDS)
    assert (header.base_offset, header.end_offset, header.producer_id, header.count) == (7, 500, 9, 400)
    assert codec.uncompressed(message) == plain
    assert codec.as_appended(message) == plain
    assert codec.uncompressed(plain) is plain
    assert codec.as_appended(plain) is plain


@both
def test_its_rows_are_found_by_whoever_looks_for_rows(wished: Compression) -> None:
    message = compressed_of(ROWS, wished)
    plain = message_of(ROWS, base_offset=7)
    assert codec.check_rows(message).equals(codec.check_rows(plain))
    assert rows_of(opened(segment_of(plain, message))) == ROWS * 2
    rest = codec.rest_of(message, 300)
    assert rest is not None
    assert codec.verify(rest).flags == 0
    assert numbers_of(codec.check_rows(rest), "offset") == list(range(300, 407))


@each_change
@both
def test_the_metadata_are_what_arrow_reads(wished: Compression) -> None:
    message = compressed_of(ROWS, wished)
    differ = [at for at in range(280, 720) if message[at] != compressed_of(ROWS, Compression.LZ4)[at] and at < 456]
    assert differ == ([] if wished is Compression.LZ4 else [layout.CODEC_POSITION])
    assert compression.template(codec.read_header(message).flags) == layout.TEMPLATES[1 if wished == "lz4" else 2]
    assert pa.ipc.read_message(pa.py_buffer(message)).body.size == len(message) - 720


@pytest.mark.parametrize(
    "look",
    [
        codec.buffers,
        codec.offsets,
        codec.timestamps,
        codec.check_values,
        codec.own_copy,
        lambda data: BatchRows(data, codec.LAYOUT),
        lambda data: codec.renumber(data, base_offset=0, timestamp_us=0, leader_epoch=1),
        lambda data: codec.compressed(data, Compression.LZ4),
    ],
)
def test_it_is_never_taken_for_a_plain_one(look: Callable[[Any], object]) -> None:
    look(message_of(ROWS))
    for wished in CODECS:
        with pytest.raises(ValueError, match="must be unpacked before its rows are read"):
            look(compressed_of(ROWS, wished))


def test_joining_stops_at_it() -> None:
    plain = message_of(ROWS[:1], base_offset=6)
    marked, header = codec.compressed(message_of(MIXED, base_offset=5), Compression.LZ4)
    assert header.flags == INCOMPRESSIBLE
    raw = memoryview(bytes(message_of(ROWS[:5])) + bytes(marked) + bytes(compressed_of(ROWS, base_offset=9)))
    found = joining.gather(raw, 0, 0, (0, 2**62), 10_000)
    assert found.rows == 9, "what is only marked is joined, what is compressed is not"
    merged = merging.next_merged(
        memoryview(bytes(plain) + bytes(compressed_of(ROWS))), 6, rows_max=999, bytes_max=10**6
    )
    assert merged.data == plain
    alone = merging.next_merged(memoryview(compressed_of(ROWS) * 2), 7, rows_max=999, bytes_max=10**6)
    assert (alone.sources, alone.data) == (1, compressed_of(ROWS))


def test_what_does_not_become_smaller_is_marked_and_stays() -> None:
    plain = message_of([Row(b"a", None, Random(1).randbytes(40_000), None)])
    for wished in CODECS:
        message, header = codec.compressed(plain, wished)
        assert header.flags == INCOMPRESSIBLE
        assert message == with_header(plain, flags=INCOMPRESSIBLE)
        assert codec.verify(message) == header
        assert codec.uncompressed(message) is message
        assert codec.as_appended(message) == plain
        assert compression.of(header) is Compression.NONE
        rest = codec.rest_of(codec.compressed(message_of(MIXED), wished)[0], 2)
        assert rest is not None
        assert codec.verify(rest).flags == 0, "what is left of it may be worth it"


@both
def test_a_buffer_that_does_not_become_smaller_lies_there_as_it_is(wished: Compression) -> None:
    rows = [Row(b"a" * 900, None, Random(number).randbytes(500 + number), b"x" * 800) for number in range(20)]
    message = compressed_of(rows, wished)
    begin, size = place_of(message, VALUES)
    assert struct.unpack_from("<q", message, begin) == (-1,)
    assert size == 8 + sum(len(row.value or b"") for row in rows)
    assert rows_of(codec.check_rows(message)) == rows_of(opened(segment_of(message))) == rows


@each_change
@both
@pytest.mark.parametrize("length", [-(2**63), -2, 0, 1, 399 * 8, 401 * 8, 2**31, 2**62, 2**63 - 1])
def test_a_length_that_the_rows_do_not_want_is_damage(wished: Compression, length: int) -> None:
    message = with_length(compressed_of(ROWS, wished), OFFSETS, length)
    codec.verify(message)
    with pytest.raises(CorruptionError, match="compressed buffers that unpack") as error:
        codec.uncompressed(message, file="f", position=3)
    assert (error.value.file, error.value.position) == ("f", 3)
    with pytest.raises(CorruptionError):
        codec.check_rows(message)


@both
@pytest.mark.parametrize("more", [-1, 1, 1_000, limits.BATCH_BYTES_MAX - 720 - 30_000])
def test_values_of_another_size_than_they_say_are_damage(wished: Compression, more: int) -> None:
    message = compressed_of(ROWS, wished)
    (length,) = struct.unpack_from("<q", message, place_of(message, VALUES)[0])
    with pytest.raises(CorruptionError, match="compressed buffers that unpack"):
        codec.uncompressed(with_length(message, VALUES, length + more))


@both
def test_a_bomb_is_not_unpacked(wished: Compression) -> None:
    bomb = pa.Codec(wished.value).compress(bytes(limits.BATCH_BYTES_MAX), asbytes=True)
    message = compressed_of(ROWS, wished)
    before = pa.total_allocated_bytes()
    for length in (limits.BATCH_BYTES_MAX, limits.BATCH_BYTES_MAX - 720, 2**40):
        with pytest.raises(CorruptionError, match=r"more than 134217728 bytes"):
            codec.uncompressed(with_values(message, struct.pack("<q", length) + bomb))
    assert pa.total_allocated_bytes() - before < limits.MIB


def with_values(message: bytearray, content: bytes) -> bytearray:
    """Another buffer of values, and all behind it moved."""
    begin, size = place_of(message, VALUES)
    end = begin + layout.padded(size)
    more = layout.padded(len(content)) - layout.padded(size)
    places = list(layout.BUFFERS.unpack_from(message, layout.BUFFERS_POSITION))
    places[2 * VALUES + 1] = len(content)
    for number in range(VALUES + 1, layout.BUFFER_COUNT):
        places[2 * number] += more
    out = message[:begin] + content + bytes(-len(content) & 7) + message[end:]
    layout.BUFFERS.pack_into(out, layout.BUFFERS_POSITION, *places)
    layout.INT64.pack_into(out, layout.BODY_LENGTH_POSITION, len(out) - layout.BODY_POSITION)
    return with_header(out, size_bytes=len(out))


@both
def test_a_frame_that_is_cut_short_is_damage(wished: Compression) -> None:
    message = compressed_of(ROWS, wished)
    begin, size = place_of(message, VALUES)
    content = bytes(message[begin : begin + size])
    assert with_values(message, content) == message
    codec.uncompressed(with_values(message, content))
    for part in (content[:-1], content[: size // 2], content[:9], content[:8], content[:7], content + b"x"):
        broken = with_values(message, part)
        codec.verify(broken)
        with pytest.raises(CorruptionError, match="compressed buffers that unpack"):
            codec.uncompressed(broken)


@both
def test_a_frame_that_holds_less_than_it_says_shows_no_memory(wished: Compression) -> None:
    message = compressed_of(ROWS, wished)
    (length,) = struct.unpack_from("<q", message, place_of(message, VALUES)[0])
    less = struct.pack("<q", length) + pa.Codec(wished.value).compress(bytes(length - 1), asbytes=True)
    with pytest.raises(CorruptionError, match="compressed buffers that unpack"):
        codec.uncompressed(with_values(message, less))


@both
def test_value_offsets_that_unpack_to_nonsense_are_found(wished: Compression) -> None:
    plain = message_of(ROWS, base_offset=7)
    begin, size = place_of(plain, VALUES_ENDS)
    wrong = bytearray(plain)
    struct.pack_into("<i", wrong, begin + size - 4, 2**30)
    message, _ = codec.compressed(sealed(wrong), wished)
    codec.verify(message)
    assert codec.uncompressed(message) == wrong
    with pytest.raises(CorruptionError, match="a bound at 1073741824"):
        codec.check_rows(message)


@both
def test_raw_buffers_are_bounded_as_well(wished: Compression) -> None:
    message = compressed_of(ROWS, wished)
    raw = with_values(message, struct.pack("<q", -1) + b"v" * 3)
    assert len(codec.buffers(codec.uncompressed(raw))[VALUES]) == 3
    with pytest.raises(CorruptionError, match="8 bytes for buffer 12"):
        codec.uncompressed(with_values(message, struct.pack("<q", -1)))


@pytest.mark.parametrize("flags", [0, COMPRESSED_LZ4, COMPRESSED_ZSTD, INCOMPRESSIBLE])
def test_flags_and_metadata_must_agree(flags: int) -> None:
    messages = {
        0: message_of(ROWS),
        COMPRESSED_LZ4: compressed_of(ROWS, CODECS[0]),
        COMPRESSED_ZSTD: compressed_of(ROWS),
    }
    for its_flags, message in messages.items():
        changed = with_header(message, flags=flags)
        if flags == its_flags or (flags == INCOMPRESSIBLE and not its_flags):
            codec.verify(changed)
            continue
        with pytest.raises(CorruptionError, match="the fixed layout of a batch message"):
            codec.verify(changed)


@both
@pytest.mark.parametrize("position", [310, 311, 332, 336, 340, 344, 348, 349, 352])
def test_the_compression_table_is_fixed(wished: Compression, position: int) -> None:
    message = compressed_of(ROWS, wished)
    message[position] ^= 1
    with pytest.raises(CorruptionError, match="the fixed layout of a batch message"):
        codec.verify(sealed(message))
