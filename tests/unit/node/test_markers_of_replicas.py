"""Expiry and delete markers of replicated streams: all replicas show the same, whoever leads."""

from __future__ import annotations

from typing import Any

from penstock.base.errors import RemoteError
from penstock.messages import RaiseFeatureLevelRequest, RaiseFeatureLevelResponse
from penstock.node.partition.expiry import FindExpired
from tests.unit.node.members import Brokers, formed
from tests.unit.node.test_survey_marks import partition, with_stream, works

MARKED: dict[str, Any] = {
    "allow_message_ttl": True,
    "allow_rollup": True,
    "max_messages_per_subject": 1,
    "subject_delete_marker_ttl_ms": 60_000,
    "dedup_window_ms": None,
}
MARKER = b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 1m0s\r\nNats-Rollup: sub\r\n\r\n"


def bucket(brokers: Brokers, **config: Any) -> Brokers:
    return with_stream(brokers, subject="b.>", **{**MARKED, **config})


def put(brokers: Brokers, key: str, ttl: str = "") -> None:
    block = f"NATS/1.0\r\nNats-TTL: {ttl}\r\n\r\n".encode() if ttl else None
    brokers.led("prices").publish(f"b.{key}", b"v", reply="r", headers=block)
    brokers.settle()


def keys(brokers: Brokers) -> list[list[tuple[str, bool]]]:
    """Key, and whether it is a marker, of what each replica shows."""
    found = []
    for member in brokers.members.values():
        try:
            member.node._replicas.companions.check_readable(partition(member))
        except RemoteError:
            continue
        found.append(sorted((row.subject[2:], row.headers == MARKER) for row in member.read("prices")))
    return found


def test_all_replicas_show_the_same_and_only_the_leader_looks() -> None:
    brokers = bucket(formed())
    put(brokers, "kept")
    for key in "abc":
        put(brokers, key, "5")
    brokers.run(4_000)
    assert {len(one) for one in keys(brokers)} == {4}
    brokers.run(3_000)
    assert keys(brokers) == [[("a", True), ("b", True), ("c", True), ("kept", False)]] * 3
    led = brokers.led("prices")
    assert [FindExpired in works(member) for member in brokers.members.values()] == [
        member is led for member in brokers.members.values()
    ]
    brokers.run(62_000)
    assert keys(brokers) == [[("kept", False)]] * 3
    assert len({partition(member).visible.applied.hidden for member in brokers.members.values()}) == 1


def test_the_next_leader_goes_on_and_writes_no_marker_twice() -> None:
    brokers = bucket(formed())
    for key in "abc":
        put(brokers, key, "5")
    for key in "def":
        put(brokers, key, "20")
    brokers.run(7_000)
    first = brokers.led("prices")
    end = partition(first).committed_end
    assert end == 9
    memory = brokers.kill(first.broker_id)
    brokers.run(10_000)
    assert partition(brokers.led("prices")).committed_end == 9, "no marker twice"
    put(brokers, "a")
    brokers.run(10_000)
    expected = [("a", False), *((key, True) for key in "bcdef")]
    assert keys(brokers) == [expected] * 2
    brokers.start(first.broker_id, memory)
    brokers.run(10_000)
    assert keys(brokers) == [expected] * 3
    assert partition(brokers.led("prices")).committed_end == 13


def test_a_leader_that_is_killed_between_marker_and_mark_leaves_one_marker() -> None:
    """Whenever it is killed: each key has one marker, in the log of whoever leads."""
    for after_ms in range(0, 300, 20):
        brokers = bucket(formed())
        for key in "ab":
            put(brokers, key, "2")
        led = brokers.led("prices")
        brokers.run(1_950)
        brokers.run(after_ms)
        brokers.kill(led.broker_id)
        brokers.run(10_000)
        assert keys(brokers) == [[("a", True), ("b", True)]] * 2, after_ms
        assert partition(brokers.led("prices")).committed_end == 4, after_ms


def test_below_the_level_messages_go_by_segments_and_markers_are_refused() -> None:
    brokers = Brokers(1, 2, 3, broker_version="0.3.0")
    brokers.run(5_000)
    caller = brokers.leader.create("prices", subject="b.>", replicas=3, **MARKED)
    brokers.run(500)
    refusal = brokers.leader.replies[caller].response
    assert isinstance(refusal, RemoteError)
    assert "feature level" in refusal.message or "0.4" in refusal.message
    with_stream(brokers, subject="b.>", allow_message_ttl=True, dedup_window_ms=None)
    put(brokers, "a", "5")
    put(brokers, "kept")
    brokers.run(10_000)
    assert keys(brokers) == [[("a", False), ("kept", False)]] * 3
    brokers.settings["broker_version"] = "0.4.0"
    for one in brokers.ids:
        brokers.start(one, brokers.stop(one))
        brokers.run(10_000)
    caller = brokers.leader.request(RaiseFeatureLevelRequest())
    brokers.run(1_000)
    brokers.leader.answer(caller, RaiseFeatureLevelResponse)
    brokers.run(5_000)
    assert keys(brokers) == [[("kept", False)]] * 3
