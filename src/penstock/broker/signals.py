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
from types import FrameType


def on_signals(loop: asyncio.AbstractEventLoop, numbers: Iterable[signal.Signals], told: Callable[[], None]) -> None:
    """Call `told` on the loop for each of these signals; from the main thread, for the rest of the process's life."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed: it is the end anyway
            loop.call_soon_threadsafe(told)

    for number in numbers:
        signal.signal(number, handle)
