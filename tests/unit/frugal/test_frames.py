"""Frames of Frugal: golden bytes, limits, and what hostile bytes give."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.frugal.context import HEADER_BYTES_MAX, HEADERS_MAX, TIMEOUT_MS_DEFAULT, Context
from penstock.frugal.errors import FrameError
from penstock.frugal.frames import (
    TIMEOUT_MS_MAX,
    Frame,
    answer_headers,
    decode_frame,
    encode_frame,
    read_timeout_ms,
    received_context,
    request_headers,
    take_answer_headers,
)
from tests import hot_modes

PING = bytes.fromhex("800100010000000470696e670000000000")
"""Thrift's binary message of `ping()`: strict version, CALL, "ping", sequence 0, a struct without fields."""
GOLDEN = {
    "ping": (
        {"_cid": "c1", "_opid": "7", "_timeout": "5000"},
        PING,
        "00000046"  # 70 bytes follow: 5 + 48 + 17
        "00"
        "00000030"  # 48 bytes of headers
        "000000045f636964 000000026331"
        "000000055f6f706964 0000000137"
        "000000085f74696d656f7574 0000000435303030"
        + PING.hex(),
    ),
    "no headers": ({}, b"", "00000005 00 00000000"),
    "user's, not ASCII, empty": (
        {"ä": "", "": "€"},
        b"x",
        "0000001b 00 00000015 00000002c3a4 00000000 00000000 00000003e282ac 78",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_frames(name):
    headers, message, wanted = GOLDEN[name]
    assert encode_frame(headers, message) == bytes.fromhex(wanted)
    assert decode_frame(bytes.fromhex(wanted)) == Frame(headers, message)


def test_of_two_headers_of_one_name_the_last_counts():
    block = bytes.fromhex("0000000161000000013100000001610000000132")
    frame = b"\0" + len(block).to_bytes(4, "big") + block
    assert decode_frame(len(frame).to_bytes(4, "big") + frame).headers == {"a": "2"}


@pytest.mark.parametrize(
    ("frame", "what", "position"),
    [
        ("", "0 bytes are no frame", 0),
        ("0000000400000000", "8 bytes are no frame", 0),
        ("00000006 00 00000000", "says that 6 bytes follow, and 5 do", 0),
        ("00000004 00 00000000", "says that 4 bytes follow, and 5 do", 0),
        ("00000005 01 00000000", "version 1 is not known", 4),
        ("00000005 00 00000001", "the headers have 1 bytes, and 0 are left", 5),
        ("00000005 00 ffffffff", "the headers have 4,294,967,295 bytes", 5),
        ("00000008 00 00000003 000000", "3 bytes are left for the size of a header's name", 9),
        ("00000009 00 00000004 00000001", "a header's name has 1 bytes, and 0 are left", 9),
        ("0000000a 00 00000005 0000000161", "0 bytes are left for the size of a header's value", 14),
        ("0000000e 00 00000009 0000000161 ffffffff", "a header's value has 4,294,967,295 bytes", 14),
        ("0000000e 00 00000009 00000001ff 00000000", "a header's name is not UTF-8", 13),
        ("00000010 00 0000000b 0000000161 0000000261c3", "a header's value is not UTF-8", 19),
    ],
)  # fmt: skip
def test_what_is_no_frame_is_named_with_its_byte(frame, what, position):
    with pytest.raises(FrameError, match=what) as raised:
        decode_frame(bytes.fromhex(frame))
    assert raised.value.position == position


def test_header_bombs_are_refused():
    many = b"\0\0\0\0\0\0\0\0" * (HEADERS_MAX + 1)
    large = (HEADER_BYTES_MAX + 1).to_bytes(4, "big") + b"x" * (HEADER_BYTES_MAX + 1) + b"\0\0\0\0"
    for block, what in ((many, "more than 256 headers"), (large, "more than 65,536 bytes")):
        frame = b"\0" + len(block).to_bytes(4, "big") + block
        with pytest.raises(FrameError, match=what):
            decode_frame(len(frame).to_bytes(4, "big") + frame)
    with pytest.raises(FrameError, match="more than 256 headers"):
        encode_frame({str(number): "" for number in range(HEADERS_MAX + 1)}, b"")
    with pytest.raises(FrameError, match="more than 65,536 bytes"):
        encode_frame({"a": "x" * HEADER_BYTES_MAX}, b"")
    assert decode_frame(encode_frame({"a": "x" * (HEADER_BYTES_MAX - 1)}, b"")).message == b""


TEXT = st.text(max_size=20)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(TEXT, TEXT, max_size=8), st.binary(max_size=60))
def test_a_frame_decodes_to_what_was_encoded(headers, message):
    assert decode_frame(encode_frame(headers, message)) == Frame(headers, message)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(TEXT, TEXT, max_size=4), st.data())
