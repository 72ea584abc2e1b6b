"""What a JetStream consumer delivers onto a stream's subject: acked as JetStream wants it, or not answered at all."""

from __future__ import annotations

import pytest

from penstock.base.config import Acks, StreamConfig
from penstock.hot import envelope_acks
from penstock.hot.acks import pubacks_again, waiting_again
from penstock.hot.group import Group, TooLarge
from penstock.hot.message_ids import MessageIds
from penstock.ingest import acks
from penstock.ingest.admission import REFUSED, Admission, Rules, admit, refuse_all
from penstock.ingest.waiters import Got, waiters
from tests import groups, hot_modes
from tests.envelopes import enveloped, message

REPLIES = [
    b"$JS.ACK.ORDERS.bridge.1.42.7.1700000000123456789.5",
    b"$JS.ACK.hub.ACCHASH.ORDERS.bridge.1.42.7.1700000000123456789.5.rnd",
]
REPLY = REPLIES[0]
RULES = Rules.of(StreamConfig(name="orders", subject="orders.>", max_message_bytes=1_000))
GOT = Got(partition=0, leader_epoch=1, replicas=1, fsynced=True)
TAIL = acks.ack_tails(0, 1, 1)[True]


def ack(reply: bytes) -> bytes:
    return b"PUB %s 4\r\n+ACK\r\n" % reply


def delivered(*lines: str, value: bytes = b"v", reply: bytes | None = REPLY) -> Group:
    block = ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode() if lines else None
    return groups.group_of([(b"orders.a", reply, block, value)])


def told(admission: Admission) -> bytes:
    """Whatever is answered at once."""
    return b"".join([*admission.errors, admission.denials])


def acked(admission: Admission, rules: Rules = RULES) -> bytes:
    """The acks of all that was stored; nothing is acked before it is as durable as promised."""
    rows = admission.rows
    assert waiters(rows, 0, len(rows), is_early=True) is None
    late = waiters(rows, 0, len(rows), is_early=False)
    return b"" if late is None else late.ack_commands(rules, 7, 0, GOT)


@pytest.mark.parametrize("reply", REPLIES)
def test_what_is_stored_is_acked_to_jetstream_and_others_hear_json(reply: bytes) -> None:
    for module in (hot_modes.plain("acks"), hot_modes.running("acks")):
        found = module.pubacks(b"orders", b"a %b  b " % reply, 0, TAIL)
        first, second = (acks.pubacks(b"orders", one, offset, TAIL) for one, offset in ((b"a ", 0), (b"b ", 3)))
        assert found == first + ack(reply) + second


@pytest.mark.parametrize("reply", [b"$JS.ACK", b"$JS.ACKED.x", b"_INBOX.$JS.ACK.x", b"$JS.API.x"])
def test_other_reply_subjects_are_none_of_these(reply: bytes) -> None:
    assert acks.pubacks(b"orders", reply + b" ", 0, TAIL).endswith(b'"fsynced":true}\r\n')


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
    rules = Rules.of(StreamConfig(name="orders", subject="orders.>", acks=mode))
    found = admit(delivered(value=value), rules, log_end=7)
    assert (len(found.rows), acked(found, rules), told(found), found.undelivered) == (1, b"", b"", {})


@pytest.mark.parametrize(
    ("group", "why"),
    [
        (delivered(value=b"x" * 1_001), "message size exceeds maximum allowed: 1001 bytes, the stream takes 1000"),
        (delivered("Nats-TTL: 5"), "per-message TTL is disabled"),
        (delivered("Nats-Incr: 5"), "this version of Penstock does not support one of the message's "),
        (delivered(value=enveloped(message({"ack_policy": 9}))), "ack_policy must be "),
    ],
)
def test_one_that_is_refused_hears_nothing_and_the_operator_does(group: Group, why: str) -> None:
    found = admit(group, RULES, log_end=7)
    assert (len(found.rows), found.dropped, told(found)) == (0, {REFUSED: 1}, b"")
    (text,) = found.undelivered.values()
    assert text.startswith(why)


def test_one_that_was_not_read_for_its_size_hears_nothing_either() -> None:
    group = Group(b"")
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
