"""FORMAT.md says what the code does: its tables and its dump are compared with the encoder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import astuple, replace

import penstock.batch
from penstock.base import limits
from penstock.batch import codec, layout, schema
from penstock.batch.header import CRC_POSITION, HEADER_HEX_BYTES, HEADER_POSITION, PACKING, BatchHeader
from tests.batch_samples import SMALL, message_of, rows_of, segment_of
from tests.groups import Columns, encoded

FORMAT = Path(penstock.batch.__file__).with_name("FORMAT.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text under one heading, up to the next."""
    _, _, text = FORMAT.partition(f"{title}\n")
    return re.split(r"^#", text, maxsplit=1, flags=re.MULTILINE)[0]


def table(text: str, columns: int) -> list[list[str]]:
    """The cells of the rows of a table with so many columns."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip().strip("`*") for cell in row] for row in rows if len(row) == columns][1:]


def test_the_dump_is_what_the_encoder_writes() -> None:
    columns = Columns([b"orders.eu", b"orders.us"], [b"k1", None], [b"hello", b""], None)
    message = encoded(columns, base_offset=42, timestamp_us=1_700_000_000_000_000, leader_epoch=1)
    lines = re.findall(r"^ *(\d+) \| ((?:[0-9a-f]{2} ?)+) *\|", section("## A message, byte by byte"), re.MULTILINE)
    assert [int(position) for position, _ in lines] == list(range(0, len(message), 16))
    assert bytes.fromhex("".join(content for _, content in lines)) == message


def test_the_table_of_the_metadata_names_every_byte() -> None:
    rows = table(section("## Batch message"), 4)
    end = 0
    differs = []
    for position, size, content, _ in rows:
        start, end = int(position), end + int(size)
        assert start + int(size) == end, "a hole, or an overlap"
        if content == "differs":
            differs.append((start, end))
        else:
            assert bytes.fromhex(content) == layout.TEMPLATE[start:end]
    assert end == layout.BODY_POSITION == 720
    assert tuple(differs) == layout.PATCHED


def test_the_table_of_the_header_names_every_digit() -> None:
    rows = table(section("### Batch header"), 7)
    zeros = BatchHeader(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    end = 0
    for name, first, digits, position, *_ in rows:
        assert int(first) == end
        assert int(position) == HEADER_POSITION + end
        end += int(digits)
        if name == "reserved":
            continue
        byte_count = int(digits) // 2
        value: Any = b"\xff" * byte_count if name == "run_id" else 256**byte_count - 1
        value = -1 if name.endswith("timestamp_us") else value
        text = PACKING.pack(*astuple(replace(zeros, **{name: value}))).hex()
        assert text == "0" * int(first) + "f" * int(digits) + "0" * (HEADER_HEX_BYTES - end)
    assert end == HEADER_HEX_BYTES
    assert [row[0] for row in rows if row[0] != "reserved"] == list(BatchHeader.__struct_fields__)


def test_the_table_of_the_schema_message_is_right() -> None:
    message = schema.schema_message(0xABC, 0xDEF)
    places = [(int(row[0]), int(row[1])) for row in table(section("## Schema message"), 3)]
    assert [message[start : start + size] for start, size in places] == [
        bytes.fromhex("ffffffff30020000"),
        b"00000def",
        b"0000000000000abc",
        b"1",
        b"penstock.format",
    ]


def test_the_tables_of_columns_are_the_schema() -> None:
    columns = [(row[1], row[2]) for row in table(section("## Schema message"), 4)]
    assert columns == [(field.name, str(field.type).replace("string", "utf8")) for field in schema.arrow_schema()]
    assert tuple(row[1] for row in table(section("### Body"), 3)) == layout.COLUMNS


def test_the_limits_are_those_of_the_code() -> None:
    numbers = [int(row[1].split(", or")[0].replace(",", "")) for row in table(section("## Limits"), 2)[:-1]]
    assert numbers == [
        limits.BATCH_ROWS_MAX,
        limits.BATCH_BYTES_MAX,
        limits.APPEND_BYTES_MAX,
        limits.MESSAGE_BYTES_MAX,
        limits.HEADER_BLOCK_BYTES_MAX,
        limits.KEY_BYTES_MAX,
        limits.SUBJECT_BYTES_MAX,
    ]


def test_the_largest_offset() -> None:
    message = message_of(SMALL, base_offset=2**63 - 2)
    assert codec.verify(message).end_offset == 2**63 - 1


def test_arrows_own_reader_at_the_tail() -> None:
    whole = segment_of(message_of(SMALL))
    flipped = bytearray(whole)
    flipped[whole.index(b"hello")] ^= 1
    for segment, value in ((whole, b"hello"), (whole + bytes(100), b"hello"), (flipped, b"iello")):
        assert [row.value for row in rows_of(pa.ipc.open_stream(bytes(segment)).read_all())] == [value]
    with pytest.raises((pa.ArrowInvalid, OSError)):
        pa.ipc.open_stream(whole[:-8]).read_all()


def test_the_position_of_the_checksum() -> None:
    assert f"8 digits at position {CRC_POSITION}" in FORMAT
