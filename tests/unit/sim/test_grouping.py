"""Groups of consumers in a world where nothing goes wrong: they share, they commit; and what may not be is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.base.ids import Offset, PartitionId
from penstock.groups.rows import SUBJECT
from penstock.messages import CommittedOffset, FetchOffsetsResponse, GroupHeartbeatResponse, GroupPartition
from penstock.testing.errors import ViolationError
from tests.sim.models.clients import SHARED_SLOT, SLOTS
from tests.sim.models.grouping import MEMBERS, GroupModels
from tests.sim.plan.plan import Act, PlannedOperation, make_plan
from tests.sim.run.world import World

QUIET = make_plan(4, 1, SLOTS)._replace(faults=(), end_us=20_000_000)
JOIN = tuple(PlannedOperation(2_000_000 + 1_000_000 * n, Act.MEMBER, SHARED_SLOT, n) for n in range(MEMBERS))
COMMIT = tuple(PlannedOperation(3_000_000 + 400_000 * n, Act.COMMIT, SHARED_SLOT, n) for n in range(30))
ASK = tuple(PlannedOperation(3_100_000 + 700_000 * n, Act.POSITION, SHARED_SLOT, n) for n in range(20))
KILL = MEMBERS * 1  # of the member with number 0
SILENT = MEMBERS * (2 + 8 * 6_000_000) + 1  # the member with number 1, for 6 s


def ran(*more: PlannedOperation, show: Callable[[str], None] | None = None) -> World:
    world = World(QUIET._replace(operations=tuple(sorted(JOIN + COMMIT + ASK + more))), show)
    result = world.run()
    assert result.error == ""
    return world


@pytest.fixture(scope="module")
def world() -> World:
    return ran()


def groups_of(world: World) -> GroupModels:
    return world._clients.groups


def answer(offset: int) -> FetchOffsetsResponse:
    return FetchOffsetsResponse(offsets=(CommittedOffset(partition=PartitionId(0), offset=Offset(offset)),))


def test_without_operations_of_theirs_there_are_none() -> None:
    world = World(QUIET._replace(operations=()))
    assert world.run().error == ""
    assert (SUBJECT.decode(), 0) not in world.checks.histories


def test_members_share_what_there_is_and_commit_it(world: World) -> None:
    counters = world._around.counters
    groups = groups_of(world)
    assert counters["partitions that changed hands"] >= 3
    assert counters["offsets committed"] > 100
    assert [len(one.positions) for one in groups._members] == [1, 1, 1]
    assert groups.waits_for(lambda history: False)() != ""  # from now on nothing has been committed yet


def test_one_that_is_killed_or_says_nothing_loses_what_it_had() -> None:
    kill = PlannedOperation(8_000_000, Act.MEMBER, SHARED_SLOT, KILL)
    silence = PlannedOperation(9_000_000, Act.MEMBER, SHARED_SLOT, SILENT)
    said: list[str] = []
    world = ran(kill, silence, show=said.append)
    assert world._around.counters["partitions that changed hands"] >= 6
    assert world._around.counters["fenced commits"] > 0
    mended = next(n for n, line in enumerate(said) if "all is mended" in line)  # then power is cut
    lost = [
        line for line in said[:mended] if "is none any more" in line or "is killed" in line or "unknown_member" in line
    ]
    assert lost
    assert not [line for line in lost if "m2-" in line]


def test_what_was_committed_before_it_was_asked_for_is_to_be_told(world: World) -> None:
    groups = groups_of(world)
    history = groups._history("alone")
    history.led_us = dict.fromkeys(history.led_us, 0)  # long ago
    groups._place("alone", 0).doubtful.clear()  # of the run before
    assert groups._told("alone", answer(9), {0: 9}) == {0: 9}
    with pytest.raises(ViolationError, match="said to be at 8 in partition 0, and 9 was committed"):
        groups._told("alone", answer(8), {0: 9})
    groups._place("alone", 0).doubtful.add(8)
    assert groups._told("alone", answer(8), {0: 9}) == {0: 8}
    with pytest.raises(ViolationError, match="said to be at 0"):
        groups._told("alone", FetchOffsetsResponse(offsets=()), {0: 9})


def test_two_members_with_one_partition_are_found() -> None:
    world = ran()
    groups = groups_of(world)
    (theirs,) = groups._members[0].positions
    other = groups._members[1]
    generation = groups._generations[SHARED_SLOT]
    assert generation is not None
    part = GroupPartition(generation.stream_id, PartitionId(theirs))  # type: ignore[arg-type]
    granted = GroupHeartbeatResponse(generation=99, leader_epoch=9, assigned=(part,), is_settled=True)  # type: ignore[arg-type]
    now_us = world._around.scheduler.now_us
    with pytest.raises(ViolationError, match=rf"partition {theirs} is with m0-\d"):
        groups._take(other, granted, now_us)
    world.checks.of(SUBJECT.decode(), groups._number("shared")).is_damaged = True  # then nothing is promised
    other.positions.clear()
    groups._take(other, granted, now_us)
