"""Snapshots of marks, and companion logs that are trimmed behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId, PartitionKey
from penstock.live.live_rows import LiveRows
from penstock.live.marks import decode
from penstock.messages import (
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    FetchRequest,
    FetchResponse,
    TruncateRequest,
    TruncateResponse,
)
from penstock.node.partition.partition import Partition
from penstock.node.replicas.companions import CompanionRow, ReadCompanionRows
from penstock.node.replicas.hidden_rows import HiddenRows
from penstock.vfs.memory import MemoryVfs
from tests.unit.node.harness import Broker
from tests.unit.node.members import Brokers, Member, formed
from tests.unit.node.replicas.companion_brokers import companion, flip_mark, key_of, of_companion, target

MARKS_MAX = 4


def request(broker: Broker, *offsets: int, secure: bool = False) -> DeleteMessagesRequest:
    return DeleteMessagesRequest(
        stream_id=key_of(broker).stream_id, offsets=tuple(map(Offset, offsets)), is_secure=secure
    )


def delete(broker: Broker, *offsets: int) -> None:
    """Delete these, on a broker that has all replicas."""
    caller = broker.request(request(broker, *offsets))
    broker.tick(1_000)
    broker.answer(caller, DeleteMessagesResponse)
    broker.tick(1_000)


def alone(count: int = 100) -> Broker:
    broker = Broker(marks_per_snapshot_max=MARKS_MAX).start()
    broker.create("s", subject="s")
    broker.publish("s", *(b"%d" % number for number in range(count)))
    return broker


def kinds(log: Partition) -> list[str]:
    """Kinds of the marks that the companion log has."""
    read = ReadCompanionRows(log.log.view(), log.log_start, log.log.log_end)
    read.run()
    return [decode((row.key or b"").decode(), row.value or b"").kind for row in read.rows]


def shown(broker: Broker) -> list[int]:
    return [row.offset for row in broker.read("s")]


def test_a_companion_log_stays_short_however_many_marks_are_written() -> None:
    broker = alone()
    longest = 0
    for offset in range(60):
        delete(broker, offset)
        longest = max(longest, len(kinds(companion(broker))))
    assert companion(broker).log_start > 50
    assert longest <= 2 * (MARKS_MAX + 2)
    assert shown(broker) == [*range(60, 100)]


def test_a_start_reads_what_is_left_and_shows_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = alone()
    for offset in range(0, 60, 2):
        delete(broker, offset)
    before, start = shown(broker), companion(broker).log_start
    assert start > 20
    taken: list[int] = []
    applying = HiddenRows.applying

    def counted(self: HiddenRows, key: PartitionKey) -> Callable[[Sequence[CompanionRow]], LiveRows]:
        apply = applying(self, key)

        def applied(rows: Sequence[CompanionRow]) -> LiveRows:
            taken.extend(row.offset for row in rows)
            return apply(rows)

        return applied

    monkeypatch.setattr(HiddenRows, "applying", counted)
    after = broker.crash().start()
    after.tick(1_000)
    assert shown(after) == before
    assert min(taken) == start
    assert len(taken) <= 2 * (MARKS_MAX + 2)


def test_marks_stay_until_two_snapshots_hold_them() -> None:
    broker = alone()
    for offset in range(MARKS_MAX):
        delete(broker, offset)
    assert kinds(companion(broker)) == ["delete"] * MARKS_MAX + ["snapshot"]
    for offset in range(MARKS_MAX, 2 * MARKS_MAX):
        delete(broker, offset)
    assert kinds(companion(broker)) == ["snapshot"] + ["delete"] * MARKS_MAX + ["snapshot"]


def test_no_mark_is_removed_while_a_snapshot_is_not_committed() -> None:
    broker = alone()
    for offset in range(2 * MARKS_MAX - 1):
        delete(broker, offset)
    caller = broker.request(request(broker, 50))
    broker.answer(caller, DeleteMessagesResponse)
    broker.syncs_hang = True
    for _ in range(5):
        broker.tick(1_000)
    assert kinds(companion(broker))[-1] == "snapshot"
    assert companion(broker).log_start == 0
    broker.syncs_hang = False
    broker.settle()
    broker.tick(1_000)
    assert companion(broker).log_start == MARKS_MAX


def test_a_crash_while_a_snapshot_is_written_loses_no_mark() -> None:
    broker = alone()
    for round_ in range(6):
        for offset in range(10 * round_, 10 * round_ + MARKS_MAX - 1):
            delete(broker, offset)
        caller = broker.request(request(broker, 10 * round_ + 9))
        broker.answer(caller, DeleteMessagesResponse)
        before = shown(broker)
        broker.syncs_hang = True
        broker.tick(1_000)
        broker = broker.crash().start()
        broker.tick(1_000)
        assert shown(broker) == before
    assert companion(broker).log_start > 0


def test_a_leader_without_a_snapshot_of_what_was_removed_goes_on_without_it() -> None:
    broker = alone()
    for offset in range(30):
        delete(broker, offset)
    log = companion(broker)
    assert log.log_start > 20
    task = log.log.truncate(log.log_start)  # as one that an unclean election has made the leader
    assert task is not None
    task.run()
    log.log.truncated(task)
    log.log.note_committed(log.log_start)
    after = broker.crash().start()
    after.tick(1_000)
    assert shown(after) == [*range(100)], "an unclean election may lose marks"
    delete(after, 50)
    assert "snapshot" in kinds(companion(after)), "replicas that come later need it"
    assert shown(after.crash().start()) == [*range(50), *range(51, 100)]


def clustered() -> Brokers:
    brokers = formed(marks_per_snapshot_max=MARKS_MAX)
    caller = brokers.leader.create("s", subject="s", replicas=3)
    brokers.run(500)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]
    brokers.led("s").publish("s", *(b"%d" % number for number in range(100)))
    brokers.run(1_000)
    return brokers


def delete_on(leader: Member, *offsets: int, secure: bool = False) -> None:
    caller = leader.request(request(leader, *offsets, secure=secure))
    for _ in range(40):
        leader.brokers.run(200)
        if caller in leader.replies:
            break
    leader.answer(caller, DeleteMessagesResponse)


def hidden(member: Member) -> list[int]:
    return [offset for offset in range(100) if offset in (target(member).log.hidden or ())]


def reply(member: Member) -> FetchResponse | RemoteError:
    caller = member.request(
        FetchRequest(stream_id=key_of(member).stream_id, partition=PartitionId(0), offset=Offset(0))
    )
    member.settle()
    response = member.replies[caller].response
    assert isinstance(response, FetchResponse | RemoteError)
    return response


def away(brokers: Brokers) -> tuple[Member, int, MemoryVfs]:
    """A leader whose companion log begins behind all that a stopped follower has; and the disk of that one."""
    leader = brokers.led("s")
    delete_on(leader, 0)
    brokers.run(1_000)
    follower = next(one for one in brokers.members.values() if one is not leader)
    disk = brokers.stop(follower.broker_id)
    brokers.run(15_000)
    for offset in range(1, 30):
        delete_on(brokers.led("s"), offset, secure=offset == 5)
    brokers.run(3_000)
    return brokers.led("s"), follower.broker_id, disk


def test_followers_trim_as_their_leader_does() -> None:
    brokers = clustered()
    for offset in range(30):
        delete_on(brokers.led("s"), offset)
    brokers.run(5_000)
    starts = {companion(one).log_start for one in brokers.members.values()}
    assert len(starts) == 1
    assert min(starts) > 20
    for one in brokers.members.values():
        assert hidden(one) == [*range(30)]


def test_a_follower_that_lacks_removed_marks_shows_nothing_before_the_snapshot() -> None:
    brokers = clustered()
    leader, broker_id, disk = away(brokers)
    assert companion(leader).log_start > 10
    key = key_of(leader)
    follower = brokers.start(broker_id, disk)
    answered = 0
    for _ in range(200):
        brokers.run(50)
        if key not in follower.node._partitions or not follower.node.image.names:
            continue
        response = reply(follower)
        erased = follower.node._replicas.hidden_rows.erasure(target(follower)).erased_end
        if isinstance(response, FetchResponse):
            answered += 1
            assert hidden(follower) == [*range(30)]
        else:
            assert response.code in (ErrorCode.NOT_YET, ErrorCode.NOT_LEADER)
        if erased > 5:
            assert 5 in follower.node._replicas.hidden_rows._folds[key].live.secure
    assert answered
    assert companion(follower).log_start == companion(leader).log_start


def test_the_next_leader_goes_on_from_what_is_left() -> None:
    brokers = clustered()
    for offset in range(30):
        delete_on(brokers.led("s"), offset)
    leader = brokers.led("s")
    brokers.kill(leader.broker_id)
    brokers.run(15_000)
    after = brokers.led("s")
    assert after is not leader
    start = companion(after).log_start
    for offset in range(30, 45):
        delete_on(after, offset)
    brokers.run(2_000)
    assert companion(after).log_start > start
    for one in brokers.members.values():
        assert hidden(one) == [*range(45)]


def test_damaged_marks_that_others_have_removed_are_mended() -> None:
    """All are damaged, so nobody leads at first; one of them below where the companion logs of the others begin."""
    brokers = clustered()
    leader = brokers.led("s")
    late = next(one for one in brokers.members.values() if one is not leader)
    deleted = 0
    while not leader.node._replicas.hidden_rows.removable_end(key_of(leader)):
        delete_on(leader, deleted)
        deleted += 1
        assert deleted < 5 * MARKS_MAX
    assert companion(leader).log_start == 0
    brokers.cut(leader.broker_id, late.broker_id)  # it has both snapshots, and no news of what they lead to
    (other,) = (one for one in brokers.members.values() if one not in (leader, late))
    for _ in range(30):
        if companion(other).log_start:
            break
        brokers.run(100)
    folders = {one: of_companion(member) for one, member in brokers.members.items()}
    starts = {one: companion(member).log_start for one, member in brokers.members.items()}
    assert starts.pop(late.broker_id) == 0
    (start,) = set(starts.values())
    assert start >= MARKS_MAX
    assert len(brokers.partition("s").isr) == 3
    disks = {one: brokers.kill(one) for one in list(brokers.members)}
    for member, number in ((late, 1), (leader, start + 1), (other, start + 2)):
        flip_mark(disks[member.broker_id], folders[member.broker_id], number)
    for one, disk in disks.items():
        brokers.start(one, disk)
    brokers.join(leader.broker_id, late.broker_id)
    brokers.run(120_000)
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]
    for member in brokers.members.values():
        assert companion(member).log_start == start
        assert hidden(member) == [*range(deleted)]


def test_followers_forget_what_was_hidden_below_the_log_start() -> None:
    brokers = clustered()
    leader = brokers.led("s")
    delete_on(leader, 1, 3, 99)
    key = key_of(leader)
    caller = leader.request(TruncateRequest(stream_id=key.stream_id, partition=PartitionId(0), before=Offset(50)))
    brokers.run(3_000)
    assert leader.answer(caller, TruncateResponse).log_start == 50
    for member in brokers.members.values():
        live = member.node._replicas.hidden_rows._folds[key].live
        assert [*live.hidden.runs()] == [(99, 100)]
