"""What callers hand to a publish becomes bytes only if it is bytes or text; anything else is told what it is."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.client.publish_format import KEY_HEADER, parse_ack, payload, publish_headers
from penstock.client.values import TOMBSTONE_HEADER
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
