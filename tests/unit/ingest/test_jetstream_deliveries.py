"""What a JetStream consumer delivers onto a stream's subject: acked as JetStream wants it, or not answered at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.base import limits
from penstock.base.config import Acks, StreamConfig
from penstock.hot import envelope_acks
from penstock.hot.acks import pubacks, pubacks_again, waiting_again
from penstock.hot.message_group import MessageGroup, TooLarge
from penstock.hot.message_ids import MessageIds
from penstock.ingest import acks
from penstock.ingest.ack_waiters import AckDetails, waiters
from penstock.ingest.admission import REFUSED, Admission, AdmissionRules, admit, refuse_all
from tests import groups, hot_modes
from tests.envelopes import enveloped, message

REPLIES = [
    b"$JS.ACK.ORDERS.bridge.1.42.7.1700000000123456789.5",
    b"$JS.ACK.hub.ACCHASH.ORDERS.bridge.1.42.7.1700000000123456789.5.rnd",
]
REPLY = REPLIES[0]
RULES = AdmissionRules.of(StreamConfig(name="orders", subject="orders.>", max_message_bytes=1_000))
GOT = AckDetails(partition=0, leader_epoch=1, replicas=1, fsynced=True)
TAIL = acks.ack_tails(0, 1, 1)[True]


def ack(reply: bytes) -> bytes:
    return b"PUB %s 4\r\n+ACK\r\n" % reply


def delivered(*lines: str, value: bytes = b"v", reply: bytes | None = REPLY) -> MessageGroup:
    block = ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode() if lines else None
    return groups.group_of([(b"orders.a", reply, block, value)])


def told(admission: Admission) -> bytes:
    """Whatever is answered at once."""
    return b"".join([*admission.errors, admission.denials])


def acked(admission: Admission, rules: AdmissionRules = RULES) -> bytes:
    """The acks of all that was stored; nothing is acked before it is as durable as promised."""
    rows = admission.rows
    assert waiters(rows, 0, len(rows), is_early=True) is None
    late = waiters(rows, 0, len(rows), is_early=False)
    return b"" if late is None else late.ack_commands(rules, 7, 0, GOT)


@pytest.mark.parametrize("reply", REPLIES)
def test_what_is_stored_is_acked_to_jetstream_and_others_hear_json(reply: bytes) -> None:
    for module in (hot_modes.plain("acks"), hot_modes.running("acks")):
        found = module.pubacks(b"orders", b"a %b  b " % reply, 0, TAIL)
        first, second = (pubacks(b"orders", one, offset, TAIL) for one, offset in ((b"a ", 0), (b"b ", 3)))
        assert found == first + ack(reply) + second


HEARTBEAT = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 5\r\nNats-Last-Stream: 9\r\n%s\r\n"
REQUEST = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
FLOW = b"$JS.FC.ORDERS.bridge.xYz1"
LONGEST = FLOW.ljust(limits.FLOW_CONTROL_SUBJECT_BYTES_MAX, b"x")
STALLED = HEARTBEAT % (b"Nats-Consumer-Stalled: %s\r\n" % FLOW)
Message = tuple[bytes | None, bytes | None, bytes]  # reply, header block, value


def between(*messages: Message, group_type: Any = MessageGroup) -> Any:
    """These between two messages that a consumer delivers."""
    replies, blocks, values = zip((REPLY, None, b"1"), *messages, (REPLY, None, b"2"), strict=True)
    return group_type.of([b"orders.a"] * len(values), values, headers=blocks, replies=replies)


def in_both_modes(message: Message) -> Iterator[Any]:
    """What becomes of it, in plain Python and as this process runs it."""
    for mode in (hot_modes.plain, hot_modes.running):
        group = between(message, group_type=mode("message_group").MessageGroup)
        yield mode("classification").classify(group, b"orders", True, 1_000, True, 7, True, None, True, None, 0)


def values_of(found: Any) -> list[bytes | None]:
    return [found.rows.value(row) for row in range(found.rows.count)]


@pytest.mark.parametrize(
    ("message", "reply"),
    [
        ((None, HEARTBEAT % b"", b""), b""),
        ((None, STALLED, b""), FLOW),
        ((None, STALLED.replace(b": $JS", b":   $JS"), b""), FLOW),
        ((None, HEARTBEAT % b"Nats-Consumer-Stalled: other.subject\r\n", b""), b""),
        ((None, HEARTBEAT % b"Nats-Consumer-Stalled: $JS.FC.a b\r\n", b""), b""),
        ((None, HEARTBEAT % b"Nats-Consumer-Stalled:", b""), b""),
        ((None, b"NATS/1.0 100\r\n\r\n", b""), b""),
        ((FLOW, REQUEST, b""), FLOW),
        ((LONGEST, REQUEST, b""), LONGEST),
        ((LONGEST + b"x", REQUEST, b""), LONGEST + b"x"),
        ((None, HEARTBEAT % (b"Nats-Consumer-Stalled: %s\r\n" % LONGEST), b""), LONGEST),
        ((None, HEARTBEAT % (b"Nats-Consumer-Stalled: %sx\r\n" % LONGEST), b""), b""),
        ((None, HEARTBEAT % (b"Nats-Consumer-Stalled: $JS.FC.%s\r\n" % (b"x" * 60_000)), b""), b""),
    ],
)
def test_what_a_consumer_says_between_its_messages_is_no_row(message: Message, reply: bytes) -> None:
    answer = b"PUB %s 0\r\n\r\n" % reply if reply else b""
    for found in in_both_modes(message):
        assert (values_of(found), found.refused) == ([b"1", b"2"], [])
        assert bytes(found.flow_replies or b"") == answer
    found = admit(between(message, message), RULES, log_end=7)
    assert (groups.values(found.rows), found.dropped, found.unheard) == ([b"1", b"2"], {"consumer_control": 2}, 0)
    assert told(found) == answer * 2
    assert acked(found) == ack(REPLY) * 2


@pytest.mark.parametrize(
    "message",
    [
        (None, b"NATS/1.0 1000 Idle Heartbeat\r\n\r\n", b""),
        (None, b"NATS/1.0 503\r\n\r\n", b""),
        (None, b"NATS/1.0  100 x\r\n\r\n", b""),
        (None, b"NATS/1.0 100", b""),
        (None, b"NATS/1.0 ", b""),
        (None, HEARTBEAT % b"", b"value"),
        (b"_INBOX.x", HEARTBEAT % b"", b""),
        (b"$JS.FC.*", REQUEST, b""),
        (REPLY, REQUEST, b""),
        (FLOW, b"NATS/1.0\r\nStatus: 100\r\n\r\n", b""),
    ],
)
def test_anything_else_is_a_message(message: Message) -> None:
    for found in in_both_modes(message):
        assert (values_of(found), found.flow_replies) == ([b"1", message[2], b"2"], None)


@pytest.mark.parametrize("mode", [Acks.NEVER, Acks.ENVELOPE])
def test_a_stream_that_acks_no_replies_leaves_flow_control_to_the_consumer(mode: Acks) -> None:
    rules = AdmissionRules.of(StreamConfig(name="orders", subject="orders.>", acks=mode))
    found = admit(between((FLOW, REQUEST, b""), (None, STALLED, b"")), rules, log_end=7)
    assert (groups.values(found.rows), told(found)) == ([b"1", b"2"], b"")


def test_flow_control_is_answered_also_while_nothing_is_stored() -> None:
    group = groups.group_of([(b"orders.a", FLOW, REQUEST, b""), (b"orders.a", None, HEARTBEAT % b"", b"")])
    found = refuse_all(group, RULES, acks.unavailable("too much waits"), "over_budget")
    assert (told(found), found.dropped) == (b"PUB %s 0\r\n\r\n" % FLOW, {"consumer_control": 2})
    assert found.undelivered == {}


@pytest.mark.parametrize("reply", [b"$JS.ACK", b"$JS.ACKED.x", b"_INBOX.$JS.ACK.x", b"$JS.API.x"])
def test_other_reply_subjects_are_none_of_these(reply: bytes) -> None:
    assert pubacks(b"orders", reply + b" ", 0, TAIL).endswith(b'"fsynced":true}\r\n')


def test_a_duplicate_is_acked_as_the_first_was() -> None:
    ids = MessageIds(1_000)
    ids.add(b"k", 0, 1, 5)
    found = admit(delivered("Nats-Msg-Id: k"), RULES, log_end=7, ids=ids)
    assert found.of is not None
    again = waiting_again(found.of, found.duplicates, 0, 7)
    for module in (hot_modes.plain("acks"), hot_modes.running("acks")):
        assert module.pubacks_again(b"orders", *again, TAIL) == ack(REPLY)
    assert pubacks_again(b"orders", b"r ", again[1], TAIL).startswith(b"PUB r ")


@pytest.mark.parametrize(
    "lines",
    [
        ("Penstock-Ack: none",),
        ("Penstock-Ack: leader",),
        ("Penstock-Ack: what",),
        ("Nats-Expected-Stream: ORDERS",),
        ("Nats-Expected-Last-Sequence: 41",),
        ("Nats-Expected-Last-Subject-Sequence: 41",),
        ("Nats-Expected-Last-Msg-Id: x",),
        ("Nats-Batch-Id: x", "Nats-Batch-Sequence: 1", "Nats-Batch-Commit: 1"),
    ],
)
def test_what_its_first_publisher_asked_of_jetstream_does_not_count(lines: tuple[str, ...]) -> None:
    found = admit(delivered(*lines), RULES, log_end=7, ids=MessageIds(1_000))
    assert (len(found.rows), found.dropped, acked(found)) == (1, {}, ack(REPLY))


@pytest.mark.parametrize("fields", [{}, {"ack_inbox": b"inbox"}, {"ack_policy": 2}])
def test_one_in_an_envelope_is_acked_to_jetstream(fields: dict[str, object]) -> None:
    found = admit(delivered(value=enveloped(message({"value": b"v", **fields}))), RULES, log_end=7)
    assert (groups.values(found.rows), acked(found)) == ([b"v"], ack(REPLY))
    assert envelope_acks.waiting(found.rows, 0, 1, False) == b""


@pytest.mark.parametrize("mode", [Acks.NEVER, Acks.ENVELOPE])
@pytest.mark.parametrize("value", [b"v", enveloped(message({"value": b"v"}))])
def test_a_stream_that_acks_no_replies_leaves_the_ack_to_the_consumer(mode: Acks, value: bytes) -> None:
    rules = AdmissionRules.of(StreamConfig(name="orders", subject="orders.>", acks=mode))
    found = admit(delivered(value=value), rules, log_end=7)
    assert (len(found.rows), acked(found, rules), told(found), found.undelivered) == (1, b"", b"", {})


@pytest.mark.parametrize(
    ("group", "why"),
    [
        (delivered(value=b"x" * 1_001), "message size exceeds maximum allowed: 1001 bytes, the stream takes 1000"),
        (delivered("Nats-TTL: 5"), "per-message TTL is disabled"),
        (delivered("Nats-Schedule: 5"), "this version of Penstock does not support one of the message's "),
        (delivered(value=enveloped(message({"ack_policy": 9}))), "ack_policy must be "),
    ],
)
def test_one_that_is_refused_hears_nothing_and_the_operator_does(group: MessageGroup, why: str) -> None:
    found = admit(group, RULES, log_end=7)
    assert (len(found.rows), found.dropped, told(found)) == (0, {REFUSED: 1}, b"")
    (text,) = found.undelivered.values()
    assert text.startswith(why)


def test_one_that_was_not_read_for_its_size_hears_nothing_either() -> None:
    group = MessageGroup(b"")
    group.too_large.append(TooLarge(b"orders.a", REPLY, b"NATS/1.0\r\nPenstock-Ack: none\r\n\r\n", 10_000_000))
    found = admit(group, RULES, log_end=7)
    assert (found.dropped, told(found)) == ({REFUSED: 1}, b"")
    assert list(found.undelivered.values()) == [
        "message size exceeds maximum allowed: 10000000 bytes, the stream takes 1000"
    ]


@pytest.mark.parametrize("value", [b"v", enveloped(message({"value": b"v"}))])
def test_nobody_hears_of_what_the_broker_cannot_do_now(value: bytes) -> None:
    found = refuse_all(delivered(value=value), RULES, acks.unavailable("too much waits"), "over_budget")
    assert (told(found), list(found.undelivered.values())) == (b"", ["temporarily unavailable: too much waits"])
    admission = admit(delivered(value=value), RULES, log_end=7)
    late = waiters(admission.rows, 0, 1, is_early=False)
    assert late is not None
    assert late.refusal_commands(RULES, acks.store_failed("full")) == b""


def test_publishers_beside_it_are_told() -> None:
    rows = [(b"orders.a", reply, None, b"x" * 1_001) for reply in (b"r", REPLY, None)]
    found = admit(groups.group_of(rows), RULES, log_end=7)
    assert told(found).count(b"PUB ") == 1
    assert (found.dropped, len(found.undelivered)) == ({REFUSED: 3}, 1)
