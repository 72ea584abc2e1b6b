"""A durable subscription: each message of a stream is handled at least once, by one member of its group.

Rules: a message whose handler returned is committed, with others and a moment later. One whose handler raised comes
again after a back-off, in the order of its partition; after its last attempt it is a dead letter. One that cannot be
decoded, or that a handler rejects, is a dead letter at once. Tombstones have no message, and are counted only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from penstock.base.typed_headers import OPERATION
from penstock.client.values import Message
from penstock.frugal.complaints import Complaints
from penstock.frugal.errors import CodecError, FrameError
from penstock.frugal.native import METHOD
from penstock.frugal.scopes.dead_letters import original_subject
from penstock.frugal.scopes.durable import Delivery, DurableSource
from penstock.frugal.scopes.subscriptions import DRAIN_TIMEOUT_S, MessageRejected, Receiver, Subscription

_NATIVE = (METHOD.encode(), OPERATION.encode())  # in the header block of each native message


class DurableSubscription(Subscription):
    """Handles what a source gives out."""

    def __init__(self, source: DurableSource, subject: str, receiver: Receiver, *, group: str, handlers: int) -> None:
        super().__init__(subject)
        self.group = group
        """The consumer group, as `penstock group show` knows it."""
        self._source = source
        self._receiver = receiver
        self._handlers = handlers
        self._working: list[asyncio.Task[None]] = []
        self._is_closed = False
        self._complaints = Complaints(logging.getLogger(__name__), asyncio.get_running_loop().time)

    @property
    def counts(self) -> Mapping[str, int]:
        """`handled`, `failed` (each delivery), `malformed`, `rejected`, `tombstones`, and those of the source."""
        return {**super().counts, **self._source.counts}

    async def open(self) -> None:
        """Join the group and begin. Raises what the brokers refuse."""
        await self._source.open()
        self._working = [asyncio.get_running_loop().create_task(self._work()) for _ in range(self._handlers)]

    async def _work(self) -> None:
        """Be one handler: take messages until the source ends."""
        while (delivery := await self._source.next()) is not None:
            try:
                await self._take(delivery)
            except BaseException:
                self._source.abandoned(delivery)
                raise

    async def _take(self, delivery: Delivery) -> None:
        stored = delivery.message
        subject = original_subject(stored)
        if stored.value is None:
            self._counts["tombstones"] += 1
            self._source.handled(delivery)
            return
        try:
            ctx, message = self._receiver.decode(subject, stored.value, _headers_of(stored))
        except (FrameError, CodecError) as error:
            self._counts["malformed"] += 1
            self._source.failed(delivery, f"not decoded: {self._receiver}: {error}", is_final=True)
            return
        try:
            await self._receiver.handle(ctx, message, subject, delivery.deliveries)
        except MessageRejected as error:
            self._counts["rejected"] += 1
            self._source.failed(delivery, f"rejected: {error}", is_final=True)
        except Exception as error:  # noqa: BLE001 (no handler ends the subscription)
            self._counts["failed"] += 1
            reason = f"{type(error).__name__}: {error}"
            text = (
                f"{self._receiver}: the handler failed, delivery {delivery.deliveries} of offset {stored.offset},"
                f" partition {stored.partition}, stream {delivery.stream}: {reason}"
            )
            self._complaints.tell("failed", text, level=logging.ERROR, error=error)
            self._source.failed(delivery, reason)
        else:
            self._counts["handled"] += 1
            self._source.handled(delivery)

    async def drain(self, *, timeout: float = DRAIN_TIMEOUT_S) -> None:
        """Begin no more messages, let handlers end, commit, and leave the group. TimeoutError: that took longer."""
        try:
            async with asyncio.timeout(timeout):
                await self._source.drain()
                await asyncio.gather(*self._working)
        finally:
            await self.unsubscribe()

    async def unsubscribe(self) -> None:
        """End at once: handlers that run are cancelled, and their messages come again. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        await self._source.close()

    async def wait(self) -> None:
        """Wait for the end. Raises what ended it: OffsetOutOfRange, LogTruncated, StreamChanged, NotAuthorized, …"""
        ended, _ = await asyncio.wait(self._working, return_when=asyncio.FIRST_EXCEPTION)
        for task in ended:
            if not task.cancelled():
                task.result()


def _headers_of(stored: Message) -> dict[str, str]:
    """Return the headers of a native message as a plain dict, parsed once; none of a frame, whose context is in it."""
    block = stored.header_block
    return dict(stored.headers) if block is not None and any(name in block for name in _NATIVE) else {}
