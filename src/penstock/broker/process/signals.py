"""Signal handlers that reach the event loop even if it is busy.

Rules: a signal is passed to the loop like a call from another thread. asyncio's own handlers use a socket into which
every finished disk task writes, too; while the loop is busy for long, a few hundred of these fill it, and a signal that
arrives then is lost: the broker would not stop.
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

    Several handlers on the same loop are called in the order of registration.
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
        with contextlib.suppress(RuntimeError):  # the loop is closed, so the process is ending
            for one in self.told:
                self.loop.call_soon_threadsafe(one)
