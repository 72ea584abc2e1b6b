"""One broker is a cluster of one: it asks nobody, waits for nobody, and misses nobody."""

from __future__ import annotations

import errno

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.node.replicas.listened_file import _Save
from penstock.raft.tasks import LOG_PATH
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind, Plan, no_faults
from tests.extent import each_change
from tests.unit.node.harness import Broker
from tests.unit.node.members import Brokers


def test_a_broker_that_is_alone_is_not_missed_by_itself() -> None:
    """It sends itself no heartbeats; it took itself for dead after a session, and nobody led anything."""
    broker = Broker().start()
    broker.create("orders")
    for _ in range(20):
        broker.tick(limits.SESSION_MS / 2)
    assert broker.stream("orders").partitions[0].leader_epoch == 1
    broker.publish("orders.a", b"x", reply="r")
    assert broker.acked() == ["r"]
    broker.create("later")
    assert set(broker.streams()) == {"orders", "later"}
    assert broker.notices == []


def test_a_broker_that_is_alone_does_nothing_while_nothing_happens() -> None:
    broker = Broker().start()
    broker.create("orders")
    for _ in range(3):
        broker.tick(1_000)
    before = {path: broker.memory.open(path).size() for path in broker.memory.files()}
    steps = len(broker.steps)
    for _ in range(10):
        broker.clock.advance_ms((broker.node.next_wake_us - broker.clock.elapsed_us) / 1_000)
        broker.tick()
    assert broker.clock.elapsed_us >= 10_000_000
    works = [work for step in broker.steps[steps:] for work in step.disk]
    assert len(broker.steps) == steps + len(works) <= steps + 10  # until when it has listened, in place
    assert {type(work.run.__self__) for work in works} == {_Save}  # type: ignore[attr-defined]
    assert {path: broker.memory.open(path).size() for path in broker.memory.files()} == before


def test_a_voter_that_waits_for_the_others_sleeps() -> None:
    brokers = Brokers(1, 2, 3)
    brokers.kill(2)
    brokers.kill(3)
    brokers.run(2 * limits.SESSION_MS)
    node, clock = brokers[1].node, brokers.clock
    assert not node._cluster.image.brokers
    for _ in range(20):
        brokers[1].tick()
        assert clock.elapsed_us < node.next_wake_us <= clock.elapsed_us + limits.HEARTBEAT_MS * 1_000
        clock.advance_ms((node.next_wake_us - clock.elapsed_us) / 1_000)


def full_behind(entries: int) -> Plan:
    """A disk whose metadata log takes so many writes, and none after that."""
    seen = 0

    def plan(one: FileOperation) -> FileFault | None:
        nonlocal seen
        if one.kind is not FileOperationKind.WRITE or one.path != LOG_PATH:
            return None
        seen += 1
        return None if seen <= entries else FileFault(errno.ENOSPC)

    return plan


@pytest.mark.parametrize("entries", range(5))
def test_a_broker_that_is_alone_forms_its_cluster_also_where_the_disk_refuses_that_first(entries: int) -> None:
    broker = Broker()
    broker.vfs.plan = full_behind(entries)
    broker.start()
    for _ in range(10):
        broker.tick(500)
    broker.vfs.plan = no_faults
    for _ in range(20):
        broker.clock.advance_ms((broker.node.next_wake_us - broker.clock.elapsed_us) / 1_000)
        broker.tick()
    assert broker.node._cluster.image.cluster_id
    assert broker.node._cluster.image.live_brokers()


@each_change
@pytest.mark.parametrize("entries", range(8))
def test_brokers_form_their_cluster_also_where_their_disks_refuse_that_first(entries: int) -> None:
    brokers = Brokers(1, 2, 3)
    for member in brokers.members.values():
        member.vfs.plan = full_behind(entries)
    brokers.run(5_000)
    for member in brokers.members.values():
        member.vfs.plan = no_faults
    brokers.run(8_000)
    assert {member.image.cluster_id for member in brokers.members.values()} == {brokers.leader.image.cluster_id}
    assert brokers.leader.image.cluster_id


def refused_a_stream(brokers: Brokers, name: str) -> BrokerId:
    """The metadata leader, which could not write it; it has room again afterwards."""
    leader = brokers.leader
    leader.vfs.plan = full_behind(0)
    caller = leader.create(name)
    brokers.settle()
    leader.vfs.plan = no_faults
    response = leader.replies[caller].response
    assert isinstance(response, RemoteError)
    assert response.code == ErrorCode.STORAGE_FAILED
    brokers.run(1_000)
    return leader.broker_id


def test_each_voter_is_asked_to_lead_where_disks_are_full_and_none_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "METADATA_HAND_OVER_MS", 10_000)
    brokers = Brokers(1, 2, 3)
    brokers.run(5_000)
    first, second, third, again, last = (refused_a_stream(brokers, f"s{number}") for number in range(5))
    assert {first, second, third} == {1, 2, 3}
    assert again == last == first
    brokers.run(10_000)
    assert refused_a_stream(brokers, "more") == first
    assert brokers.leader.broker_id == second
