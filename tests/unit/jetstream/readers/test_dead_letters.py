"""Dead letters of consumers: first the letter, then the consumer's state; what cannot be stored waits, and is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.base.ids import PartitionId
from penstock.messages import AppendRequest, AppendResponse
from tests.unit.jetstream.readers.gateways import Delivered, ReaderBroker
from tests.unit.node.harness import batch_of

S = 1_000_000_000  # ns
DEAD = "penstock.dead_letters"
ORDER_BY = "penstock.order_by"


@pytest.fixture
def broker() -> ReaderBroker:
    broker = ReaderBroker().start()
    broker.create("s")
    make(broker)
    return broker


def make(broker: ReaderBroker, name: str = "dead", **config: Any) -> None:
    config = {"name": name, "subjects": [f"penstock.dead.{name}.>"], **config}
    answer = broker.api(f"STREAM.CREATE.{name}", config)
    assert "error" not in answer, answer


def publish(broker: ReaderBroker, *values: bytes, headers: str = "") -> None:
    block = f"NATS/1.0\r\n{headers}\r\n".encode() if headers else None
    for value in values:
        broker.deliver([(b"s.a", None, block, value)])
    broker.tick(1)


def values(messages: list[Delivered]) -> list[bytes]:
    return [one.value for one in messages if one.stream_seq]


def durable(broker: ReaderBroker, name: str = "d", target: str = "dead", **config: Any) -> dict[str, Any]:
    metadata = {DEAD: target, **config.pop("metadata", {})}
    return broker.durable("s", name, metadata=metadata, **{"max_deliver": 1, "ack_wait": S, **config})


def count(broker: ReaderBroker, stream: str = "dead") -> int:
    return int(broker.api(f"STREAM.INFO.{stream}")["state"]["messages"])


def letters(broker: ReaderBroker, stream: str = "dead") -> list[Delivered]:
    """All letters, read by a consumer of their own."""
    broker.consumer(stream, "look")
    found = [one for one in broker.pulled(stream, "look", 100) if one.stream_seq]
    broker.api(f"CONSUMER.DELETE.{stream}.look")
    return found


def fields(letter: Delivered) -> dict[str, str]:
    lines = letter.headers.decode().split("\r\n")[1:-2]
    return dict(line.split(": ", 1) for line in lines)


def told(broker: ReaderBroker, name: str = "d", stream: str = "s") -> dict[str, Any]:
    found: dict[str, Any] = broker.api(f"CONSUMER.INFO.{stream}.{name}")
    return found


def test_a_message_that_reached_max_deliver_is_a_dead_letter(broker: ReaderBroker) -> None:
    made = durable(broker, max_deliver=2)
    assert "error" not in made, made
    publish(broker, b"1", headers="Penstock-Key: k\r\nNats-Msg-Id: 7\r\nA: b\r\n")
    publish(broker, b"2")
    _, second = broker.pulled("s", "d", 2)
    broker.ack(second)
    broker.tick(1_100)
    assert values(broker.pulled("s", "d", 2)) == [b"1"]
    assert count(broker) == 0
    broker.tick(1_100)
    broker.tick(100)
    (letter,) = letters(broker)
    assert (letter.subject, letter.value) == ("penstock.dead.dead.s.a", b"1")
    found = fields(letter)
    assert found.pop("Penstock-Dead-Time").endswith("Z")
    assert found.pop("Penstock-Dead-Letter").endswith("-1")
    assert found == {
        "Penstock-Dead-Reason": "max_deliver",
        "Penstock-Dead-Deliveries": "2",
        "Penstock-Dead-Consumer": "d",
        "Penstock-Dead-Stream": "s",
        "Penstock-Dead-Partition": "0",
        "Penstock-Dead-Offset": "0",
        "Penstock-Dead-Sequence": "1",
        "Penstock-Dead-Subject": "s.a",
        "Penstock-Dead-Path": "s",
        "Penstock-Dead-Header-Penstock-Key": "k",
        "Penstock-Dead-Header-Nats-Msg-Id": "7",
        "A": "b",
    }
    assert told(broker)["ack_floor"]["stream_seq"] == told(broker)["delivered"]["stream_seq"]
    assert told(broker)["dead_letters"] == {"stream": "dead", "waiting": 0}
    assert told(broker)["ack_floor"]["stream_seq"] == 2
    assert values(broker.pulled("s", "d", 2)) == []


def test_a_terminated_message_is_a_dead_letter_and_its_ack_is_answered_then(broker: ReaderBroker) -> None:
    durable(broker, max_deliver=5)
    publish(broker, b"1")
    (first, *_) = broker.pulled("s", "d")
    broker.ack(first, b"+TERM no such\torder", reply="_INBOX.term")
    broker.tick(100)
    (letter,) = letters(broker)
    assert fields(letter)["Penstock-Dead-Reason"] == "terminated: no such order"
    assert fields(letter)["Penstock-Dead-Deliveries"] == "1"
    assert broker.answers["_INBOX.term"] == b""
    assert told(broker)["ack_floor"]["stream_seq"] == told(broker)["delivered"]["stream_seq"]


def test_later_messages_of_the_key_go_on_behind_a_dead_letter(broker: ReaderBroker) -> None:
    durable(broker, metadata={ORDER_BY: "subject"})
    publish(broker, b"1", b"2")
    assert values(broker.pulled("s", "d", 5)) == [b"1"]
    inbox = broker.send("CONSUMER.MSG.NEXT.s.d", json.dumps({"batch": 5, "expires": 30 * S}))
    broker.tick(1_100)
    broker.tick(100)
    assert values(broker.delivered(inbox)) == [b"2"]
    assert [one.value for one in letters(broker)] == [b"1"]


def test_a_message_waits_while_the_stream_is_gone_and_is_stored_when_it_is_back(broker: ReaderBroker) -> None:
    durable(broker)
    broker.api("STREAM.DELETE.dead")
    publish(broker, b"1", b"2")
    broker.pulled("s", "d", 2)
    broker.tick(1_100)
    broker.tick(100)
    state = told(broker)
    assert (state["num_ack_pending"], state["ack_floor"]["stream_seq"], state["dead_letters"]["waiting"]) == (2, 0, 2)
    assert "no stream 'dead'" in state["dead_letters"]["error"]
    said = [one for one in broker.notices if "dead letters wait" in one]
    assert len(said) == 1, said
    broker.tick(10_000)
    assert [one for one in broker.notices if "dead letters wait" in one] == said
    make(broker)
    for _ in range(70):
        broker.tick(1_000)
    assert [one.value for one in letters(broker)] == [b"1", b"2"]
    assert told(broker)["dead_letters"] == {"stream": "dead", "waiting": 0}
    assert told(broker)["ack_floor"]["stream_seq"] == told(broker)["delivered"]["stream_seq"]


WRONG: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("full", {"max_msgs": 1, "discard": "new"}, "refuses what is beyond"),
    ("sealed", {}, "sealed"),
    ("small", {"max_msg_size": 400}, "limit"),
)


@pytest.mark.parametrize(("case", "config", "says"), WRONG, ids=[one[0] for one in WRONG])
def test_a_stream_that_takes_none_is_told(broker: ReaderBroker, case: str, config: dict[str, Any], says: str) -> None:
    make(broker, "other", **config)
    durable(broker, target="other")
    if case == "sealed":
        sealed = broker.api("STREAM.INFO.other")["config"] | {"sealed": True}
        assert "error" not in broker.api("STREAM.UPDATE.other", sealed)
    publish(broker, b"1" * 500, b"2" * 500)
    broker.pulled("s", "d", 2)
    broker.tick(1_100)
    for _ in range(5):
        broker.tick(1_000)
    state = told(broker)
    assert state["dead_letters"]["waiting"] == (1 if case == "full" else 2), state
    assert says in state["dead_letters"]["error"]


def test_one_letter_that_is_too_large_keeps_no_other_one_waiting(broker: ReaderBroker) -> None:
    make(broker, "other", max_msg_size=1_000)
    durable(broker, target="other")
    publish(broker, b"1" * 900, b"2", b"3")
    broker.pulled("s", "d", 3)
    broker.tick(1_100)
    for _ in range(10):
        broker.tick(1_000)
    assert [one.value for one in letters(broker, "other")] == [b"2", b"3"]
    assert told(broker)["dead_letters"]["waiting"] == 1


def test_a_message_that_is_acked_or_deleted_meanwhile_is_no_dead_letter(broker: ReaderBroker) -> None:
    durable(broker)
    broker.api("STREAM.DELETE.dead")
    publish(broker, b"1", b"2", b"3")
    first, *_ = broker.pulled("s", "d", 3)
    broker.tick(1_100)
    broker.ack(first)
    broker.api("STREAM.MSG.DELETE.s", {"seq": 2})
    make(broker)
    for _ in range(70):
        broker.tick(1_000)
    assert [one.value for one in letters(broker)] == [b"3"]
    assert told(broker)["ack_floor"]["stream_seq"] == told(broker)["delivered"]["stream_seq"]


def test_a_message_that_is_acked_while_it_is_read_is_no_dead_letter(broker: ReaderBroker) -> None:
    durable(broker)
    publish(broker, b"1", b"2")
    first, _ = broker.pulled("s", "d", 2)
    broker.disk_runs_at_once = False
    broker.tick(1_100)
    while not (broker.disk and broker.disk[0].run.__qualname__.startswith("DeadLetters.")):
        broker.run_disk()
        broker.tick(1)
    broker.ack(first, reply="late")
    broker.disk_runs_at_once = True
    broker.tick(1)
    assert "late" in broker.answers
    for _ in range(3):
        broker.tick(1_000)
    assert [one.value for one in letters(broker)] == [b"2"]
    assert told(broker)["ack_floor"]["stream_seq"] == 2


def test_a_letter_that_goes_in_a_circle_waits(broker: ReaderBroker) -> None:
    durable(broker)
    answer = broker.api("STREAM.UPDATE.s", {"name": "s", "subjects": ["s", "s.>", "penstock.dead.s.>"]})
    assert "error" not in answer, answer
    made = broker.durable("dead", "back", max_deliver=1, ack_wait=S, metadata={DEAD: "s"})
    assert "error" not in made, made
    publish(broker, b"1")
    broker.pulled("s", "d")
    broker.tick(1_100)
    broker.tick(100)
    assert values(broker.pulled("dead", "back")) == [b"1"]
    broker.tick(1_100)
    broker.tick(100)
    state = told(broker, "back", "dead")
    assert "circle" in state["dead_letters"]["error"]
    assert (state["dead_letters"]["waiting"], state["ack_floor"]["stream_seq"]) == (1, 0)


def test_the_way_of_a_message_that_is_no_dead_letter_does_not_count(broker: ReaderBroker) -> None:
    durable(broker)
    request = AppendRequest(stream_id=broker.stream_id("s"), partition=PartitionId(0))
    for value, path in ((b"1", "dead"), (b"2", "x" * 65_000)):
        block = f"NATS/1.0\r\nPenstock-Dead-Path: {path}\r\n\r\n".encode()
        broker.ask(request, AppendResponse, batch_of([("s.a", None, value, block)]))
    broker.pulled("s", "d", 2)
    for ms in (1_100, 100, 100):
        broker.tick(ms)
    assert [(one.value, fields(one)["Penstock-Dead-Path"]) for one in letters(broker)] == [(b"1", "s"), (b"2", "s")]


def test_letters_that_alone_are_refused_keep_no_other_one_waiting(broker: ReaderBroker) -> None:
    broker.api("STREAM.DELETE.dead")
    make(broker, max_msg_size=2_000)
    durable(broker)
    publish(broker, *[bytes(3_000)] * 20, b"1", *[bytes(3_000)] * 20, b"2")
    broker.pulled("s", "d", 100)
    broker.tick(1_100)
    for _ in range(50):
        broker.tick(10)
    assert [one.value for one in letters(broker)] == [b"1", b"2"]
    assert told(broker)["dead_letters"]["waiting"] == 40
    assert "limit of 2000" in told(broker)["dead_letters"]["error"]
    assert sum("limit of 2000" in one for one in broker.notices) == 1
    answer = broker.api("STREAM.UPDATE.dead", {"name": "dead", "subjects": ["penstock.dead.dead.>"]})
    assert "error" not in answer, answer
    for _ in range(120):
        broker.tick(1_000)
    assert "dead_letters" not in told(broker) or told(broker)["dead_letters"]["waiting"] == 0
    assert count(broker) == 42


REFUSED = (("s", "own stream"), ("nowhere", "no stream"), ("plain", "does not take"))


@pytest.mark.parametrize(("target", "says"), REFUSED)
def test_a_stream_that_can_have_no_dead_letters_is_refused(broker: ReaderBroker, target: str, says: str) -> None:
    broker.create("plain")
    made = durable(broker, target=target)
    assert made["error"]["err_code"] == 10052, made
    assert says in made["error"]["description"]
    assert broker.api("CONSUMER.NAMES.s")["consumers"] == []


@pytest.mark.parametrize("policy", ["all", "none"])
def test_only_acks_of_each_message_have_dead_letters(broker: ReaderBroker, policy: str) -> None:
    made = broker.durable("s", "d", ack_policy=policy, metadata={DEAD: "dead"})
    assert made["error"]["err_code"] == 10052, made


def test_without_dead_letters_a_message_is_given_up(broker: ReaderBroker) -> None:
    durable(broker)
    broker.api("STREAM.DELETE.dead")
    publish(broker, b"1")
    broker.pulled("s", "d")
    broker.tick(1_100)
    assert told(broker)["ack_floor"]["stream_seq"] == 0
    made = broker.durable("s", "d", max_deliver=1, ack_wait=S)
    assert "error" not in made, made
    for _ in range(3):
        broker.tick(1_000)
    assert told(broker)["ack_floor"]["stream_seq"] == 1
    assert "dead_letters" not in told(broker)


def test_a_work_queue_loses_a_message_once_its_letter_is_stored(broker: ReaderBroker) -> None:
    answer = broker.api("STREAM.CREATE.q", {"name": "q", "subjects": ["q"], "retention": "workqueue"})
    assert "error" not in answer, answer
    made = broker.durable("q", "d", max_deliver=1, ack_wait=S, metadata={DEAD: "dead"})
    assert "error" not in made, made
    broker.api("STREAM.DELETE.dead")
    for value in (b"1", b"2"):
        broker.deliver([(b"q", None, None, value)])
    broker.tick(1)
    (first, _) = broker.pulled("q", "d", 2)
    broker.ack(first, b"+TERM bad", reply="_INBOX.term")
    broker.tick(1_100)
    for _ in range(5):
        broker.tick(1_000)
    assert count(broker, "q") == 2
    assert "_INBOX.term" not in broker.answers
    make(broker)
    for _ in range(70):
        broker.tick(1_000)
    assert [one.value for one in letters(broker)] == [b"1", b"2"]
    assert count(broker, "q") == 0
    assert broker.answers["_INBOX.term"] == b""
