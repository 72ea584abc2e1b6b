"""What metrics tell of stored consumers."""

from __future__ import annotations

import pytest

from penstock.jetstream.readers.stored.numbers import ConsumerNumbers
from tests.unit.jetstream.readers.gateways import ReaderBroker

S = 1_000_000_000  # ns


@pytest.fixture
def broker() -> ReaderBroker:
    broker = ReaderBroker().start()
    broker.create("s")
    return broker


def publish(broker: ReaderBroker, *subjects: str) -> None:
    for subject in subjects:
        broker.deliver([(subject.encode(), None, None, b"x")])
    broker.tick(1)


def numbers(broker: ReaderBroker, name: str = "d") -> ConsumerNumbers:
    (found,) = (one for one in broker.gateway.stored_numbers() if one.name == name)
    return found


def test_each_kind_of_ack_is_counted(broker: ReaderBroker) -> None:
    broker.durable("s", "d", ack_wait=S, max_ack_pending=4)
    publish(broker, *["s.a"] * 6)
    messages = broker.pulled("s", "d", 4)
    assert numbers(broker).is_full
    for message, payload in zip(messages, (b"+ACK", b"-NAK", b"+TERM", b"+WPI"), strict=True):
        broker.ack(message, payload)
    told = numbers(broker)
    assert told.acks == {"ack": 1, "nak": 1, "in_progress": 1, "term": 1}
    assert (told.ack_pending, told.is_full, told.pending, told.floor_offset) == (2, False, 2, 1)
    assert (told.delivered, told.redeliveries, told.redelivered) == (4, 0, 0)
    (again, *_) = broker.pulled("s", "d", 1)
    assert again.stream_seq == 2
    told = numbers(broker)
    assert (told.delivered, told.redeliveries, told.redelivered) == (5, 1, 1)


def test_each_refused_ack_is_counted_by_its_reason(broker: ReaderBroker) -> None:
    broker.durable("s", "d", ack_wait=S)
    publish(broker, "s.a", "s.a")
    first, second = broker.pulled("s", "d", 2)
    broker.ack(first)
    for _ in range(2):
        broker.ack(first)  # it is acked already
    head, _, pending = second.reply.rpartition(".")
    broker.ack(second._replace(reply=f"{head[:-3]}{(int(head[-3:]) + 1) % 1_000:03}.{pending}"))
    broker.tick(1_100)
    assert [one.stream_seq for one in broker.pulled("s", "d", 1)] == [2]
    for _ in range(3):
        broker.ack(second, b"-NAK")  # of the delivery before
    told = numbers(broker)
    assert told.refused == {"forged": 1, "stale": 2, "late": 3}
    assert told.acks == {"ack": 1, "nak": 0, "in_progress": 0, "term": 0}


def test_dead_letters_are_counted(broker: ReaderBroker) -> None:
    broker.create("dead", "penstock.dead.dead.>")
    broker.durable("s", "d", metadata={"penstock.dead_letters": "dead"})
    publish(broker, "s.a", "s.a")
    first, second = broker.pulled("s", "d", 2)
    broker.ack(first, b"+TERM")
    broker.tick(100)
    told = numbers(broker)
    assert (told.letters, told.letters_waiting, told.acks["term"]) == (1, 0, 1)
    broker.api("STREAM.DELETE.dead")
    broker.ack(second, b"+TERM")
    broker.tick(100)
    told = numbers(broker)
    assert (told.letters, told.letters_waiting, told.acks["term"]) == (1, 1, 2)


def test_the_lag_is_known_from_memory(broker: ReaderBroker) -> None:
    broker.durable("s", "d")
    broker.durable("s", "some", filter_subject="s.b")
    publish(broker, "s.a", "s.b", "s.a", "s.b")
    assert (numbers(broker).pending, numbers(broker, "some").pending) == (4, 2)
    broker.pulled("s", "some", 1)
    assert numbers(broker, "some").pending == 1
    broker.api("STREAM.PURGE.s", {"keep": 1})
    broker.tick(200)
    assert (numbers(broker).pending, numbers(broker, "some").pending) == (1, 1)
    assert numbers(broker).pulls_waiting == 0


def test_a_consumer_without_acks_that_ends_with_its_clients_is_none_of_them(broker: ReaderBroker) -> None:
    broker.consumer("s", "reader")
    broker.consumer("s", "short", ack_policy="explicit")
    broker.durable("s", "d")
    assert {one.name: one.is_durable for one in broker.gateway.stored_numbers()} == {"short": False, "d": True}
    broker.api("CONSUMER.DELETE.s.d")
    assert [one.name for one in broker.gateway.stored_numbers()] == ["short"]
