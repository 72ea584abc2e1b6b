"""Acks remove messages: consumers of streams with retention `workqueue` and `interest`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.messages import AlterStreamRequest
from tests.unit.jetstream.readers.gateways import Delivered, ReaderBroker
from tests.unit.jetstream.test_carried_consumers import exported, restore

S = 1_000_000_000  # ns


def broker_with(retention: str) -> ReaderBroker:
    broker = ReaderBroker().start()
    config = {"name": "s", "subjects": ["s.*"], "retention": retention, "allow_direct": True}
    made = broker.api("STREAM.CREATE.s", config)
    assert "error" not in made, made
    return broker


@pytest.fixture
def queue() -> ReaderBroker:
    return broker_with("workqueue")


@pytest.fixture
def events() -> ReaderBroker:
    return broker_with("interest")


def publish(broker: ReaderBroker, *values: bytes, subject: str = "s.a") -> None:
    for value in values:
        broker.publish(subject, value)
    broker.tick(1)


def settle(broker: ReaderBroker) -> None:
    for _ in range(6):
        broker.tick(100)


def held(broker: ReaderBroker) -> tuple[int, int, int]:
    """Messages, first and last sequence, as the stream's info tells them."""
    state: dict[str, Any] = broker.api("STREAM.INFO.s")["state"]
    return state["messages"], state["first_seq"], state["last_seq"]


def confirmed(broker: ReaderBroker, message: Delivered, payload: bytes = b"") -> bool:
    """Ack with a reply; True if it is answered by now."""
    inbox = f"_INBOX.ack{message.stream_seq}.{message.consumer_seq}"
    broker.ack(message, payload, reply=inbox)
    return inbox in broker.answers


def test_a_confirmed_ack_removes_its_message_before_it_is_answered(queue: ReaderBroker) -> None:
    queue.durable("s", "d")
    publish(queue, b"1", b"2", b"3")
    first, second = queue.pulled("s", "d", 2)
    assert held(queue) == (3, 1, 3)
    assert confirmed(queue, second)
    assert held(queue) == (2, 1, 3)
    assert confirmed(queue, first)
    assert held(queue) == (1, 3, 3)
    assert queue.api("STREAM.MSG.GET.s", {"seq": 2})["error"]["err_code"] == 10037


@pytest.mark.parametrize("payload", [b"", b"+ACK", b"+TERM", b"+TERM broken"])
def test_a_plain_ack_removes_its_message_soon(queue: ReaderBroker, payload: bytes) -> None:
    queue.durable("s", "d")
    publish(queue, b"1", b"2")
    (first, *_) = queue.pulled("s", "d", 1)
    queue.ack(first, payload)
    settle(queue)
    assert held(queue) == (1, 2, 2)


@pytest.mark.parametrize("payload", [b"-NAK", b"+WPI"])
def test_what_is_not_acked_stays(queue: ReaderBroker, payload: bytes) -> None:
    queue.durable("s", "d")
    publish(queue, b"1")
    (first, *_) = queue.pulled("s", "d", 1)
    queue.ack(first, payload)
    settle(queue)
    assert held(queue) == (1, 1, 1)


def test_what_reached_max_deliver_stays_until_a_late_ack(queue: ReaderBroker) -> None:
    queue.durable("s", "d", ack_wait=S, max_deliver=1, max_ack_pending=1)
    publish(queue, b"1", b"2")
    (first, *_) = queue.pulled("s", "d", 1)
    queue.tick(1_100)
    settle(queue)
    assert held(queue) == (2, 1, 2)
    assert queue.api("CONSUMER.INFO.s.d")["num_ack_pending"] == 0
    (second, *_) = queue.pulled("s", "d", 1)
    assert second.value == b"2", "it takes no room of those that are in hand"
    assert confirmed(queue, first)
    assert held(queue) == (1, 2, 2)


