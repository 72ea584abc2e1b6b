"""Readers of encoded values, compiled and plain, say the same of any bytes, and neither reads beyond them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.hot import cells
from tests import hot_modes
from tests.typed_readers import ENCODINGS, found_by

BYTE = st.integers(0, 255)
MARKS = st.sampled_from(
    [
        b"\x00",
        b"\x01",
        b"\x02",
        b"\x04",
        b"\x0b",
        b"\x0c",
        b"\x0f\0\x0b",
        b"\x0d",
        b"\x80",
        b"\xff",
        b"\0\0\0\1",
        b"\x12\x02",
    ]
)
TEXTS = st.sampled_from([b"\0\0\0\2ab", b"\2ab", b"\4ab", b"\xc3\xa9", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"])
HEADS = st.tuples(st.sampled_from([2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15, 16, 17]), st.integers(-8, 17)).map(
    lambda pair: bytes((pair[0],)) + pair[1].to_bytes(2, "big", signed=True)
)
MESSAGES = st.lists(MARKS | TEXTS | HEADS | BYTE.map(lambda one: bytes((one,))), max_size=24).map(b"".join)
FRAMES = MESSAGES.map(
    lambda rest: (len(rest) + 17).to_bytes(4, "big") + bytes(5) + b"\x80\x01\0\1\0\0\0\0\0\0\0\0" + rest
)
NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f", "g", "h", "i", "\\u0061", "é", "x"]).map('"{}"'.format)
NUMBERS = st.from_regex(r"\A-?[0-9]{1,22}(\.[0-9]{1,4})?([eE]-?[0-9]{1,3})?\Z") | st.floats().map(str)
WORDS = st.sampled_from(
    ["null", "true", "false", "nul", "[]", "{}", '"\\ud83d\\ude00"', '"\\ud83d"', '"x\\n"', "", " "]
)
TIMES = st.datetimes().map(lambda time: f'"{time.isoformat()}Z"') | st.dates().map('"{}"'.format)
JSON_VALUES = st.recursive(
    NUMBERS | WORDS | TIMES | NAMES,
    lambda below: (
        st.lists(below, max_size=3).map(lambda made: f"[{','.join(made)}]")
        | st.lists(st.tuples(NAMES, below), max_size=4).map(
            lambda made: "{" + ", ".join(f"{name} :{value}" for name, value in made) + "}"
        )
    ),
    max_leaves=8,
)
OBJECTS = st.lists(st.tuples(NAMES, JSON_VALUES), max_size=4).map(
    lambda made: ("{" + ",".join(f"{name}:{value}" for name, value in made) + "}").encode()
)


@hot_modes.needs_compiled
@given(st.lists(OBJECTS, max_size=4), st.integers(0, 300), st.binary(max_size=2))
def test_both_read_the_same_json(objects: list[bytes], at: int, patch: bytes) -> None:
    values = pa.array([*objects, *(one[:at] + patch + one[at + 1 :] for one in objects)], pa.binary())
    if len(values):
        assert found_by(hot_modes.running, "json", values) == found_by(hot_modes.plain, "json", values)


@hot_modes.needs_compiled
@pytest.mark.parametrize("encoding", ENCODINGS)
@given(st.lists(st.none() | MESSAGES | FRAMES | st.binary(max_size=60), max_size=4), st.integers(0, 3))
def test_both_read_the_same(encoding: str, messages: list[bytes | None], skipped: int) -> None:
    values = pa.array(messages, pa.binary())[skipped:]
    if len(values):
        compiled = found_by(hot_modes.running, encoding, values)
        assert compiled == found_by(hot_modes.plain, encoding, values)


def test_packed_bits_and_nulls() -> None:
    for load in (hot_modes.running, hot_modes.plain):
        for count in (0, 1, 7, 8, 9, 64, 67):
            column = load("typed_columns").Column(cells.BOOL, [])
            for _ in range(count):
                column.add_null()
            assert column.nulls() == count
            assert bytes(column.validity()) == bytes((count + 7) // 8)
