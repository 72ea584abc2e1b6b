"""Time-outs in running time of this process, for the disk, other brokers, and a stop.

Rules: a wait is checked a few times a second. A clock step far longer than that is not caused by the awaited party: the
process was suspended (SIGSTOP, a frozen cgroup, a paused virtual machine), or got no CPU time. It counts as
`STEP_S_MAX` at most, so that a party suspended together with this process gets its full time. So the clock must be
checked all the time: `waits_for` does, and `running` does for other waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

LOOK_S = 0.1
STEP_S_MAX = 0.5


class RunningTimeout:
    """A time-out of `seconds` of running time; `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock = clock
        self._seen_s = clock()
        self.left_s = seconds

    def remaining_s(self) -> float:
        """Return the seconds left; call it often, because a long clock step counts as `STEP_S_MAX`."""
        now_s = self._clock()
        self.left_s = max(0.0, self.left_s - min(now_s - self._seen_s, STEP_S_MAX))
        self._seen_s = now_s
        return self.left_s

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RunningTimeout]:
        """Check the clock for as long as the block runs."""

        async def looks() -> None:
            while True:
                self.remaining_s()
                await asyncio.sleep(LOOK_S)

        task = asyncio.create_task(looks())
        try:
            yield self
        finally:
            task.cancel()

    async def waits_for(self, what: Coroutine[Any, Any, object], keep_s: float = 0.0) -> bool:
        """Return True if `what` ends before only `keep_s` is left; else cancel it. Raises what it raises.

        `what` gets at least one loop turn, so that it can end without waiting even if no time is left.
        """
        task = asyncio.ensure_future(what)
        try:
            await asyncio.sleep(0)
            while not task.done() and (left_s := self.remaining_s() - keep_s) > 0:
                await asyncio.wait((task,), timeout=min(left_s, LOOK_S))
        finally:
            is_done = task.done()
            if not is_done:
                task.cancel()
                await asyncio.wait((task,))
        if is_done:
            task.result()
        return is_done
