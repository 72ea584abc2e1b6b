"""Orderly shutdown of a command by Ctrl-C, SIGTERM or SIGHUP (a closed terminal).

Rules: the first signal raises Interrupted, or cancels the coroutine that `run` runs, so that started processes are
stopped. Further signals are ignored: the shutdown is not interrupted, and its steps have time-outs.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

from penstock.cli.terminal.failure import Interrupted

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Handles the signals for the rest of the process; only the main thread can create it."""

    def __init__(self) -> None:
        self._came: Interrupted | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        for number in _SIGNALS:
            signal.signal(number, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._came is not None:
            return
        self._came = Interrupted(number)
        if self._loop is None or self._task is None:
            raise self._came
        self._loop.call_soon_threadsafe(self._task.cancel)  # also wakes a waiting loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on a new event loop and return its result. Raise Interrupted if a signal cancelled it."""

        async def watched() -> T:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            try:
                return await work
            finally:
                self._loop = self._task = None

        try:
            return asyncio.run(watched())
        except asyncio.CancelledError:
            raise self._came or KeyboardInterrupt from None
