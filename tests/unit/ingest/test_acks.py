"""PubAcks and error bodies are what an unmodified JetStream client parses."""

from __future__ import annotations

import json

import pytest
from nats.js import api
from nats.js.errors import APIError, BadRequestError, ServiceUnavailableError

from penstock.hot.acks import pubacks
from penstock.ingest import acks
from tests import hot_modes
from tests.unit.node.harness import parse_acks

UNSYNCED_TAIL, TAIL = acks.ack_tails(0, 3, 1)


def test_ack_is_byte_for_byte_this() -> None:
    body = b'{"stream":"orders","seq":43,"offset":42,"partition":0,"epoch":3,"replicas":1,"fsynced":true}'
    assert pubacks(b"orders", b"_INBOX.a ", 42, TAIL) == b"PUB _INBOX.a %d\r\n%s\r\n" % (len(body), body)


def test_nats_py_parses_the_ack() -> None:
    (ack,) = parse_acks(pubacks(b"orders", b"r ", 0, TAIL))
    parsed = api.PubAck.from_response(ack.body)
    assert (parsed.stream, parsed.seq, parsed.duplicate) == ("orders", 1, None)


def test_rows_without_a_reply_are_skipped_but_counted() -> None:
    published = parse_acks(pubacks(b"s", b"a  b  ", 10, TAIL))
    assert [(ack.reply, ack.body["seq"], ack.body["offset"]) for ack in published] == [("a", 11, 10), ("b", 13, 12)]


def test_no_replies_no_bytes() -> None:
    assert pubacks(b"s", b"  ", 0, TAIL) == b""


def test_fsynced_says_false_where_it_is() -> None:
    (ack,) = parse_acks(pubacks(b"s", b"r ", 0, UNSYNCED_TAIL))
    assert ack.body["fsynced"] is False


@pytest.mark.parametrize(
    ("error", "kind", "code", "err_code"),
    [
        (acks.bad_request("why"), BadRequestError, 400, 10003),
        (acks.wrong_last_sequence(5), BadRequestError, 400, 10071),
        (acks.message_too_large(11, 10), BadRequestError, 400, 10054),
        (acks.headers_too_large(70_000, 65_536), BadRequestError, 400, 10097),
        (acks.store_failed("no space"), ServiceUnavailableError, 503, 10077),
        (acks.unavailable("busy"), ServiceUnavailableError, 503, 10008),
    ],
)
def test_nats_py_raises_the_error(error: acks.AckError, kind: type[APIError], code: int, err_code: int) -> None:
    (ack,) = parse_acks(acks.error_ack(b"orders", b"r", error))
    assert ack.body["stream"] == "orders"
    assert ack.body["seq"] == 0
    with pytest.raises(kind) as caught:
        APIError.from_error(ack.body["error"])
    assert (caught.value.code, caught.value.err_code, caught.value.description) == (code, err_code, error.description)


def test_error_is_byte_for_byte_this() -> None:
    body = b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"},"stream":"orders","seq":0}'
    assert acks.error_ack(b"orders", b"r", acks.wrong_last_sequence(5)) == b"PUB r %d\r\n%s\r\n" % (len(body), body)


def test_error_escapes_what_json_must_escape() -> None:
    (ack,) = parse_acks(acks.error_ack(b"s", b"r", acks.store_failed('disk "a"\r\nPUB x 0\r\n')))
    assert json.loads(json.dumps(ack.body))["error"]["description"] == 'store failed: disk "a"\r\nPUB x 0\r\n'


@pytest.mark.parametrize("byte", [b"\r", b"\x0b", b"\x0c", b"\xc2\xa0"])
def test_a_reply_subject_with_other_white_space_is_one(byte: bytes) -> None:
    # Found by fuzzing: plain Python counted two.
    waiting = b" _INBOX.%bx.0 " % byte
    for module in (hot_modes.plain("acks"), hot_modes.running("acks")):
        assert module.waiting_count(waiting) == 1
        assert module.pubacks(b"s", waiting, 41, b"}").count(b"PUB ") == 1
