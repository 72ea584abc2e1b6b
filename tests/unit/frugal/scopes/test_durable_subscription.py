"""A durable subscription over a source in memory: how each delivery ends, whatever its handler does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from penstock.client.values import Message
from penstock.frugal.codecs import BINARY
from penstock.frugal.context import Context
from penstock.frugal.middleware import Call, Middleware, Proceed
from penstock.frugal.scopes.durable import Delivery, DurableSource
from penstock.frugal.scopes.durable_subscription import DurableSubscription
from penstock.frugal.scopes.framing import ScopeFraming, encode_message
from penstock.frugal.scopes.subscriptions import Handler, MessageRejected, Receiver
from tests.unit.frugal.scopes.contract import COUNTED, ORDERS

SUBJECT = "frugal.shop.eu.Orders.Counted"


def stored(number: int) -> bytes:
    made = encode_message(ScopeFraming.FRUGAL, BINARY, Context("c"), COUNTED, number, operation_id=1, now=0.0)
    return made.payload


class ListSource:
    """Gives out a list, once, and notes how each message ended. A source whose broker redelivers looks like this."""

    def __init__(self, *values: bytes | None, failure: Exception | None = None) -> None:
        self._queue: asyncio.Queue[Delivery | None] = asyncio.Queue()
        for offset, value in enumerate(values):
            self._queue.put_nowait(Delivery("orders", Message(offset, 0, SUBJECT, None, value, None), 2))
        self._failure = failure
        self.ends: list[tuple[int, str]] = []
        self.is_closed = False

    async def open(self) -> None:
        pass

    async def next(self) -> Delivery | None:
        if self._queue.empty() and self._failure is not None:
            raise self._failure
        return await self._queue.get()

    def handled(self, delivery: Delivery) -> None:
        self.ends.append((delivery.message.offset, "handled"))

    def failed(self, delivery: Delivery, reason: str, *, is_final: bool = False) -> None:
        self.ends.append((delivery.message.offset, f"{'dead' if is_final else 'failed'} {reason}"))

    def abandoned(self, delivery: Delivery) -> None:
        self.ends.append((delivery.message.offset, "abandoned"))

    async def drain(self) -> None:
        await self._queue.put(None)

    async def close(self) -> None:
        self.is_closed = True

    @property
    def counts(self) -> Mapping[str, int]:
        return {"commits": 4}


async def begun(source: ListSource, handler: Handler, middleware: tuple[Middleware, ...] = ()) -> DurableSubscription:
    accepted: DurableSource = source  # it is one
    receiver = Receiver(ORDERS, COUNTED, BINARY, middleware, handler)
    made = DurableSubscription(accepted, SUBJECT, receiver, group="g", handlers=1)
    await made.open()
    return made


async def test_each_delivery_ends_once_and_as_its_handler_says() -> None:
    def handle(_ctx: Context, number: int) -> Any:
        match number:
            case 1:
                raise LookupError("gone")
            case 2:
                raise MessageRejected("too old")
            case 3:
                raise asyncio.CancelledError
        return None  # a handler need not be a coroutine function

    source = ListSource(*map(stored, range(4)), b"junk", None, stored(9))
    subscription = await begun(source, handle)
    await subscription.drain()
    assert source.ends == [
        (0, "handled"),
        (1, "failed LookupError: gone"),
        (2, "dead rejected: too old"),
        (3, "failed RuntimeError: the handler was cancelled from inside"),
        (4, "dead not decoded: Orders.Counted: 4 bytes are no frame, which has 9 at least, at byte 0 of the frame"),
        (5, "handled"),  # a tombstone has no message
        (6, "handled"),
    ]
    assert subscription.counts == {
        "handled": 2,
        "failed": 2,
        "malformed": 1,
        "rejected": 1,
        "tombstones": 1,
        "commits": 4,
    }
    assert source.is_closed


async def test_middleware_sees_the_deliveries_and_may_refuse() -> None:
    seen: list[str] = []

    async def refuse(ctx: Context, call: Call, proceed: Proceed) -> Any:
        seen.append(f"{call.side} {call} {call.subject} {call.arguments} {call.deliveries} {dict(ctx.topic)}")
        if call.arguments == (0,):
            raise PermissionError("no token")
        return await proceed(ctx, call)

    source = ListSource(stored(0), stored(1))
    subscription = await begun(source, lambda _ctx, _number: None, (refuse,))
    await subscription.drain()
    assert source.ends == [(0, "failed PermissionError: no token"), (1, "handled")]
    assert seen[1] == f"subscriber Orders.Counted {SUBJECT} (1,) 2 {{'region': 'eu'}}"


async def test_a_handler_that_is_cancelled_by_the_end_leaves_its_message_to_the_next_reader() -> None:
    begins = asyncio.Event()

    async def handle(_ctx: Context, _number: int) -> None:
        begins.set()
        await asyncio.Event().wait()

    source = ListSource(stored(0), stored(1))
    subscription = await begun(source, handle)
    await begins.wait()
    await subscription.unsubscribe()
    await subscription.unsubscribe()
    assert source.ends == [(0, "abandoned")]


async def test_a_drain_ends_a_handler_that_takes_too_long() -> None:
    async def handle(_ctx: Context, _number: int) -> None:
        await asyncio.Event().wait()

    source = ListSource(stored(0))
    subscription = await begun(source, handle)
    with pytest.raises(TimeoutError):
        await subscription.drain(timeout=0.01)
    assert source.ends == [(0, "abandoned")]
    assert source.is_closed


async def test_what_ends_the_source_is_told_to_whom_waits_and_at_the_end_of_the_block() -> None:
    subscription = await begun(ListSource(stored(0), failure=LookupError("deleted")), lambda _ctx, _number: None)
    with pytest.raises(LookupError, match="deleted"):
        await subscription.wait()
    with pytest.raises(LookupError, match="deleted"):
        async with subscription:
            pass
