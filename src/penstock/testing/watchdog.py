"""Detect code that blocks the simulation in real time (a loop without await, a lock, a blocking read) and raise there.

Rules: a watchdog thread checks if the simulation makes progress; if it makes none within the limit, the thread that
runs it gets a StuckError. A main thread gets it by SIGALRM, which also interrupts blocking calls; SIGALRM of another
owner (such as pytest-timeout) is passed on. Another thread gets it before its next line of Python, so a blocking call
there goes on. If it is still stuck one limit later, the stacks of all threads are written to stderr. Nothing is raised
while a debugger is active.
"""

from __future__ import annotations

import ctypes
import faulthandler
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from penstock.testing.errors import StuckError
from penstock.testing.where import is_debugged

_LOOKS = 4  # checks per limit, so that a suspended machine does not count as stuck

Stuck = Callable[[FrameType], StuckError]


@contextmanager
def watched(limit_s: float, steps: Callable[[], int], stuck: Stuck) -> Iterator[None]:
    """Raise `stuck(frame)` in this thread whenever `steps()` stays unchanged for `limit_s`. Infinite: never."""
    if limit_s == float("inf"):
        yield
        return
    watchdog = _Watchdog(limit_s, steps, stuck)
    has_signals = threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGALRM")
    before = signal.signal(signal.SIGALRM, watchdog.hear) if has_signals else None
    watchdog.is_heard = has_signals
    watchdog.before = before
    watchdog.thread.start()
    try:
        yield
    finally:
        watchdog.is_over.set()
        watchdog.thread.join()
        if has_signals:
            signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)


class _Watchdog:
    def __init__(self, limit_s: float, steps: Callable[[], int], stuck: Stuck) -> None:
        self.is_over = threading.Event()
        self.is_heard = False  # True if the watched thread receives signals
        self.before: Any = None  # the previous handler of SIGALRM
        self.thread = threading.Thread(target=self._watch, name="penstock-watchdog", daemon=True)
        self._look_s = min(limit_s / _LOOKS, threading.TIMEOUT_MAX)
        self._steps = steps
        self._stuck = stuck
        self._watched = threading.get_ident()
        self._stuck_at: int | None = None  # the step for which an alarm is pending

    def _watch(self) -> None:
        seen, looks = self._steps(), 0
        while not self.is_over.wait(self._look_s):
            steps = self._steps()
            looks = looks + 1 if steps == seen else 0
            seen = steps
            if looks and looks % _LOOKS == 0:
                self._alarm(steps, is_first=looks == _LOOKS)

    def _alarm(self, steps: int, *, is_first: bool) -> None:
        frame = sys._current_frames().get(self._watched)  # noqa: SLF001 (its documented name)
        if frame is None or is_debugged(frame):
            return
        if not is_first and sys.__stderr__ is not None:
            faulthandler.dump_traceback(sys.__stderr__)
        if self.is_heard:
            self._stuck_at = steps
            signal.pthread_kill(self._watched, signal.SIGALRM)
        else:
            self._stuck(frame)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._watched), ctypes.py_object(StuckError))

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGALRM in the watched thread."""
        stuck_at, self._stuck_at = self._stuck_at, None
        if stuck_at is not None:
            if frame is not None and stuck_at == self._steps() and not self.is_over.is_set():
                raise self._stuck(frame)
        elif callable(self.before):
            self.before(number, frame)
        elif self.before == signal.SIG_DFL:  # the default action ends the process
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
