"""A member of a group beside a real coordinator, in virtual time: the network between them is what a test says."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, cast

from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.ids import LeaderEpoch, Offset, PartitionId, StreamId, TimestampUs
from penstock.client.consume.members import Member
from penstock.client.consume.positions import GroupPositions
from penstock.client.errors import MemberFenced
from penstock.groups.offsets import CommittedOffsets
from penstock.messages import AppendResponse, GroupHeartbeatRequest, GroupHeartbeatResponse, GroupPartition
from penstock.node.api.group_members import GroupMembers

STREAM = StreamId(7)
SESSION_S = 10.0


class Time(selectors.DefaultSelector):
    """Nothing is waited for: who would wait finds that the time has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout is not None:
            self.passed_s += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._of = Time()
        super().__init__(self._of)

    def time(self) -> float:
        return self._of.passed_s


class Coordinator:
    """What `GroupPositions` is to a member: heartbeats reach the coordinator a little later, and so do its answers."""

    def __init__(self) -> None:
        self.delay_s = 0.001
        self.late_s: dict[str, float] = {}  # answers to these take longer
        self.is_cut_off = False
        self._tasks: set[asyncio.Task[None]] = set()
        counts = lambda stream_id: 4, lambda group, stream_id: 4
        self._members = GroupMembers(CommittedOffsets(), LeaderEpoch(1), self._write, *counts)

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        return task

    def _write(self, rows: object, heard: Callable[[AppendResponse], None]) -> None:
        response = AppendResponse(
            base_offset=Offset(0),
            end_offset=Offset(1),
            timestamp_us=TimestampUs(1),
            leader_epoch=LeaderEpoch(1),
            fsynced=True,
        )
        asyncio.get_running_loop().call_soon(heard, response)

    async def heartbeat(
        self,
        group: str,
        member_id: str,
        number: int,
        stream_id: StreamId,
        owned: tuple[GroupPartition, ...],
        *,
        session_ms: int,
        leader_epoch: LeaderEpoch,
        is_leaving: bool,
        timeout_s: float,
    ) -> GroupHeartbeatResponse:
        request = GroupHeartbeatRequest(
            stream_id=StreamId(1),
            partition=PartitionId(0),
            group=group,
            member_id=member_id,
            number=number,
            stream_ids=(stream_id,),
            owned=owned,
            session_ms=session_ms,
            leader_epoch=leader_epoch,
            is_leaving=is_leaving,
        )
        if self.is_cut_off:
            await asyncio.sleep(timeout_s)
            raise OperationalError("no answer in time")
        await asyncio.sleep(self.delay_s)
        now_us = int(asyncio.get_running_loop().time() * 1e6)
        now = Now(wall_us=now_us, elapsed_us=now_us)
        try:
            answer = self._members.heartbeat(request, now)
        except RemoteError as error:
            if error.code != ErrorCode.UNKNOWN_MEMBER:
                raise
            raise MemberFenced(error.code, error.message) from None
        await asyncio.sleep(self.late_s.get(member_id, self.delay_s))
        return answer

    def member(self) -> Member:
        member = Member(cast(GroupPositions, self), "billing", STREAM, SESSION_S)
        member.start()
        return member

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def ran(story: Callable[[Coordinator], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        coordinator = Coordinator()
        try:
            await story(coordinator)
        finally:
            await coordinator.end()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(whole())


async def until(is_so: Callable[[], bool]) -> float:
    """When it was so, in virtual seconds."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + 100
    while not is_so():
        assert loop.time() < end_s
        await asyncio.sleep(0.005)
    return loop.time()


def test_a_member_that_hears_nothing_has_nothing_once_its_session_is_over() -> None:
    """Its coordinator gives it to others then."""

    async def story(coordinator: Coordinator) -> None:
        member = coordinator.member()
        await until(lambda: len(member.assigned) == 4 and member.is_settled)
        member.owned = member.assigned
        for waited_s in (20.0, 21.3, 22.9):
            await asyncio.sleep(waited_s)
            era, assigned = member.era, member.assigned
            assert len(assigned) == 4
            coordinator.is_cut_off = True
            began_s = asyncio.get_running_loop().time()
            over_s = await until(lambda: member.era != era)  # noqa: B023
            assert not member.assigned
            assert not member.owned
            assert over_s - began_s <= SESSION_S
            coordinator.is_cut_off = False
            await until(lambda: len(member.assigned) == 4 and member.is_settled)
            member.owned = member.assigned

    ran(story)


def test_what_a_member_was_told_and_has_not_begun_with_is_with_nobody_else() -> None:
    """It may begin at any moment, and then its coordinator has not heard of it yet."""

    async def story(coordinator: Coordinator) -> None:
        slow = coordinator.member()
        await until(lambda: len(slow.assigned) == 4)
        coordinator.late_s[slow.member_id] = 2.0  # so long it knows nothing of what is decided
        other = coordinator.member()
        end_s = asyncio.get_running_loop().time() + 9
        while asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(0.005)
            assert not other.assigned & (slow.assigned | slow.owned)
        await until(lambda: len(other.assigned) == 2 and len(slow.assigned) == 2)

    ran(story)
