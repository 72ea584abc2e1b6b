"""A program of the user's on a machine of its own: it can be killed, stopped and started again, as a process can.

Rules: a program is a coroutine function without arguments; each run of it has an event loop of its own. Killed, it runs
nothing more: no `finally`, no `except`; its connections break. What it has kept in Python objects that others have as
well stays: such an object stands for a database. One that ends with an error that faults excuse (`PenstockError`,
`OSError`, a NATS error) is started again after RESTART_US, as by a supervisor; any other error ends the test.

    start ──▶ runs ──stop──▶ its SIGTERM handler, or CancelledError ──▶ ended
     ▲         │ returns ──▶ ended
     └─────────┴─kill, an error that is excused
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.base.errors import PenstockError
from penstock.testing.connecting import Connector, Place
from penstock.testing.errors import ProgramError
from penstock.testing.loop import Loop

RESTART_US = 1_000_000

Main = Callable[[], Coroutine[Any, Any, Any]]


class Program:
    """See the module; made by `Cluster.start`."""

    def __init__(self, place: Place, name: str, main: Main, *, restarts: bool = True) -> None:
        self.name = name
        self.runs = 0
        self._place = place
        self._main = main
        self._restarts = restarts
        self.gone: list[Loop] = []  # of its runs that are over
        self._connector = Connector(place, name)
        self._loop: Loop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._waiters: list[asyncio.Future[Any]] = []  # for its end; each of the loop on which somebody waits
        self._is_stopping = False

    @property
    def is_running(self) -> bool:
        """Whether a run of it is under way."""
        return self._task is not None and not self._task.done()

    @property
    def result(self) -> Any:
        """What its last run has returned; RuntimeError while there is no such thing."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            raise RuntimeError(f"the program {self.name} has returned nothing: it was killed, or runs still")
        return self._task.result()

    async def finished(self) -> Any:
        """Return once a run of it has ended by itself, with what it returned; it may be killed and started before."""
        if self._task is not None and _is_success(self._task):
            return self._task.result()
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return await waiter

    def start(self) -> None:
        """Begin a run, unless one is under way."""
        if self.is_running:
            return
        self._end()
        self.runs += 1
        self._is_stopping = False
        self._place.trace.add(self.name, f"starts, run {self.runs}")
        # What its type lacks it refuses, method by method.
        loop = self._loop = Loop(self._place.network.scheduler, self._connector, self._place.failed)  # type: ignore[abstract]
        self._task = loop.do(lambda: loop.create_task(self._main(), name=self.name))
        self._task.add_done_callback(self._ended)

    def kill(self) -> None:
        """It dies at once, and stays dead until `start`."""
        if self.is_running:
            self._place.trace.add(self.name, "is killed")
        self._end()

    def crash(self) -> None:
        """It dies at once, and is started again, as by a supervisor."""
        if self.is_running:
            self.kill()
            self._again()

    def stop(self) -> None:
        """SIGTERM: its handler for that is called; without one it is cancelled. It is not started again."""
        loop, task = self._loop, self._task
        if loop is None or task is None or task.done():
            return
        self._is_stopping = True
        self._place.trace.add(self.name, "is to stop")
        handler = loop.signals.get(signal.SIGTERM)
        if handler is None:
            loop.do(task.cancel)
        else:
            loop.call_soon(handler)

    def _end(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            self.gone.append(loop)
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
        if _is_success(task):
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(task.result())
        if error is None or self._is_stopping:
            return
        if self._restarts and _is_excused(error):
            self._again()
            return
        failure = ProgramError(f"the program {self.name} ended with {type(error).__name__}: {error}")
        failure.__cause__ = error
        self._place.failed(failure)

    def _again(self) -> None:
        if self._restarts and not self._is_stopping:
            run = self.runs
            self._place.network.scheduler.after(RESTART_US, lambda: self.start() if self.runs == run else None)


def _is_success(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _is_excused(error: BaseException) -> bool:
    """Whether faults bring such an error about, in a program that does not bear them."""
    from nats.errors import Error as NatsError

    return isinstance(error, PenstockError | OSError | NatsError)
