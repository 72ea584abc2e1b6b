"""A segment file opened by arrow-js: a second implementation of Arrow, in another language."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.batch.codec import PREFIX_BYTES, read_header
from penstock.batch.header import HEADER_HEX_BYTES, HEADER_POSITION
from penstock.batch.schema import SCHEMA_BYTES
from tests.extent import each_change
from tests.segments import PARTITION, STREAM_ID, Row, Segment, write_segment

SCRIPT = Path(__file__).parent / "js" / "read_segment.mjs"
MODULES = Path(sys.prefix) / "js"
TIMEOUT_SECONDS = 180


def node() -> str:
    """The node that dev.py put beside this Python, or the machine's own."""
    beside = Path(sys.prefix) / "bin" / "node"
    found = str(beside) if beside.exists() else shutil.which("node")
    if found is None or not (MODULES / "node_modules" / "apache-arrow").is_dir():
        pytest.fail("node and arrow-js are not set up: run the tests with `python3 dev.py test`")
    return found


def read_with_arrow_js(path: Path) -> dict[str, Any]:
    command = [node(), str(SCRIPT), str(MODULES), str(path)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def digest(rows: list[Row]) -> str:
    """SHA-256 over every cell, as the script defines it."""
    out = hashlib.sha256()
    for offset, timestamp_us, subject, *binary in rows:
        out.update(struct.pack("<qq", offset, timestamp_us))
        for cell in (subject.encode(), *binary):
            out.update(b"\xff\xff\xff\xff" if cell is None else struct.pack("<i", len(cell)) + cell)
    return out.hexdigest()


def shown(row: Row) -> dict[str, str | None]:
    binary = [None if cell is None else base64.b64encode(cell).decode() for cell in row[3:]]
    return {
        "offset": str(row[0]),
        "timestamp_us": str(row[1]),
        "subject": row[2],
        **dict(zip(("key", "value", "headers"), binary, strict=True)),
    }


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    return write_segment(tmp_path / "00000000000000000000.arrows", 1, 5, 1000)


@each_change
def test_arrow_js_sees_every_cell(segment: Segment) -> None:
    found = read_with_arrow_js(segment.path)
    assert found["rows"] == found["table_rows"] == len(segment.rows)
    assert [batch["rows"] for batch in found["batches"]] == [len(rows) for rows in segment.batches]
    assert found["first"] == shown(segment.rows[0])
    assert found["last"] == shown(segment.rows[-1])
    assert found["digest"] == digest(segment.rows)


def test_arrow_js_sees_the_schema(segment: Segment) -> None:
    found = read_with_arrow_js(segment.path)
    assert found["fields"] == [
        ["offset", "Int64", True],
        ["timestamp", "Timestamp<MICROSECOND, UTC>", True],
        ["subject", "Utf8", True],
        ["key", "Binary", True],
        ["value", "Binary", True],
        ["headers", "Binary", True],
    ]
    assert found["schema_metadata"] == {
        "penstock.format": "1",
        "penstock.stream_id": f"{STREAM_ID:016x}",
        "penstock.partition": f"{PARTITION:08x}",
    }


def test_arrow_js_sees_the_batch_headers(segment: Segment) -> None:
    found = read_with_arrow_js(segment.path)
    data = segment.path.read_bytes()
    position = SCHEMA_BYTES
    headers = []
    while position < len(data):
        place = position + HEADER_POSITION
        headers.append({"penstock": data[place : place + HEADER_HEX_BYTES].decode()})
        position += read_header(data[position : position + PREFIX_BYTES]).size_bytes
    assert [batch["metadata"] for batch in found["batches"]] == headers
