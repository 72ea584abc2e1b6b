"""Message ids that other partitions have: known beside those of the log, and bounded together with them."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base.config import StreamConfig
from penstock.client.publish_format import parse_ack
from penstock.hot.message_ids import MessageIds, RemoteMessageIds
from penstock.ingest.admission import AdmissionRules, admit
from tests import hot_modes
from tests.envelopes import enveloped, message
from tests.groups import group_of
from tests.unit.node.harness import parse_acks

BOTH = pytest.mark.parametrize(
    "mode", [pytest.param(hot_modes.running, marks=hot_modes.needs_compiled), hot_modes.plain]
)
RULES = AdmissionRules.of(StreamConfig(name="orders", subject="orders.>"))


def block(*lines: str) -> bytes:
    return ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()


def named(name: bytes) -> bytes:
    return block(f"Nats-Msg-Id: {name.decode()}")


def having(mode: Any, ids_max: int, *found: tuple[int, int, bytes]) -> Any:
    """What partition 3 has: offset, timestamp, id."""
    elsewhere = mode("message_ids").RemoteMessageIds(ids_max)
    elsewhere.gather(3, list(found))
    return elsewhere


@BOTH
def test_they_are_in_the_order_of_time_whichever_partition_has_them(mode: Any) -> None:
    elsewhere = having(mode, 9, (4, 50, b"d"), (2, 30, b"b"), (1, 10, b"a"))
    elsewhere.gather(0, [(9, 40, b"c"), (8, 30, b"a"), (7, 20, b"b")])
    assert [elsewhere.find(b"<" + name, 1, 2) for name in (b"a", b"b", b"c", b"d", b"e")] == [
        (0, 8), (3, 2), (0, 9), (3, 4), None,
    ]  # fmt: skip
    elsewhere.expire(30)
    assert (len(elsewhere), elsewhere.find(b"a", 0, 1), elsewhere.find(b"b", 0, 1)) == (4, (0, 8), (3, 2))
    elsewhere.expire(31)
    assert [elsewhere.find(name, 0, 1) for name in (b"a", b"b", b"c")] == [None, None, (0, 9)]
    elsewhere.expire(99)
    assert len(elsewhere) == 0


@BOTH
def test_long_ids_are_known_by_their_digest(mode: Any) -> None:
    long = b"x" * 65
    key = mode("message_ids").key_of(long, 0, len(long))
    assert having(mode, 9, (4, 50, key)).find(long, 0, len(long)) == (3, 4)


@BOTH
def test_with_too_many_the_oldest_go_and_are_counted(mode: Any) -> None:
    elsewhere = having(mode, 2, (3, 30, b"c"), (2, 20, b"b"), (1, 10, b"a"))
    assert [elsewhere.find(name, 0, 1) for name in (b"a", b"b", b"c")] == [None, (3, 2), (3, 3)]
    assert (len(elsewhere), elsewhere.forgotten) == (2, 1)
    ids = mode("message_ids").MessageIds(3)
    ids.note([(0, b"x"), (1, b"y")], 0, 40)
    ids.know(elsewhere)
    assert (len(ids), ids.forgotten) == (3, 2)
    assert [ids.elsewhere.find(name, 0, 1) for name in (b"b", b"c")] == [None, (3, 3)]
    ids.add(b"z", 0, 1, 2)
    ids.stamp(41, 3)
    assert (len(ids), ids.forgotten, [ids.find(name, 0, 1) for name in (b"x", b"y", b"z")]) == (3, 3, [0, 1, 2])
    ids.add(b"w", 0, 1, 3)
    assert (len(ids), ids.forgotten, ids.find(b"x", 0, 1)) == (3, 4, -1)


@BOTH
def test_they_go_with_the_window_and_what_is_full_takes_none(mode: Any) -> None:
    ids = mode("message_ids").MessageIds(2)
    ids.know(having(mode, 9, (4, 50, b"d"), (1, 10, b"a")))
    ids.expire(11)
    assert len(ids) == 1
    ids.expire(51)
    assert (len(ids), ids.elsewhere, ids.forgotten) == (0, None, 0)
    ids.note([(0, b"x"), (1, b"y")], 0, 60)
    ids.know(having(mode, 9, (4, 50, b"d")))
    assert (len(ids), ids.elsewhere, ids.forgotten) == (2, None, 1)


@BOTH
def test_what_is_elsewhere_is_neither_stored_nor_refused(mode: Any) -> None:
    ids = mode("message_ids").MessageIds(9)
    ids.know(having(mode, 9, (99, 50, b"x"), (7, 50, b"y")))
    ids.note([(0, b"y")], 5, 60)  # an own one counts first
    group = _group(mode, (b"0", b"x"), (b"1", b"y"), (b"2", b"z"), (None, b"x"), (b"3", b"z"))
    found = mode("classification").classify(group, b"orders", True, 100, False, 6, True, ids, True, None, 0)
    assert [(one.row, one.number, one.partition, one.is_answered) for one in found.elsewhere] == [
        (0, 100, 3, True), (3, 100, 3, False),
    ]  # fmt: skip
    assert [(one.row, one.number) for one in found.duplicates] == [(1, 5), (4, 6)]
    assert (found.rows.count, found.refused) == (1, [])
    assert ids.find(b"x", 0, 1) == -1


def _group(mode: Any, *messages: tuple[bytes | None, bytes]) -> Any:
    count = len(messages)
    return mode("message_group").MessageGroup.of(
        [b"orders.a"] * count,
        [b"v"] * count,
        headers=[named(name) for _, name in messages],
        replies=[reply for reply, _ in messages],
    )


def test_its_publisher_is_acked_with_the_place_of_the_first() -> None:
    ids = MessageIds(1_000)
    partitions = 70  # more than are quoted of what is refused
    elsewhere = RemoteMessageIds(1_000)
    for partition in range(partitions):
        elsewhere.gather(partition, [(10 * partition, 50, b"id-%d" % partition)])
    ids.know(elsewhere)
    messages = [(b"orders.a", b"r%d" % number, named(b"id-%d" % number), b"v") for number in range(partitions)]
    admission = admit(group_of(messages), RULES, log_end=0, ids=ids)
    assert (admission.elsewhere, len(admission.rows), admission.dropped) == (partitions, 0, {})
    assert [(ack.reply, ack.body) for ack in parse_acks(b"".join(admission.errors))] == [
        (f"r{number}", {"stream": "orders", "seq": 10 * number + 1, "duplicate": True, "partition": number})
        for number in range(partitions)
    ]


def test_who_sent_an_envelope_is_acked_as_the_first_was() -> None:
    ids, elsewhere = MessageIds(9), RemoteMessageIds(9)
    elsewhere.gather(3, [(7, 50, b"x")])
    ids.know(elsewhere)
    value = enveloped(message({"value": b"v", "correlation_id": b"c-1"}, [(b"Nats-Msg-Id", b"x")]))
    admission = admit(group_of([(b"orders.a", b"r", None, value)]), RULES, log_end=0, ids=ids)
    assert (admission.elsewhere, len(admission.rows)) == (1, 0)
    (answers,) = admission.errors
    head, _, rest = answers.partition(b"\r\n")
    ack = parse_ack(rest[: int(head.split()[2])])
    assert (ack.stream, ack.offset, ack.partition, ack.correlation_id) == ("orders", 7, 3, "c-1")
