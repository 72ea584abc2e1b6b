"""Signals that reach the event loop, however busy it is.

Rules: the loop hears of a signal as of anything else that happened in another thread. asyncio's own handlers tell it
through a socket into which every piece of finished disk work writes, too; while the loop is busy with something long,
a few hundred of these fill it, and a signal that comes then is lost: the broker would not stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType


def on_signals(loop: asyncio.AbstractEventLoop, numbers: Iterable[signal.Signals], told: Callable[[], None]) -> None:
    """Call `told` on the loop for each of these signals; from the main thread, for the rest of the process's life.

    Who asks after somebody else on the same loop is told after that one.
    """
    for number in numbers:
        before = signal.getsignal(number)
        if isinstance(before, _Telling) and before.loop is loop:
            before.told.append(told)
        else:
            signal.signal(number, _Telling(loop, [told]))


@dataclass(frozen=True, slots=True, eq=False)
class _Telling:
    loop: asyncio.AbstractEventLoop
    told: list[Callable[[], None]]

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed: it is the end anyway
            for one in self.told:
                self.loop.call_soon_threadsafe(one)
