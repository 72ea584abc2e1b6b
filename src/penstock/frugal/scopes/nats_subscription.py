"""A subscription on NATS: what is published while it lives, at most once.

Rules: messages that come faster than handlers take them wait, up to `PENDING_MESSAGES_MAX`; beyond it nats-py drops new
ones and calls the connection's error callback (slow consumer), as for any subscription. With one handler at a time, the
default, the order of NATS is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from penstock.frugal.errors import CodecError, FrameError
from penstock.frugal.scopes.complaints import Complaints
from penstock.frugal.scopes.subscriptions import DRAIN_TIMEOUT_S, Receiver, Subscription

if TYPE_CHECKING:
    from nats.aio.client import Client as NatsConnection
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription as RawSubscription

PENDING_MESSAGES_MAX: Final = 65_536
"""Messages of one subscription that wait for its handlers; later ones are dropped."""
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Their bytes."""
HANDLERS_MAX: Final = 1_024
"""Most handlers of one subscription at once."""


class NatsSubscription(Subscription):
    """Handles what NATS delivers on a subject."""

    def __init__(self, nats: NatsConnection, subject: str, receiver: Receiver, *, queue: str, handlers: int) -> None:
        super().__init__(subject)
        self._nats = nats
        self._receiver = receiver
        self._queue = queue
        self._handlers = handlers
        self._free = asyncio.Semaphore(handlers)
        self._running: set[asyncio.Task[None]] = set()
        self._raw: RawSubscription | None = None
        self._ended = asyncio.Event()
        self._complaints = Complaints(asyncio.get_running_loop().time)

    async def open(self) -> None:
        """Subscribe; returns once the NATS server knows it, so that what is published from now on is heard."""
        self._raw = await self._nats.subscribe(
            self.subject,
            queue=self._queue,
            cb=self._received if self._handlers == 1 else self._received_beside,
            pending_msgs_limit=PENDING_MESSAGES_MAX,
            pending_bytes_limit=PENDING_BYTES_MAX,
        )
        await self._nats.flush()

    async def _received(self, raw: Msg) -> None:
        await self._take(raw)

    async def _received_beside(self, raw: Msg) -> None:
        await self._free.acquire()
        task = asyncio.get_running_loop().create_task(self._take(raw))
        self._running.add(task)
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._free.release()

    async def _take(self, raw: Msg) -> None:
        receiver = self._receiver
        try:
            ctx, message = receiver.decode(raw.subject, raw.data, raw.headers or {})
        except (FrameError, CodecError) as error:
            self._counts["malformed"] += 1
            text = f"{receiver}: skipped a message on {raw.subject}: {error}"
            self._complaints.log("malformed", lambda: text)
            return
        try:
            await receiver.handle(ctx, message, raw.subject)
        except Exception as error:  # noqa: BLE001 (no handler ends the subscription)
            self._counts["failed"] += 1
            text = f"{receiver}: the handler failed on {raw.subject}: {type(error).__name__}: {error}"
            self._complaints.log("failed", lambda: text, logging.ERROR, error=error)
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
                        await raw.drain()
                while self._running:
                    await asyncio.wait(self._running)
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
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        self._ended.set()

    async def wait(self) -> None:
        """Wait for the end."""
        await self._ended.wait()