def test_a_deleted_consumer_leaves_its_messages_for_the_next_one(queue: ReaderBroker) -> None:
    queue.durable("s", "d")
    publish(queue, b"1", b"2")
    (first, _) = queue.pulled("s", "d", 2)
    assert confirmed(queue, first)
    queue.api("CONSUMER.DELETE.s.d")
    settle(queue)
    assert held(queue) == (1, 2, 2)
    queue.durable("s", "e")
    assert [one.value for one in queue.pulled("s", "e", 5) if one.stream_seq] == [b"2"]


def test_a_filter_that_changes_removes_nothing_that_was_not_acked(queue: ReaderBroker) -> None:
    queue.durable("s", "d", filter_subject="s.a")
    publish(queue, b"1", subject="s.b")
    publish(queue, b"2")
    (second, *_) = queue.pulled("s", "d", 1)
    assert confirmed(queue, second)
    queue.durable("s", "d", filter_subject="s.b")
    for _ in range(4):
        queue.tick(11_000)
    assert held(queue)[0] == 1


@pytest.mark.parametrize(
    ("config", "err_code"),
    [
        ({"ack_policy": "none"}, 10084),
        ({"ack_policy": "all"}, 10098),
        ({"ack_policy": "none", "deliver_subject": "to.me"}, 10098),
        ({"ack_policy": "explicit", "deliver_policy": "new"}, 10101),
    ],
)
def test_a_work_queue_refuses_consumers(queue: ReaderBroker, config: dict[str, Any], err_code: int) -> None:
    assert queue.consumer("s", "d", **config)["error"]["err_code"] == err_code


def test_consumers_of_a_work_queue_do_not_overlap(queue: ReaderBroker) -> None:
    queue.durable("s", "d", filter_subject="s.a")
    assert queue.durable("s", "e")["error"]["err_code"] == 10099
    assert queue.durable("s", "e", filter_subject="s.*")["error"]["err_code"] == 10100
    assert "error" not in queue.durable("s", "e", filter_subject="s.b")
    assert queue.durable("s", "e", filter_subject="s.a")["error"]["err_code"] == 10100
    queue.api("CONSUMER.DELETE.s.d")
    queue.api("CONSUMER.DELETE.s.e")
    assert "error" not in queue.durable("s", "f")


def test_without_a_consumer_nothing_of_an_interest_stream_is_shown(events: ReaderBroker) -> None:
    publish(events, b"1", b"2")
    settle(events)
    assert held(events)[0] == 0
    events.durable("s", "d", filter_subject="s.a")
    publish(events, b"3")
    publish(events, b"4", subject="s.b")
    settle(events)
    assert held(events) == (1, 3, 4)


def test_a_message_goes_with_the_last_ack(events: ReaderBroker) -> None:
    events.durable("s", "d")
    events.durable("s", "e", ack_policy="all")
    publish(events, b"1", b"2")
    settle(events)
    first, second = events.pulled("s", "d", 2)
    assert confirmed(events, first)
    assert confirmed(events, second)
    assert held(events)[0] == 2
    *_, last = events.pulled("s", "e", 2)
    assert confirmed(events, last)
    assert held(events)[0] == 0


def test_a_delivery_without_acks_counts_as_an_ack(events: ReaderBroker) -> None:
    events.consumer("s", "r", ack_policy="none", inactive_threshold=300 * S)
    publish(events, b"1", b"2")
    settle(events)
    assert held(events)[0] == 2
    events.pulled("s", "r", 1)
    settle(events)
    assert held(events) == (1, 2, 2)


def test_a_consumer_that_leaves_takes_what_only_it_needed(events: ReaderBroker) -> None:
    events.durable("s", "d")
    events.durable("s", "e")
    publish(events, b"1", b"2")
    settle(events)
    (first, _) = events.pulled("s", "d", 2)
    assert confirmed(events, first)
    events.api("CONSUMER.DELETE.s.e")
    assert held(events) == (1, 2, 2)
    events.api("CONSUMER.DELETE.s.d")
    assert held(events)[0] == 0


