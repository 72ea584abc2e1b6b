"""Disk threads: run blocking disk work off the event loop. Plain syncs are done by the kernel, where it can.

Rules: every lane has threads of its own, so that slow work of one kind does not delay another. In the lane READ, which
users fill, work is scheduled round-robin by user (`Turns`): the threads have a few tasks queued, the others wait on the
loop. `done` is called on the event loop, whatever the result. The threads are daemons: a process can end although a
disk never answers. Waking the loop costs more than a small task: all that is finished before it runs wakes it once.
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
from penstock.broker.process.kernel_syncs import KernelSyncs, SyncCalls
from penstock.node.step import Lane

_Back = Callable[[BaseException | None], None]
_Work = tuple[Callable[[], None], _Back]


class TimedWork:
    """Work that measures its own run time, without the time in the queue."""

    __slots__ = ("_run", "took_us")

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self.took_us = 0

    def __call__(self) -> None:
        begun_ns = time.perf_counter_ns()
        try:
            self._run()
        finally:
            self.took_us = (time.perf_counter_ns() - begun_ns) // 1_000


class DiskThreads:
    """The thread pools: `threads` for each lane, which start at once and end after `close`.

    `calls`: the kernel's syncs; None: threads do them. `taken` is called on the loop behind the `done` of each group of
    tasks that it takes back.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int, calls: SyncCalls | None = None) -> None:
        self._open_count = 0  # tasks of threads that have not completed
        self.taken: Callable[[], None] = lambda: None
        self._kernel = None if calls is None else KernelSyncs(calls, loop, self._all_taken)
        self._loop = loop
        self._threads = threads
        self._finished: deque[tuple[_Back, BaseException | None]] = deque()
        self._told = False  # a wake-up of the loop is pending
        self._idle = asyncio.Event()
        self._ahead_max = threads * limits.DISK_WORK_AHEAD  # tasks queued to the threads of a lane
        self._reads = 0  # of those in READ
        self._waiting: Turns[_Work] = Turns()  # the rest of READ
        self._queues: dict[Lane, SimpleQueue[_Work | None]] = {lane: SimpleQueue() for lane in Lane}
        for lane, queue in self._queues.items():
            for number in range(threads):
                name = f"penstock-{lane.value}-{number}"
                threading.Thread(target=self._serve, args=(queue,), name=name, daemon=True).start()

    def submit(
        self, lane: Lane, run: Callable[[], None], done: Callable[[Exception | None], None], user: str = ""
    ) -> None:
        """Have a thread run `run` for a user; then call `done` on the loop with its error or None."""
        self._open_count += 1

        def back(error: BaseException | None) -> None:
            self._open_count -= 1
            if lane is Lane.READ:
                self._reads -= 1
                self._read_more()
            if error is not None and not isinstance(error, Exception):
                raise error
            done(error)

        if lane is Lane.READ:
            self._waiting.put(user, (run, back))
            self._read_more()
        else:
            self._queues[lane].put((run, back))

    @property
    def has_kernel(self) -> bool:
        """True if the kernel does plain syncs."""
        return self._kernel is not None

    def sync(self, descriptor: int, done: Callable[[OSError | None], None]) -> bool:
        """Have the kernel sync a file, then call `done` on the loop; False if it does not take it: use a thread."""
        if self._kernel is None:
            return False

        return self._kernel.submit(descriptor, done)

    def _all_taken(self) -> None:
        if not self.open_count:
            self._idle.set()
        self.taken()

    def _read_more(self) -> None:
        while self._waiting and self._reads < self._ahead_max:
            self._reads += 1
            self._queues[Lane.READ].put(self._waiting.take())

    @property
    def open_count(self) -> int:
        """Number of tasks that have not completed."""
        return self._open_count + (0 if self._kernel is None else self._kernel.open_count)

    async def idle(self) -> None:
        """Return once no task is open; completed tasks may have submitted more."""
        while self.open_count:
            self._idle.clear()
            await self._idle.wait()

    def close(self) -> None:
        """End every thread once it has finished its queue."""
        for queue in self._queues.values():
            for _ in range(self._threads):
                queue.put(None)
        if self._kernel is not None:
            self._kernel.close()

    def _serve(self, queue: SimpleQueue[_Work | None]) -> None:
        while (work := queue.get()) is not None:
            run, back = work
            error: BaseException | None = None
            try:
                run()
            except BaseException as failure:  # noqa: BLE001 (passed to the loop)
                error = failure
            self._finished.append((back, error))
            del work, run, back, error  # a waiting thread must hold no references
            if not self._told:
                self._told = True
                self._tell()

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._look)
        except RuntimeError:  # the loop is closed: nothing waits any more
            self._finished.clear()

    def _look(self) -> None:
        self._told = False  # first: work finished from now on needs another wake-up
        try:
            while self._finished:
                back, error = self._finished.popleft()
                back(error)
        finally:
            if self._finished:  # after a callback that raised
                self._tell()
            self._all_taken()
