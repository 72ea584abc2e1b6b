"""How long the broker waits for its disk, its brokers or its end: in time that this process has run.

Rules: a wait is looked at a few times a second. A step of the clock that is longer than that by far is not the fault of
what is waited for: the process was suspended (SIGSTOP, a frozen cgroup, a paused virtual machine), or did not get the
processor. It counts as `STEP_S_MAX` at most: what stood still together with this process is waited for as long as if
neither had. So somebody has to look all the time: `waits_for` does, and `running` for what else is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

LOOK_S = 0.1
STEP_S_MAX = 0.5


class Patience:
    """So many seconds of running time; `clock` is one that only goes forward."""

    def __init__(self, clock: Callable[[], float], seconds: float) -> None:
        self._clock = clock
        self._seen_s = clock()
        self.left_s = seconds

    def look(self) -> float:
        """The seconds that are left; call it often, for a long step of the clock counts as `STEP_S_MAX`."""
        now_s = self._clock()
        self.left_s = max(0.0, self.left_s - min(now_s - self._seen_s, STEP_S_MAX))
        self._seen_s = now_s
        return self.left_s

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Patience]:
        """Looked at while the block runs, whatever that waits for."""

        async def looks() -> None:
            while True:
                self.look()
                await asyncio.sleep(LOOK_S)

        task = asyncio.create_task(looks())
        try:
            yield self
        finally:
            task.cancel()

    async def waits_for(self, what: Coroutine[Any, Any, object], keep_s: float = 0.0) -> bool:
        """Whether `what` ends before only `keep_s` is left; else it is cancelled. Raises what it raises.

        It has one turn at least: what has nothing to wait for ends also if no time is left.
        """
        task = asyncio.ensure_future(what)
        try:
            await asyncio.sleep(0)
            while not task.done() and (left_s := self.look() - keep_s) > 0:
                await asyncio.wait((task,), timeout=min(left_s, LOOK_S))
        finally:
            is_done = task.done()
            if not is_done:
                task.cancel()
                await asyncio.wait((task,))
        if is_done:
            task.result()
        return is_done
