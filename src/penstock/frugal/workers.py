"""Requests in progress at a server: so many at a time, so many that wait, and those beyond refused.

    submit ──▶ a worker is free ──▶ runs ──▶ answer
           └─▶ all are busy ─────▶ waits its turn, in order of reception
           └─▶ the queue is full ▶ ServiceOverloaded, at once

Rules: a worker is a task that answers a request and takes the next one that waits; there are `concurrency_max` at most.
A request whose time is over in the queue is answered so without its handler. From its first moment on a drain refuses
what comes, with `ServiceDraining`, and lets all end that have begun or wait; after its time-out they are cancelled, and
answered so. `abandon` cancels one request, whose caller is gone.
A worker that was cancelled ends with its request, and a fresh one takes the next: a cancellation that the handler
swallowed, or that has not arrived yet, would hit a request that it is not meant for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from penstock.frugal.errors import InternalError, ServiceDraining, ServiceOverloaded
from penstock.frugal.framing import Packet, Request
from penstock.frugal.processor import Processor

log = logging.getLogger("penstock.frugal")

CONCURRENCY_DEFAULT = 64
"""Handlers that run at a time, unless a server says another number."""
WAITING_DEFAULT = 1024
"""Requests that wait for a handler, unless a server says another number."""

Reply = Callable[[Packet | None], Awaitable[None]]
"""Sends an answer; None: none is due."""


class Job(NamedTuple):
    """A request, and where its answer goes."""

    request: Request
    reply: Reply
    bytes_max: int
    subject: str = ""


class Workers:
    """Runs a processor's requests."""

    def __init__(self, processor: Processor, *, concurrency_max: int, waiting_max: int) -> None:
        if concurrency_max < 1 or waiting_max < 0:
            raise ValueError(f"concurrency_max is {concurrency_max} and waiting_max {waiting_max}; from 1 and 0 on")
        self.overloaded = 0
        self._processor = processor
        self._concurrency_max = concurrency_max
        self._waiting_max = waiting_max
        self._waiting: deque[Job] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._task_of: dict[int, asyncio.Task[None]] = {}  # by the id of the job that it processes
        self._abandoned: set[int] = set()  # ids of jobs that are being cancelled
        self._running = 0  # workers that will look at the queue again; a task is in the set a little longer
        self._is_draining = False

    @property
    def running(self) -> int:
        """The number of requests whose handlers run."""
        return self._running

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    async def submit(self, job: Job) -> None:
        """Run a request, or let it wait, or refuse it; returns at once unless it is refused."""
        if self._is_draining:
            await self._refuse(job, ServiceDraining("the service stops: try another one, or again"))
        elif self._running < self._concurrency_max:
            self._begin(job)
        elif len(self._waiting) < self._waiting_max:
            self._waiting.append(job)
        else:
            self.overloaded += 1
            text = f"{self._running} requests are in progress and {len(self._waiting)} wait, the most of this service"
            await self._refuse(job, ServiceOverloaded(text))

    def abandon(self, job: Job) -> None:
        """Forget a request that no caller waits for: its handler is cancelled, or its turn never comes."""
        for place, each in enumerate(self._waiting):
            if each is job:
                del self._waiting[place]
                return
        task = self._task_of.get(id(job))
        if task is not None and id(job) not in self._abandoned:
            self._abandoned.add(id(job))
            task.cancel()

    async def drain(self, timeout_s: float) -> None:
        """Take no more requests, and return when all are answered. May be called again."""
        self._is_draining = True
        try:
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        except TimeoutError:
            log.warning("%d requests are cancelled, and %d that wait", self._running, len(self._waiting))
        left, self._waiting = list(self._waiting), deque()
        for job in left:
            await self._refuse(job, ServiceDraining("the service stopped before the request's turn came"))
        await asyncio.sleep(0)  # a task that is cancelled before it has begun could not answer
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, job: Job) -> None:
        self._running += 1
        self._tasks.add(asyncio.get_running_loop().create_task(self._work(job)))

    async def _work(self, job: Job | None) -> None:
        task: asyncio.Task[None] | None = asyncio.current_task()
        assert task is not None
        try:
            while job is not None:
                await self._answer(job, task)
                job = self._waiting.popleft() if self._waiting and not task.cancelling() else None
        finally:
            self._running -= 1  # in one step with the look at the queue: else a request could wait for no worker
            self._tasks.discard(task)
            if self._waiting:  # this worker was cancelled
                self._begin(self._waiting.popleft())

    async def _answer(self, job: Job, task: asyncio.Task[None]) -> None:
        self._task_of[id(job)] = task
        try:
            packet = await self._processor.answer(job.request, bytes_max=job.bytes_max, subject=job.subject)
            await job.reply(packet)
        except asyncio.CancelledError:
            if id(job) in self._abandoned:
                return
            if task.cancelling() > 0:
                await self._refuse(job, ServiceDraining("the service stopped before the handler had ended"))
                raise
            log.exception("the handler of %r was cancelled by its own doing", job.request.method)
            await self._refuse(job, InternalError(f"{job.request.method!r} was cancelled"))
        except Exception:
            log.exception("the answer of %r was not sent", job.request.method)
        finally:
            del self._task_of[id(job)]
            self._abandoned.discard(id(job))

    async def _refuse(self, job: Job, error: InternalError | ServiceDraining | ServiceOverloaded) -> None:
        try:
            await job.reply(self._processor.refuse(job.request, error, bytes_max=job.bytes_max))
        except Exception:
            log.exception("the refusal of %r was not sent", job.request.method)