def test_a_slow_consumer_with_a_filter_keeps_only_what_it_wants(events: ReaderBroker) -> None:
    events.durable("s", "d")
    events.durable("s", "slow", filter_subject="s.b")
    publish(events, b"1", b"2")
    publish(events, b"3", subject="s.b")
    settle(events)
    for message in events.pulled("s", "d", 3):
        events.ack(message)
    for _ in range(3):
        events.tick(11_000)
    assert held(events) == (1, 3, 3)


def test_a_refused_consumer_takes_nothing_with_it(events: ReaderBroker) -> None:
    events.durable("s", "d")
    publish(events, b"1")
    settle(events)
    assert "error" in events.consumer("s", "d", ack_policy="all", durable_name="d")
    settle(events)
    assert held(events)[0] == 1


def test_a_retention_that_is_altered_holds_from_then_on() -> None:
    broker = broker_with("limits")
    publish(broker, b"1", b"2")
    broker.durable("s", "d")
    (first, _) = broker.pulled("s", "d", 2)
    assert confirmed(broker, first)
    assert held(broker)[0] == 2
    config = {"name": "s", "subjects": ["s.*"], "retention": "interest", "allow_direct": True}
    assert "error" not in broker.api("STREAM.UPDATE.s", config)
    settle(broker)
    settle(broker)
    assert held(broker) == (1, 2, 2), "it was acked before"


def suspend(broker: ReaderBroker, *, on: bool) -> None:
    broker.request(AlterStreamRequest(name="s", changes={"suspend_deletion": "yes" if on else "no"}))
    broker.tick(10)


@pytest.mark.parametrize("filters", [{}, {"filter_subject": "s.a"}])
@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_new_leader_removes_what_the_log_of_consumers_says_is_acked(retention: str, filters: dict[str, str]) -> None:
    """The step between an ack that is committed and its mark: here no mark can be written."""
    broker = broker_with(retention)
    broker.durable("s", "d", **filters)
    publish(broker, b"1", b"2", b"3")
    settle(broker)
    first, _, third = broker.pulled("s", "d", 3)
    suspend(broker, on=True)
    assert confirmed(broker, first)
    assert confirmed(broker, third)
    assert held(broker)[0] == 3
    after = broker.crash()
    after.start()
    after.tick(100)
    suspend(after, on=False)
    for _ in range(3):
        settle(after)
    assert held(after) == (1, 2, 3)
    after.tick(31_000)
    assert [one.value for one in after.pulled("s", "d", 5) if one.stream_seq] == [b"2"]


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_what_was_confirmed_is_gone_after_a_crash_and_the_rest_is_there(retention: str) -> None:
    broker = broker_with(retention)
    broker.durable("s", "d")
    publish(broker, b"1", b"2", b"3")
    settle(broker)
    _, second, _ = broker.pulled("s", "d", 3)
    assert confirmed(broker, second)
    after = broker.crash()
    after.start()
    after.tick(100)
    assert held(after) == (2, 1, 3)
    after.tick(31_000)
    assert [one.value for one in after.pulled("s", "d", 5) if one.stream_seq] == [b"1", b"3"]


def test_a_filter_that_changed_before_a_crash_removes_nothing_that_was_not_acked(queue: ReaderBroker) -> None:
    queue.durable("s", "d", filter_subject="s.a")
    publish(queue, b"1", subject="s.b")
    publish(queue, b"2")
    (second, *_) = queue.pulled("s", "d", 1)
    assert confirmed(queue, second)
    queue.durable("s", "d", filter_subject="s.b")
    after = queue.crash()
    after.start()
    for _ in range(3):
        after.tick(11_000)
    assert held(after)[0] == 1


