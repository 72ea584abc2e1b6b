"""A member that has no partition and does not follow: how long it waits for one of a member that may be dead.

Rules: who is killed keeps what it has for its session. So "none is mine" is not "all is read": it waits for that long,
and for the coordinator to hand over what falls free. Where nothing is left to read it ends at once.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from penstock.client.groups import Groups
from penstock.client.members import BEATS_PER_SESSION, Member
from penstock.client.positions import Positions
from penstock.messages import StreamInfo


def patience_ends_s(session_s: float) -> float:
    """Until when who joins now waits: a session, and the heartbeat in which it hears what it was given since."""
    return time.monotonic() + session_s * (1 + 2 / BEATS_PER_SESSION)


async def may_inherit(
    member: Member, positions: Positions, group: str, info: StreamInfo, ends_s: float, timeout_s: float
) -> bool:
    """Whether a settled member without partitions is given some; False: nothing is left, or others hold all."""
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
            member.changed.clear()  # else who waits for the next batch is to hear of it, too
    return True


def _is_idle(member: Member) -> bool:
    return not member.assigned and member.is_settled and member.failure is None
