"""New messages for stored consumers that wait at the tail: one call for all that need nothing else."""

from __future__ import annotations

import json

import pytest

from penstock.jetstream.readers.running import tails
from tests.unit.jetstream.readers.gateways import Delivered, ReaderBroker

S = 1_000_000_000  # ns


@pytest.fixture
def broker() -> ReaderBroker:
    broker = ReaderBroker().start()
    broker.create("s")
    return broker


def publish(broker: ReaderBroker, *values: bytes) -> None:
    for value in values:
        broker.publish("s.a", value)
    broker.tick(1)


def values(messages: list[Delivered]) -> list[bytes]:
    return [one.value for one in messages if one.stream_seq]


def in_hand(broker: ReaderBroker, name: str) -> tuple[int, int, int]:
    """Return the deliveries of a consumer, its messages without an ack, and those that are pending."""
    told = broker.api(f"CONSUMER.INFO.s.{name}")
    return told["delivered"]["consumer_seq"], told["num_ack_pending"], told["num_pending"]


def test_a_new_message_reaches_all_who_wait_once_and_comes_again(broker: ReaderBroker) -> None:
    names = ["a", "b", "c"]
    for name in names:
        broker.durable("s", name, ack_wait=2 * S)
    broker.durable("s", "full", max_ack_pending=1)
    broker.durable("s", "counted", max_deliver=1)
    request = json.dumps({"batch": 3, "expires": 60 * S})
    inboxes = {name: broker.send(f"CONSUMER.MSG.NEXT.s.{name}", request) for name in [*names, "full", "counted"]}
    publish(broker, b"1", b"2")
    delivered = broker.delivered()
    found = {name: values([one for one in delivered if one.inbox == inbox]) for name, inbox in inboxes.items()}
    assert found == {name: [b"1", b"2"] for name in [*names, "counted"]} | {"full": [b"1"]}
    assert [in_hand(broker, name) for name in names] == [(2, 2, 0)] * 3
    assert in_hand(broker, "full") == (1, 1, 1)
    for one in delivered:
        if one.inbox in (inboxes["a"], inboxes["full"]):
            broker.ack(one)
    assert values(broker.delivered(inboxes["full"])) == [b"2"]
    broker.tick(2_100)
    again = [one for one in broker.delivered() if one.stream_seq]
    assert {(one.inbox, one.value, one.deliveries) for one in again} == {
        (inboxes["b"], b"1", 2),
        (inboxes["c"], b"1", 2),
    }


def test_more_consumers_than_are_served_at_once_get_a_message(
    broker: ReaderBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tails, "STORED_AT_ONCE", 2)
    inboxes = []
    for number in range(5):
        broker.durable("s", f"c{number}")
        request = json.dumps({"batch": 2, "expires": 60 * S})
        inboxes.append(broker.send(f"CONSUMER.MSG.NEXT.s.c{number}", request))
    publish(broker, b"1", b"2")
    delivered = broker.delivered()
    assert sorted(one.inbox for one in delivered if one.value == b"1") == sorted(inboxes)
    assert sorted(one.inbox for one in delivered if one.value == b"2") == sorted(inboxes)
    assert [in_hand(broker, f"c{number}")[1] for number in range(5)] == [2] * 5
