"""Compaction and expiry of replicated streams: the leader decides by marks, and all replicas follow."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionKey
from penstock.batch import codec
from penstock.commitlog import Cleaning, Deciding, Survey
from penstock.live.marks import HideReason
from penstock.live.row_set import RowSet
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    FetchRequest,
    RaiseFeatureLevelRequest,
    RaiseFeatureLevelResponse,
)
from penstock.messages.streams import PartitionHealth
from penstock.node.partition.expiry import FindExpired
from penstock.node.partition.partition import Partition
from penstock.node.replicas.companions import ReadCompanionRows
from tests.unit.node.harness import Broker, Row
from tests.unit.node.members import Brokers, formed

TABLE = {"compact": True, "segment_bytes": 4096, "dedup_window_ms": None, "tombstone_retention_ms": 60_000}
EXPIRING = {"allow_message_ttl": True, "segment_bytes": 4096, "segment_age_ms": 1_000, "dedup_window_ms": None}


def with_stream(brokers: Brokers, **config: Any) -> Brokers:
    caller = brokers.leader.create("prices", **{"subject": "prices", "replicas": 3, **config})
    brokers.run(500)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]
    return brokers


def publish(brokers: Brokers, key: str, value: bytes | None, *, headers: str = "") -> None:
    """A message of that key, or its tombstone."""
    block = f"NATS/1.0\r\nPenstock-Key: {key}\r\n{headers}\r\n"
    if value is None:
        block = f"NATS/1.0\r\nPenstock-Key: {key}\r\nPenstock-Tombstone: 1\r\n\r\n"
    brokers.led("prices").publish("prices", value or b"", headers=block.encode())
    brokers.settle()


def filled(brokers: Brokers, messages: int = 40) -> Brokers:
    """Keys a and b again and again, and c once, at the begin."""
    publish(brokers, "c", b"only")
    for number in range(messages):
        publish(brokers, "ab"[number % 2], b"%d" % number)
    brokers.run(1_000)
    return brokers


def partition(member: Broker) -> Partition:
    (stream_id,) = [one.stream_id for one in member.streams().values()]
    return member.node._partitions[PartitionKey(stream_id, 0)]  # type: ignore[arg-type]


def views(brokers: Brokers) -> list[list[Row]]:
    """What each replica shows that knows what is hidden; after the first mark a follower needs a moment for that."""
    found: list[list[Row]] = []
    by_end: dict[tuple[int, int], list[Row]] = {}
    for member in brokers.members.values():
        try:
            member.node._replicas.companions.check_readable(partition(member))
        except RemoteError:
            continue
        ends = partition(member).committed_end, partition(member).visible.shown_marks
        found.append(member.read("prices"))
        assert by_end.setdefault(ends, found[-1]) == found[-1], "with the same marks they show the same"
    assert found
    return found


def works(member: Broker) -> list[type]:
    found = [getattr(work.run, "__self__", None) for step in member.steps for work in step.disk]
    return [type(work) for work in found if isinstance(work, Cleaning | Survey | FindExpired)]


def stored(member: Broker) -> set[int]:
    """Offsets whose content is in the files, hidden or not."""
    found: set[int] = set()
    for _, data in partition(member).log.view().batches(0, partition(member).log.log_end):
        rows = codec.check_rows(data)
        pairs = zip(rows.column("offset").to_pylist(), rows.column("subject").to_pylist(), strict=True)
        found |= {offset for offset, subject in pairs if subject}
    return found


def test_all_replicas_lose_the_same_rows_with_one_mark() -> None:
    brokers = filled(with_stream(formed(), **TABLE))
    assert len({len(view) for view in views(brokers)}) == 1
    seen = set()
    for _ in range(400):
        brokers.run(50)
        seen |= {len(view) for view in views(brokers)}
    view, *others = views(brokers)
    assert others == [view, view]
    assert len(seen) == 2, "the rows of a pass go at once"
    assert [row.value for row in view if row.key == b"c"] == [b"only"]
    latest = {key: max(row.offset for row in view if row.key == key) for key in (b"a", b"b")}
    assert set(latest.values()) == {39, 40}
    assert len(view) < 20


def test_only_the_leader_surveys_and_all_erase() -> None:
    brokers = filled(with_stream(formed(), **TABLE))
    brokers.run(120_000)
    led = brokers.led("prices")
    for member in brokers.members.values():
        assert (Survey in works(member)) == (member is led)
        assert Cleaning in works(member)
        shown = {row.offset for row in member.read("prices")}
        assert stored(member) == shown
    fold = led.node._replicas.hidden_rows._folds[partition(led).key]
    assert fold.live.counts[list(HideReason).index(HideReason.COMPACTION)] == 41 - len(views(brokers)[0])


def test_a_tombstone_goes_everywhere_at_once_after_its_retention() -> None:
    brokers = with_stream(formed(), **TABLE)
    publish(brokers, "gone", b"1")
    publish(brokers, "gone", None)
    filled(brokers)
    brokers.run(20_000)
    for view in views(brokers):
        assert [(row.offset, row.value) for row in view if row.key == b"gone"] == [(1, None)]
    counts = []
    for _ in range(160):
        brokers.run(1_000)
        counts.append({len([row for row in view if row.key == b"gone"]) for view in views(brokers)})
        if counts[-1] == {0}:
            break
    assert counts[-1] == {0}
    assert {1} in counts
    assert {0, 1} not in counts


def test_the_next_leader_surveys_anew_and_takes_nothing_back() -> None:
    brokers = filled(with_stream(formed(), **TABLE))
    brokers.run(20_000)
    before = views(brokers)[0]
    first = brokers.led("prices")
    brokers.kill(first.broker_id)
    brokers.run(15_000)
    second = brokers.led("prices")
    assert second is not first
    assert views(brokers) == [before, before]
    for number in range(40):
        publish(brokers, "a", b"again %d" % number)
    brokers.run(130_000)
    one, other = views(brokers)
    assert one == other
    assert {row.offset for row in one if row.offset <= 40} <= {row.offset for row in before}
    assert len([row for row in one if row.key == b"a"]) < 12
    assert Survey in works(second)


def test_a_new_leader_hides_nothing_before_it_knows_what_others_have_hidden() -> None:
    """A mark of a new leader says which rows of earlier marks are still there: it must have folded these."""
    brokers = with_stream(formed(), **(TABLE | {"compaction_lag_ms": 20_000}))
    publish(brokers, "deleted", b"kept by no mark but the first leader's")
    filled(brokers)
    first = brokers.led("prices")
    for member in brokers.members.values():
        member.hung = () if member is first else (ReadCompanionRows,)
    caller = first.request(DeleteMessagesRequest(stream_id=partition(first).key.stream_id, offsets=(Offset(0),)))
    brokers.run(2_000)
    first.answer(caller, DeleteMessagesResponse)
    brokers.kill(first.broker_id)
    brokers.run(60_000)
    second = brokers.led("prices")
    assert second is not first
    with pytest.raises(RemoteError, match="is being read") as refused:
        second.node._replicas.hidden_rows.marks(
            partition(second), (RowSet.of([1]),), HideReason.COMPACTION, "", second.clock.now
        )
    assert refused.value.code == ErrorCode.NOT_YET
    for member in brokers.members.values():
        member.hung = ()
    brokers.run(60_000)
    for view in views(brokers):
        assert b"deleted" not in {row.key for row in view}


def test_expired_messages_go_everywhere_at_once() -> None:
    brokers = with_stream(formed(), **EXPIRING)
    for number in range(30):
        publish(brokers, f"k{number}", b"v", headers="Nats-TTL: 20\r\n" if number % 3 else "")
    brokers.run(10_000)
    assert {len(view) for view in views(brokers)} == {30}
    sizes = set()
    for _ in range(400):
        brokers.run(50)
        sizes |= {len(view) for view in views(brokers)}
    assert {len(view) for view in views(brokers)} == {min(sizes)} == {10}
    led = brokers.led("prices")
    for member in brokers.members.values():
        assert (FindExpired in works(member)) == (member is led)
    brokers.run(2 * limits.ERASURE_WAIT_MS // 60)
    for member in brokers.members.values():
        assert stored(member) == {row.offset for row in member.read("prices")}


def test_one_replica_goes_on_as_before() -> None:
    brokers = filled(with_stream(formed(), **TABLE, replicas=1))
    brokers.run(60_000)
    led = brokers.led("prices")
    assert partition(led).log.config.deciding is Deciding.ALONE
    assert not partition(led).stream.has_marks
    assert len(led.read("prices")) < 20


def test_what_a_deleted_message_would_replace_stays() -> None:
    brokers = with_stream(formed(), **(TABLE | {"compaction_lag_ms": 20_000}))
    publish(brokers, "k", b"older")
    publish(brokers, "k", b"newer")
    filled(brokers)
    led = brokers.led("prices")
    stream_id = partition(led).key.stream_id
    caller = led.request(DeleteMessagesRequest(stream_id=stream_id, offsets=(Offset(1),)))
    brokers.run(2_000)
    led.answer(caller, DeleteMessagesResponse)
    memory = brokers.kill(led.broker_id)
    brokers.run(12_000)
    brokers.start(led.broker_id, memory)
    brokers.run(60_000)
    for view in views(brokers):
        assert [row.value for row in view if row.key == b"k"] == [b"older"]
        assert len(view) < 20


def test_a_replica_that_lags_shows_nothing_rather_than_a_key_without_its_message() -> None:
    brokers = filled(with_stream(formed(), **TABLE))
    brokers.run(20_000)
    (follower, *_) = [one for one in brokers.members.values() if one is not brokers.led("prices")]
    own = partition(follower)
    assert own.visible.applied.log_end == own.committed_end == 41
    assert not own.lags_marks
    own.committed_end = 40  # as if it had not heard of the last commit
    assert own.lags_marks
    error = follower.refusal(FetchRequest(stream_id=own.key.stream_id, offset=Offset(0)))
    assert error.code == ErrorCode.NOT_YET


def test_nothing_is_hidden_while_deletion_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = filled(with_stream(formed(), **(TABLE | {"compaction_lag_ms": 5_000})))
    caller = brokers.leader.request(AlterStreamRequest(name="prices", changes={"suspend_deletion": "yes"}))
    brokers.run(30_000)
    brokers.leader.answer(caller, AlterStreamResponse)
    assert {len(view) for view in views(brokers)} == {41}
    caller = brokers.leader.request(AlterStreamRequest(name="prices", changes={"suspend_deletion": "no"}))
    brokers.run(30_000)
    assert max(len(view) for view in views(brokers)) < 20


def test_a_lack_of_room_is_told_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = filled(with_stream(formed(), **TABLE))
    brokers.run(20_000)
    before = views(brokers)[0]
    room = limits.HIDDEN_ROWS_BYTES_MAX
    monkeypatch.setattr(limits, "HIDDEN_ROWS_BYTES_MAX", 1)
    for number in range(40):
        publish(brokers, "a", b"again %d" % number)
    brokers.run(60_000)
    led = brokers.led("prices")
    state = led.stream("prices").partitions[0]
    assert state.state is PartitionHealth.ONLINE
    assert "superseded messages stay for now: nothing was hidden: " in state.state_reason
    assert len(views(brokers)[0]) == len(before) + 40
    monkeypatch.setattr(limits, "HIDDEN_ROWS_BYTES_MAX", room)
    brokers.run(limits.COMPACTION_RETRY_MS * 2)
    assert len(views(brokers)[0]) < len(before) + 12
    assert not led.stream("prices").partitions[0].state_reason


def test_once_the_level_is_raised_what_replicas_lost_alone_is_the_same_on_all() -> None:
    brokers = Brokers(1, 2, 3, broker_version="0.3.0")
    brokers.run(5_000)
    filled(with_stream(brokers, **TABLE))
    brokers.run(60_000)
    assert {partition(member).log.config.deciding for member in brokers.members.values()} == {Deciding.ALONE}
    assert all(Survey in works(member) for member in brokers.members.values())
    away = next(one for one in brokers.ids if one not in (brokers.leader.broker_id, brokers.led("prices").broker_id))
    memory = brokers.kill(away)
    for number in range(40):
        publish(brokers, "a", b"again %d" % number)
    brokers.run(60_000)
    brokers.settings["broker_version"] = "0.4.0"
    brokers.start(away, memory)
    brokers.run(5_000)
    for one in brokers.ids:
        if one != away:
            brokers.start(one, brokers.stop(one))
            brokers.run(10_000)
    caller = brokers.leader.request(RaiseFeatureLevelRequest())
    brokers.run(1_000)
    brokers.leader.answer(caller, RaiseFeatureLevelResponse)
    brokers.run(120_000)
    view, *others = views(brokers)
    assert others == [view, view]
    hidden = {partition(member).visible.applied.hidden for member in brokers.members.values()}
    (rows,) = hidden
    assert rows.count == partition(brokers.led("prices")).committed_end - len(view), "gaps are marks, too"
    deciding = [partition(member).log.config.deciding for member in brokers.members.values()]
    assert sorted(one.name for one in deciding) == ["BY_MARKS", "ELSEWHERE", "ELSEWHERE"]
