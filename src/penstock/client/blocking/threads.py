"""Calls from the caller's threads into the client's event loop.

Rules: only these two classes (and the slots they use) deal with threads. A call crosses threads once and waits.
Publishes that no caller waits for are queued, and one wake-up of the loop serves all of them. Everything queued is
completed or failed, even if the loop ends first.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.client import aio
from penstock.client.blocking.slots import Slots
from penstock.client.checks import seconds_of
from penstock.client.errors import TimedOut, Unavailable
from penstock.client.publish_format import Value
from penstock.client.values import PubAck

T = TypeVar("T")

_Publish = tuple[concurrent.futures.Future[PubAck | None], str, Value, dict[str, Any]]

_IN_FLIGHT_LOW = limits.PUBLISHES_IN_FLIGHT_MAX // 2

INTERRUPT_CHECK_S = 0.2  # a signal that arrives just before a lock wait is noticed only after the wait
JOIN_S = 5.0  # how long closing waits; then the daemon thread is left to end with the process


class LoopThread:
    """An event loop in a daemon thread; runs coroutines for other threads."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._last_task: asyncio.Task[None] | None = None
        self._at_end: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="penstock-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
            for call in self._at_end:
                call()

    def at_end(self, call: Callable[[], None]) -> None:
        """Call `call`, in the loop's thread, after the loop has ended."""
        self._at_end.append(call)

    @property
    def is_running(self) -> bool:
        """True while coroutines can be run."""
        return self._thread.is_alive() and self._pid == os.getpid()

    def check(self) -> None:
        """Raise OperationalError unless coroutines can be run from the current process and thread."""
        if self._pid != os.getpid():
            raise OperationalError("this client was made before the process forked; connect again in the child")
        if not self._thread.is_alive():
            raise _closed()
        if threading.current_thread() is self._thread:
            raise OperationalError("a blocking call cannot be made from the client's own thread; use penstock.aio")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and return its result; an interrupt here cancels it there."""
        try:
            self.check()
        except OperationalError:
            work.close()
            raise
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:  # the loop was closed meanwhile
            work.close()
            raise _closed() from None
        except KeyboardInterrupt:
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                work.close()  # else Python warns that it was never awaited
            raise
        try:
            while True:
                try:
                    return future.result(INTERRUPT_CHECK_S)
                except TimeoutError:
                    if future.done():  # the work's own time-out, or its result arrived just now
                        return future.result()
                    if not self._thread.is_alive():  # the loop ended before it started the work
                        raise _closed() from None
        except concurrent.futures.CancelledError:  # by the end of the loop, the only cause
            raise _closed() from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Stop the loop and its thread."""
        if self.is_running and threading.current_thread() is not self._thread:
            with contextlib.suppress(RuntimeError):  # it ended meanwhile
                self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(JOIN_S)

    def stop_after(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work`, then stop the loop, without waiting for it here: for the garbage collector."""

        async def work_and_stop() -> None:
            try:
                await work()
            finally:
                self.loop.stop()

        def start() -> None:
            self._last_task = self.loop.create_task(work_and_stop())

        if self.is_running:
            with contextlib.suppress(RuntimeError):  # it ended meanwhile
                self.loop.call_soon_threadsafe(start)


def _closed() -> OperationalError:
    return OperationalError("the client is closed")


class PublishQueue:
    """Queues publishes from many threads for the loop: one wake-up serves all that were queued meanwhile."""

    def __init__(self, client: aio.Client, thread: LoopThread) -> None:
        self._client = client
        self._thread = thread
        self._slots = Slots(limits.PUBLISHES_IN_FLIGHT_MAX, _IN_FLIGHT_LOW)
        self._changed = threading.Condition()
        self._waiting: deque[_Publish] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._is_sending = False
        self._put_count = self._sent_count = 0  # publishes leave in FIFO order
        self._first_failure: BaseException | None = None
        thread.at_end(self._fail_waiting)

    def put(self, subject: str, value: Value, call: dict[str, Any]) -> concurrent.futures.Future[PubAck | None]:
        """Queue one publish and return its future; wait for a slot up to the call's time-out."""
        self._thread.check()
        if not self._slots.take(call["timeout"]):
            text = f"the time-out passed while {limits.PUBLISHES_IN_FLIGHT_MAX} earlier messages waited for their acks"
            raise TimedOut(text)
        future: concurrent.futures.Future[PubAck | None] = concurrent.futures.Future()
        future.set_running_or_notify_cancel()  # being sent: it cannot be cancelled
        future.add_done_callback(lambda _: self._slots.give_back())
        with self._changed:
            self._put_count += 1
            self._waiting.append((future, subject, value, call))
            start, self._is_sending = not self._is_sending, True
        if start:
            try:
                self._thread.loop.call_soon_threadsafe(self._start)
            except RuntimeError:
                self._fail_waiting()
        return future

    def wait_until_sent(self, timeout_s: float) -> None:
        """Wait until everything queued so far is sent; raise the first failure of a publish that could not be sent."""
        with self._changed:
            count = self._put_count
            if not self._changed.wait_for(lambda: self._sent_count >= count, seconds_of(timeout_s)):
                raise TimedOut(f"{count - self._sent_count} messages could not be sent yet")
            failure, self._first_failure = self._first_failure, None
        if failure is not None:
            raise failure

    def _start(self) -> None:
        self._sending = asyncio.get_running_loop().create_task(self._send_all())

    async def _send_all(self) -> None:
        try:
            while (publish := self._next()) is not None:
                try:
                    await self._send(*publish)
                finally:
                    self._count_sent(1)
        except BaseException:
            self._fail_waiting()
            raise

    def _next(self) -> _Publish | None:
        with self._changed:
            if not self._waiting:
                self._is_sending = False
                return None
            return self._waiting.popleft()

    def _count_sent(self, count: int) -> None:
        with self._changed:
            self._sent_count += count
            self._changed.notify_all()

    async def _send(
        self, future: concurrent.futures.Future[PubAck | None], subject: str, value: Value, call: dict[str, Any]
    ) -> None:
        def finished(ack: asyncio.Future[PubAck | None]) -> None:
            if ack.cancelled():
                future.set_exception(Unavailable("the client was closed before the ack came"))
            elif (error := ack.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(ack.result())

        try:
            ack = await self._client.publish_nowait(subject, value, **call)
        except Exception as error:  # noqa: BLE001 (passed to the owner of the future, and to flush)
            self._first_failure = self._first_failure or error
            future.set_exception(error)
        except BaseException:
            future.set_exception(Unavailable("the client was closed before the message was sent"))
            raise
        else:
            ack.add_done_callback(finished)

    def _fail_waiting(self) -> None:
        with self._changed:
            waiting = list(self._waiting)
            self._waiting.clear()
            self._is_sending = False
        for future, *_ in waiting:
            future.set_exception(Unavailable("the client was closed before the message was sent"))
        self._count_sent(len(waiting))


async def close_client(client: aio.Client) -> None:
    """Close the client, within JOIN_S."""
    async with asyncio.timeout(JOIN_S):
        await client.close()
