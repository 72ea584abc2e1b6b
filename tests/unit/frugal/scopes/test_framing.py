"""Messages of scopes as bytes: golden ones, round trips in both framings, and hostile bytes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.frugal.codecs import BINARY, CODECS, COMPACT, JSON, Codec
from penstock.frugal.context import Context
from penstock.frugal.errors import CodecError, FrameError
from penstock.frugal.scopes.framing import EncodedMessage, ScopeFraming, decode_message, encode_message
from tests.unit.frugal.scopes.contract import COUNTED, NOTED, PLACED, Order, order


def encoded(
    framing: ScopeFraming, codec: Codec, operation: Any, message: Any, *, ctx: Context | None = None
) -> EncodedMessage:
    made = ctx or Context("c1", timeout_ms=700)
    return encode_message(framing, codec, made, operation, message, operation_id=7, now=0.0)


def test_a_message_has_the_bytes_that_frugal_writes() -> None:
    # _cid=c1, _opid=7, _timeout=700 in front of Thrift's binary "Counted", CALL, 0 and a bare i64.
    ctx = Context("c1", timeout_ms=700)
    made = encoded(ScopeFraming.FRUGAL, BINARY, COUNTED, -2, ctx=ctx)
    assert made.headers == {}
    assert made.payload.hex() == (
        "0000004f000000002f"  # 79 bytes follow, 47 of them headers
        "000000045f636964000000026331"
        "000000055f6f7069640000000137"
        "000000085f74696d656f757400000003373030"
        "8001000100000007436f756e74656400000000"
        "fffffffffffffffe"
    )


def test_a_native_message_is_the_bare_value_with_the_context_in_headers_of_nats() -> None:
    ctx = Context("c1", timeout_ms=700, headers={"tenant": "a"})
    ctx.topic = {"region": "eu"}
    made = encoded(ScopeFraming.NATIVE, BINARY, COUNTED, 3, ctx=ctx)
    assert made.payload == (3).to_bytes(8, "big")
    assert made.headers == {
        "Frugal-Operation": "Counted",
        "Content-Type": "application/vnd.apache.thrift.binary",
        "Frugal-Correlation-Id": "c1",
        "Frugal-Timeout-Ms": "700",
        "Frugal-Topic-region": "eu",
        "tenant": "a",
    }
    # The media type says how to read it, whatever the receiver writes; a header of the broker's is none of the context.
    got, value = decode_message(COMPACT, COUNTED, made.payload, {**made.headers, "Nats-Msg-Id": "1"})
    assert value == 3
    assert (got.correlation_id, got.timeout_ms, dict(got.headers), got.topic) == (
        "c1",
        700,
        {"tenant": "a"},
        {"region": "eu"},
    )


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"Frugal-Operation": "Placed"}, "of operation 'Placed', not 'Counted'"),
        ({"Content-Type": "text/plain"}, "of type 'text/plain'"),
        ({f"h{number}": "" for number in range(300)}, "headers"),
        ({"big": "x" * 70_000}, "bytes of headers"),
        ({"bad": "\udcff"}, "not UTF-8"),
    ],
)
def test_native_headers_that_say_something_else_are_refused(headers: dict[str, str], text: str) -> None:
    made = encoded(ScopeFraming.NATIVE, BINARY, COUNTED, 3)
    with pytest.raises((CodecError, FrameError), match=text):
        decode_message(BINARY, COUNTED, made.payload, {**made.headers, **headers})


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ORDERS = st.builds(
    lambda number, customer, origin: Order(number=number, customer=order(0, customer).customer, from_=origin),
    st.integers(-(2**63), 2**63 - 1),
    st.none() | TEXTS,
    st.none() | TEXTS,
)
MESSAGES = (
    st.tuples(st.just(PLACED), ORDERS)
    | st.tuples(st.just(COUNTED), st.integers(-(2**63), 2**63 - 1))
    | st.tuples(st.just(NOTED), st.lists(TEXTS, max_size=4))
)
WAYS = st.tuples(st.sampled_from(list(ScopeFraming)), st.sampled_from([BINARY, COMPACT, JSON]))


@given(WAYS, MESSAGES, st.dictionaries(st.from_regex(r"[a-z]{1,4}", fullmatch=True), TEXTS, max_size=3))
def test_what_is_encoded_is_decoded(
    way: tuple[ScopeFraming, Codec], what: tuple[Any, Any], headers: dict[str, str]
) -> None:
    (framing, codec), (operation, message) = way, what
    if framing is ScopeFraming.NATIVE:
        headers = {name: "".join(filter(str.isalnum, value)) for name, value in headers.items()}
    ctx = Context("c", headers=headers)
    made = encoded(framing, codec, operation, message, ctx=ctx)
    got, value = decode_message(codec, operation, made.payload, made.headers)
    assert value == message
    assert dict(got.headers) == headers


@given(WAYS, MESSAGES, st.data())
def test_hostile_bytes_are_an_error_of_the_message_or_a_message(
    way: tuple[ScopeFraming, Codec], what: tuple[Any, Any], data: st.DataObject
) -> None:
    (framing, codec), (operation, message) = way, what
    made = encoded(framing, codec, operation, message)
    payload = bytearray(made.payload)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, max(0, len(payload) - 1)))
        payload[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    headers = dict(made.headers)
    if headers and data.draw(st.booleans()):
        headers[data.draw(st.sampled_from(sorted(headers)))] = data.draw(TEXTS)
    reader = CODECS[data.draw(st.sampled_from(sorted(CODECS)))]
    with contextlib.suppress(FrameError, CodecError):
        decode_message(reader, operation, bytes(payload), headers)
