"""Messages as they are printed."""

from __future__ import annotations

import base64
import json
import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from rich.cells import cell_len

from penstock.batch.schema import arrow_schema
from penstock.cli.messages import rows
from penstock.cli.terminal.failure import say
from penstock.cli.terminal.output import cut, print_json, shown_bytes
from penstock.client.read.batches import messages_of

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
    rows.print_raw(iter([batch()]), sys.stdout.buffer)
    assert capsysbinary.readouterr().out == b'{"x": "\xc3\xa9"}\n\xff\xfe\n\n\n'


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
    ("data", "cells_max", "expected"),
    [
        (None, 5, ""),
        (b"hello", 5, "hello"),
        (b"hello!", 5, "hell…"),
        ("é".encode() * 10, 4, "ééé…"),
        ("\U0001f600".encode() * 100, 5, "\U0001f600\U0001f600…"),
        (b"a" * 15 + "\U0001f600".encode() * 9, 3, "aa…"),
        (b"\xff" * 9, None, "base64:" + base64.b64encode(b"\xff" * 9).decode()),
        (b"a\nb", None, "a\\nb"),
    ],
)
def test_bytes_for_people(data: bytes | None, cells_max: int | None, expected: str) -> None:
    assert shown_bytes(data, cells_max) == expected


CONTROLS = "\x1b\x07\x7f\x9b31m\u202e\u2066\U000e0001é\N{GRINNING FACE}"  # and two that are only characters


def hostile() -> pa.RecordBatch:
    fields = arrow_schema()
    data = CONTROLS.encode()
    row = (0, 1, f"a.{CONTROLS}", data, data, b"NATS/1.0\r\nA: " + data + b"\r\n\r\n")
    return pa.RecordBatch.from_arrays(
        [pa.array([one], field.type) for one, field in zip(row, fields, strict=True)], schema=fields
    )


@pytest.mark.parametrize("is_terminal", [True, False])
def test_nothing_of_a_message_controls_a_terminal_as_json(
    capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    rows.print_json_lines(iter([hostile()]))
    print_json({"subject": CONTROLS})
    lines = capsysbinary.readouterr().out.decode().splitlines()
    message, document = (json.loads(line) for line in lines)
    assert message["subject"] == f"a.{CONTROLS}"
    assert [message["key"], message["value"], message["headers"]["A"], document["subject"]] == [
        CONTROLS, CONTROLS, [CONTROLS], CONTROLS,
    ]  # fmt: skip
    if is_terminal:
        assert all(line.isprintable() for line in lines)
        assert "é\N{GRINNING FACE}" in lines[0], "what is only a character stays"
    else:
        assert all("\x9b" in line and "\u202e" in line for line in lines), "bytes are as they were"


@pytest.mark.parametrize("is_error", [True, False])
def test_lines_for_people_do_not_either(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_error: bool
) -> None:
    stream = sys.stderr if is_error else sys.stdout
    for is_terminal in (True, False):
        monkeypatch.setattr(stream, "isatty", lambda shown=is_terminal: shown)
        say(f"stream {CONTROLS}\nsecond", err=is_error)
    found = capsys.readouterr()
    first, second, *raw = (found.err if is_error else found.out).split("\n")
    assert first == r"stream \x1b\x07\x7f\x9b31m\u202e\u2066\U000e0001é" + "\N{GRINNING FACE}"
    assert second == "second"
    assert "\n".join(raw) == f"stream {CONTROLS}\nsecond\n"


def test_no_command_prints_past_that() -> None:
    for file in Path(rows.__file__).parent.glob("*.py"):
        if file.name != "failure.py":
            assert re.search(r"typer\.echo\(|click\.echo\(", file.read_text()) is None, file.name


@pytest.mark.parametrize("value", ["日本語のテキスト" * 40, "a日本" * 60, "👍" * 200, "é" * 300, "x" * 300])
def test_a_line_is_no_wider_than_the_terminal(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In cells: a character of Chinese, Japanese or Korean, or an emoji, takes two."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    messages = [(0, 0, "訂單.新", "鍵".encode(), value.encode(), None), (1, 0, "a.b", b"k", b"v", None)]
    columns = list(zip(*messages, strict=True))
    fields = arrow_schema()
    arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
    rows.print_table(iter([pa.RecordBatch.from_arrays(arrays, schema=fields)]))
    header, first, second = (re.sub(r"\x1b\[\d*m", "", line) for line in capsys.readouterr().out.splitlines())
    assert 98 <= cell_len(first) <= 100, first
    assert first.endswith("…")
    assert header.index("VALUE") == second.index("v") == cell_len(first[: first.index(value[0])])


def test_text_is_cut_by_its_cells() -> None:
    assert cut("日本", 4) == "日本"
    assert cut("日本語", 4) == "日…"
    assert cut("日本語", 5) == "日本…"
    assert cut("abcd", 3) == "ab…"
    assert shown_bytes("日本語".encode(), 5) == "日本…"


LONG = [  # a long subject, a long key
    (0, 0, "frugal.shop.north-america.us-east-1.OrderEvents.OrderPlaced", b"customer-0000-1111", b"v" * 99, None),
    (1, 0, "a", b"k", b"v", None),
]


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))


def printed_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [re.sub(r"\x1b\[\d*m", "", line) for line in capsys.readouterr().out.splitlines()]


def test_a_long_subject_leaves_room_for_key_and_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_a_terminal(monkeypatch, 80)
    fields = arrow_schema()
    arrays = [pa.array(column, field.type) for column, field in zip(zip(*LONG, strict=True), fields, strict=True)]
    rows.print_table(iter([pa.RecordBatch.from_arrays(arrays, schema=fields)]))
    header, first, second = printed_lines(capsys)
    assert header.split() == ["OFFSET", "TIME", "SUBJECT", "KEY", "VALUE"]
    assert "frugal.shop" in first
    assert "customer-" in first
    assert re.fullmatch(r".*  v{15,}…", first)
    assert len(first) <= 80
    assert second.split()[-3:] == ["a", "k", "v"]


@pytest.mark.parametrize("fields", [1, 12])
def test_a_decode_error_is_seen_beside_a_long_subject_and_many_fields(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fields: int
) -> None:
    on_a_terminal(monkeypatch, 80)
    typed = {f"field{number}": ["a text that is longer than its share of the room", None] for number in range(fields)}
    columns = {
        "offset": [0, 1],
        "timestamp": pa.array([0, 0], pa.timestamp("us", "UTC")),
        "subject": [row[2] for row in LONG],
        "key": [row[3] for row in LONG],
        **typed,
        "decode_error": [None, "the value ends early, at byte 7 of 7"],
    }
    rows.print_table(iter([pa.RecordBatch.from_pydict(columns)]))
    header, first, second = printed_lines(capsys)
    assert header.split()[-1] == "decode_error"
    assert "field0" in header
    assert "field1" not in header
    assert "a text t" in first
    assert "the value e" in second
    assert max(map(len, (header, first, second))) <= 80


def test_keys_of_json_have_one_order() -> None:
    found = [list(rows.json_row(message)) for message in messages_of(batch())]
    plain = ["offset", "timestamp", "subject", "key", "value", "headers"]
    assert [[name.removesuffix("_base64") for name in one] for one in found] == [plain] * len(found)
    for message in messages_of(batch()):
        assert [name.removesuffix("_base64") for name in rows.json_row(message, {"id": 1})] == plain
        assert rows.json_row(message, {"id": 1})["value"] == {"id": 1}
