"""Pull readers: what a request gets, and how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.jetstream.readers.reader import ASKED_BURST_BYTES, BLIND_BURST_BYTES, LEAF_BURST_BYTES
from penstock.jetstream.stream_config import REQUEST_BYTES_MAX
from tests.unit.jetstream.readers.gateways import Delivered, ReaderBroker

S = 1_000_000_000  # ns


def started(messages: int = 5, **config: Any) -> ReaderBroker:
    broker = ReaderBroker().start()
    broker.create("s", **config)
    for number in range(messages):
        broker.publish(f"s.{number % 2}", b"%d" % number)
    broker.tick(1)
    return broker


def pull(broker: ReaderBroker, request: Any, name: str = "c") -> list[Delivered]:
    """What a request gets at once."""
    inbox = broker.send(f"CONSUMER.MSG.NEXT.s.{name}", request)
    return broker.delivered(inbox)


def told(found: list[Delivered]) -> list[str]:
    """Values, and statuses."""
    return [one.value.decode() if one.stream_seq else one.status for one in found]


def test_a_request_gets_messages_with_their_places() -> None:
    broker = started()
    info = broker.consumer("s", "c")
    assert info["num_pending"] == 5
    found = pull(broker, {"batch": 2})
    assert [(one.subject, one.stream_seq, one.consumer_seq, one.pending) for one in found] == [
        ("s.0", 1, 1, 4),
        ("s.1", 2, 2, 3),
    ]
    assert found[0].reply.startswith("$JS.ACK.s.c.1.1.1.")
    info = broker.api("CONSUMER.INFO.s.c")
    assert info["delivered"]["stream_seq"] == info["ack_floor"]["consumer_seq"] == 2
    assert info["num_pending"] == 3


def test_a_request_waits_for_what_is_missing() -> None:
    broker = started(1)
    broker.consumer("s", "c")
    inbox = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 3, "expires": 5 * S})
    assert told(broker.delivered(inbox)) == ["0"]
    assert broker.api("CONSUMER.INFO.s.c")["num_waiting"] == 1
    broker.publish("s.x", b"a", b"b", b"c")
    found = broker.delivered(inbox)
    assert told(found) == ["a", "b"]
    assert [one.pending for one in found] == [2, 1]
    assert broker.api("CONSUMER.INFO.s.c")["num_pending"] == 1
    assert told(pull(broker, "1")) == ["c"]


def test_requests_are_served_in_turn() -> None:
    broker = started(0)
    broker.consumer("s", "c")
    first = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 2, "expires": 5 * S})
    second = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 3, "expires": 5 * S})
    broker.publish("s.x", b"a", b"b", b"c")
    broker.publish("s.x", b"d", b"e", b"f")
    found = broker.delivered()
    assert [(one.inbox, one.value) for one in found] == [
        (first, b"a"), (second, b"b"), (first, b"c"), (second, b"d"), (second, b"e"),
    ]  # fmt: skip
    assert told(pull(broker, "1")) == ["f"]


def test_a_request_whose_inbox_is_not_known_yet_lets_the_others_go_first() -> None:
    broker = started(3)
    broker.consumer("s", "c", inactive_threshold=60 * S)
    broker.leaf.deserted.add(b"late")
    broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 2}, reply="late")
    assert told(pull(broker, "1")) == ["0"]
    broker.leaf.deserted.clear()
    broker.tick(5)
    assert told(broker.delivered("late")) == ["1", "2"]


def test_each_request_lets_a_burst_out_and_a_rate_the_rest() -> None:
    broker = started(0)
    for _ in range(40):
        broker.publish("s.x", b"v" * 500_000)
    broker.consumer("s", "c", inactive_threshold=60 * S)
    got = len(pull(broker, {"batch": 100, "expires": 30 * S}))
    assert 8 <= got <= 9
    broker.tick(5)
    assert broker.delivered() == []
    more = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 100, "expires": 30 * S})
    found = broker.delivered()
    assert 8 <= len(found) <= 9
    assert more in {one.inbox for one in found}
    got += len(found)
    for _ in range(100):
        broker.tick(20)
        got += len(broker.delivered())
    assert got == 40


def delivered_bytes(broker: ReaderBroker) -> int:
    size = sum(map(len, broker.leaf.frames))
    broker.leaf.frames.clear()
    return size


def test_a_client_that_asks_again_and_again_without_reading_gets_a_bounded_burst() -> None:
    broker = started(0)
    for _ in range(80):
        broker.publish("s.x", b"v" * 500_000)
    broker.consumer("s", "c", inactive_threshold=60 * S)
    for _ in range(12):
        broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 100, "expires": 30 * S})
    sent = delivered_bytes(broker)
    most = BLIND_BURST_BYTES + ASKED_BURST_BYTES
    assert most - 500_000 < sent < most + 600_000
    broker.tick(100)  # then the rates: one for what is sent, and one for what is asked
    broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 100, "expires": 30 * S})
    assert delivered_bytes(broker) > BLIND_BURST_BYTES


def test_what_all_consumers_of_a_leaf_connection_are_sent_at_once_is_bounded() -> None:
    """The inboxes may all be those of one client, which nats-server cuts off beyond 64 MiB."""
    broker = started(0)
    for _ in range(10):
        broker.publish("s.x", b"v" * 500_000)
    names = [f"c{number}" for number in range(16)]
    for name in names:
        broker.consumer("s", name, inactive_threshold=60 * S)
    for name in names:
        broker.send(f"CONSUMER.MSG.NEXT.s.{name}", {"batch": 100, "expires": 30 * S})
    sent = delivered_bytes(broker)
    assert LEAF_BURST_BYTES - 500_000 < sent < LEAF_BURST_BYTES + 600_000
    for _ in range(100):
        broker.tick(20)
        sent += delivered_bytes(broker)
    assert sent > len(names) * 10 * 500_000


ENDS = (
    ({"batch": 2, "no_wait": True}, ["0", "1"]),
    ({"batch": 9, "no_wait": True}, ["0", "1", "2", "404 No Messages"]),
    ({"batch": 9, "max_bytes": 70}, ["0", "409 Message Size Exceeds MaxBytes"]),
    ({"batch": 2, "max_bytes": 500}, ["0", "1", "409 Batch Completed"]),
    ({"batch": 2, "max_bytes": 5}, ["409 Message Size Exceeds MaxBytes"]),
    ({"batch": 11}, ["409 Exceeded MaxRequestBatch of 10"]),
    ({"batch": 1, "expires": 90 * S}, ["409 Exceeded MaxRequestExpires of 1m0s"]),
    ({"batch": 1, "max_bytes": 5_000}, ["409 Exceeded MaxRequestMaxBytes of 1000"]),
    ({"batch": 1, "expires": 2 * S, "idle_heartbeat": 2 * S}, ["400 Bad Request - heartbeat value too large"]),
    ({"batch": 1, "min_pending": 5}, ["400 Bad Request - Not a Overflow Priority consumer"]),
    ({"batch": 1, "id": "x"}, ["400 Bad Request - Not a Pinned Client Priority consumer"]),
    ({"batch": 1, "priority": 10}, ["400 Bad Request - Priority must be between 0 and 9"]),
    # limits come before the priority, as in nats-server
    ({"batch": 11, "min_pending": 5}, ["409 Exceeded MaxRequestBatch of 10"]),
    ({"batch": 11, "id": "x", "idle_heartbeat": S}, ["400 Bad Request - heartbeat value too large"]),
    ({"batch": 0}, ["0"]),
    ({"batch": 2, "expires": -5}, ["408 Request Timeout"]),
    ("2", ["0", "1"]),
    ("", ["0"]),
    ("nonsense", ["0"]),
)


@pytest.mark.parametrize(("request_", "expected"), ENDS, ids=[json.dumps(one) for one, _ in ENDS])
def test_the_end_of_a_request(request_: Any, expected: list[str]) -> None:
    broker = started(3)
    broker.consumer("s", "c", max_batch=10, max_expires=60 * S, max_bytes=1_000)
    assert told(pull(broker, request_)) == expected


@pytest.mark.parametrize("config", [{}, {"durable_name": "c", "ack_policy": "explicit"}], ids=["memory", "stored"])
def test_a_request_that_waits_only_for_the_first_messages_ends_with_them(config: dict[str, Any]) -> None:
    broker = started(0)
    broker.consumer("s", "c", **config)
    first = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 9, "no_wait": True, "expires": 5 * S})
    second = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 9, "expires": 5 * S})
    broker.publish("s.x", b"a")
    broker.tick(1)
    broker.publish("s.x", b"b")
    broker.tick(1)
    delivered = broker.delivered()
    assert told([one for one in delivered if one.inbox == first]) == ["a", "404 No Messages"]
    assert told([one for one in delivered if one.inbox == second]) == ["b"]


def test_a_request_without_messages_ends_at_its_time() -> None:
    broker = started(1)
    broker.consumer("s", "c", inactive_threshold=60 * S)
    inbox = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 3, "expires": 2 * S, "idle_heartbeat": S // 2})
    assert told(broker.delivered(inbox)) == ["0"]
    broker.tick(600)
    (beat,) = broker.delivered(inbox)
    assert beat.headers == b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1\r\nNats-Last-Stream: 1\r\n\r\n"
    broker.tick(300)
    assert broker.delivered(inbox) == []
    broker.tick(2_000)
    (end,) = [one for one in broker.delivered(inbox) if not one.status.startswith("100")]
    text = b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 2\r\nNats-Pending-Bytes: 0\r\n\r\n"
    assert end.headers == text


def test_too_many_requests_are_refused() -> None:
    broker = started(0)
    broker.consumer("s", "c", max_waiting=2)
    for _ in range(2):
        assert pull(broker, {"batch": 1, "expires": 5 * S}) == []
    assert told(pull(broker, {"batch": 1, "expires": 5 * S})) == ["409 Exceeded MaxWaiting"]
    assert pull(broker, {"batch": 1, "expires": 5 * S, "idle_heartbeat": S}) == []


def test_a_request_that_does_not_wait_needs_no_place_if_nothing_is_there() -> None:
    broker = started(0)
    broker.consumer("s", "c", max_waiting=1)
    assert pull(broker, {"batch": 1, "expires": 5 * S}) == []
    assert told(pull(broker, {"batch": 1, "no_wait": True})) == ["404 No Messages"]
    assert told(pull(broker, {"batch": 1, "no_wait": True, "expires": S})) == ["409 Exceeded MaxWaiting"]


@pytest.mark.parametrize("messages", [0, 3])
def test_a_paused_consumer_has_nothing_for_a_request_that_does_not_wait(messages: int) -> None:
    broker = started(messages)
    broker.consumer("s", "c", inactive_threshold=60 * S, pause_until="2100-01-01T00:00:00Z")
    assert told(pull(broker, {"batch": 1, "no_wait": True})) == ["404 No Messages"]
    inbox = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 1, "no_wait": True, "expires": S})
    assert broker.delivered(inbox) == []
    broker.tick(1_200)
    assert told(broker.delivered(inbox)) == ["408 Request Timeout"]


def test_a_request_that_nobody_waits_for_gets_nothing() -> None:
    broker = started(1)
    broker.consumer("s", "c", inactive_threshold=60 * S)
    broker.leaf.deserted.add(b"gone")
    broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 1}, reply="gone")
    broker.tick(50)
    assert broker.delivered() == []
    broker.tick(200)
    assert broker.api("CONSUMER.INFO.s.c")["num_waiting"] == 0
    assert told(pull(broker, "1")) == ["0"]


def test_a_request_whose_client_has_gone_gets_no_new_message() -> None:
    broker = started(1)
    broker.consumer("s", "c", inactive_threshold=60 * S)
    inbox = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 5, "expires": 5 * S})
    assert told(broker.delivered(inbox)) == ["0"]
    assert broker.leaf.watched == {inbox.encode()}
    broker.leaf.deserted.add(inbox.encode())
    broker.gateway.interest_lost([inbox.encode()], broker.clock.now)
    broker.turn()
    assert broker.leaf.watched == set()
    broker.publish("s.x", b"new")
    assert broker.delivered() == []
    assert told(pull(broker, "1")) == ["new"]


def test_the_inbox_of_each_request_that_waits_is_watched() -> None:
    broker = started(0)
    broker.consumer("s", "c", inactive_threshold=60 * S)
    inboxes = [broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 2, "expires": 5 * S}) for _ in range(2)]
    assert broker.leaf.watched == {one.encode() for one in inboxes}


def test_a_request_whose_inbox_is_not_known_gets_no_new_message() -> None:
    broker = started(0)
    broker.consumer("s", "c", inactive_threshold=60 * S)
    first = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 5, "expires": 5 * S})
    broker.leaf.deserted.add(b"gone")
    broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 5, "expires": 5 * S}, reply="gone")
    broker.publish("s.x", b"a", b"b")
    broker.tick(5)
    assert [one.inbox for one in broker.delivered()] == [first, first]


def test_a_request_whose_inbox_becomes_known_is_served_at_once() -> None:
    broker = started(1)
    broker.consumer("s", "c", inactive_threshold=60 * S)
    broker.leaf.is_slow = True
    broker.leaf.deserted.add(b"late")
    broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 1, "expires": 5 * S}, reply="late")
    assert broker.delivered() == []
    broker.leaf.deserted.clear()
    broker.interest_known()
    broker.turn()
    assert told(broker.delivered("late")) == ["0"]


def test_inboxes_are_watched_while_their_requests_wait() -> None:
    broker = started(0)
    broker.consumer("s", "c", inactive_threshold=60 * S)
    first = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 1, "expires": 5 * S})
    assert broker.leaf.watched == {first.encode()}
    broker.publish("s.x", b"a")
    second = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 1, "expires": 5 * S})
    assert broker.leaf.watched == {second.encode()}
    assert broker.api("CONSUMER.DELETE.s.c")["success"]
    assert broker.leaf.watched == set()


def test_a_request_that_does_not_wait_hears_that_others_ask_for_all() -> None:
    broker = started(3)
    broker.consumer("s", "c", inactive_threshold=60 * S, pause_until="2100-01-01T00:00:00Z")
    assert pull(broker, {"batch": 3, "expires": 5 * S}) == []
    assert pull(broker, {"batch": 2, "no_wait": True, "expires": 5 * S}) == []
    assert told(pull(broker, {"batch": 1, "no_wait": True})) == ["408 Requests Pending"]
    assert broker.api("CONSUMER.INFO.s.c")["num_waiting"] == 2


def test_a_request_for_an_unknown_consumer_hears_that_nobody_listens() -> None:
    broker = started(1)
    inbox = broker.send("CONSUMER.MSG.NEXT.s.none", {"batch": 1})
    assert broker.blocks[inbox].startswith(b"NATS/1.0 503\r\n")


def test_a_refusal_is_a_status_and_no_message() -> None:
    """JSON without a header block would reach the program as a message of its stream."""
    broker = started()
    broker.consumer("s", "c")
    inbox = broker.send("CONSUMER.MSG.NEXT.s.c", b" " * (REQUEST_BYTES_MAX + 1))
    assert broker.blocks[inbox].startswith(b"NATS/1.0 400 ")
    assert broker.answers[inbox] == b""


def test_nothing_is_sent_to_an_inbox_that_is_not_allowed() -> None:
    broker = started(2)
    broker.consumer("s", "c")
    for request in ({"batch": 1}, {"batch": -1, "expires": S}, "x{", {"id": "x"}):
        broker.send("CONSUMER.MSG.NEXT.s.c", request, reply="forbidden.inbox")
    broker.tick(2_000)
    assert broker.delivered() == []
    assert told(pull(broker, "2")) == ["0", "1"]


def test_a_push_consumer_takes_no_requests() -> None:
    broker = started(0)
    broker.consumer("s", "c", deliver_subject="inbox")
    assert told(pull(broker, "1")) == ["409 Consumer is push based"]


def test_a_consumer_that_nobody_asks_is_deleted_after_its_time() -> None:
    broker = started(1)
    broker.consumer("s", "c", inactive_threshold=10 * S)
    broker.tick(6_000)
    assert told(pull(broker, {"batch": 2, "expires": 5 * S})) == ["0"]
    for _ in range(14):
        broker.tick(1_000)
    assert told(broker.delivered()) == ["408 Request Timeout"]
    assert "error" not in broker.api("CONSUMER.INFO.s.c")
    broker.tick(2_000)
    assert broker.api("CONSUMER.INFO.s.c")["error"]["err_code"] == 10014


def test_deleting_a_consumer_ends_its_requests() -> None:
    broker = started(0)
    broker.consumer("s", "c")
    inbox = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 1, "expires": 5 * S})
    assert broker.api("CONSUMER.DELETE.s.c")["success"]
    assert told(broker.delivered(inbox)) == ["409 Consumer Deleted"]
    assert broker.api("CONSUMER.NAMES.s")["consumers"] == []


def test_deleting_the_stream_ends_its_consumers() -> None:
    broker = started(0)
    broker.consumer("s", "c")
    inbox = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 1, "expires": 5 * S})
    broker.delete("s")
    broker.tick(1)
    assert told(broker.delivered(inbox)) == ["409 Consumer Deleted"]
    assert broker.api("CONSUMER.INFO.s.c")["error"]["err_code"] == 10059


def test_no_request_is_lost_while_nothing_can_be_delivered() -> None:
    broker = started(2)
    broker.consumer("s", "c")
    broker.leaf.is_up = False
    inbox = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 5, "expires": 5 * S})
    broker.publish("s.x", b"more")
    assert broker.delivered() == []
    broker.leaf.is_up = True
    broker.turn()
    assert told(broker.delivered(inbox)) == ["0", "1", "more"]


def test_a_broker_that_stops_tells_it() -> None:
    broker = started(0)
    broker.consumer("s", "c")
    inbox = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 3, "expires": 5 * S})
    broker.gateway.shut_down()
    (end,) = broker.delivered(inbox)
    text = b"NATS/1.0 409 Server Shutdown\r\nNats-Pending-Messages: 3\r\nNats-Pending-Bytes: 0\r\n\r\n"
    assert end.headers == text


def test_a_request_that_does_not_wait_is_answered_before_the_start_of_its_consumer() -> None:
    broker = started()
    broker.consumer("s", "c", deliver_policy="by_start_sequence", opt_start_seq=9, inactive_threshold=60 * S)
    assert told(pull(broker, {"batch": 1, "no_wait": True})) == ["404 No Messages"]
    stream_id = broker.stream("s").stream_id
    broker.disk_runs_at_once = False
    broker.publish("s.0", b"early")
    for _ in range(20):  # until it is shown, and not read yet
        if (shown := broker.gateway.shown(stream_id)) is not None and shown.end == 6:
            break
        broker.run_disk()
        broker.turn()
    waits = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 1, "expires": 2 * S, "idle_heartbeat": S})
    inbox = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 1, "no_wait": True})
    assert broker.delivered() == []
    broker.settle()
    broker.disk_runs_at_once = True
    assert told(broker.delivered(inbox)) == ["404 No Messages"]
    broker.tick(1_000)
    assert told(broker.delivered(waits)) == ["100 Idle Heartbeat"]
    broker.tick(1_000)
    assert told(broker.delivered(waits)) == ["408 Request Timeout"]


def test_a_consumer_that_is_moved_from_behind_the_end_gets_each_message_once() -> None:
    broker = started(1)
    broker.consumer("s", "c", deliver_policy="by_start_sequence", opt_start_seq=2, inactive_threshold=60 * S)
    assert "error" not in broker.api("CONSUMER.RESET.s.c", {"seq": 9})
    inbox = broker.send("CONSUMER.MSG.NEXT.s.c", {"batch": 9, "expires": 30 * S})
    assert "error" not in broker.api("CONSUMER.RESET.s.c", {"seq": 2})
    for value in (b"a", b"b", b"c"):
        broker.publish("s.0", value)
    assert told(broker.delivered(inbox)) == ["a", "b", "c"]
    (reader,) = broker.gateway.parts[0].of(broker.stream("s"))  # type: ignore[attr-defined]
    feed = broker.gateway.parts[0].feed(broker.stream("s"))  # type: ignore[attr-defined]
    assert feed.followers == [reader.cursor]
