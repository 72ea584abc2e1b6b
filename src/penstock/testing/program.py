"""A user's program on its own machine: it can be killed, stopped and restarted like a process.

Rules: a program is a coroutine function without arguments; each run has its own event loop. A killed program runs
nothing more, no `finally` and no `except`; its connections break. Python objects that it shares with others survive:
such an object stands for a database. A program that ends with an error that faults can cause (`PenstockError`,
`OSError`, a NATS error) is restarted after RESTART_US, as by a supervisor. Any other error ends the test, and so does
an error right after the start, AT_ONCE_MAX times in a row, because no fault strikes that early.

    start ──▶ runs ──stop──▶ its SIGTERM handler, or CancelledError ──▶ ended
     ▲         │ returns ──▶ ended
     └─────────┴─kill, an error that faults can cause
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.base.errors import PenstockError
from penstock.testing.connecting import ClientConnector, ProgramPlace
from penstock.testing.errors import ProgramError
from penstock.testing.loop import Loop
from penstock.testing.where import of_coroutine

RESTART_US = 1_000_000
AT_ONCE_MAX = 10  # failed runs in a row
_AT_ONCE_US = 20  # turns; too short for any message from another machine

Main = Callable[[], Coroutine[Any, Any, Any]]


class Program:
    """A program; made by `Cluster.start`."""

    def __init__(self, place: ProgramPlace, name: str, main: Main, *, restarts: bool = True) -> None:
        self.name = name
        self.runs = 0
        self._place = place
        self._main = main
        self._restarts = restarts
        self.loops: list[Loop] = []  # one for each run
        self._connector = ClientConnector(place, name)
        self._loop: Loop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._waiters: list[asyncio.Future[Any]] = []  # of callers of `finished`, each on the caller's loop
        self._is_stopping = False
        self._outcome: tuple[Any, ProgramError | None] | None = None  # the result for waiters, once it is known
        self._last_error = ""
        self._began_us = 0
        self._at_once = 0  # runs in a row that failed at once

    @property
    def is_running(self) -> bool:
        """True while a run is in progress."""
        return self._task is not None and not self._task.done()

    @property
    def result(self) -> Any:
        """The return value of its last run. RuntimeError: it has not returned."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            raise RuntimeError(f"the program {self.name} has returned nothing: it was killed, or runs still")
        return self._task.result()

    async def finished(self) -> Any:
        """Wait until a run ends by itself and return its result; the program may be killed and restarted before that.

        None: `stop` has ended it. ProgramError: it failed while it was being stopped, or cancelled itself.
        """
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if self._outcome is not None:
            self._tell(*self._outcome)
        return await waiter

    def start(self) -> None:
        """Start a run, unless one is in progress."""
        if self.is_running:
            return
        self._end()
        self.runs += 1
        self._is_stopping = False
        self._outcome = None
        self._began_us = self._place.network.scheduler.now_us
        self._place.trace.add(self.name, f"starts, run {self.runs}")
        # Methods that its type lacks are refused one by one.
        loop = self._loop = Loop(self._place.network.scheduler, self._connector, self._failed)  # type: ignore[abstract]
        self.loops.append(loop)
        self._task = loop.do(lambda: loop.create_task(self._main(), name=self.name))
        self._task.add_done_callback(self._ended)

    def kill(self) -> None:
        """Kill the program; it stays down until `start`."""
        if self.is_running:
            self._place.trace.add(self.name, "is killed")
        self._end()
        if self._is_stopping and self._outcome is None:
            self._tell(None)

    def crash(self) -> None:
        """Kill the program and restart it, as by a supervisor."""
        if self.is_running:
            self.kill()
            self._again()

    def stop(self) -> None:
        """Send SIGTERM: call its handler, or cancel the program if it has none. It is not restarted."""
        loop, task = self._loop, self._task
        self._is_stopping = True
        if loop is None or task is None or task.done():
            if self._outcome is None:
                self._tell(None)
            return
        self._place.trace.add(self.name, "is to stop")
        handler = loop.signals.get(signal.SIGTERM)
        if handler is None:
            loop.do(task.cancel)
        else:
            loop.call_soon(handler)

    def standing(self) -> str:
        """Return where the program waits, for error messages; empty if it has ended."""
        if self._task is not None and not self._task.done():
            stands = f"waits in {of_coroutine(self._task.get_coro())}"
        elif self._outcome is None:
            stands = "is down"
        else:
            return ""
        if self._last_error:
            stands += f", after {self.runs} runs, the last ended with {self._last_error}"
        return f"{self.name} {stands}"

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.end()
            self._place.network.die(self.name)
            if self._task is not None and not self._task.done():
                self._task = None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task is not self._task:
            return
        error = None if task.cancelled() else task.exception()
        self._place.trace.add(self.name, f"ends: {'done' if error is None else type(error).__name__}")
        self._place.network.scheduler.after(1, self._end)  # its other tasks end with it
        if error is None:
            self._returned(task)
        elif self._is_stopping:
            self._tell(None, self._failure(error, ", as it was stopped"))
        else:
            self._broke(error)

    def _returned(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            self._tell(task.result())
        elif self._is_stopping:
            self._tell(None)
        else:
            self._tell(None, ProgramError(f"the program {self.name} was cancelled, but not by `stop`"))

    def _broke(self, error: BaseException) -> None:
        self._last_error = f"{type(error).__name__}: {error}"
        is_at_once = self._place.network.scheduler.now_us - self._began_us <= _AT_ONCE_US
        self._at_once = self._at_once + 1 if is_at_once else 0
        if not (self._restarts and _is_excused(error)):
            self._place.failed(self._failure(error))
        elif self._at_once >= AT_ONCE_MAX:
            text = f"the program {self.name} ended {AT_ONCE_MAX} times in a row at once, with {self._last_error}"
            failure = ProgramError(text)
            failure.__cause__ = error
            self._place.failed(failure)
        else:
            self._again()

    def _failed(self, error: BaseException) -> None:
        """Handle an error of the loop that ends the test."""
        self._place.failed(self._failure(error) if isinstance(error, SystemExit) else error)

    def _failure(self, error: BaseException, more: str = "") -> ProgramError:
        failure = ProgramError(f"the program {self.name} ended with {type(error).__name__}: {error}{more}")
        failure.__cause__ = error
        return failure

    def _tell(self, value: Any, error: ProgramError | None = None) -> None:
        """Pass the result to all waiters."""
        self._outcome = value, error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(value)
            else:
                waiter.set_exception(error)

    def _again(self) -> None:
        if self._restarts and not self._is_stopping:
            run = self.runs
            self._place.network.scheduler.after(RESTART_US, lambda: self._start_again(run))

    def _start_again(self, run: int) -> None:
        if self.runs == run and not self._is_stopping:
            self.start()


def _is_excused(error: BaseException) -> bool:
    """True if faults can cause such an error in a program that does not handle them."""
    from nats.errors import Error as NatsError

    return isinstance(error, PenstockError | OSError | NatsError)
