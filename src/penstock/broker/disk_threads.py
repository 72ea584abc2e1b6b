"""The threads that wait for the disk, so that the event loop does not.

Rules: every lane has threads of its own, so that slow work of one kind never holds up another. In the lane READ, which
users fill, they take turns (`Turns`): the threads have a few pieces of work ahead, the others wait on the loop. `done`
is called on the event loop, whatever became of the work. The threads are daemons: a process can end though a disk never
answers.
To wake the loop costs more than a small piece of work: what is finished before it looks wakes it once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from penstock.base import limits
from penstock.base.turns import Turns
from penstock.node.step import Lane

_Back = Callable[[BaseException | None], None]
_Work = tuple[Callable[[], None], _Back]


class TimedWork:
    """Work that is measured where it is done: what it waits for a thread does not count."""

    __slots__ = ("_run", "took_us")

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self.took_us = 0

    def __call__(self) -> None:
        """Do it."""
        begun_ns = time.perf_counter_ns()
        try:
            self._run()
        finally:
            self.took_us = (time.perf_counter_ns() - begun_ns) // 1_000


class DiskThreads:
    """`threads` of them for each lane; they begin at once and end after `close`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int) -> None:
        self.open_count = 0  # pieces of work that have not come back
        self._loop = loop
        self._threads = threads
        self._finished: deque[tuple[_Back, BaseException | None]] = deque()
        self._told = False  # the loop will look
        self._idle = asyncio.Event()
        self._idle.set()
        self._ahead_max = threads * limits.DISK_WORK_AHEAD  # pieces of work that the threads of a lane have
        self._reads = 0  # of them in READ
        self._waiting: Turns[_Work] = Turns()  # the rest of READ
        self._queues: dict[Lane, SimpleQueue[_Work | None]] = {lane: SimpleQueue() for lane in Lane}
        for lane, queue in self._queues.items():
            for number in range(threads):
                name = f"penstock-{lane.value}-{number}"
                threading.Thread(target=self._serve, args=(queue,), name=name, daemon=True).start()

    def submit(
        self, lane: Lane, run: Callable[[], None], done: Callable[[Exception | None], None], user: str = ""
    ) -> None:
        """Have a thread `run`, for a user; then `done` hears on the loop how it went."""
        self.open_count += 1
        self._idle.clear()

        def back(error: BaseException | None) -> None:
            self.open_count -= 1
            if lane is Lane.READ:
                self._reads -= 1
                self._read_more()
            if not self.open_count:
                self._idle.set()
            if error is not None and not isinstance(error, Exception):
                raise error
            done(error)

        if lane is Lane.READ:
            self._waiting.put(user, (run, back))
            self._read_more()
        else:
            self._queues[lane].put((run, back))

    def _read_more(self) -> None:
        while self._waiting and self._reads < self._ahead_max:
            self._reads += 1
            self._queues[Lane.READ].put(self._waiting.take())

    async def idle(self) -> None:
        """Return once nothing is open; what came back may have begun more."""
        await self._idle.wait()

    def close(self) -> None:
        """Let every thread end when it is done with what it has begun."""
        for queue in self._queues.values():
            for _ in range(self._threads):
                queue.put(None)

    def _serve(self, queue: SimpleQueue[_Work | None]) -> None:
        while (work := queue.get()) is not None:
            run, back = work
            error: BaseException | None = None
            try:
                run()
            except BaseException as failure:  # noqa: BLE001 (it goes to the loop)
                error = failure
            self._finished.append((back, error))
            del work, run, back, error  # a thread that waits holds nothing
            if not self._told:
                self._told = True
                self._tell()

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._look)
        except RuntimeError:  # the loop has been closed: nobody waits any more
            self._finished.clear()

    def _look(self) -> None:
        self._told = False  # first: what is finished from now on is told again
        try:
            while self._finished:
                back, error = self._finished.popleft()
                back(error)
        finally:
            if self._finished:  # behind one that raised
                self._tell()