def test_what_reached_max_deliver_is_there_after_a_crash(queue: ReaderBroker) -> None:
    queue.durable("s", "d", ack_wait=S, max_deliver=1)
    publish(queue, b"1")
    (first, *_) = queue.pulled("s", "d", 1)
    queue.tick(1_100)
    after = queue.crash()
    after.start()
    for _ in range(3):
        after.tick(11_000)
    assert held(after) == (1, 1, 1)
    assert confirmed(after, first)
    assert held(after)[0] == 0


def test_a_reset_forward_removes_nothing_that_was_not_acked(queue: ReaderBroker) -> None:
    queue.durable("s", "d")
    publish(queue, b"1", b"2", b"3")
    queue.pulled("s", "d", 1)
    assert "error" not in queue.api("CONSUMER.RESET.s.d", {"seq": 3})
    settle(queue)
    after = queue.crash()
    after.start()
    for _ in range(3):
        after.tick(11_000)
    assert held(after) == (3, 1, 3)


def test_an_ack_removes_no_message_of_another_consumer(queue: ReaderBroker) -> None:
    """A token has three digits: who may ack one consumer's messages may guess it for any message behind."""
    queue.durable("s", "a", filter_subject="s.a")
    queue.durable("s", "b", filter_subject="s.b")
    publish(queue, b"of b", subject="s.b")
    publish(queue, b"of no one", subject="s.c")
    publish(queue, b"of a")
    assert [one.value for one in queue.pulled("s", "a", 1)] == [b"of a"]
    assert [one.value for one in queue.pulled("s", "b", 1)] == [b"of b"]
    for sequence in (1, 2):
        for token in range(1_000):
            subject = f"$JS.ACK.s.a.1.{sequence}.1.{token:03d}.0".encode()
            queue.deliver([(subject, b"_INBOX.guess", None, b"")])
    settle(queue)
    assert held(queue) == (3, 1, 3)


def test_what_comes_while_filters_change_is_not_taken_to_be_acked(queue: ReaderBroker) -> None:
    """Until the change is stored and counted, messages are passed by the old filter."""
    queue.durable("s", "d", filter_subject="s.a")
    queue.send("CONSUMER.MSG.NEXT.s.d", json.dumps({"batch": 5, "expires": 60 * S}))
    wanted = {"name": "d", "durable_name": "d", "ack_policy": "explicit", "filter_subject": "s.b"}
    change = json.dumps({"stream_name": "s", "config": wanted}).encode()
    queue.deliver(
        [
            (b"$JS.API.CONSUMER.CREATE.s.d.s.b", b"_INBOX.update", None, change),
            (b"s.b", None, None, b"passed"),
            (b"s.a", None, None, b"delivered"),
        ]
    )
    assert "error" not in json.loads(queue.answers["_INBOX.update"])
    for _ in range(3):
        queue.tick(11_000)
    assert held(queue) == (2, 1, 2)
    after = queue.crash()
    after.start()
    for _ in range(3):
        after.tick(11_000)
    assert held(after) == (2, 1, 2)


@pytest.mark.parametrize("filters", [{}, {"filter_subject": "s.b"}])
def test_a_restored_consumer_removes_nothing_that_was_not_acked(queue: ReaderBroker, filters: dict[str, str]) -> None:
    queue.durable("s", "d", filter_subject="s.a")
    publish(queue, b"1", subject="s.b")
    publish(queue, b"2")
    (second, *_) = queue.pulled("s", "d", 1)
    assert confirmed(queue, second)
    queue.durable("s", "d", **filters)
    one = exported(queue)
    queue.api("CONSUMER.DELETE.s.d")
    assert held(queue) == (1, 1, 2)
    restore(queue, one, "s")
    for _ in range(3):
        queue.tick(11_000)
    assert held(queue) == (1, 1, 2)
    after = queue.crash()
    after.start()
    for _ in range(3):
        after.tick(11_000)
    assert held(after) == (1, 1, 2)
