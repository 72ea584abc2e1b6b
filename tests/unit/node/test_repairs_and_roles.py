"""Mending beside what else happens: lost lineages, leaders that die, places that fail, batches that do not fit."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.commitlog import LogState, SegmentRepair
from penstock.messages import ReplicaRangeResponse
from penstock.node.replicas import leader_replication, repairs
from penstock.vfs.memory import MemoryVfs
from tests.damage import flip
from tests.extent import each_change
from tests.unit.node.members import Brokers, Member, formed
from tests.unit.node.replicas.test_repairs import (
    ROWS,
    SEGMENT_BYTES,
    damage,
    grown,
    others,
    read_all,
    replica,
    segments,
    values,
)

MINUTE_MS = 60_000


def with_a_follower_whose_lineage_was_lost() -> tuple[Brokers, Member]:
    """Two leader epochs; one follower, which leads nothing, was started anew after a bit of its lineage had flipped."""
    brokers = formed()
    brokers.leader.create(
        "s", subject="s", replicas=3, min_isr=2, segment_bytes=SEGMENT_BYTES, segment_age_ms=3_600_000
    )
    brokers.run(500)
    for number in range(ROWS):
        if number == ROWS // 2:
            before = brokers.led("s")
            disk = brokers.stop(before.broker_id)
            brokers.run(5_000)
            brokers.start(before.broker_id, disk)
            brokers.run(20_000)
        brokers.publish("s", b"%d " % number + b"." * (SEGMENT_BYTES // 4))
        brokers.run(50)
    brokers.run(3_000)
    follower = others(brokers, brokers.led("s"), brokers.leader)[0]
    disk = brokers.stop(follower.broker_id)
    flip(disk, f"{segments(disk)[0].rpartition('/')[0]}/lineage", 3)
    follower = brokers.start(follower.broker_id, disk)
    brokers.run(20_000)
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]
    assert replica(follower).log.lineage == replica(brokers.led("s")).log.lineage
    return brokers, follower


@each_change
def test_one_whose_lineage_was_lost_is_mended() -> None:
    brokers, follower = with_a_follower_whose_lineage_was_lost()
    damage(follower.memory, 0)
    read_all(follower)
    brokers.run(MINUTE_MS)
    assert values(follower) == tuple(range(ROWS))
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]


@each_change
def test_nothing_is_taken_from_one_that_may_lead_next() -> None:
    """The metadata leader is silent while the bit flips, so the image has that replica in the ISR; the leader dies."""
    brokers, follower = with_a_follower_whose_lineage_was_lost()
    leader, metadata_leader = brokers.led("s"), brokers.leader
    brokers.hang(metadata_leader.broker_id)
    damage(follower.memory, 0)
    read_all(follower)
    brokers.run(400)
    assert follower.broker_id in follower.image.by_name("s").partitions[0].isr
    assert replica(follower).log.log_end == ROWS
    if leader is not metadata_leader:
        brokers.kill(leader.broker_id)
    brokers.wake(metadata_leader.broker_id)
    brokers.run(MINUTE_MS)
    for member in brokers.members.values():
        assert replica(member).log.log_end == ROWS
        assert values(member) == tuple(range(ROWS))


def side_files(disk: MemoryVfs) -> list[str]:
    return [name for name in disk.list(segments(disk)[0].rpartition("/")[0]) if ".cut-" in name]


@each_change
def test_what_cannot_be_mended_is_tried_later_each_time_and_leaves_no_copies() -> None:
    brokers = grown()
    for member in brokers.members.values():
        damage(member.memory, 0)
        read_all(member)
    tries = []
    for _ in range(5):
        brokers.run(MINUTE_MS)
        follower = others(brokers, brokers.led("s"))[0]
        tries.append(follower.node._replicas.repairs._tries.get(replica(follower).key, 0))
    assert not any(side_files(member.memory) for member in brokers.members.values())
    assert 0 < tries[-1] <= 7
    assert limits.REPAIR_RETRY_MS << tries[-1] > 2 * MINUTE_MS


@each_change
def test_a_place_that_fails_once_is_tried_again_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = grown()
    follower = others(brokers, brokers.led("s"))[0]
    place, calls = SegmentRepair.place, []

    def failing(mending: SegmentRepair) -> None:
        calls.append(mending)
        if len(calls) == 1:
            raise OSError(5, "Input/output error")
        place(mending)

    monkeypatch.setattr(SegmentRepair, "place", failing)
    damage(follower.memory, 0)
    read_all(follower)
    brokers.run(MINUTE_MS)
    assert replica(follower).log.state is LogState.WRITABLE
    assert replica(follower).counters["repaired_ranges"] == 1
    assert len([notice for notice in follower.notices if "is mended" in notice]) == 1
    assert values(follower) == tuple(range(ROWS))


@each_change
@pytest.mark.parametrize("ticks", [1, 2, 3])
@pytest.mark.parametrize("which", [0, 1])
def test_one_that_is_to_lead_while_it_is_mended_is_mended_afterwards(which: int, ticks: int) -> None:
    brokers = grown()
    leader = brokers.led("s")
    follower = others(brokers, leader)[which]
    damage(follower.memory, 0)
    follower.disk_runs_at_once = False
    view = replica(follower).view()
    with pytest.raises(RemoteError):
        list(view.batches(view.log_start, replica(follower).committed_end))
    for number in range(ticks):
        follower.tick(50 if number else 1_000)
    brokers.kill(leader.broker_id)
    brokers.run(6_000)
    follower.disk_runs_at_once = True
    brokers.run(2 * MINUTE_MS)
    assert replica(follower).log.state is LogState.WRITABLE
    assert values(follower) == tuple(range(ROWS))


@each_change
def test_if_what_the_leader_gives_does_not_fit_another_one_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = grown()
    leader = brokers.led("s")
    follower = others(brokers, leader)[0]
    take, asked = repairs.Repairs._take, []

    def garbled(
        self: repairs.Repairs, mending: SegmentRepair, response: ReplicaRangeResponse, raw: bytes, *, leads: bool
    ) -> bool:
        asked.append(leads)
        return take(self, mending, response, b"\xff" * 64 if leads else raw, leads=leads)

    monkeypatch.setattr(repairs.Repairs, "_take", garbled)
    damage(follower.memory, 0)
    read_all(follower)
    brokers.run(MINUTE_MS)
    assert asked[:2] == [True, False]
    assert replica(follower).log.state is LogState.WRITABLE
    assert values(follower) == tuple(range(ROWS))


def test_a_leader_sends_a_follower_nothing_that_it_found_damaged() -> None:
    """What is in memory of a segment says nothing of damage in its file."""
    brokers = grown()
    leader = brokers.led("s")
    partition = replica(leader)
    last = partition.view().batch_at(ROWS - 1)[1]
    path = segments(leader.memory)[-1]
    flip(leader.memory, path, last.position + last.size_bytes // 2)
    look = leader_replication._LedLog(partition).lookup_task(ROWS - 2, 10 * SEGMENT_BYTES, verifies=True)
    assert look().found.end_offset == ROWS - 1
    with pytest.raises(RemoteError, match="damaged"):
        leader_replication._LedLog(partition).lookup_task(ROWS - 1, 10 * SEGMENT_BYTES, verifies=True)()


@each_change
@pytest.mark.parametrize("number", [0, 1, -1], ids=["the first", "in the midst", "the one that is written"])
def test_a_segment_that_somebody_removed_is_mended(number: int) -> None:
    brokers = grown()
    follower = others(brokers, brokers.led("s"))[0]
    path = segments(follower.memory)[number]
    follower.memory.remove(path)
    follower.memory.remove(path.replace(".arrows", ".index"))
    read_all(follower)
    brokers.run(MINUTE_MS)
    assert replica(follower).log.state is LogState.WRITABLE, follower.notices
    assert values(follower) == tuple(range(ROWS))
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]
