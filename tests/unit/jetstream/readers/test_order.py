"""Order by key: messages of one key are in one hand at a time, and other keys go on."""

from __future__ import annotations

import json

import pytest

from tests.unit.jetstream.readers.gateways import Delivered, ReaderBroker

ORDER_BY = "penstock.order_by"


@pytest.fixture
def broker() -> ReaderBroker:
    broker = ReaderBroker().start()
    broker.create("s")
    return broker


def publish(broker: ReaderBroker, *messages: tuple[str, str, bytes]) -> None:
    """Publish messages, each with its subject and key."""
    for subject, key, value in messages:
        headers = f"NATS/1.0\r\nPenstock-Key: {key}\r\n\r\n".encode() if key else None
        broker.deliver([(subject.encode(), None, headers, value)])
    broker.tick(1)


def values(messages: list[Delivered]) -> list[bytes]:
    return [one.value for one in messages if one.stream_seq]


KEYS = (("s.a", "k", b"k1"), ("s.a", "k", b"k2"), ("s.b", "l", b"l1"), ("s.b", "k", b"k3"), ("s.c", "", b"-"))


@pytest.mark.parametrize("filtered", [{}, {"filter_subjects": ["s.a", "s.b", "s.c", "s.d"]}], ids=["all", "filtered"])
@pytest.mark.parametrize("is_first", [True, False], ids=["before them", "behind them"])
def test_a_key_is_in_one_hand(broker: ReaderBroker, filtered: dict[str, list[str]], *, is_first: bool) -> None:
    if not is_first:
        broker.durable("s", "plain")  # what it reads has no keys
        publish(broker, *KEYS)
        assert len(values(broker.pulled("s", "plain", 5))) == 5
    made = broker.durable("s", "d", metadata={ORDER_BY: "key"}, **filtered)
    assert "error" not in made, made
    if is_first:
        publish(broker, *KEYS)
    first, *others = broker.pulled("s", "d", 5)
    assert (first.value, values(others)) == (b"k1", [b"l1", b"-"])
    assert values(broker.pulled("s", "d", 5)) == []
    inbox = broker.send("CONSUMER.MSG.NEXT.s.d", json.dumps({"batch": 5, "expires": 30_000_000_000}))
    broker.ack(first)
    (second,) = broker.delivered(inbox)
    assert (second.value, second.deliveries) == (b"k2", 1)
    broker.ack(second, b"-NAK")
    (again,) = broker.delivered(inbox)
    assert (again.value, again.deliveries) == (b"k2", 2)
    broker.ack(again, b"+TERM")
    assert values(broker.delivered(inbox)) == [b"k3"]


def test_a_subject_or_a_token_of_it_is_in_one_hand(broker: ReaderBroker) -> None:
    broker.durable("s", "subject", metadata={ORDER_BY: "subject"})
    broker.durable("s", "token", metadata={ORDER_BY: "token:2"})
    publish(broker, ("s.a.1", "", b"1"), ("s.a.2", "", b"2"), ("s.b.1", "", b"3"), ("s.a.1", "", b"4"))
    assert values(broker.pulled("s", "subject", 5)) == [b"1", b"2", b"3"]
    assert values(broker.pulled("s", "token", 5)) == [b"1", b"3"]


def test_a_late_ack_of_the_first_hand_is_refused(broker: ReaderBroker) -> None:
    broker.durable("s", "d", metadata={ORDER_BY: "key"}, ack_wait=2_000_000_000)
    publish(broker, *KEYS[:2])
    (first,) = broker.pulled("s", "d", 1)
    broker.tick(2_100)
    (second,) = [one for one in broker.pulled("s", "d", 1) if one.stream_seq]
    assert (second.value, second.deliveries) == (b"k1", 2)
    broker.ack(first, b"+ACK", reply="_INBOX.late")
    broker.tick(50)
    assert b"503" in broker.blocks["_INBOX.late"]
    assert values(broker.pulled("s", "d", 1)) == []
    broker.ack(second)
    assert values(broker.pulled("s", "d", 1)) == [b"k2"]


@pytest.mark.parametrize("order_by", ["", "keys", "token", "token:0", "token:33", "token:x", "token:01"])
def test_an_order_that_is_none_is_refused(broker: ReaderBroker, order_by: str) -> None:
    made = broker.durable("s", "d", metadata={ORDER_BY: order_by})
    assert made["error"]["err_code"] == 10052, made
    assert ORDER_BY in made["error"]["description"]


@pytest.mark.parametrize("policy", ["all", "none"])
def test_an_order_needs_an_ack_of_each_message(broker: ReaderBroker, policy: str) -> None:
    made = broker.durable("s", "d", ack_policy=policy, metadata={ORDER_BY: "key"})
    assert made["error"]["err_code"] == 10052, made


def test_the_order_cannot_be_changed(broker: ReaderBroker) -> None:
    broker.durable("s", "d", metadata={ORDER_BY: "key"})
    made = broker.durable("s", "d", metadata={ORDER_BY: "subject"})
    assert made["error"]["err_code"] == 10012, made
    told = broker.durable("s", "d", metadata={ORDER_BY: "key", "other": "x"})
    assert told["config"]["metadata"]["other"] == "x"


def test_what_is_parked_is_told_as_pending_when_messages_are_counted_anew(broker: ReaderBroker) -> None:
    broker.durable("s", "d", metadata={ORDER_BY: "key"})
    publish(broker, *KEYS)
    assert values(broker.pulled("s", "d", 2)) == [b"k1", b"l1"]
    assert broker.api("CONSUMER.INFO.s.d")["num_pending"] == 3
    assert broker.api("STREAM.MSG.DELETE.s", {"seq": 5})["success"]
    assert broker.api("CONSUMER.INFO.s.d")["num_pending"] == 2


def test_the_ack_floor_is_not_told_above_what_was_delivered(broker: ReaderBroker) -> None:
    broker.durable("s", "d", metadata={ORDER_BY: "key"})
    publish(broker, *KEYS[:2])
    for number in (1, 2):
        (one,) = broker.pulled("s", "d", 5)[:1]
        told = broker.api("CONSUMER.INFO.s.d")
        assert (told["delivered"]["stream_seq"], told["ack_floor"]["stream_seq"]) == (number, number - 1)
        broker.ack(one)
    publish(broker, *KEYS[2:4])
    told = broker.api("CONSUMER.INFO.s.d")
    assert (told["delivered"]["stream_seq"], told["ack_floor"]["stream_seq"]) == (2, 2)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("penstock.orderby", "did you mean penstock.order_by?"),
        ("penstock.dead_letter", "did you mean penstock.dead_letters?"),
        ("penstock.", "a consumer has no such key"),
    ],
)
def test_a_key_that_only_looks_like_one_of_penstock_is_refused(broker: ReaderBroker, key: str, told: str) -> None:
    error = broker.durable("s", "d", metadata={key: "key"})["error"]
    assert (error["code"], error["err_code"]) == (500, 10052)
    assert error["description"].startswith(f"{key}: ")
    assert told in error["description"]
    assert "error" not in broker.durable("s", "d", metadata={"penstocks": "key", "my.penstock.orderby": "key"})
