"""Complaints about consumers that are stuck, or wrong, elsewhere: each one as a story, with the issue that tells it."""

from __future__ import annotations

import json

import pytest

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


def waiting(broker: ReaderBroker, batch: int = 1) -> str:
    """Send a request that waits; return its inbox."""
    return broker.send("CONSUMER.MSG.NEXT.s.d", json.dumps({"batch": batch, "expires": 600 * S}))


def state(broker: ReaderBroker) -> tuple[int, int, int, int]:
    """Return the floor's stream sequence, and what is in hand, delivered again, and pending."""
    told = broker.api("CONSUMER.INFO.s.d")
    return told["ack_floor"]["stream_seq"], told["num_ack_pending"], told["num_redelivered"], told["num_pending"]


def started_again(broker: ReaderBroker) -> ReaderBroker:
    """Return the broker after a loss of power: another leadership, which reads what is stored."""
    after = broker.crash()
    after.start()
    after.tick(100)
    return after


def test_messages_deleted_while_in_hand_leave_room_for_others(broker: ReaderBroker) -> None:
    """#7984, #6374: at max_ack_pending, and what is in hand is deleted; also where the leader changes in between."""
    broker.durable("s", "d", max_ack_pending=2)
    publish(broker, b"1", b"2", b"3", b"4", b"5", b"6")
    assert values(broker.pulled("s", "d", 2)) == [b"1", b"2"]
    inbox = waiting(broker, 2)
    for sequence in (1, 2):
        assert "error" not in broker.api("STREAM.MSG.DELETE.s", {"seq": sequence})
    broker.tick(200)
    assert values(broker.delivered(inbox)) == [b"3", b"4"]
    assert state(broker) == (2, 2, 0, 2)
    for sequence in (3, 4):
        assert "error" not in broker.api("STREAM.MSG.DELETE.s", {"seq": sequence})
    after = started_again(broker)
    assert values(after.pulled("s", "d", 2)) == [b"5", b"6"]
    assert state(after) == (4, 2, 0, 0)


def test_a_purge_takes_what_waits_to_come_again(broker: ReaderBroker) -> None:
    """#8102: counts of what was delivered again stay after a purge."""
    broker.durable("s", "d", ack_wait=S)
    publish(broker, b"1", b"2")
    for _ in range(2):
        broker.pulled("s", "d", 2)
        broker.tick(1_100)
    assert "error" not in broker.api("STREAM.PURGE.s")
    broker.tick(200)
    assert state(broker) == (2, 0, 0, 0)
    assert state(started_again(broker)) == (2, 0, 0, 0)


def test_an_ack_of_a_delivery_that_was_not_stored_skips_none_before_it(broker: ReaderBroker) -> None:
    """#6469, #6566: the next leader does not know of the deliveries, and hears an ack of the last one."""
    broker.durable("s", "d")
    publish(broker, b"1", b"2", b"3")
    broker.tick(100)
    broker.disk_runs_at_once = False
    *_, third = broker.pulled("s", "d", 3)
    after = started_again(broker)
    after.ack(third, b"", reply="_INBOX.ack")
    assert "_INBOX.ack" not in after.answers
    assert values(after.pulled("s", "d", 3)) == [b"1", b"2", b"3"]
    assert state(after) == (0, 3, 0, 0)


def test_the_floor_stays_below_what_was_refused(broker: ReaderBroker) -> None:
    """#5727, #6232: the ack floor is told beyond a message that a client refused, or differs after a change."""
    broker.durable("s", "d")
    publish(broker, b"1", b"2", b"3")
    first, second, third = broker.pulled("s", "d", 3)
    broker.ack(first, b'-NAK {"delay": 5000000000}')
    broker.ack(second)
    broker.ack(third)
    broker.tick(100)
    assert state(broker)[:2] == (0, 1)
    after = started_again(broker)
    assert state(after)[:2] == (0, 1)
    after.tick(5_100)
    (again,) = after.pulled("s", "d", 1)
    assert (again.value, again.deliveries) == (b"1", 2)
    after.ack(again)
    assert state(after) == (3, 0, 0, 0)


def test_the_ack_of_what_came_again_moves_the_floor(broker: ReaderBroker) -> None:
    """#5008: a gap that is filled by the ack of a later delivery."""
    broker.durable("s", "d", ack_wait=S)
    publish(broker, b"1", b"2", b"3")
    _, second, third = broker.pulled("s", "d", 3)
    broker.ack(second)
    broker.ack(third, b"+WPI")
    broker.tick(900)
    broker.ack(third, b"+WPI")
    broker.tick(200)
    (again,) = broker.pulled("s", "d", 1)
    assert again.value == b"1"
    broker.ack(again)
    assert state(broker)[:2] == (2, 1)


def test_what_was_delivered_as_often_as_it_may_be_takes_no_room_after_a_change(broker: ReaderBroker) -> None:
    """#4427: more in hand than max_ack_pending after a restart, because of messages that reached max_deliver."""
    broker.durable("s", "d", max_ack_pending=2, max_deliver=1, ack_wait=S)
    publish(broker, b"1", b"2", b"3", b"4")
    assert values(broker.pulled("s", "d", 2)) == [b"1", b"2"]
    broker.tick(1_100)
    broker.tick(100)  # that they are given up is stored
    after = started_again(broker)
    assert state(after)[1] == 0
    assert values(after.pulled("s", "d", 4)) == [b"3", b"4"]


def test_more_room_lets_a_stuck_consumer_go_on(broker: ReaderBroker) -> None:
    """#7680: a larger max_ack_pending changes nothing for a consumer at the old one."""
    broker.durable("s", "d", max_ack_pending=1)
    publish(broker, b"1", b"2", b"3")
    broker.pulled("s", "d", 1)
    inbox = waiting(broker, 2)
    assert values(broker.delivered(inbox)) == []
    assert "error" not in broker.durable("s", "d", max_ack_pending=3)
    assert values(broker.delivered(inbox)) == [b"2", b"3"]


def test_an_update_delivers_nothing_again(broker: ReaderBroker) -> None:
    """#1620: a new config sends the first message once more."""
    broker.durable("s", "d")
    publish(broker, b"1", b"2")
    broker.pulled("s", "d", 1)
    assert "error" not in broker.durable("s", "d", description="other")
    assert values(broker.pulled("s", "d", 5)) == [b"2"]


def test_requests_wait_through_messages_that_no_client_acks(broker: ReaderBroker) -> None:
    """#2488, #4736: requests wait, messages are there, and none is delivered."""
    broker.durable("s", "d", max_ack_pending=2, ack_wait=S)
    publish(broker, *(b"%d" % number for number in range(6)))
    inboxes = [waiting(broker) for _ in range(20)]
    came = [values(broker.delivered())]
    for _ in range(4):
        broker.tick(1_100)
        came.append(values(broker.delivered()))
    assert came == [[b"0", b"1"]] * 5
    assert broker.api("CONSUMER.INFO.s.d")["num_waiting"] == len(inboxes) - 10


def test_a_client_that_is_gone_keeps_nothing_in_hand(broker: ReaderBroker) -> None:
    """#6093, #5839: a client ends without acks; the next one gets all of it."""
    broker.durable("s", "d", ack_wait=S, max_ack_pending=3)
    publish(broker, b"1", b"2", b"3", b"4")
    broker.pulled("s", "d", 3)
    broker.tick(60_000)
    messages = broker.pulled("s", "d", 3)
    assert values(messages) == [b"1", b"2", b"3"]
    for message in messages:
        broker.ack(message)
    assert state(broker) == (3, 0, 0, 1)
