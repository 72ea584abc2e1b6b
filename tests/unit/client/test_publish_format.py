"""What callers hand to a publish becomes bytes only if it is bytes or text; anything else is told what it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

import penstock
from penstock.client.publish_format import KEY_HEADER, in_envelope, parse_ack, payload, publish_headers, published
from penstock.client.values import TOMBSTONE_HEADER, Envelope
from penstock.hot import envelope_acks
from penstock.hot.envelope import parse
from penstock.ingest import acks


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(b"a", b"a"), ("ä", "ä".encode()), (bytearray(b"b"), b"b"), (memoryview(b"c"), b"c"), (None, b""), ("", b"")],
)
def test_bytes_and_text_are_sent_as_they_are(value: Any, wanted: bytes) -> None:
    assert payload(value) == wanted


@pytest.mark.parametrize(
    ("value", "kind"), [(1, "an int"), (True, "a bool"), ([1], "a list"), ({"a": 1}, "a dict"), (1.5, "a float")]
)
def test_other_values_are_not_turned_into_bytes(value: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=rf"the value is {kind}; give bytes or str"):
        payload(value)


@pytest.mark.parametrize(("key", "kind"), [(5, "an int"), ([1], "a list"), (0, "an int")])
def test_other_keys_are_not_turned_into_bytes(key: Any, kind: str) -> None:
    with pytest.raises(TypeError, match=rf"the key is {kind}; give bytes or str"):
        publish_headers(b"", key, None, None, "all")


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({"a": 1}, "the header 'a' is an int; give a str"),
        ({"a": ["x", "y"]}, "the header 'a' is a list; give a str"),
        ({"a": b"x"}, "the header 'a' is a bytes; give a str"),
        ({1: "x"}, "the name of header 1 is an int; give a str"),
        ([("a", "x")], "headers is a list; give a dict of str"),
    ],
)
def test_headers_are_text(headers: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        publish_headers(b"", None, headers, None, "all")


def test_a_tombstone_needs_the_key_that_is_gone() -> None:
    with pytest.raises(ValueError, match="a tombstone says that a key is gone: give key="):
        publish_headers(None, None, None, None, "all")
    assert publish_headers(None, "k", None, None, "all") == {KEY_HEADER: "k", TOMBSTONE_HEADER: "1"}
    # Whoever writes the headers of the wire themselves knows what they do.
    by_hand = {KEY_HEADER: "k"}
    assert publish_headers(None, None, by_hand, None, "all") == {KEY_HEADER: "k", TOMBSTONE_HEADER: "1"}


def test_an_empty_key_is_no_key() -> None:
    for key in ("", b""):
        with pytest.raises(ValueError, match="an empty key"):
            publish_headers(b"x", key, None, None, "all")


def test_too_few_in_sync_is_not_taken_for_too_much_at_once() -> None:
    few = acks.error_body(b"orders", acks.not_enough_replicas(1, 2))
    with pytest.raises(penstock.NotEnoughReplicas, match="1 replica is in sync; 2 must be"):
        parse_ack(few)
    with pytest.raises(penstock.Overloaded):
        parse_ack(acks.error_body(b"orders", acks.unavailable("too much waits for the disk")))
    # What another service calls its reasons is not ours.
    with pytest.raises(penstock.Overloaded):
        parse_ack(few.replace(b"not_enough_replicas", b"stream_exists"))


# In an envelope


def test_an_envelope_carries_what_headers_carry_otherwise() -> None:
    pytest.importorskip("google.protobuf")
    wanted = penstock.Envelope("c-1", 0)
    data, headers = in_envelope("hello", b"\xff", {"A": "ü"}, "orders", "leader", wanted)
    assert headers == {"Nats-Expected-Stream": "orders"}
    found = parse(data, 0, len(data))
    assert found is not None
    assert (data[found.key : found.key_end], data[found.value : found.value_end]) == (b"\xff", b"hello")
    assert (found.offset, found.ack_policy) == (0, 0)
    assert data[found.correlation_id : found.correlation_id_end] == b"c-1"
    name, name_end, value, value_end = found.headers
    assert (data[name:name_end], data[value:value_end]) == (b"A", "ü".encode())
    data, headers = in_envelope(None, "k", None, None, "all", penstock.Envelope(crc=True))
    found = parse(data, 0, len(data))
    assert found is not None
    assert headers is None
    assert (found.offset, found.ack_policy, data[6]) == (-1, 1, 1)
    assert data[found.headers[0] : found.headers[1]] == TOMBSTONE_HEADER.encode()


@pytest.mark.parametrize(
    ("envelope", "error"),
    [
        (penstock.Envelope("c" * 1_025), ValueError),
        (penstock.Envelope(expected_offset=-1), ValueError),
        (penstock.Envelope(expected_offset=2**63), ValueError),
        (True, TypeError),
        ("c-1", TypeError),
    ],
)
def test_what_an_envelope_cannot_carry_is_refused(envelope: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        published(b"v", None, None, None, "all", envelope)


@pytest.mark.parametrize(
    ("value", "key", "headers"), [(None, None, None), (b"v", b"", None), (b"v", None, {"a b": "x"}), (5, None, None)]
)
def test_the_checks_are_the_same_in_an_envelope(value: Any, key: Any, headers: Any) -> None:
    for envelope in (None, penstock.Envelope()):
        with pytest.raises((ValueError, TypeError)):
            payload(published(value, key, headers, None, "all", envelope)[0])


def test_liftbridge_acks_are_acks() -> None:
    pytest.importorskip("google.protobuf")
    record = bytes(4) + bytes([1, 0, 0, 0] * 3) + bytes(4) + b"rac"
    head = envelope_acks.head(b"orders", b"orders.>")

    def ack(tail: bytes) -> bytes:
        return envelope_acks.acks(record, head, 41, 1, tail).partition(b"\r\n")[2][:-2]

    found = parse_ack(ack(envelope_acks.standing_tail(2, 3, 1, True)))
    assert found == penstock.PubAck("orders", 41, 2, False, 3, 1, True, "c")
    assert parse_ack(ack(b"")) == penstock.PubAck("orders", 41, correlation_id="c")  # a Liftbridge's
    error = acks.wrong_last_sequence(7)
    refused = envelope_acks.error_tail(envelope_acks.INCORRECT_OFFSET, acks.error_body(b"orders", error))
    with pytest.raises(penstock.RemoteError, match="wrong last sequence: 7") as raised:
        parse_ack(ack(refused))
    assert (raised.value.code, raised.value.details["stream"]) == ("nats_10071", "orders")
    with pytest.raises(penstock.RemoteError, match="incorrect_offset"):
        parse_ack(ack(b"\x50\x02"))
    with pytest.raises(penstock.RemoteError) as raised:
        parse_ack(ack(b"\x50\x03"))
    assert raised.value.code == "too_large"
    for wrong in (ack(b"")[:-1], ack(b"")[:8], ack(b"")[:4], b"\xb9\x0e\x43\xb4\x00\xff\x00\x00"):
        with pytest.raises(penstock.RemoteError, match="no ack of a stream"):
            parse_ack(wrong)


@pytest.mark.parametrize("envelope", [None, Envelope()])
@pytest.mark.parametrize("stream", ["a\r\nPenstock-Key: of another", "a\nb", "a\0"])
def test_the_name_of_a_stream_brings_no_other_header(stream: str, envelope: Envelope | None) -> None:
    with pytest.raises(ValueError, match="may not hold line ends"):
        published(b"x", None, None, stream, "all", envelope)


@pytest.mark.parametrize(
    ("refusal", "options"),
    [
        (acks.ttl_disabled(), "--allow-message-ttl yes"),
        (acks.rollup_failed("rollup not permitted"), "--allow-rollup yes"),
        (acks.atomic_disabled(), "--allow-atomic yes"),
        (acks.schedules_disabled(), "--allow-rollup yes --allow-message-schedules yes"),
    ],
)
def test_what_a_stream_does_not_allow_is_told_with_the_options_that_do(refusal: acks.AckError, options: str) -> None:
    body = json.dumps({"stream": "orders", "seq": 0, "error": refusal._asdict()}).encode()
    with pytest.raises(penstock.RemoteError, match=rf"; `penstock stream alter orders {options}` lets"):
        parse_ack(body)
