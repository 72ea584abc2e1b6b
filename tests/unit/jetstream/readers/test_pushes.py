"""Push readers: order, heartbeats, flow control, interest, rates."""

from __future__ import annotations

from typing import Any

from penstock.jetstream.readers.reader import WINDOW_BYTES_FIRST, WINDOW_BYTES_MAX
from tests.unit.jetstream.readers.gateways import Delivered, ReaderBroker

MS = 1_000_000  # ns
S = 1_000 * MS


def started(messages: int = 3) -> ReaderBroker:
    broker = ReaderBroker().start()
    broker.create("s")
    for number in range(messages):
        broker.publish(f"s.{number % 2}", b"%d" % number)
    broker.tick(1)
    return broker


def ordered(broker: ReaderBroker, name: str = "c", inbox: str = "inbox", **config: Any) -> dict[str, Any]:
    """A consumer as ordered consumers make it."""
    return broker.consumer(
        "s",
        name,
        **{
            "deliver_subject": inbox,
            "flow_control": True,
            "idle_heartbeat": 5 * S,
            "max_deliver": 1,
            "ack_wait": 79_200 * S,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 30 * S,
            **config,
        },
    )


def values(found: list[Delivered]) -> list[bytes]:
    return [one.value for one in found if one.stream_seq]


def test_all_messages_come_and_then_the_new_ones() -> None:
    broker = started()
    info = ordered(broker)
    assert info["num_pending"] == 3
    assert info["push_bound"]
    assert [(one.subject, one.value, one.pending) for one in broker.delivered("inbox")] == [
        ("s.0", b"0", 2),
        ("s.1", b"1", 1),
        ("s.0", b"2", 0),
    ]
    broker.publish("s.new", b"x", b"y")
    assert [(one.stream_seq, one.consumer_seq, one.pending) for one in broker.delivered("inbox")] == [
        (4, 4, 1),
        (5, 5, 0),
    ]


def test_one_read_of_the_log_serves_all_who_follow() -> None:
    broker = started(0)
    for number in range(50):
        ordered(broker, f"c{number}", f"inbox.{number}")
    before = len(broker.steps)
    broker.publish("s.x", b"v")
    assert len(broker.delivered()) == 50
    reads = [work for step in broker.steps[before:] for work in step.disk if "RowReads.decode" in work.run.__qualname__]
    assert len(reads) == 1


def test_heartbeats_come_while_it_is_idle() -> None:
    broker = started()
    ordered(broker)
    broker.delivered()
    broker.tick(4_900)
    assert broker.delivered() == []
    broker.tick(200)
    (beat,) = broker.delivered("inbox")
    assert beat.headers == b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 3\r\nNats-Last-Stream: 3\r\n\r\n"
    broker.publish("s.x", b"v")
    broker.delivered()
    broker.tick(4_900)
    assert broker.delivered() == []
    broker.tick(200)
    assert [one.status for one in broker.delivered("inbox")] == ["100 Idle Heartbeat"]


def test_what_is_on_its_way_is_bounded_until_flow_control_is_answered() -> None:
    broker = started(0)
    for _ in range(30):
        broker.publish("s.x", b"v" * 500_000)
    ordered(broker)
    found, window, sequence = [], WINDOW_BYTES_FIRST, 0
    while sequence < 30:
        got = broker.delivered("inbox")
        size = sum(len(one.value) for one in got)
        assert 0 < size <= window + 600_000
        (flow,) = [one for one in got if one.status == "100 FlowControl Request"]
        assert flow.reply.startswith("$JS.FC.s.c.")
        assert broker.delivered() == []
        broker.tick(5_100)
        (beat,) = broker.delivered("inbox")
        assert f"Nats-Consumer-Stalled: {flow.reply}".encode() in beat.headers
        found += values(got)
        sequence = len(found)
        broker.flow("$JS.FC.s.c.0")  # an old one
        assert broker.delivered() == []
        broker.flow(flow.reply)
        window = min(2 * window, WINDOW_BYTES_MAX)
    assert len(found) == 30


