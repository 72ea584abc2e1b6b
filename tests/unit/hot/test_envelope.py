"""The envelope: what an independent encoder writes is found, and nothing that strangers write does any harm."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import limits
from penstock.hot import envelope
from tests import hot_modes
from tests.envelopes import (
    COOKIE,
    NUMBERS,
    TEXTS,
    bytes_field,
    enveloped,
    header_field,
    message,
    number_field,
    varint,
)


def content(found: Any, data: bytes) -> dict[str, Any]:
    """What was found, with the bytes in the place of their positions."""
    out: dict[str, Any] = {name: getattr(found, name) for name in NUMBERS}
    for name in TEXTS:
        begin, end = getattr(found, name), getattr(found, name + "_end")
        assert (begin == end == -1) or 0 <= begin <= end <= len(data)
        out[name] = None if begin < 0 else data[begin:end]
    positions = list(found.headers)
    assert len(positions) % 4 == 0
    assert all(0 <= position <= len(data) for position in positions)
    entries = zip(*(positions[place::4] for place in range(4)), strict=True)
    out["headers"] = [(data[name:name_end], data[value:value_end]) for name, name_end, value, value_end in entries]
    return out


def parsed(data: bytes, module: Any = envelope) -> dict[str, Any] | None:
    found = module.parse(data, 0, len(data))
    return None if found is None else content(found, data)


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "offset": st.integers(-(2**63), 2**63 - 1),
        "timestamp": st.integers(-(2**63), 2**63 - 1),
        "partition": st.integers(-(2**31), 2**31 - 1),
        "ack_policy": st.integers(0, 2),
        **{name: st.text(max_size=60).map(str.encode) for name in TEXTS.keys() - {"key", "value"}},
        **{name: st.binary(max_size=200) for name in ("key", "value")},
    },
)
HEADERS = st.lists(st.tuples(st.text(max_size=8).map(str.encode), st.binary(max_size=20)), max_size=4)
NOTHING = dict.fromkeys(NUMBERS, 0) | {"offset": -1} | dict.fromkeys(TEXTS) | {"headers": []}


@given(FIELDS, HEADERS, st.booleans(), st.binary(max_size=5), st.binary(max_size=5))
def test_what_was_enveloped_is_found(fields, headers, crc: bool, before: bytes, after: bytes) -> None:
    data = enveloped(message(fields, headers), crc=crc)
    assert parsed(data) == NOTHING | fields | {"headers": headers}
    # In the middle of other bytes, as it lies in what was read from a socket.
    around = before + data + after
    found = envelope.parse(around, len(before), len(before) + len(data))
    assert content(found, around) == NOTHING | fields | {"headers": headers}


def test_an_empty_message_is_a_message() -> None:
    assert parsed(enveloped(b"")) == NOTHING
    assert parsed(enveloped(b"", crc=True)) == NOTHING


def test_the_eight_bytes_that_crash_others_are_harmless() -> None:
    # The header says that it is 255 bytes long, and ends after 8.
    data = bytes.fromhex("b90e43b400ff0000")
    assert envelope.parse(data, 0, len(data)) is None
    for more in range(300):
        longer = data + bytes(more)
        assert envelope.parse(longer, 0, len(longer)) is None


WRONG = {
    "no cookie": b"\xb8" + enveloped(b"")[1:],
    "cut cookie": COOKIE,
    "cut header": enveloped(b"")[:7],
    "cut checksum": enveloped(b"", crc=True)[:11],
    "another version": COOKIE + bytes([1, 8, 0, 0]),
    "an ack": COOKIE + bytes([0, 8, 0, 1]),
    "a flag that is not known": COOKIE + bytes([0, 8, 2, 0]),
    "a checksum without its flag": COOKIE + bytes([0, 12, 0, 0]) + struct.pack(">I", 0),
    "a flag without its checksum": COOKIE + bytes([0, 8, 1, 0]),
    "a header inside itself": COOKIE + bytes([0, 7, 0, 0]),
    "a wrong checksum": enveloped(b"", crc=True)[:8] + b"\0\0\0\1",
    "field 0": enveloped(number_field(0, 1)),
    "a number where bytes belong": enveloped(number_field(3, 1)),
    "bytes where a number belongs": enveloped(bytes_field(1, b"1")),
    "8 bytes where a number belongs": enveloped(varint(1 << 3 | 1) + bytes(8)),
    "a group": enveloped(varint(20 << 3 | 3) + varint(20 << 3 | 4)),
    "a size beyond the end": enveloped(varint(3 << 3 | 2) + varint(1)),
    "a size of 64 bits": enveloped(varint(3 << 3 | 2) + varint(2**64 - 1)),
    "a size that is negative": enveloped(varint(3 << 3 | 2) + varint(-1)),
    "a number that does not end": enveloped(varint(1 << 3) + b"\xff"),
    "a number of 65 bits": enveloped(varint(1 << 3) + b"\xff" * 9 + b"\x02"),
    "a number of 11 bytes": enveloped(varint(1 << 3) + b"\x80" * 10 + b"\x00"),
    "a header beyond its entry": enveloped(bytes_field(9, varint(1 << 3 | 2) + varint(3) + b"ab") + b"c"),
    "a header that is a number": enveloped(bytes_field(9, number_field(1, 1))),
    "text that is not UTF-8": enveloped(bytes_field(11, b"\xff")),
    "text that is not UTF-8, and text behind it": enveloped(bytes_field(11, b"\xc3") + bytes_field(11, b"a")),
    "text that is half of a surrogate pair": enveloped(bytes_field(5, b"\xed\xa0\x80")),
    "a header whose name is not UTF-8": enveloped(header_field(b"\xfe", b"v")),
    "4 bytes that are not there": enveloped(varint(20 << 3 | 5) + bytes(3)),
    "8 bytes that are not there": enveloped(varint(20 << 3 | 1) + bytes(7)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_envelope_to_the_last_byte_is_none(name: str) -> None:
    data = WRONG[name]
    assert envelope.parse(data, 0, len(data)) is None


def test_unknown_fields_are_passed_over() -> None:
    unknown = [
        number_field(13, 2**64 - 1),
        bytes_field(2**29 - 1, b"x"),
        varint(14 << 3 | 1) + bytes(8),
        varint(15 << 3 | 5) + bytes(4),
    ]
    entry = bytes_field(9, b"".join(unknown) + bytes_field(2, b"v"))
    data = enveloped(b"".join(unknown) + bytes_field(3, b"value") + entry)
    assert parsed(data) == NOTHING | {"value": b"value", "headers": [(b"", b"v")]}


def test_of_a_field_that_comes_twice_the_last_one_counts() -> None:
    data = enveloped(number_field(1, 1) + bytes_field(2, b"a") + number_field(1, 2) + bytes_field(2, b""))
    assert parsed(data) == NOTHING | {"offset": 2, "key": b""}


def test_the_number_of_headers_is_limited() -> None:
    most = header_field(b"", b"") * limits.ENVELOPE_HEADERS_MAX
    found = parsed(enveloped(most))
    assert found is not None
    assert len(found["headers"]) == limits.ENVELOPE_HEADERS_MAX
    assert parsed(enveloped(most + header_field(b"", b""))) is None


@pytest.mark.parametrize(("begin", "end"), [(-1, 8), (0, 9), (2**62, 2**63 - 1)])
def test_a_range_outside_the_bytes_is_a_mistake_in_the_call(begin: int, end: int) -> None:
    with pytest.raises(IndexError):
        envelope.parse(enveloped(b""), begin, end)


@st.composite
def nearly_envelopes(draw: st.DrawFn) -> bytes:
    body = bytearray(message(draw(FIELDS), draw(HEADERS)))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(body)))
        body[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=3))
    data = bytearray(enveloped(bytes(body), crc=draw(st.booleans())))
    if draw(st.booleans()):
        data[draw(st.integers(0, min(11, len(data) - 1)))] = draw(st.integers(0, 255))
    return bytes(data)


@given(nearly_envelopes() | st.binary(max_size=60) | st.binary(max_size=60).map(enveloped))
def test_whatever_the_bytes_are_positions_lie_within_them(data: bytes) -> None:
    parsed(data)


@hot_modes.needs_compiled
@given(nearly_envelopes() | st.binary(max_size=60).map(enveloped))
def test_both_modes_find_the_same(data: bytes) -> None:
    assert parsed(data, hot_modes.running("envelope")) == parsed(data, hot_modes.plain("envelope"))
