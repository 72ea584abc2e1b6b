"""One member of a consumer group: sends heartbeats to the coordinator and receives its assignment.

Rules: one heartbeat at a time, in a task of its own. A member that is fenced, or gets no answer for its session, has
lost its partitions: it joins again with a new id, and `era` increases, so that the consumer does not mistake the new
assignment for the old one. A heartbeat names the partitions that the consumer reads and those it may begin to read
before the next heartbeat; the coordinator gives neither to other members.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress

from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.ids import LeaderEpoch, PartitionId, StreamId
from penstock.client.consume.positions import GroupPositions
from penstock.client.errors import MemberFenced, Overloaded, StorageFailed, TimedOut
from penstock.messages import GroupHeartbeatResponse, GroupPartition

_BEATS_PER_SESSION = 8
_SOON_S = 0.05  # during a rebalance
_LAST_S = 0.005
_LEAVE_S = 2.0

_PASSES = frozenset(
    {
        ErrorCode.NOT_YET,
        ErrorCode.NOT_LEADER,
        ErrorCode.FENCED_EPOCH,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NO_ENCRYPTION_KEY,  # another broker may have it and become the leader soon
    }
)


class Member:
    """Membership in one group. The consumer sets `owned`: the partitions it reads now."""

    def __init__(self, positions: GroupPositions, group: str, stream_id: StreamId, session_s: float) -> None:
        self._positions = positions
        self.group = group
        self._stream_id = stream_id
        self._session_s = session_s
        self._number = 0
        self._leader_epoch = LeaderEpoch(0)  # of the last coordinator that answered
        self._heard_s = _now_s()
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self.member_id = uuid.uuid4().hex
        self.era = 0
        self.generation = 0
        self.assigned: frozenset[int] = frozenset()
        self.owned: frozenset[int] = frozenset()
        self.is_settled = False
        self.failure: Exception | None = None  # why it cannot be a member
        self.changed = asyncio.Event()
        self.heard = asyncio.Event()  # set after the coordinator's first answer
        self._pause_s = _SOON_S

    @property
    def is_idle(self) -> bool:
        """True if the group is stable and this member has no partitions."""
        return not self.assigned and self.is_settled and self.failure is None

    @property
    def calm_s(self) -> float:
        """Seconds between heartbeats in a stable group."""
        return self._session_s / _BEATS_PER_SESSION

    def start(self) -> None:
        """Join the group and start the heartbeats."""
        self._task = self._positions.run(self._run())

    def send_heartbeat_now(self) -> None:
        """Send the next heartbeat now."""
        self._hurry.set()

    def lose(self) -> None:
        """Give up membership and join again under a new id."""
        self.member_id = uuid.uuid4().hex
        self.era += 1
        self.generation = self._number = 0
        self._leader_epoch = LeaderEpoch(0)
        self.assigned = self.owned = frozenset()
        self.is_settled = False
        self._heard_s = _now_s()
        self.changed.set()
        self.send_heartbeat_now()

    async def leave(self) -> None:
        """Leave the group and stop; if the coordinator does not get that, it notices when the session times out."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        if self._number and self.failure is None:
            with suppress(RemoteError, OperationalError):
                await self._beat(_LEAVE_S, is_leaving=True)

    async def _run(self) -> None:
        while self.failure is None:
            self._hurry.clear()
            sent_s, era = _now_s(), self.era
            try:
                answer = await self._beat(min(self._session_s / 2, self._left_s))
            except MemberFenced:
                if era == self.era:
                    self.lose()
                await asyncio.sleep(_SOON_S)  # a member that is fenced each time must not retry at network speed
            except (TimedOut, Overloaded, StorageFailed, OperationalError):
                self._not_heard()
            except RemoteError as error:
                if error.code in _PASSES:
                    self._not_heard()
                else:
                    self.failure = error
                    self.changed.set()
                    self.heard.set()
            else:
                if era == self.era:
                    self._take(answer, sent_s)
            calm_s = self.calm_s
            if self.is_settled and self.assigned == self.owned:
                self._pause_s = calm_s
            pause_s = min(self._pause_s, self._left_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):  # not `wait_for`, which may swallow a cancellation
                    await self._hurry.wait()
                self._pause_s = _SOON_S
            self._pause_s = min(calm_s, 2 * self._pause_s)

    def _take(self, answer: GroupHeartbeatResponse, sent_s: float) -> None:
        assigned = frozenset(int(one.partition) for one in answer.assigned if one.stream_id == self._stream_id)
        if assigned != self.assigned or answer.is_settled != self.is_settled:
            self.changed.set()
            self._pause_s = _SOON_S
        self.heard.set()
        self.assigned, self.is_settled = assigned, answer.is_settled
        self.generation, self._leader_epoch = answer.generation, answer.leader_epoch
        self._heard_s = sent_s

    def _not_heard(self) -> None:
        if self._left_s <= _LAST_S:
            self.lose()

    @property
    def _left_s(self) -> float:
        """Seconds until the session times out and the coordinator reassigns the partitions; at least _LAST_S."""
        return max(_LAST_S, self._heard_s + self._session_s - _now_s())

    async def _beat(self, timeout_s: float, *, is_leaving: bool = False) -> GroupHeartbeatResponse:
        self._number += 1
        has = sorted(self.owned | self.assigned)
        owned = tuple(GroupPartition(self._stream_id, PartitionId(number)) for number in has)
        return await self._positions.heartbeat(
            self.group,
            self.member_id,
            self._number,
            self._stream_id,
            owned,
            session_ms=int(self._session_s * 1_000),
            leader_epoch=self._leader_epoch,
            is_leaving=is_leaving,
            timeout_s=timeout_s,
        )


def _now_s() -> float:
    return asyncio.get_running_loop().time()