def test_answers_of_flow_control_are_subscribed_to_while_they_are_needed() -> None:
    broker = started(0)
    ordered(broker)
    ordered(broker, "d", "inbox2")
    assert "$JS.FC.s.*.*" in broker.flow_subscriptions
    broker.api("CONSUMER.DELETE.s.c")
    assert "$JS.FC.s.*.*" in broker.flow_subscriptions
    broker.api("CONSUMER.DELETE.s.d")
    assert "$JS.FC.s.*.*" not in broker.flow_subscriptions


def test_without_flow_control_a_rate_bounds_what_is_sent() -> None:
    broker = started(0)
    for _ in range(40):
        broker.publish("s.x", b"v" * 500_000)
    broker.consumer("s", "c", deliver_subject="inbox")
    got = len(broker.delivered("inbox"))
    assert 8 <= got <= 9
    broker.tick(5)
    assert broker.delivered("inbox") == []
    for _ in range(100):
        broker.tick(20)
        got += len(broker.delivered("inbox"))
    assert got == 40


def test_a_rate_limit_is_kept() -> None:
    broker = started(0)
    for _ in range(20):
        broker.publish("s.x", b"v" * 400_000)
    broker.consumer("s", "c", deliver_subject="inbox", rate_limit_bps=8_000_000)  # 1 MB/s
    got = len(broker.delivered("inbox"))
    assert got == 3  # a burst of 1 MiB
    for _ in range(20):
        broker.tick(100)
        got += len(broker.delivered("inbox"))
    assert 7 <= got <= 9


def test_a_consumer_without_subscribers_waits_and_is_deleted() -> None:
    broker = started()
    broker.leaf.deserted.add(b"inbox")
    info = ordered(broker, inactive_threshold=10 * S)
    assert "push_bound" not in info
    broker.tick(5_000)
    assert broker.delivered() == []
    broker.leaf.deserted.clear()
    broker.tick(100)
    assert values(broker.delivered("inbox")) == [b"0", b"1", b"2"]
    broker.leaf.deserted.add(b"inbox")
    assert broker.leaf.watched == {b"inbox"}
    broker.gateway.interest_lost((b"inbox",), broker.clock.now)
    broker.publish("s.x", b"later")
    assert values(broker.delivered()) == []
    for _ in range(101):
        broker.tick(100)
    assert broker.api("CONSUMER.INFO.s.c")["error"]["err_code"] == 10014
    assert broker.leaf.watched == set()


def test_a_queue_group_gets_each_message_once() -> None:
    broker = started(1)
    broker.consumer("s", "c", deliver_subject="inbox", deliver_group="workers")
    (one,) = broker.delivered("inbox")
    assert one.group == "workers"
    assert one.subject == "s.0"


def test_queue_groups_that_share_the_inbox_get_their_part() -> None:
    broker = started(1)
    broker.consumer("s", "c", deliver_subject="inbox")
    broker.consumer("s", "d", deliver_subject="inbox", deliver_group="workers", idle_heartbeat=1 * S)
    assert [one.group for one in broker.delivered("inbox")] == ["", "workers"]
    broker.leaf.groups_of[b"inbox"], broker.leaf.changes = b"others workers", [b"inbox"]
    broker.publish("s.x", b"x")
    assert [one.group for one in broker.delivered("inbox")] == ["others workers", "workers others"]
    broker.tick(1_100)
    (heartbeat,) = broker.delivered("inbox")
    assert (heartbeat.status, heartbeat.group) == ("100 Idle Heartbeat", "workers others")
    broker.leaf.groups_of[b"inbox"], broker.leaf.changes = b"workers", [b"*"]
    broker.publish("s.x", b"y")
    assert [one.group for one in broker.delivered("inbox")] == ["workers", "workers"]
    del broker.leaf.groups_of[b"inbox"]
    broker.leaf.changes = None
    broker.publish("s.x", b"z")
    assert [one.group for one in broker.delivered("inbox")] == ["", "workers"]


def test_a_queue_group_alone_is_a_subscriber() -> None:
    broker = started(1)
    broker.leaf.deserted.add(b"inbox")
    assert "push_bound" not in broker.consumer("s", "c", deliver_subject="inbox")
    broker.leaf.groups_of[b"inbox"] = b"workers"
    broker.tick(100)
    assert [one.group for one in broker.delivered("inbox")] == ["workers"]


