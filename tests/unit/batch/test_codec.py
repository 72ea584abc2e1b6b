"""The encoder's bytes, and what `verify` and `check_rows` believe."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from msgspec.structs import astuple

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.batch import codec, layout
from penstock.batch.header import CRC_POSITION, HEADER_POSITION, PACKING, BatchHeader
from penstock.batch.schema import arrow_schema
from tests.batch_samples import (
    MIXED,
    SMALL,
    Row,
    message_of,
    numbers_of,
    opened,
    rows_of,
    sealed,
    segment_of,
    with_buffer,
    with_header,
    with_node,
    with_place,
)
from tests.groups import Columns, encoded

OFFSETS_OF = {"subject": 5, "key": 8, "value": 11, "headers": 14}  # number of the buffer


def test_header_says_what_the_batch_holds() -> None:
    message = message_of(MIXED, base_offset=41, timestamp_us=-5, leader_epoch=3)
    header = codec.verify(message)
    assert header == BatchHeader(
        version=1,
        flags=0,
        size_bytes=len(message),
        crc=int(message[CRC_POSITION : CRC_POSITION + 8], 16),
        count=4,
        leader_epoch=3,
        base_offset=41,
        end_offset=45,
        min_timestamp_us=-5,
        max_timestamp_us=-5,
    )


def test_arrow_reads_the_rows() -> None:
    table = opened(segment_of(message_of(MIXED, base_offset=41, timestamp_us=9), message_of(SMALL, base_offset=45)))
    assert rows_of(table) == MIXED + SMALL
    assert numbers_of(table, "offset") == [41, 42, 43, 44, 45]
    assert numbers_of(table, "timestamp")[:4] == [9, 9, 9, 9]


def test_a_column_that_is_none_is_null_in_every_row() -> None:
    columns = Columns([b"a", b"b"], None, [b"1", None], None)
    message = encoded(columns, base_offset=0, timestamp_us=0, leader_epoch=0)
    assert rows_of(codec.check_rows(message)) == [Row(b"a", None, b"1", None), Row(b"b", None, None, None)]


@pytest.mark.parametrize("short", ["subjects", "keys", "headers"])
def test_columns_of_unequal_length_are_a_programmers_error(short: str) -> None:
    columns = Columns([b"a", b"b"], [b"k", b"k"], [b"1", b"2"], [b"h", b"h"])
    with pytest.raises(AssertionError):
        encoded(columns._replace(**{short: [b"x"]}), base_offset=0, timestamp_us=0, leader_epoch=0)


def test_no_rows_and_too_many_rows_are_a_programmers_error() -> None:
    for count in (0, limits.BATCH_ROWS_MAX + 1):
        columns = Columns([b"a"] * count, None, [b""] * count, None)
        with pytest.raises(AssertionError):
            encoded(columns, base_offset=0, timestamp_us=0, leader_epoch=0)


def test_the_largest_row_count_is_encoded_and_verified() -> None:
    count = limits.BATCH_ROWS_MAX
    columns = Columns([b"a"] * count, [None, *[b"k"] * (count - 1)], [b"v"] * count, None)
    message = encoded(columns, base_offset=0, timestamp_us=0, leader_epoch=0)
    assert codec.verify(message).count == count
    assert codec.check_rows(message).column("key").null_count == 1


@pytest.mark.parametrize(
    "kind", [bytes, bytearray, lambda data: memoryview(bytes(data)), lambda data: pa.py_buffer(bytes(data))]
)
def test_every_kind_of_buffer_is_read_alike(kind) -> None:
    data = kind(message_of(MIXED, base_offset=10))
    view = memoryview(data) if isinstance(data, pa.Buffer) else data  # signed bytes, as pyarrow exports them
    assert codec.verify(view).end_offset == 14
    assert list(codec.offsets(view)) == [10, 11, 12, 13]
    assert list(codec.timestamps(view)) == [1_700_000_000_000_000] * 4
    assert rows_of(codec.check_rows(view)) == MIXED
    again = codec.reencode(view, base_offset=10, timestamp_us=1_700_000_000_000_000, leader_epoch=1)
    assert again == message_of(MIXED, base_offset=10)


def test_every_single_flipped_bit_is_found() -> None:
    message = message_of(SMALL)
    for position in range(len(message)):
        for bit in range(8):
            message[position] ^= 1 << bit
            with pytest.raises(CorruptionError):
                codec.verify(message)
            message[position] ^= 1 << bit
    codec.verify(message)


def test_upper_case_digits_are_another_spelling_and_refused() -> None:
    message = message_of(SMALL, base_offset=0xABC)
    digits = slice(HEADER_POSITION, codec.PREFIX_BYTES)
    message[digits] = message[digits].upper()
    with pytest.raises(CorruptionError, match="lower-case"):
        codec.verify(sealed(message))
    # Also where only the checksum's own digits, which no checksum covers, are upper case.
    for base_offset in range(64):
        message = message_of(SMALL, base_offset=base_offset)
        digits = slice(CRC_POSITION, CRC_POSITION + 8)
        if message[digits] != message[digits].upper():
            break
    message[digits] = message[digits].upper()
    with pytest.raises(CorruptionError, match="lower-case"):
        codec.verify(message)


@pytest.mark.parametrize("position", [6, *range(176, 192)])
def test_reserved_digits_and_the_plan_of_no_run_must_be_zero(position: int) -> None:
    message = message_of(SMALL)
    message[HEADER_POSITION + position] = ord("1")
    with pytest.raises(CorruptionError):
        codec.verify(sealed(message))


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 0},
        {"version": 2},
        {"flags": 2},
        {"flags": 0x8000},
        {"flags": 0x80},
        {"flags": 0x40},
        {"flags": 0x80, "run_id": bytes(range(16))},
        {"run_id": bytes(range(16)), "run_plan": 1},
        {"count": 0},
        {"count": 2},
        {"count": limits.BATCH_ROWS_MAX + 1},
        {"size_bytes": 0},
        {"size_bytes": 720},
        {"size_bytes": 2**32 - 8},
        {"size_bytes": limits.BATCH_BYTES_MAX + 8},
        {"end_offset": 0},
        {"base_offset": 1},
        {"base_offset": 2**63 - 1, "end_offset": 2**63},
        {"base_offset": 2**64 - 1, "end_offset": 0},
        {"min_timestamp_us": 1, "max_timestamp_us": 0},
    ],
)
def test_a_header_that_cannot_be_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(CorruptionError) as caught:
        codec.verify(with_header(message_of(SMALL), **fields), file="f", position=568)
    assert caught.value.file == "f"
    assert 568 <= caught.value.position <= 568 + codec.PREFIX_BYTES


def test_gaps_are_legal_in_the_header() -> None:
    message = with_header(message_of(SMALL), end_offset=1_000)
    assert codec.verify(message).end_offset == 1_000


@pytest.mark.parametrize("cut", [0, 1, 87, 88, 279, 280, 719, 720, -8, -1])
def test_a_part_of_a_message_is_not_a_message(cut: int) -> None:
    with pytest.raises(CorruptionError):
        codec.verify(message_of(SMALL)[:cut])


def test_bytes_behind_a_message_are_not_part_of_it() -> None:
    with pytest.raises(CorruptionError, match="bytes"):
        codec.verify(bytes(message_of(SMALL)) + bytes(8))


def test_the_prefix_alone_gives_the_header() -> None:
    message = message_of(MIXED, base_offset=5)
    assert codec.read_header(message[: codec.PREFIX_BYTES]) == codec.verify(message)


@pytest.mark.parametrize("position", [*range(4, 88, 4), *range(280, 720, 4)])
def test_metadata_of_another_layout_is_refused_even_with_a_fitting_checksum(position: int) -> None:
    message = message_of(MIXED)
    (number,) = struct.unpack_from("<I", message, position)
    struct.pack_into("<I", message, position, (number + 8) % 2**32)
    with pytest.raises(CorruptionError):
        codec.verify(sealed(message))


def test_compression_is_not_yet_known() -> None:
    message = message_of(MIXED)
    struct.pack_into("<H", message, 310, 20)  # the compression field, which the template leaves absent
    with pytest.raises(CorruptionError, match="fixed layout"):
        codec.verify(sealed(message))


HOSTILE_NUMBERS = [-(2**63), -8, -1, 2**31 - 1, 2**31, 2**32, 2**40, 2**63 - 1]


@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
@pytest.mark.parametrize("number", range(12))
def test_hostile_row_and_null_counts_are_refused(number: int, value: int) -> None:
    with pytest.raises(CorruptionError):
        codec.verify(with_node(message_of(MIXED), number, value))


@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
@pytest.mark.parametrize("number", range(32))
def test_hostile_buffer_places_are_refused(number: int, value: int) -> None:
    with pytest.raises(CorruptionError):
        codec.verify(with_place(message_of(MIXED), number, value))


@pytest.mark.parametrize("column", OFFSETS_OF)
@pytest.mark.parametrize("row", range(5))
@pytest.mark.parametrize("value", [-(2**31), -1, 1_000, 2**31 - 1])
def test_hostile_value_offsets_are_refused(column: str, row: int, value: int) -> None:
    hostile = with_buffer(message_of(MIXED), OFFSETS_OF[column], 4 * row, struct.pack("<i", value))
    codec.verify(hostile)  # layout and checksum are right: only a look at each row finds it
    with pytest.raises(CorruptionError, match=column):
        codec.check_rows(hostile)


def test_value_offsets_must_cover_all_bytes_of_their_column() -> None:
    for number, value in ((0, 3), (1, 4)):  # bytes before the first value; bytes after the last
        hostile = with_buffer(message_of(SMALL), OFFSETS_OF["value"], 4 * number, struct.pack("<i", value))
        with pytest.raises(CorruptionError, match="value"):
            codec.check_rows(hostile)


@pytest.mark.parametrize("text", [b"\xff\xfe\xfd", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80a"])
def test_subjects_must_be_utf8(text: bytes) -> None:
    columns = Columns([b"ok", text], None, [b"", b""], None)
    hostile = encoded(columns, base_offset=0, timestamp_us=0, leader_epoch=0)
    with pytest.raises(CorruptionError, match="subject"):
        codec.check_rows(hostile)


@pytest.mark.parametrize(
    ("buffer", "numbers"),
    [
        (1, [11, 11, 12, 13]),  # as codec.buffers counts them: the offsets
        (1, [10, 12, 11, 13]),
        (1, [9, 11, 12, 13]),
        (1, [10, 11, 12, 14]),
        (3, [1_000, 2_000, 1_999, 3_000]),  # the timestamps
        (3, [999, 1_000, 2_000, 3_000]),
        (3, [1_000, 2_000, 2_500, 3_001]),
    ],
)
def test_offsets_and_timestamps_are_those_that_the_header_promises(buffer: int, numbers: list[int]) -> None:
    message = message_of(MIXED, base_offset=10)
    sound = with_buffer(
        with_header(message, min_timestamp_us=1_000, max_timestamp_us=3_000),
        3,
        0,
        struct.pack("<4q", 1_000, 1_000, 2_000, 3_000),
    )
    codec.check_rows(sound)
    wrong = with_buffer(sound, buffer, 0, struct.pack("<4q", *numbers))
    codec.verify(wrong)  # layout and checksum are right
    with pytest.raises(CorruptionError, match="offsets in order" if buffer == 1 else "timestamps in order"):
        codec.check_rows(wrong)


def test_rows_that_were_compacted_away_leave_gaps_in_the_offsets() -> None:
    message = with_header(message_of(MIXED, base_offset=10), end_offset=20)
    codec.check_rows(with_buffer(message, 1, 0, struct.pack("<4q", 10, 13, 14, 19)))


def test_a_null_count_that_does_not_fit_the_bits_is_refused() -> None:
    message = message_of(MIXED)  # the key of one row of four is null
    for wrong in (2, 3, 4):
        with pytest.raises(CorruptionError):
            codec.check_rows(with_node(message, 7, wrong))


def test_what_check_rows_refuses_is_reported_with_file_and_position() -> None:
    columns = Columns([b"\xff"], None, [b""], None)
    hostile = encoded(columns, base_offset=0, timestamp_us=0, leader_epoch=0)
    with pytest.raises(CorruptionError) as caught:
        codec.check_rows(hostile, file="00000000000000000000.arrows", position=568)
    assert (caught.value.file, caught.value.position) == ("00000000000000000000.arrows", 568)


def test_reencode_keeps_rows_and_producer_and_gives_new_numbers() -> None:
    producer = codec.BatchProducer(2**64 - 1, 2**32 - 1, 2**64 - 1, bytes(range(16)))
    sent = codec.encode_arrow(codec.check_rows(message_of(MIXED)), producer=producer)
    stored = codec.reencode(sent, base_offset=100, timestamp_us=7, leader_epoch=9)
    header = codec.verify(stored)
    assert rows_of(codec.check_rows(stored)) == MIXED
    assert astuple(header)[5:] == (9, 100, 104, 7, 7, *producer)
    assert list(codec.offsets(stored)) == [100, 101, 102, 103]


def test_a_message_of_our_own_is_a_copy_that_is_given_numbers_later() -> None:
    sent = message_of(MIXED, base_offset=3)
    message = codec.own_copy(sent)
    assert codec.verify(message) == codec.verify(sent)
    header = codec.renumber(message, base_offset=100, timestamp_us=7, leader_epoch=9)
    assert header == codec.verify(message)
    assert codec.verify(sent).base_offset == 3
    assert message == message_of(MIXED, base_offset=100, timestamp_us=7, leader_epoch=9)


def test_what_lies_in_the_padding_is_not_kept() -> None:
    hostile = message_of(SMALL)
    begin, size = layout.BUFFERS.unpack_from(hostile, layout.BUFFERS_POSITION)[12:14]  # the subject's bytes: 3
    end = layout.BODY_POSITION + begin + size
    hostile[end : end + 5] = b"unseen"[:5]
    codec.verify(sealed(hostile))
    assert codec.reencode(hostile, base_offset=0, timestamp_us=0, leader_epoch=1) == message_of(SMALL, timestamp_us=0)


def test_encode_arrow_refuses_other_types() -> None:
    rows = codec.check_rows(message_of(MIXED))
    position = rows.schema.get_field_index("value")
    other = rows.set_column(position, "value", rows.column("value").cast(pa.large_binary()))
    with pytest.raises(AssertionError):
        codec.encode_arrow(other)


def test_encode_arrow_writes_what_encode_writes() -> None:
    expected = message_of(MIXED, base_offset=0, timestamp_us=0, leader_epoch=0)
    assert codec.encode_arrow(codec.check_rows(message_of(MIXED))) == expected


def test_encode_arrow_takes_arrays_that_begin_in_the_middle_of_a_buffer() -> None:
    # Value offsets that begin at 2 in an array that begins at row 0, as Arrow may hand them over.
    values = pa.Array.from_buffers(
        pa.binary(), 2, [None, pa.py_buffer(struct.pack("<3i", 2, 4, 5)), pa.py_buffer(b"--abc--")]
    )
    numbers = [pa.array([0, 0]), pa.array([0, 0], arrow_schema().field(1).type)]
    columns = [*numbers, pa.array(["s", "t"]), values, values, values]
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow_schema())
    message = codec.encode_arrow(batch)
    codec.verify(message)
    assert rows_of(codec.check_rows(message)) == [Row(b"s", b"ab", b"ab", b"ab"), Row(b"t", b"c", b"c", b"c")]


def test_every_body_buffer_begins_on_eight_bytes_and_pads_with_zeros() -> None:
    message = message_of(MIXED)
    places = layout.BUFFERS.unpack_from(message, layout.BUFFERS_POSITION)
    end = 0
    for begin, size in zip(places[::2], places[1::2], strict=True):
        assert begin == end
        assert begin % 8 == 0
        end = layout.padded(begin + size)
        padding = message[layout.BODY_POSITION + begin + size : layout.BODY_POSITION + end]
        assert padding == bytes(len(padding))
    assert layout.BODY_POSITION + end == len(message)


def test_the_header_packs_to_ninety_six_bytes() -> None:
    assert PACKING.size == 96


@pytest.mark.parametrize("number", [1, 3, 4, 5, 7, 8, 10, 11, 13, 14])
@pytest.mark.parametrize("difference", [-1, 1])
def test_sizes_that_follow_from_the_rows_are_exact(number: int, difference: int) -> None:
    # Within the padding, so that all buffers stay where they are: an Arrow reader would look behind the buffer's end.
    message = message_of(MIXED)
    size = layout.BUFFERS.unpack_from(message, layout.BUFFERS_POSITION)[2 * number + 1]
    with pytest.raises(CorruptionError, match="a buffer at"):
        codec.verify(with_place(message, 2 * number + 1, size + difference))


def test_a_size_that_is_no_multiple_of_eight_is_refused_before_the_rest_is_there() -> None:
    for more in range(1, 8):
        message = message_of(SMALL)
        prefix = with_header(message, size_bytes=len(message) + more)[: codec.PREFIX_BYTES]
        with pytest.raises(CorruptionError, match="steps of 8"):
            codec.read_header(prefix)


def test_buffers_must_fill_the_body() -> None:
    message = message_of(SMALL)
    (body_bytes,) = layout.INT64.unpack_from(message, layout.BODY_LENGTH_POSITION)
    layout.INT64.pack_into(message, layout.BODY_LENGTH_POSITION, body_bytes + 8)
    longer = with_header(message + bytes(8), size_bytes=len(message) + 8)
    with pytest.raises(CorruptionError, match="buffers that fill"):
        codec.verify(longer)


def test_what_arrow_cannot_read_is_damage_like_any_other() -> None:
    message = bytearray(message_of(MIXED))
    message[8 : layout.FIXED[0][1]] = bytes(layout.FIXED[0][1] - 8)
    with pytest.raises(CorruptionError, match="a batch that Arrow can read"):
        codec.check_rows(message, file="f", position=3)


@pytest.mark.parametrize("shift", range(8))
def test_a_message_may_lie_at_any_address(shift: int) -> None:
    message = message_of(MIXED)
    moved = memoryview(bytes(shift) + message)[shift:]
    assert codec.verify(moved) == codec.verify(message)
    assert codec.check_rows(moved) == codec.check_rows(message)
