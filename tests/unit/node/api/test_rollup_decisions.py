"""Rollups that the leader decides on: what readers are shown of one, on all replicas alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from penstock.base import limits
from penstock.base.config import Intake
from penstock.base.errors import RemoteError
from penstock.base.ids import Offset
from penstock.commitlog import Deciding
from penstock.live.marks import HideRows, decode
from penstock.live.row_set import NONE, SPLIT_BYTES_MIN, RowSet
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    GetRequest,
    GetResponse,
    RaiseFeatureLevelRequest,
    RaiseFeatureLevelResponse,
    SetIntakeRequest,
)
from penstock.node.partition.decisions import DecideRows
from penstock.node.partition.partition import Partition
from penstock.node.replicas.hidden_rows import Decision
from tests.unit.node.harness import Broker
from tests.unit.node.members import Brokers, Member, formed
from tests.unit.node.test_expiry import block, go_on
from tests.unit.node.test_node import overwrite

SUB, ALL = "sub", "all"
CONFIG = {"allow_rollup": True, "segment_bytes": 4096, "dedup_window_ms": None}


def started(**config: Any) -> Broker:
    broker = Broker().start()
    broker.create("orders", **{**CONFIG, **config})
    broker.settle()
    return broker


def publish(broker: Broker, *messages: str) -> None:
    """Messages such as `a`, or `a sub` for a rollup of that subject."""
    for message in messages:
        subject, _, kind = message.partition(" ")
        headers = block(f"Nats-Rollup: {kind}") if kind else None
        broker.publish(f"orders.{subject}", message.encode(), headers=headers)


def decide(broker: Broker) -> None:
    for _ in range(2):
        broker.settle()
        broker.tick(limits.DECISION_PAUSE_MS_MAX)
    broker.settle()


def offsets(broker: Broker) -> list[int]:
    decide(broker)
    return [row.offset for row in broker.read("orders")]


def partition_of(broker: Broker, name: str = "orders") -> Partition:
    key = broker.node.image.by_name(name).partition_keys()[0]
    return broker.node._partitions[key]


def alter(broker: Broker, **changes: object) -> None:
    broker.ask(AlterStreamRequest(name="orders", changes=changes), AlterStreamResponse)
    broker.tick(1_000)
    broker.settle()


def delete(broker: Broker, *numbers: int) -> None:
    request = DeleteMessagesRequest(stream_id=broker.stream_id("orders"), offsets=tuple(map(Offset, numbers)))
    caller = broker.request(request)
    for _ in range(20):
        broker.tick(100)
    assert broker.answer(caller, DeleteMessagesResponse).deleted == len(numbers)


@pytest.mark.parametrize("limit", [None, 1, 2, 3])
def test_what_is_before_it_is_shown_no_more_whatever_segment_it_is_in(limit: int | None) -> None:
    broker = started(max_messages_per_subject=limit)
    live: list[tuple[int, str]] = []
    kinds = ("", "", " sub", "", "", "", " all")
    for number in range(150):
        subject, kind = "abcde"[number * 3 % 5], kinds[number * 5 % len(kinds)] if number % 11 < 2 else ""
        publish(broker, subject + kind)
        if kind:
            live = [one for one in live if kind == " sub" and one[1] != subject]
        live.append((number, subject))
        if limit is not None:
            same = [one for one in live if one[1] == subject]
            live = [one for one in live if one not in same[:-limit]]
        if number % 13 == 0:
            assert offsets(broker) == [one for one, _ in live]
    assert offsets(broker) == [one for one, _ in live]
    after = broker.crash().start()
    publish(after, "a sub")
    assert offsets(after) == [*(one for one, subject in live if subject != "a"), 150]


def test_readers_are_not_shown_a_rollup_before_it_has_taken_effect() -> None:
    broker = started()
    publish(broker, "a", "b")
    assert offsets(broker) == [0, 1]
    broker.hung = (DecideRows,)
    publish(broker, "a sub")
    broker.tick(limits.DECISION_PAUSE_MS_MAX)
    partition = partition_of(broker)
    assert (partition.committed_end, partition.visible_end) == (3, 2)
    caller = broker.request(GetRequest(stream_id=broker.stream_id("orders"), subject="orders.a"))
    broker.turn()
    assert caller in broker.open_requests
    broker.hung = ()
    broker.settle()
    assert broker.answer(caller, GetResponse).offset == 2
    assert offsets(broker) == [1, 2]


def test_its_effect_stays_though_it_is_deleted_at_once() -> None:
    broker = started()
    publish(broker, "a", "a", "b", "a sub")
    delete(broker, 3)
    assert offsets(broker) == [2]
    publish(broker, "a")
    after = broker.crash().start()
    assert offsets(after) == [2, 4]


def test_one_that_was_deleted_before_it_could_take_effect_takes_none() -> None:
    broker = started(suspend_deletion="yes")
    publish(broker, "a", "a sub", "b", "b sub")
    delete(broker, 1)
    assert offsets(broker) == [0, 2, 3]
    alter(broker, suspend_deletion="no")
    assert offsets(broker) == [0, 3]


def test_all_that_was_deleted_before_it_could_take_effect_takes_none() -> None:
    broker = started(suspend_deletion="yes")
    publish(broker, "a", "b all", "b")
    delete(broker, 1)
    assert offsets(broker) == [0, 2]
    alter(broker, suspend_deletion="no")
    go_on(broker, 20_000)
    assert offsets(broker) == [0, 2]


def test_damage_that_no_replica_can_mend_does_not_hide_the_rest_of_the_log() -> None:
    broker = started(suspend_deletion="yes", segment_bytes=1 << 20)
    publish(broker, "a")
    (segment,) = partition_of(broker).log.view().segments
    end = broker.memory.open(segment.path).size()
    publish(broker, "b", "a", "b", "a sub")
    broker.stop()
    overwrite(broker.memory, segment.path, end + 750, b"\xff")
    damaged = broker.crash().start()
    assert [one.base_offset for one in partition_of(damaged).log.damage] == [1]
    alter(damaged, suspend_deletion="no")
    after = damaged.crash().start()
    decide(after)
    partition = partition_of(after)
    assert partition.visible_end == 5
    assert partition.log.hidden == RowSet.of([0, 2])


def test_those_of_before_count_once_rollups_are_allowed_again() -> None:
    broker = started(suspend_deletion="yes")
    publish(broker, "a", "a sub", "b")
    alter(broker, allow_rollup=False)
    alter(broker, suspend_deletion="no")
    publish(broker, "a")
    assert offsets(broker) == [0, 1, 2, 3]
    alter(broker, allow_rollup=True)
    assert offsets(broker) == [1, 2, 3]


@pytest.mark.parametrize("limit", [None, 1, 3])
def test_those_of_before_count_however_many_decisions_that_takes(
    limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = started(suspend_deletion="yes")
    publish(broker, *"abab", "b sub", "c", "c", "a sub", "d", "c sub")
    alter(broker, allow_rollup=False)
    broker = broker.crash().start()  # it leads while they take no effect
    alter(broker, suspend_deletion="no", max_messages_per_subject=limit)
    decide(broker)
    monkeypatch.setattr(limits, "DECIDED_ROWS_AT_ONCE", 2)
    monkeypatch.setattr(limits, "DECIDED_BYTES_AT_ONCE", 1)
    alter(broker, allow_rollup=True)
    for _ in range(10):
        decide(broker)
    assert offsets(broker) == [4, 7, 8, 9]


def test_a_sealed_stream_stays_as_it_is() -> None:
    broker = started(suspend_deletion="yes")
    publish(broker, "a", "a sub")
    broker.request(SetIntakeRequest(name="orders", intake=Intake.SEALED))
    alter(broker, suspend_deletion="no")
    assert offsets(broker) == [0, 1]


def test_what_it_has_taken_leaves_the_files() -> None:
    broker = started(segment_age_ms=60_000)
    for number in range(50):
        publish(broker, "ab"[number % 2])
    publish(broker, "a sub")
    assert len(offsets(broker)) == 26
    go_on(broker, 61_000 + 2 * limits.ERASURE_WAIT_MS)
    view = partition_of(broker).log.view()
    stored = [count for header, _ in view.batches(view.log_start, view.log_end) if (count := header.count)]
    assert sum(stored) == 26


def test_all_is_hidden_with_the_rollup_shown_and_the_log_begins_there_later() -> None:
    broker = started()
    publish(broker, "a", "b")
    assert offsets(broker) == [0, 1]
    broker.hung = (DecideRows,)
    publish(broker, "c all")
    go_on(broker, 2_000)
    assert partition_of(broker).log_start == 0, "readers would be told to go on where they are shown nothing yet"
    broker.hung = ()
    assert offsets(broker) == [2]
    assert partition_of(broker).log_start == 2


def test_an_expectation_about_a_subject_that_all_has_taken() -> None:
    broker = started()
    publish(broker, "a", "b all")
    decide(broker)
    expected = block("Nats-Expected-Last-Subject-Sequence: 0")
    broker.publish("orders.a", b"first", headers=expected, reply="r")
    decide(broker)
    assert broker.acked()[-1] == "r"


def test_one_that_expires_takes_effect_before_it_goes() -> None:
    broker = started(allow_message_ttl=True, segment_age_ms=1_000)
    publish(broker, "a", "b")
    assert offsets(broker) == [0, 1]
    broker.hung = (DecideRows,)
    short = b"orders.a", None, block("Nats-Rollup: sub", "Nats-TTL: 2s"), b"short"
    broker.deliver([short, (b"orders.c", None, None, b"covers the offsets")])
    go_on(broker, 30_000)
    publish(broker, "c")
    go_on(broker, 30_000)
    broker.hung = ()
    decide(broker)
    go_on(broker, 90_000)
    assert offsets(broker) == [1, 3, 4]


def test_what_is_too_much_for_one_mark_is_split_and_the_newest_is_hidden_with_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = started()
    publish(broker, "a", "a sub")
    assert offsets(broker) == [1]
    monkeypatch.setattr(limits, "MARKS_PER_SNAPSHOT_MAX", 1)
    hidden_rows, rows = broker.node._replicas.hidden_rows, RowSet.of(range(2, 500_000, 2))
    decision = Decision(500_000, rows, rows.split(SPLIT_BYTES_MIN), limit=0, rollups=True, is_rollup=True)
    made = hidden_rows.decision(partition_of(broker), decision, broker.clock.now)
    marks = [decode((kind or b"").decode(), value or b"") for kind, value in made]
    assert len(marks) > 1
    named = NONE
    for mark in marks:
        assert isinstance(mark, HideRows)
        assert mark.rows.end > named.end
        named |= mark.rows
        is_last = mark is marks[-1]
        assert (mark.under.decided_end, mark.under.rollups) == ((500_000, True) if is_last else (0, False))
    assert named == rows
    monkeypatch.setattr(limits, "HIDDEN_ROWS_BYTES_MAX", 20_000)
    with pytest.raises(RemoteError, match="rollup cannot take effect"):
        hidden_rows.decision(partition_of(broker), decision, broker.clock.now)


# Several brokers


def with_stream(brokers: Brokers, **config: Any) -> Brokers:
    caller = brokers.leader.create("orders", subject="orders.*", **{**CONFIG, "replicas": 3, **config})
    brokers.run(1_000)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]
    return brokers


def told(brokers: Brokers, messages: Sequence[str]) -> None:
    for message in messages:
        publish(brokers.led("orders"), message)
        brokers.settle()


def views(brokers: Brokers) -> list[list[int]]:
    """The offsets that each replica shows which knows what is hidden."""
    found = []
    for member in brokers.members.values():
        try:
            member.node._replicas.companions.check_readable(partition_of(member))
        except RemoteError:
            continue  # not yet
        found.append([row.offset for row in member.read("orders")])
    return found


def test_all_replicas_hide_the_same_and_go_on_after_the_leader_is_killed() -> None:
    brokers = with_stream(formed())
    told(brokers, ["a", "b", "a", "a sub", "b"])
    brokers.run(1_000)
    assert views(brokers) == [[1, 3, 4]] * 3
    led = brokers.led("orders").broker_id
    for member in brokers.members.values():
        member.hung = (DecideRows,)
    told(brokers, ["b sub", "c"])
    memory = brokers.kill(led)
    for member in brokers.members.values():
        member.hung = ()
    brokers.run(20_000)
    assert views(brokers) == [[3, 5, 6]] * 2
    brokers.start(led, memory)
    brokers.run(20_000)
    told(brokers, ["a sub"])
    brokers.run(1_000)
    assert views(brokers) == [[5, 6, 7]] * 3
    assert len({partition_of(member).visible.applied.hidden for member in brokers.members.values()}) == 1


@pytest.mark.parametrize("config", [{"compact": True}, {"allow_message_ttl": True}], ids=str)
def test_other_passes_of_such_a_stream_are_decided_by_its_leader_too(config: dict[str, Any]) -> None:
    brokers = with_stream(formed(), segment_age_ms=1_000, tombstone_retention_ms=60_000, **config)
    for number in range(30):
        lines = ["Nats-TTL: 5"] if "allow_message_ttl" in config else [f"Penstock-Key: {number % 3}"]
        if number % 10 == 9:
            lines.append("Nats-Rollup: sub")
        brokers.led("orders").publish(f"orders.{'ab'[number // 10 % 2]}", b"." * 300, headers=block(*lines))
        brokers.settle()
    brokers.led("orders").publish("orders.c", b"last")
    brokers.run(60_000)
    brokers.led("orders").publish("orders.c", b"last")
    brokers.run(60_000)
    deciding = sorted(partition_of(member).log.config.deciding.name for member in brokers.members.values())
    survey = Deciding.BY_MARKS if "compact" in config else Deciding.ELSEWHERE  # else the node finds what expires
    assert deciding == [survey.name, Deciding.ELSEWHERE.name, Deciding.ELSEWHERE.name]
    (view, *others) = views(brokers)
    assert others == [view, view]
    assert len(view) < 5
    assert len({partition_of(member).visible.applied.hidden for member in brokers.members.values()}) == 1


def upgraded(brokers: Brokers, first: Member, memory: Any) -> None:
    """Restart all brokers as 0.4, the one that is away first, and raise the level."""
    brokers.settings["broker_version"] = "0.4.0"
    brokers.start(first.broker_id, memory)
    brokers.run(5_000)
    for one in brokers.ids:
        if one != first.broker_id:
            brokers.start(one, brokers.stop(one))
            brokers.run(10_000)
    caller = brokers.leader.request(RaiseFeatureLevelRequest())
    brokers.run(1_000)
    brokers.leader.answer(caller, RaiseFeatureLevelResponse)


def test_once_the_level_is_raised_what_each_replica_has_done_alone_is_the_same_on_all() -> None:
    brokers = Brokers(1, 2, 3, broker_version="0.3.0")
    brokers.run(5_000)
    with_stream(brokers, segment_age_ms=1_000)
    away = next(m for m in brokers.members.values() if m not in (brokers.leader, brokers.led("orders")))
    told(brokers, ["a", "b", "a", "b"] * 5)
    brokers.run(2_000)
    memory = brokers.kill(away.broker_id)
    told(brokers, ["a sub", "c"])
    brokers.run(5_000)
    told(brokers, ["a sub"])
    brokers.run(900_000)
    assert not partition_of(brokers.led("orders")).stream.has_marks
    assert len(brokers.led("orders").read("orders")) < 15, "their cleaners have applied the first ones"
    upgraded(brokers, away, memory)
    brokers.run(30_000)
    assert partition_of(brokers.led("orders")).stream.has_marks
    view, *others = views(brokers)
    assert others == [view, view]
    assert view == [*range(1, 20, 2), 21, 22]
    assert len({partition_of(member).visible.applied.hidden for member in brokers.members.values()}) == 1
    told(brokers, ["b sub"])
    brokers.run(1_000)
    assert views(brokers) == [[21, 22, 23]] * 3


def test_those_of_before_the_level_was_raised_count_however_many_decisions_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "DECIDED_BYTES_AT_ONCE", 1)
    brokers = Brokers(1, 2, 3, broker_version="0.3.0")
    brokers.run(5_000)
    with_stream(brokers, segment_age_ms=900_000)
    away = next(m for m in brokers.members.values() if m not in (brokers.leader, brokers.led("orders")))
    memory = brokers.kill(away.broker_id)
    told(brokers, ["a", "b", "a", "b"])
    told(brokers, ["a sub", "c"])
    told(brokers, ["b sub", "d"])
    brokers.run(1_000)
    upgraded(brokers, away, memory)
    brokers.run(30_000)
    assert partition_of(brokers.led("orders")).stream.has_marks
    assert views(brokers) == [[4, 5, 6, 7]] * 3
