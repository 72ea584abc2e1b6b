"""Frames of Frugal: golden bytes, limits, and what hostile bytes give."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.frugal.context import HEADER_BYTES_MAX, HEADERS_MAX, TIMEOUT_MS_DEFAULT, Context
from penstock.frugal.errors import FrameError
from penstock.frugal.frames import (
    FRAME_BYTES_MAX,
    TIMEOUT_MS_MAX,
    Frame,
    decode_answer,
    decode_frame,
    decode_request,
    encode_answer,
    encode_request,
    read_timeout_ms,
)
from tests import hot_modes
from tests.frugal_frames import encode_frame, frame_of

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
    twice = (
        encode_frame({"_opid": "1", "_cid": "1", "a": "1"}, b"")[9:]
        + encode_frame({"_opid": "2", "_cid": "2", "a": "2"}, b"")[9:]
    )
    assert decode_frame(frame_of(twice)).headers == {"_opid": "2", "_cid": "2", "a": "2"}
    ctx, operation_id, _ = decode_request(frame_of(twice))
    assert (operation_id, ctx.correlation_id, dict(ctx.headers)) == (2, "2", {"a": "2"})


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
        for decode in (decode_frame, decode_request, decode_answer):
            with pytest.raises(FrameError, match=what):
                decode(frame_of(block))
    many_set = Context("c", headers={str(number): "" for number in range(HEADERS_MAX)})
    large_set = Context("c", headers={"a": "x" * (HEADER_BYTES_MAX - 1)})
    for ctx, what in ((many_set, "more than 256 headers"), (large_set, "more than 65,536 bytes")):
        with pytest.raises(FrameError, match=what):
            encode_request(ctx, 1, 0.0, b"")
        for name, value in ctx.headers.items():
            ctx.set_response_header(name, value)
        with pytest.raises(FrameError, match=what):
            encode_answer(ctx, 1, b"")
    with pytest.raises(FrameError, match="more than a frame may have"):
        encode_answer(Context("c"), 1, bytes(FRAME_BYTES_MAX))
    own_bytes = len("_cid") + len("c") + len("_opid") + len("1")
    ctx = Context("c")
    ctx.set_response_header("a", "x" * (HEADER_BYTES_MAX - own_bytes - 1))
    assert decode_answer(encode_answer(ctx, 1, b"m")) == ("1", ctx.response_headers, b"m")


TEXT = st.text(max_size=20)


NAME = TEXT.filter(lambda name: bool(name) and not name.startswith("_"))


@settings(max_examples=100, deadline=None)
@given(TEXT, st.dictionaries(NAME, TEXT, max_size=4), st.integers(0, 2**64 - 1), st.binary(max_size=60))
def test_a_frame_decodes_to_what_was_encoded(correlation_id, headers, operation_id, message):
    ctx = Context(correlation_id, timeout_ms=7, headers=headers)
    frame = encode_request(ctx, operation_id, 0.0, message)
    own = {"_cid": correlation_id, "_opid": str(operation_id), "_timeout": "7"}
    assert frame == encode_frame({**own, **headers}, message)
    assert decode_frame(frame) == Frame({**own, **headers}, message)
    received, *rest = decode_request(frame)
    assert (received.correlation_id, received.timeout_ms, dict(received.headers)) == (correlation_id, 7, headers)
    assert rest == [operation_id, message]
    for name, value in headers.items():
        ctx.set_response_header(name, value)
    assert decode_answer(encode_answer(ctx, operation_id, message)) == (str(operation_id), headers, message)


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
            assert decode_answer(changed)[2] == decoded.message


def test_a_request_tells_what_time_is_left_and_its_receiver_has_the_same_context():
    ctx = Context("c1", timeout_ms=500, headers={"tenant": "a"})
    ctx.begin(lambda: 100.0)
    frame = encode_request(ctx, 7, 100.2, PING)
    assert decode_frame(frame).headers == {"_cid": "c1", "_opid": "7", "_timeout": "300", "tenant": "a"}
    received, operation_id, message = decode_request(frame)
    assert (received.correlation_id, received.timeout_ms, dict(received.headers), operation_id, message) == (
        "c1",
        300,
        {"tenant": "a"},
        7,
        PING,
    )
    assert decode_frame(encode_request(ctx, 8, 200.0, PING)).headers["_timeout"] == "1"
    assert decode_frame(encode_request(Context(timeout_ms=10**30), 8, 0.0, PING)).headers["_timeout"] == str(2**63 - 1)


def test_reserved_headers_are_passed_on_and_not_shown():
    sent = {"_opid": "1", "_cid": "c", "_new": "x", "_topic_region": "eu", "a": "b"}
    received, _, _ = decode_request(encode_frame(sent, PING))
    assert dict(received.headers) == {"a": "b"}
    assert dict(received.topic) == {"region": "eu"}
    assert decode_frame(encode_request(received.copy(), 2, 0.0, PING)).headers == {
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
    frame = encode_answer(ctx, 7, PING)
    assert decode_frame(frame).headers == {"_cid": "c1", "_opid": "7", "cached": "yes"}
    assert decode_answer(frame) == ("7", {"cached": "yes"}, PING)
    assert decode_answer(encode_frame({"_new": "x"}, PING)) == ("", {}, PING)


@pytest.mark.parametrize("text", [None, "", "-1", "+1", "1.0", " 1", "٣", "18446744073709551616", "0" * 30, "1" * 5000])
def test_an_operation_id_is_a_u64(text):
    with pytest.raises(FrameError, match="_opid"):
        decode_request(encode_frame({} if text is None else {"_opid": text}, PING))


def test_the_largest_operation_id():
    assert decode_request(encode_frame({"_opid": "18446744073709551615"}, PING))[1] == 2**64 - 1


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("", 5_000), ("x", 5_000), ("٣", 5_000), ("0", 1), ("-7", 1), ("7", 7), ("9" * 5000, TIMEOUT_MS_MAX)],
)
def test_a_timeout_is_clamped(text, wanted):
    assert read_timeout_ms(text) == wanted
    assert decode_request(encode_frame({"_opid": "1", "_timeout": text[:100]}, PING))[0].timeout_ms == wanted


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


MODES = [
    pytest.param(hot_modes.running("frugal_frames"), id="running"),
    pytest.param(hot_modes.plain("frugal_frames"), id="plain"),
]
OWN = st.sampled_from(["_cid", "_opid", "_timeout", "_topic_x", "_new", "a"])
VALUE = st.one_of(st.text(max_size=20), st.integers(-10, 10**25).map(str))


@pytest.mark.parametrize("frames", MODES)
@settings(max_examples=200, deadline=None)
@given(
    correlation_id=st.text(max_size=8),
    operation_id=st.integers(0, 2**64 - 1),
    timeout_ms=st.integers(-1, 2**63 - 1),
    others=st.none() | st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=6),
    message=st.binary(max_size=40),
)
def test_plain_and_compiled_frames_are_the_same(frames, correlation_id, operation_id, timeout_ms, others, message):
    wanted = [("_cid", correlation_id), ("_opid", str(operation_id))]
    wanted += [("_timeout", str(timeout_ms))] if timeout_ms >= 0 else []
    pieces = [encode_frame({name: value}, b"")[9:] for name, value in [*wanted, *(others or {}).items()]]
    frame = frames.write_frame(correlation_id, operation_id, timeout_ms, others, message)
    assert frame == frame_of(b"".join(pieces), message)


@pytest.mark.parametrize("frames", MODES)
def test_a_text_without_utf_8_is_an_error_either_way(frames):
    for correlation_id, others in (("\ud800", None), ("c", {"\ud800": ""}), ("c", {"a": "\ud800"})):
        with pytest.raises(UnicodeEncodeError):
            frames.write_frame(correlation_id, 1, 1, others, b"")


@pytest.mark.parametrize("frames", MODES)
@settings(max_examples=300, deadline=None)
@given(headers=st.dictionaries(OWN | st.text(max_size=8), VALUE, max_size=6), data=st.data())
def test_what_is_read_at_once_is_what_the_exact_decoder_reads(frames, headers, data):
    changed = bytearray(encode_frame(headers, PING))
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    frame = bytes(changed[: data.draw(st.sampled_from([len(changed), data.draw(st.integers(0, len(changed)))]))])
    if (found := frames.read_frame(frame)) is None:
        return
    exact = decode_frame(frame)
    correlation_id, operation_id, timeout_ms, others, start = found
    assert exact.message == frame[start:]
    own = {name: exact.headers.pop(name, None) for name in ("_cid", "_opid", "_timeout")}
    assert own["_cid"] == correlation_id
    assert int(own["_opid"]) == operation_id
    assert timeout_ms == (-1 if own["_timeout"] is None else int(own["_timeout"]))
    assert (others or {}) == exact.headers


@pytest.mark.parametrize("frames", MODES)
@pytest.mark.parametrize("message", [b"", PING])
def test_frames_as_they_are_nearly_always_are_read_at_once(frames, message):
    frame = encode_frame({"_cid": "c", "_opid": "9" * 18, "_timeout": "5000", "a": "b"}, message)
    assert frames.read_frame(frame) == ("c", int("9" * 18), 5000, {"a": "b"}, len(frame) - len(message))


@pytest.mark.parametrize("frames", MODES)
@pytest.mark.parametrize("size", ["7fffffff", "80000000", "ffffffff", "00000002"])
@pytest.mark.parametrize("before", ["", "0000000161"], ids=["name", "value"])
def test_a_size_beyond_the_block_is_never_followed(frames, size, before):
    good = encode_frame({"_opid": "1"}, b"")[9:]
    assert frames.read_frame(frame_of(good + bytes.fromhex(before + size + "62"), b"c" * 100)) is None
