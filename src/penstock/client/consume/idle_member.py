"""Idle time-out of a group member without partitions and without `follow`: it may inherit those of a dead member.

Rules: a killed member keeps its partitions until its session times out. So "no partition is assigned to me" does not
mean "everything is read": an idle member waits for that time, and for the coordinator to reassign the partitions. If
the group has no lag left, it ends at once.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from penstock.client.consume.groups import Groups
from penstock.client.consume.members import BEATS_PER_SESSION, Member
from penstock.client.consume.positions import GroupPositions
from penstock.messages import StreamInfo


def patience_ends_s(session_s: float) -> float:
    """Return until when a member that joins now waits: one session, plus the heartbeat that brings its assignment."""
    return time.monotonic() + session_s * (1 + 2 / BEATS_PER_SESSION)


async def may_inherit(
    member: Member, positions: GroupPositions, group: str, info: StreamInfo, ends_s: float, timeout_s: float
) -> bool:
    """Wait until a settled idle member gets partitions; return False if no lag is left or others own everything."""
    groups = Groups(positions)
    while _is_idle(member):
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            return False
        if not any(one.lag for one in await groups.offsets(group, info, timeout=timeout_s)):
            return False
        with suppress(TimeoutError):
            async with asyncio.timeout(min(left_s, member.calm_s)):
                await member.changed.wait()
        if _is_idle(member):
            member.changed.clear()  # otherwise the caller's next wait must still see the change
    return True


def _is_idle(member: Member) -> bool:
    return not member.assigned and member.is_settled and member.failure is None