def test_headers_only_tells_the_sizes() -> None:
    broker = started(1)
    broker.publish("s.h", b"12345", headers=b"NATS/1.0\r\nA: b\r\n\r\n")
    ordered(broker, headers_only=True)
    assert [(one.headers, one.value) for one in broker.delivered("inbox")] == [
        (b"NATS/1.0\r\nNats-Msg-Size: 1\r\n\r\n", b""),
        (b"NATS/1.0\r\nA: b\r\nNats-Msg-Size: 5\r\n\r\n", b""),
    ]


def test_a_message_above_max_payload_says_that_its_value_is_missing() -> None:
    broker = started(0)
    broker.publish("s.x", b"v" * 900)
    broker.publish("s.x", b"v" * 40)
    broker.gateway.payload_max = 200
    ordered(broker)
    first, second = [one for one in broker.delivered("inbox") if one.stream_seq]
    assert first.headers == b"NATS/1.0\r\nPenstock-Too-Large: max_payload\r\nNats-Msg-Size: 900\r\n\r\n"
    assert (first.value, second.headers, second.value) == (b"", b"", b"v" * 40)
    ordered(broker, "d", "inbox2", headers_only=True)
    first, second = [one for one in broker.delivered("inbox2") if one.stream_seq]
    assert first.headers == b"NATS/1.0\r\nNats-Msg-Size: 900\r\n\r\n"
    (told,) = [one for one in broker.notices if "max_payload" in one]
    assert told.startswith("stream s has messages above nats-server's max_payload (200 bytes)")
    numbers = broker.gateway.reader_numbers()
    assert (numbers.push, numbers.pull, numbers.delivered, numbers.too_large) == (2, 0, 4, 1)


def test_headers_come_as_they_were_stored() -> None:
    broker = started(0)
    broker.publish("s.h", b"v", headers=b"NATS/1.0\r\nA: b\r\nA:  c\r\n\r\n")
    ordered(broker)
    assert broker.delivered("inbox")[0].headers == b"NATS/1.0\r\nA: b\r\nA:  c\r\n\r\n"


def test_the_original_pace_is_kept_until_it_has_caught_up() -> None:
    broker = started(0)
    for wait_ms in (0, 100, 300, 0):
        broker.tick(wait_ms)
        broker.publish("s.x", b"%d" % wait_ms)
    ordered(broker, replay_policy="original")
    got: list[tuple[int, bytes]] = [(0, one) for one in values(broker.delivered("inbox"))]
    for ms in range(10, 500, 10):
        broker.tick(10)
        got += [(ms, one) for one in values(broker.delivered("inbox"))]
    assert [value for _, value in got] == [b"0", b"100", b"300", b"0"]
    assert 100 <= got[1][0] <= 120
    assert 400 <= got[2][0] <= 440
    broker.publish("s.x", b"new")
    assert values(broker.delivered("inbox")) == [b"new"]


def test_a_pause_holds_messages_back() -> None:
    broker = started()
    ordered(broker)
    broker.delivered()
    until = broker.api("CONSUMER.PAUSE.s.c", {"pause_until": "2023-11-14T22:14:00Z"})  # 40 s on
    assert until["paused"]
    assert until["pause_remaining"] > 30 * S
    broker.publish("s.x", b"v")
    assert values(broker.delivered()) == []
    assert broker.api("CONSUMER.INFO.s.c")["paused"]
    for _ in range(9):
        broker.tick(5_000)
    assert values(broker.delivered("inbox")) == [b"v"]
    broker.api("CONSUMER.PAUSE.s.c", {"pause_until": "2030-01-01T00:00:00Z"})
    broker.publish("s.x", b"w")
    assert values(broker.delivered()) == []
    assert not broker.api("CONSUMER.PAUSE.s.c")["paused"]
    assert values(broker.delivered("inbox")) == [b"w"]


def test_a_slow_nats_server_stops_readers_and_loses_nothing() -> None:
    broker = started(0)
    ordered(broker)
    broker.leaf.is_writable = False
    broker.publish("s.x", b"a", b"b")
    broker.publish("s.x", b"c")
    assert broker.delivered() == []
    broker.leaf.is_writable = True
    broker.turn()
    assert [(one.value, one.pending) for one in broker.delivered("inbox")] == [(b"a", 2), (b"b", 1), (b"c", 0)]
