"""Calls from the caller's threads into the client's event loop: what the generated blocking client is built on.

Rules: only these classes (and the slots they use) deal with threads. A call crosses threads once and waits. Publishes
that no caller waits for are queued, and one wake-up of the loop serves all of them. Everything queued is completed or
failed, even if the loop ends first. Clients that are still open when the program exits are closed then.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import inspect
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from time import monotonic
from typing import Any, TypeVar

from penstock.base import limits
from penstock.base.errors import OperationalError, RemoteError
from penstock.client import aio
from penstock.client.blocking.publish_future import PublishFuture
from penstock.client.blocking.slots import Slots
from penstock.client.checks import seconds_of
from penstock.client.errors import ClientClosed, TimedOut, Unavailable
from penstock.client.publish_format import Ack, Value
from penstock.client.values import Envelope, PubAck

T = TypeVar("T")

# Arguments of `Publications.publish`; the last one is the future.
_Publish = tuple[
    str,
    Value,
    bytes | str | None,
    Mapping[str, str] | None,
    str | None,
    Ack,
    Envelope | None,
    int,
    float,
    bool,
    PublishFuture,
]
_Mark = concurrent.futures.Future[None]  # done once all that was put before is sent

_IN_FLIGHT_LOW = limits.PUBLISHES_IN_FLIGHT_MAX // 2
_LATE_LOOK_S = 0.03  # between looks for messages whose time-out passes before their turn

INTERRUPT_CHECK_S = 0.2  # a signal that arrives just before a lock wait is noticed only after the wait
JOIN_S = 5.0  # how long closing waits; then the daemon thread is left to end with the process


class LoopThread:
    """An event loop in a daemon thread; runs coroutines for other threads."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._last_task: asyncio.Task[None] | None = None
        self._at_end: list[Callable[[], None]] = []
        self.is_ending = False  # what runs is cancelled; nothing else may begin
        self._has_ended = False
        self._close: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._collected: weakref.finalize[..., Any] | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        except BaseException:  # a callback ends the program: what was sent gets no other end than this
            if self._close is not None:
                with contextlib.suppress(Exception):
                    self.loop.run_until_complete(_within(JOIN_S, self._close))
            raise
        finally:
            try:
                self._end()
            finally:
                self._has_ended = True

    def _end(self) -> None:
        self.is_ending = True
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
        """Raise OperationalError unless coroutines can be run from this process and thread; ClientClosed: it ended."""
        if self._pid != os.getpid():
            raise OperationalError("this client was made before the process forked; connect again in the child")
        if self._has_ended:
            raise ClientClosed
        if threading.get_ident() == self._thread.ident:
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
            raise ClientClosed from None
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
                        raise ClientClosed from None
        except concurrent.futures.CancelledError:  # by the end of the loop, the only cause
            raise ClientClosed from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: AsyncGenerator[Iterator[T], None]) -> Generator[T, None, None]:
        """Yield what the iterators of `source` yield, on the caller's thread."""
        # A whole answer crosses the threads at once: one hop for thousands of messages. Their checks run on this side,
        # mostly without the GIL, so that the loop can receive the next answer meanwhile.
        try:
            while True:
                items = self.run(next_of(source))
                if isinstance(items, End):
                    return
                yield from items
        finally:
            # Also when the garbage collector closes this generator, on any thread: never wait here.
            if self.is_running:
                with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                    self.loop.call_soon_threadsafe(_close_soon, source)

    def steps(self, begin: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        """Call `begin` on the loop and return what it returns as an iterator."""

        async def begun() -> AsyncIterator[T]:
            return begin()

        return _Steps(self.run(begun()), self)

    def end_with(self, owner: object, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `close` and stop when `owner` is collected, by `self.close`, or when the program exits."""
        self._close = close
        self._collected = weakref.finalize(owner, self.stop_after, close)
        self._collected.atexit = False  # at exit `_close_all` closes it and waits
        _OPEN.add(self)

    def close(self) -> None:
        """Run what `end_with` got, for at most JOIN_S, and stop. May be called twice."""
        assert self._close is not None
        assert self._collected is not None
        _OPEN.discard(self)
        self._collected.detach()
        if self.is_running:
            with contextlib.suppress(OperationalError, TimeoutError):
                self.run(_within(JOIN_S, self._close))
            self.stop()

    def stop(self) -> None:
        """Stop the loop and its thread."""
        if self.is_running and threading.current_thread() is not self._thread:
            with contextlib.suppress(RuntimeError):  # it ended meanwhile
                self.loop.call_soon_threadsafe(self._stop_loop)
            self._thread.join(JOIN_S)

    def _stop_loop(self) -> None:
        if not self.is_ending:  # `_end` still runs it, until what it has cancelled is done
            self.loop.stop()

    def stop_after(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work`, then stop the loop, without waiting for it here: for the garbage collector."""

        async def work_and_stop() -> None:
            try:
                await work()
            finally:
                self._stop_loop()

        def start() -> None:
            self._last_task = self.loop.create_task(work_and_stop())

        if self.is_running:
            with contextlib.suppress(RuntimeError):  # it ended meanwhile
                self.loop.call_soon_threadsafe(start)


_OPEN: weakref.WeakSet[LoopThread] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for thread in list(_OPEN):
        with contextlib.suppress(Exception):
            thread.close()


def opened(opening: aio.Connecting) -> tuple[aio.Client, LoopThread]:
    """Connect on a thread of its own, which ends if that fails."""
    thread = LoopThread()
    try:
        return thread.run(opening.open()), thread
    except BaseException:
        thread.stop()
        raise


class PublishQueue:
    """Queues publishes from many threads for the loop: one wake-up serves all that were queued meanwhile."""

    def __init__(self, client: aio.Client, thread: LoopThread) -> None:
        self._client = client
        self._publish = client._publications.publish  # noqa: SLF001 (the asyncio client belongs to the blocking one)
        self._thread = thread
        self._slots = Slots(limits.PUBLISHES_IN_FLIGHT_MAX, _IN_FLIGHT_LOW)
        self._waiting: deque[_Publish | _Mark] = deque()  # they leave in FIFO order
        self._sending: asyncio.Task[None] | None = None
        self._looking: asyncio.Handle | None = None  # for messages that are late
        self._is_sending = False  # a task sends what waits, or will
        self._starting = threading.Lock()  # held to change it to True
        self._first_failure: BaseException | None = None
        thread.at_end(self._fail_waiting)

    def put(
        self,
        subject: str,
        value: Value,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        stream: str | None = None,
        ack: Ack = "all",
        envelope: Envelope | None = None,
        retries: int = 0,
        timeout: float = 10.0,
    ) -> concurrent.futures.Future[PubAck | None]:
        """Queue one `Client.publish_nowait` and return its future; wait for a slot up to the call's time-out."""
        self._thread.check()
        if not self._slots.take(timeout):
            text = f"the time-out passed while {limits.PUBLISHES_IN_FLIGHT_MAX} earlier messages waited for their acks"
            raise TimedOut(text)
        future = PublishFuture(self._slots)
        self._waiting.append((subject, value, key, headers, stream, ack, envelope, retries, timeout, True, future))
        if not self._is_sending:
            self._start()
        return future

    def flush(self, timeout_s: float) -> None:
        """Wait until everything so far is sent and has its ack; raise the first failure."""
        until_s = monotonic() + seconds_of(timeout_s)
        try:
            self.wait_until_sent(timeout_s)
        except Exception as error:
            try:  # others were sent, and wait for their acks
                self._flush_sent(until_s)
            except (OperationalError, RemoteError) as other:
                error.add_note(f"one that was sent failed, too: {other}")
            raise
        self._flush_sent(until_s)

    def _flush_sent(self, until_s: float) -> None:
        self._thread.run(self._client.flush(timeout=max(until_s - monotonic(), 0.0)))

    def finish(self) -> None:
        """Wait until everything so far has its ack, or has failed, at the latest by its own time-out."""
        with contextlib.suppress(OperationalError):  # it was closed
            self._thread.check()
            if mark := self._mark():
                while True:  # not at once: an interrupt just before a wait is noticed only after it
                    with contextlib.suppress(TimeoutError):
                        mark.result(INTERRUPT_CHECK_S)
                        break
            self._thread.run(self._client._publications.finish())  # noqa: SLF001 (as above)

    def tell(self) -> None:
        """Warn the caller of failures that no caller saw."""
        self._client._publications.unseen.tell()  # noqa: SLF001 (as above)

    def _mark(self) -> _Mark | None:
        """Queue a mark behind what waits; None if nothing does."""
        if not (self._is_sending or self._waiting):
            return None
        mark: _Mark = concurrent.futures.Future()
        self._waiting.append(mark)
        if not self._is_sending:
            self._start()
        return mark

    def wait_until_sent(self, timeout_s: float) -> None:
        """Wait until everything queued so far is sent; raise the first failure of a publish that could not be sent."""
        within_s = seconds_of(timeout_s)
        if (mark := self._mark()) is not None:
            try:
                mark.result(within_s)
            except TimeoutError:
                raise TimedOut(f"{len(self._waiting)} messages could not be sent yet") from None
        failure, self._first_failure = self._first_failure, None
        if failure is not None:
            self._client._publications.unseen.heard()  # noqa: SLF001 (as above)
            raise failure

    def _start(self) -> None:
        """Have a task send what waits, unless one does."""
        try:
            with self._starting:
                if self._is_sending:
                    return
                self._is_sending = True
            self._wake()
        except BaseException:  # an interrupt, between any two of these steps: others rely on this one by now
            self._wake()
            raise

    def _wake(self) -> None:
        try:
            self._thread.loop.call_soon_threadsafe(self._start_task)
        except RuntimeError:  # the loop was closed
            self._fail_waiting()

    def _start_task(self) -> None:
        if self._thread.is_ending:  # a task that begins now might not end
            self._fail_waiting()
            return
        loop = asyncio.get_running_loop()
        self._is_sending = True
        if self._sending is None or self._sending.done():
            self._sending = loop.create_task(self._send_all())
        if self._looking is None:
            self._looking = loop.call_soon(self._look_for_late)  # after the first step of the task

    def _look_for_late(self) -> None:
        """Fail messages whose time-out passes before their turn, while the task waits for NATS or for a broker."""
        self._looking = None
        if self._is_sending:
            now_s = monotonic()
            for item in self._waiting.copy():
                if isinstance(item, tuple) and not item[-1].done():
                    with contextlib.suppress(TypeError):  # sending it raises that again
                        if now_s - item[-1].made_s > item[-3]:
                            item[-1].keeps_slot = True
                            self._left_of(item)
            self._looking = asyncio.get_running_loop().call_later(_LATE_LOOK_S, self._look_for_late)

    def _left_of(self, item: _Publish) -> _Publish | None:
        """Return the message with the rest of its time-out; None if that has passed: its future is told so."""
        future, timeout = item[-1], item[-3]
        if future.done():
            return None
        with contextlib.suppress(TypeError, ValueError):  # sending it raises that again
            left_s = seconds_of(timeout) - (monotonic() - future.made_s)
            if left_s > 0:
                return (*item[:-3], left_s, *item[-2:])
            error = TimedOut(f"the time-out of the message on {item[0]!r} passed before it was sent: it is not stored")
            self._failed(item, error)
            return None
        return item

    async def _send_all(self) -> None:
        try:
            while self._waiting or not self._rests():
                item = self._waiting.popleft()
                if isinstance(item, tuple):
                    future = item[-1]
                    if future.keeps_slot or monotonic() - future.made_s > _LATE_LOOK_S:
                        future.left_queue()
                        if (left := self._left_of(item)) is None:
                            await asyncio.sleep(0)
                            continue
                        item = left
                    try:
                        await self._publish(*item)
                    except Exception as error:  # noqa: BLE001 (passed to the owner of the future, and to flush)
                        self._failed(item, error)
                        # Threads may put what fails faster than this takes it, and the loop has other work.
                        await asyncio.sleep(0)
                    except BaseException:
                        text = "the client was closed while the message was sent: whether it is stored is unknown"
                        _fail(item, Unavailable(text))
                        raise
                else:
                    item.set_result(None)
        except BaseException:
            self._fail_waiting()
            raise

    def _failed(self, item: _Publish, error: Exception) -> None:
        self._first_failure = self._first_failure or error
        if not item[-1].done():
            _fail(item, error)
            self._client._publications.unseen.note(item[-1])  # noqa: SLF001 (as above)

    def _rests(self) -> bool:
        """Leave what is put from now on to the next task; False if something was put just now."""
        # Who puts looks at `_is_sending` after it has put, without a lock, so this looks again after it has changed it.
        self._is_sending = False
        if not self._waiting:
            return True
        with self._starting:
            is_left_to_another, self._is_sending = self._is_sending, True
        return is_left_to_another

    def _fail_waiting(self) -> None:
        self._is_sending = False
        with contextlib.suppress(IndexError):  # nothing is left; another thread may do the same
            while True:
                item = self._waiting.popleft()
                if isinstance(item, tuple):
                    item[-1].left_queue()
                    _fail(item, _not_sent())
                else:
                    item.set_result(None)


def _fail(what: _Publish, error: Exception) -> None:
    future = what[-1]
    if not future.done():  # its ack may come while NATS takes no more bytes
        future.set_exception(error)


def _not_sent() -> Unavailable:
    return Unavailable("the client was closed before the message was sent")


class _Steps(Iterator[T]):
    """An asynchronous iterator, for the caller's threads."""

    def __init__(self, source: AsyncIterator[T], thread: LoopThread) -> None:
        self._source = source
        self._thread = thread

    def __next__(self) -> T:
        item = self._thread.run(next_of(self._source))
        if isinstance(item, End):
            raise StopIteration
        return item


class End:
    """Returned by `next_of` after the last item."""


async def next_of(source: AsyncIterator[T]) -> T | End:
    """Return the next item, or `End` after the last."""
    try:
        return await anext(source)
    except StopAsyncIteration:
        return End()


_closing: set[asyncio.Task[None]] = set()


def _close_soon(source: AsyncGenerator[Any, None]) -> None:
    """Close the generator on its own loop, without waiting for it."""
    task = asyncio.get_running_loop().create_task(_end(source))
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _end(source: AsyncGenerator[Any, None]) -> None:
    with contextlib.suppress(Exception):  # it may still be running; its cancellation ends it then
        await source.aclose()


async def _within(seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.timeout(seconds):
        await work()
