"""Deadlines of many calls with one timer of the event loop.

Theory: nearly every call ends long before its deadline. A timer for each is made, kept in the loop's heap and cancelled
for nothing. Here a call costs an entry in a dict. The one timer is set to the earliest deadline of the last look; by
then most of those calls have ended, so a look at all that are left is rare.

Rules: a deadline is never too early, and up to `TICK_S` late: there is one look in a tick at most. All entries belong
to one event loop; where another one runs, such as in the next `asyncio.run`, the timer moves to it.
"""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

TICK_S = 0.005
"""Least time between two looks at the deadlines."""


class Expiring(Protocol):
    """A call with a deadline."""

    def expire(self) -> None:
        """Take notice that the time is over."""


class Deadlines:
    """The deadlines of calls that are in progress."""

    __slots__ = ("_due", "_loop", "_timer", "_timer_at")

    def __init__(self) -> None:
        self._due: dict[Expiring, float] = {}  # times of the event loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def __len__(self) -> int:
        return len(self._due)

    def add(self, call: Expiring, left_s: float) -> None:
        """Let a call expire after so many seconds, unless it is discarded before."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._timer, self._timer_at = loop, None, math.inf
        due = self._due[call] = loop.time() + left_s
        if due < self._timer_at:
            self._set_timer(loop, due)

    def discard(self, call: Expiring) -> None:
        """Forget a call that has ended."""
        self._due.pop(call, None)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = loop.call_at(at, self._look, loop), at

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Expire what is due, and set the timer for the rest."""
        self._timer, self._timer_at = None, math.inf
        now = loop.time()
        over = [call for call, due in self._due.items() if due <= now]
        for call in over:
            del self._due[call]
        if self._due:
            self._set_timer(loop, max(min(self._due.values()), now + TICK_S))
        for call in over:
            call.expire()
