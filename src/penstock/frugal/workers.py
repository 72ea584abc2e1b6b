"""Requests in progress at a server: so many at a time, so many that wait, and those beyond refused.

    submit ──▶ a worker is free ──▶ runs ──▶ answer
           └─▶ all are busy ─────▶ waits its turn, in order of reception
           └─▶ the queue is full ▶ ServiceOverloaded, at once

Rules: a worker is a task that answers a request and takes the next one that waits; `concurrency_max` requests are in
progress at most. Handlers that never wait are run by one worker, one after the other; once a handler waits, other
workers take the requests behind it.
A request whose time is over in the queue is answered so without its handler. From its first moment on a drain refuses
what comes, with `ServiceDraining`, and lets all end that have begun or wait; after its time-out they are cancelled, and
answered so. `abandon` cancels one request, whose caller is gone.
A worker ends with its request, and a fresh one takes the next, if it was cancelled, since a cancellation that the
handler swallowed, or that has not arrived yet, would hit a request that it is not meant for; and if the handler has set
a context variable, since the next one would see it.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec

from penstock.frugal.errors import InternalError, ServiceDraining, ServiceOverloaded
from penstock.frugal.framing import Packet, Request
from penstock.frugal.processor import Processor
from penstock.frugal.steps import rest_of

log = logging.getLogger("penstock.frugal")

CONCURRENCY_DEFAULT = 64
"""Handlers that run at a time, unless a server says another number."""
WAITING_DEFAULT = 1024
"""Requests that wait for a handler, unless a server says another number."""

Reply = Callable[[Packet | None], Awaitable[None]]
"""Sends an answer; None: none is due."""


class Job(msgspec.Struct, eq=False):
    """A request, and where its answer goes. `task` processes it."""

    request: Request
    reply: Reply
    bytes_max: int
    subject: str = ""
    task: asyncio.Task[None] | None = None
    is_abandoned: bool = False


class Workers:
    """Runs a processor's requests."""

    def __init__(self, processor: Processor, *, concurrency_max: int, waiting_max: int) -> None:
        if concurrency_max < 1 or waiting_max < 0:
            raise ValueError(f"concurrency_max is {concurrency_max} and waiting_max {waiting_max}; from 1 and 0 on")
        self.overloaded = 0
        self._processor = processor
        self._concurrency_max = concurrency_max
        self._waiting_max = waiting_max
        self._waiting: deque[Job] = deque()  # also those that a worker takes in a moment
        self._tasks: set[asyncio.Task[None]] = set()
        self._coming = 0  # workers that have not begun yet
        self._begun = 0  # requests in progress
        self._context: contextvars.Context | None = None  # of each new worker
        self._is_draining = False

    @property
    def running(self) -> int:
        """The number of requests whose handlers run."""
        return min(self._begun + len(self._waiting), self._concurrency_max)

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return max(0, self._begun + len(self._waiting) - self._concurrency_max)

    def begin(self) -> None:
        """Give all handlers the context variables that are set here; else they get those of the first request."""
        self._context = contextvars.copy_context()

    async def submit(self, job: Job) -> None:
        """Run a request, or let it wait, or refuse it; returns at once unless it is refused."""
        if self._is_draining:
            await self._refuse(job, ServiceDraining("the service stops: try another one, or again"))
        elif self._begun + len(self._waiting) < self._concurrency_max + self._waiting_max:
            self._waiting.append(job)
            if not self._coming:
                self._add_workers(1)
        else:
            self.overloaded += 1
            text = f"{self.running} requests are in progress and {self.waiting} wait, the most of this service"
            await self._refuse(job, ServiceOverloaded(text))

    def abandon(self, job: Job) -> None:
        """Forget a request that no caller waits for: its handler is cancelled, or its turn never comes."""
        if job.task is None:
            for place, each in enumerate(self._waiting):
                if each is job:
                    del self._waiting[place]
                    return
        elif not job.is_abandoned:
            job.is_abandoned = True
            job.task.cancel()

    async def drain(self, timeout_s: float) -> None:
        """Take no more requests, and return when all are answered. May be called again."""
        self._is_draining = True
        try:
            async with asyncio.timeout(timeout_s):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        except TimeoutError:
            log.warning("%d requests are cancelled, and %d that wait", self.running, self.waiting)
        left, self._waiting = list(self._waiting), deque()
        for job in left:
            await self._refuse(job, ServiceDraining("the service stopped before the request's turn came"))
        await asyncio.sleep(0)  # a task that is cancelled before it has begun could not answer
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _add_workers(self, most: int) -> None:
        """Begin workers for the requests that wait, so many at most."""
        if self._context is None:
            self.begin()
        assert self._context is not None
        loop = asyncio.get_running_loop()
        wanted = min(most, len(self._waiting), self._concurrency_max - self._begun)
        while self._coming < wanted:
            self._coming += 1
            self._tasks.add(loop.create_task(self._work(), context=self._context.copy()))

    async def _work(self) -> None:
        task: asyncio.Task[None] | None = asyncio.current_task()
        assert task is not None
        context = contextvars.copy_context()
        self._coming -= 1
        try:
            while (
                self._waiting and self._begun < self._concurrency_max and not task.cancelling() and _is_still(context)
            ):
                answering = self._answer(self._waiting.popleft(), task)
                self._begun += 1
                try:
                    waits_for = answering.send(None)
                    self._add_workers(len(self._waiting))
                    await rest_of(answering, waits_for)
                except StopIteration:
                    continue
                finally:
                    self._begun -= 1
        finally:
            self._tasks.discard(task)
            if self._waiting:  # this worker must not take the next
                self._add_workers(1)

    async def _answer(self, job: Job, task: asyncio.Task[None]) -> None:
        job.task = task
        try:
            packet = await self._processor.answer(job.request, bytes_max=job.bytes_max, subject=job.subject)
            await job.reply(packet)
        except asyncio.CancelledError:
            if job.is_abandoned:
                return
            if task.cancelling() > 0:
                await self._refuse(job, ServiceDraining("the service stopped before the handler had ended"))
                raise
            log.exception("the handler of %r was cancelled by its own doing", job.request.method)
            await self._refuse(job, InternalError(f"{job.request.method!r} was cancelled"))
        except Exception:
            log.exception("the answer of %r was not sent", job.request.method)
        finally:
            job.task = None

    async def _refuse(self, job: Job, error: InternalError | ServiceDraining | ServiceOverloaded) -> None:
        try:
            await job.reply(self._processor.refuse(job.request, error, bytes_max=job.bytes_max))
        except Exception:
            log.exception("the refusal of %r was not sent", job.request.method)


def _is_still(context: contextvars.Context) -> bool:
    """True if no context variable was set since this copy was made."""
    try:
        return contextvars.copy_context() == context  # the same map, unless one was set
    except Exception:  # noqa: BLE001 (values that were set may refuse to be compared)
        return False
