"""A subscription on NATS: what is published while it lives, at most once.

Rules: messages that come faster than handlers take them wait, up to a number and `PENDING_BYTES_MAX`; beyond it new
ones are dropped, counted and told, as NATS does with slow consumers. With one handler at a time, the default, the order
of NATS is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

from penstock.frugal.complaints import Complaints
from penstock.frugal.errors import CodecError, FrameError, TransportClosed
from penstock.frugal.nats_barrier import reach
from penstock.frugal.scopes.subscriptions import DRAIN_TIMEOUT_S, Receiver, Subscription

if TYPE_CHECKING:
    from nats.aio.client import Client as NatsConnection
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription as RawSubscription

PENDING_MESSAGES_MAX: Final = 65_536
"""Default of the messages of one subscription that wait for its handlers; later ones are dropped."""
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Their bytes."""
HANDLERS_MAX: Final = 1_024
"""Most handlers of one subscription at once."""
CLOSED_LOOK_S: Final = 0.5
"""Time between two looks of `wait` at the connection: nats-py tells its end to the one who connected, not to others."""


async def _drained(raw: Any) -> None:
    await raw.drain()  # without types in nats-py


class NatsSubscription(Subscription):
    """Handles what NATS delivers on a subject."""

    def __init__(
        self, nats: NatsConnection, subject: str, receiver: Receiver, *, queue: str, handlers: int, pending: int
    ) -> None:
        super().__init__(subject)
        self._nats = nats
        self._receiver = receiver
        self._queue = queue
        self._handlers = handlers
        self._pending_max = pending
        self._pending: asyncio.Queue[Msg] = asyncio.Queue()
        self._pending_bytes = 0
        self._working: list[asyncio.Task[None]] = []
        self._raw: RawSubscription | None = None
        self._ended = asyncio.Event()
        self._is_cut_off = False  # it ended with its connection
        self._complaints = Complaints(logging.getLogger(__name__), asyncio.get_running_loop().time)

    async def open(self) -> None:
        """Subscribe; returns once the NATS server knows it, so that what is published from now on is heard."""
        self._raw = await self._nats.subscribe(self.subject, queue=self._queue, cb=self._received)
        self._working = [asyncio.get_running_loop().create_task(self._work()) for _ in range(self._handlers)]
        try:
            await reach(self._nats)
        except BaseException:
            await self.unsubscribe()
            raise

    async def _received(self, raw: Msg) -> None:
        size, waiting = len(raw.data), self._pending.qsize()
        if waiting >= self._pending_max or (waiting and self._pending_bytes + size > PENDING_BYTES_MAX):
            self._counts["dropped"] += 1
            text = f"{self._receiver}: dropped a message on {raw.subject}: {waiting} wait for handlers already"
            self._complaints.tell("dropped", text, level=logging.ERROR)
            return
        self._pending_bytes += size
        self._pending.put_nowait(raw)

    async def _work(self) -> None:
        """Be one handler."""
        while True:
            raw = await self._pending.get()
            self._pending_bytes -= len(raw.data)
            try:
                await self._take(raw)
            finally:
                self._pending.task_done()

    async def _take(self, raw: Msg) -> None:
        receiver = self._receiver
        try:
            ctx, message = receiver.decode(raw.subject, raw.data, raw.headers or {})
        except (FrameError, CodecError) as error:
            self._counts["malformed"] += 1
            text = f"{receiver}: skipped a message on {raw.subject}: {error}"
            self._complaints.tell("malformed", text)
            return
        try:
            await receiver.handle(ctx, message, raw.subject)
        except Exception as error:  # noqa: BLE001 (no handler ends the subscription)
            self._counts["failed"] += 1
            text = f"{receiver}: the handler failed on {raw.subject}: {type(error).__name__}: {error}"
            self._complaints.tell("failed", text, level=logging.ERROR, error=error)
        else:
            self._counts["handled"] += 1

    async def drain(self, *, timeout: float = DRAIN_TIMEOUT_S) -> None:
        """Take no more messages, handle those that have come, and end. TimeoutError: a handler took longer; it ends."""
        from nats.errors import Error as NatsError

        raw, self._raw = self._raw, None
        try:
            async with asyncio.timeout(timeout):
                if raw is not None:
                    with contextlib.suppress(NatsError, OSError):  # the connection may be gone, or draining itself
                        await _drained(raw)
                await self._pending.join()
        finally:
            await self._end(raw)

    async def unsubscribe(self) -> None:
        """End at once; handlers that run are cancelled. May be called twice."""
        raw, self._raw = self._raw, None
        await self._end(raw)

    async def _end(self, raw: RawSubscription | None) -> None:
        from nats.errors import Error as NatsError

        if raw is not None:
            with contextlib.suppress(NatsError, OSError):
                await raw.unsubscribe()
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        self._ended.set()

    async def wait(self) -> None:
        """Wait for the end. TransportClosed: the NATS connection was closed for good, and not this subscription."""
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSED_LOOK_S):
                    await self._ended.wait()
            if self._raw is not None and self._nats.is_closed:
                await self._end_with_connection()
        if self._is_cut_off:
            raise TransportClosed(f"the NATS connection was closed, which ends the subscription of {self.subject!r}")

    async def _end_with_connection(self) -> None:
        """Let handlers take what has come, and end."""
        self._raw, self._is_cut_off = None, True
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await self._pending.join()
        except TimeoutError:
            self._complaints.tell("closed", f"{self._receiver}: a handler took longer than {DRAIN_TIMEOUT_S:g} s")
        finally:
            await self._end(None)