def test_changed_bytes_are_a_frame_or_a_frame_error(headers, data):
    frame = bytearray(encode_frame(headers, PING))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    for changed in (bytes(frame), bytes(frame[:cut])):
        try:
            decoded = decode_frame(changed)
        except FrameError as error:
            assert 0 <= error.position <= len(changed)  # noqa: PT017
        else:
            assert changed.endswith(decoded.message)


def test_a_request_tells_what_time_is_left_and_its_receiver_has_the_same_context():
    ctx = Context("c1", timeout_ms=500, headers={"tenant": "a"})
    ctx.begin(lambda: 100.0)
    headers = request_headers(ctx, 7, now=100.2)
    assert headers == {"_cid": "c1", "_opid": "7", "_timeout": "300", "tenant": "a"}
    received, operation_id = received_context(headers)
    assert (received.correlation_id, received.timeout_ms, dict(received.headers), operation_id) == (
        "c1",
        300,
        {"tenant": "a"},
        7,
    )
    assert request_headers(ctx, 8, now=200.0)["_timeout"] == "1"


def test_reserved_headers_are_passed_on_and_not_shown():
    received, _ = received_context({"_opid": "1", "_cid": "c", "_new": "x", "_topic_region": "eu", "a": "b"})
    assert dict(received.headers) == {"a": "b"}
    assert dict(received.topic) == {"region": "eu"}
    assert request_headers(received.copy(), 2, now=0.0) == {
        "_cid": "c",
        "_opid": "2",
        "_timeout": str(TIMEOUT_MS_DEFAULT),
        "_topic_region": "eu",
        "_new": "x",
        "a": "b",
    }


def test_an_answer_has_the_ids_of_its_request_and_the_headers_of_the_handler():
    ctx = Context("c1")
    ctx.set_response_header("cached", "yes")
    headers = answer_headers(ctx, 7)
    assert headers == {"_cid": "c1", "_opid": "7", "cached": "yes"}
    asked = Context("c1")
    take_answer_headers(asked, headers)
    assert dict(asked.response_headers) == {"cached": "yes"}


@pytest.mark.parametrize("text", [None, "", "-1", "+1", "1.0", " 1", "٣", "18446744073709551616", "0" * 30, "1" * 5000])
def test_an_operation_id_is_a_u64(text):
    with pytest.raises(FrameError, match="_opid"):
        received_context({} if text is None else {"_opid": text})


def test_the_largest_operation_id():
    assert received_context({"_opid": "18446744073709551615"})[1] == 2**64 - 1


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("", 5_000), ("x", 5_000), ("٣", 5_000), ("0", 1), ("-7", 1), ("7", 7), ("9" * 5000, TIMEOUT_MS_MAX)],
)
def test_a_timeout_is_clamped(text, wanted):
    assert read_timeout_ms(text) == wanted


def test_a_copy_of_a_context_has_its_deadline_and_headers_and_an_answer_of_its_own():
    ctx = Context("c1", timeout_ms=500, headers={"a": "b"})
    ctx.begin(lambda: 100.0)
    ctx.set_response_header("x", "y")
    copy = ctx.copy()
    copy.begin(lambda: 200.0)
    copy.set_header("a", "c")
    assert (copy.correlation_id, copy.deadline, dict(copy.headers)) == ("c1", 100.5, {"a": "c"})
    assert dict(copy.response_headers) == {}
    assert dict(ctx.headers) == {"a": "b"}


@pytest.mark.parametrize("mode", ["plain", "compiled"])
@settings(max_examples=200, deadline=None)
@given(headers=st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=6), data=st.data())
def test_plain_and_compiled_blocks_are_the_same_also_of_hostile_bytes(mode, headers, data):
    blocks = hot_modes.plain("frugal_frames") if mode == "plain" else hot_modes.running("frugal_frames")
    block = blocks.encode_block(headers)
    assert blocks.decode_block(b"head" + block + b"tail", 4, 4 + len(block)) == headers
    changed = bytearray(block)
    for _ in range(data.draw(st.integers(0, 3)) if changed else 0):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    hostile = bytes(changed[: data.draw(st.integers(0, len(changed)))])
    frame = (5 + len(hostile)).to_bytes(4, "big") + b"\0" + len(hostile).to_bytes(4, "big") + hostile
    found = blocks.decode_block(frame, 9, len(frame))
    if found is None:
        with pytest.raises(FrameError):
            decode_frame(frame)
    else:
        assert decode_frame(frame).headers == found


@pytest.mark.parametrize("mode", ["plain", "compiled"])
@pytest.mark.parametrize("size", ["7fffffff", "80000000", "ffffffff", "00000002"])
@pytest.mark.parametrize("before", ["", "0000000161"], ids=["name", "value"])
def test_a_size_beyond_the_block_is_never_followed(mode, size, before):
    blocks = hot_modes.plain("frugal_frames") if mode == "plain" else hot_modes.running("frugal_frames")
    block = bytes.fromhex(before + size + "62")
    assert blocks.decode_block(block + b"c" * 100, 0, len(block)) is None
