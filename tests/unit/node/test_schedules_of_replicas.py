"""Schedules of replicated streams: whoever leads, each message is sent once."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from penstock.base.errors import RemoteError
from tests.unit.node.members import Brokers, formed
from tests.unit.node.test_survey_marks import partition, with_stream

SCHEDULED: dict[str, Any] = {"allow_message_schedules": True, "allow_rollup": True, "dedup_window_ms": None}


def scheduled(brokers: Brokers, **config: Any) -> Brokers:
    return with_stream(brokers, subject="b.>", **{**SCHEDULED, **config})


def delay(brokers: Brokers, name: str, seconds: float) -> None:
    led = brokers.led("prices")
    time = datetime.fromtimestamp(led.clock.wall_us / 1_000_000 + seconds, UTC).isoformat()
    block = f"NATS/1.0\r\nNats-Schedule: @at {time}\r\nNats-Schedule-Target: b.sent\r\n\r\n".encode()
    led.publish(f"b.{name}", name.encode(), reply="r", headers=block)
    brokers.settle()


def shown(brokers: Brokers) -> list[list[tuple[str, bytes | None]]]:
    """Subject and value of what each replica shows."""
    return [[(row.subject[2:], row.value) for row in member.read("prices")] for member in brokers.members.values()]


def test_all_replicas_show_the_same_and_only_the_leader_looks() -> None:
    brokers = scheduled(formed())
    for name in "abc":
        delay(brokers, name, 2)
    delay(brokers, "later", 60)
    brokers.run(4_000)
    assert shown(brokers) == [[("later", b"later"), ("sent", b"a"), ("sent", b"b"), ("sent", b"c")]] * 3
    led = brokers.led("prices")
    looking = [len(member.node._schedules._rounds) > 0 for member in brokers.members.values()]
    assert looking == [member is led for member in brokers.members.values()]
    brokers.run(60_000)
    assert shown(brokers) == [[("sent", b"a"), ("sent", b"b"), ("sent", b"c"), ("sent", b"later")]] * 3


def test_a_leader_that_is_killed_at_any_moment_sends_each_once() -> None:
    for after_ms in range(0, 400, 20):
        brokers = scheduled(formed())
        for name in "ab":
            delay(brokers, name, 2)
        led = brokers.led("prices")
        brokers.run(1_900 + after_ms)
        memory = brokers.kill(led.broker_id)
        brokers.run(10_000)
        expected = [("sent", b"a"), ("sent", b"b")]
        assert shown(brokers) == [expected] * 2, after_ms
        brokers.start(led.broker_id, memory)
        brokers.run(10_000)
        assert shown(brokers) == [expected] * 3, after_ms
        assert partition(brokers.led("prices")).committed_end == 4, after_ms


def test_below_the_level_a_stream_with_schedules_is_refused() -> None:
    brokers = Brokers(1, 2, 3, broker_version="0.3.0")
    brokers.run(5_000)
    caller = brokers.leader.create("prices", subject="b.>", replicas=3, **SCHEDULED)
    brokers.run(500)
    refusal = brokers.leader.replies[caller].response
    assert isinstance(refusal, RemoteError)
    assert "allow_message_schedules" in refusal.message
