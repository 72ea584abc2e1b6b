"""Messages as they are printed."""

from __future__ import annotations

import base64
import json

import pyarrow as pa
import pytest

from penstock.batch.schema import arrow_schema
from penstock.cli import rows
from penstock.cli.output import shown_bytes

HEADERS = b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n"
MESSAGES = [
    (0, 1_000_001, "a.b", b"k", b'{"x": "\xc3\xa9"}', HEADERS),
    (1, 2_000_000, "a.\x1b[31m", None, b"\xff\xfe", b"NATS/1.0\r\nA: \xff\r\n\r\n"),
    (5, 2_000_000, "a.c", b"\xff", None, None),
    (6, 3_000_000, "a.c", None, b"", None),
]


def batch() -> pa.RecordBatch:
    columns = list(zip(*MESSAGES, strict=True))
    fields = arrow_schema()
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)], schema=fields
    )


def test_json_lines_hold_every_byte(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    rows.print_json_lines(iter([batch()]))
    out = capsysbinary.readouterr().out
    found = [json.loads(line) for line in out.splitlines()]
    assert found[0] == {
        "offset": 0,
        "timestamp": "1970-01-01T00:00:01.000001Z",
        "subject": "a.b",
        "key": "k",
        "value": '{"x": "é"}',
        "headers": {"A": ["1", "2"]},
    }
    assert base64.b64decode(found[1]["value_base64"]) == b"\xff\xfe"
    assert base64.b64decode(found[1]["headers_base64"]) == MESSAGES[1][5]
    assert "value" not in found[1]
    assert (found[2]["value"], base64.b64decode(found[2]["key_base64"])) == (None, b"\xff")
    assert (found[3]["value"], found[3]["key"], found[3]["headers"]) == ("", None, None)


def test_raw_values(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    rows.print_raw(iter([batch()]))
    assert capsysbinary.readouterr().out == b'{"x": "\xc3\xa9"}\n\xff\xfe\n\n\n'


@pytest.mark.parametrize("count", [0, 2])
def test_an_arrow_stream(capsysbinary: pytest.CaptureFixture[bytes], count: int) -> None:
    rows.print_arrow(iter([batch()] * count))
    table = pa.ipc.open_stream(capsysbinary.readouterr().out).read_all()
    assert table.schema.equals(arrow_schema())
    assert table.num_rows == count * len(MESSAGES)


def test_a_table_escapes_what_a_terminal_would_obey(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    rows.print_table(iter([batch(), batch()]))
    out = capsysbinary.readouterr().out
    lines = out.decode().splitlines()
    assert lines[0].split() == ["OFFSET", "TIME", "SUBJECT", "KEY", "VALUE"]
    assert len(lines) == 1 + 2 * len(MESSAGES)
    assert "\x1b" not in out.decode()
    assert "a.\\x1b[31m" in lines[2]
    assert "base64:" in lines[2]
    assert lines[3].endswith("(tombstone)")


@pytest.mark.parametrize(
    ("data", "chars_max", "expected"),
    [
        (None, 5, ""),
        (b"hello", 5, "hello"),
        (b"hello!", 5, "hell…"),
        ("é".encode() * 10, 4, "ééé…"),
        ("\U0001f600".encode() * 100, 3, "\U0001f600\U0001f600…"),
        (b"a" * 15 + "\U0001f600".encode() * 9, 3, "aa…"),
        (b"\xff" * 9, None, "base64:" + base64.b64encode(b"\xff" * 9).decode()),
        (b"a\nb", None, "a\\nb"),
    ],
)
def test_bytes_for_people(data: bytes | None, chars_max: int | None, expected: str) -> None:
    assert shown_bytes(data, chars_max) == expected
