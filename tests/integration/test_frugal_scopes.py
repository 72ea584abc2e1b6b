"""Scopes over a real NATS server: what is published while a subscription lives, and what hostile messages do to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client as NatsConnection

from penstock.frugal.codecs import BINARY, COMPACT, JSON, Codec, MessageKind
from penstock.frugal.context import Context
from penstock.frugal.errors import CodecError, RequestTooLarge, TransportClosed
from penstock.frugal.middleware import Call, Proceed, Side
from penstock.frugal.scopes.provider import ScopeProvider
from penstock.frugal.scopes.subscriptions import Subscription
from tests.broker_process import BrokerProcess, eventually
from tests.frugal_frames import encode_frame
from tests.unit.frugal.scopes.contract import COUNTED, OrdersPublisher, OrdersSubscriber, order

HEADERS = {"_opid": "1", "_cid": "c1", "_timeout": "5000"}


@pytest.fixture
async def connection(broker: BrokerProcess) -> AsyncIterator[NatsConnection]:
    connected = await nats.connect(broker.nats_url)
    yield connected
    await connected.close()


class Heard:
    """A handler that notes what it gets."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.contexts: list[Context] = []
        self._came = asyncio.Event()

    async def __call__(self, ctx: Context, message: Any) -> None:
        self.messages.append(message)
        self.contexts.append(ctx)
        self._came.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.messages) < count:
                self._came.clear()
                await self._came.wait()


@pytest.mark.parametrize("codec", [BINARY, COMPACT, JSON], ids=lambda codec: codec.name)
async def test_a_message_comes_with_its_context_and_its_variables(connection: NatsConnection, codec: Codec) -> None:
    provider = ScopeProvider(connection, codec=codec)
    heard, everywhere, numbers, texts = Heard(), Heard(), Heard(), Heard()
    subscriber, publisher = OrdersSubscriber(provider), OrdersPublisher(provider)
    async with (
        await subscriber.subscribe_Placed("eu", heard) as one,
        await subscriber.subscribe_Placed("*", everywhere),
        await subscriber.subscribe_Counted("eu", numbers),
        await subscriber.subscribe_Noted("eu", texts),
    ):
        assert one.subject == "frugal.shop.eu.Orders.Placed"
        ctx = Context("c1", timeout_ms=700, headers={"tenant": "bücher"})
        assert await publisher.publish_Placed(ctx, "eu", order(1), stream="") is None
        await publisher.publish_Placed(Context(), "us", order(2), stream="")
        await publisher.publish_Counted(ctx, "eu", -7)
        await publisher.publish_Noted(ctx, "eu", ["a", "ß", ""])
        await everywhere.wait_for(2)
        await texts.wait_for(1)
    assert heard.messages == [order(1)]
    assert everywhere.messages == [order(1), order(2)]
    assert numbers.messages == [-7]
    assert texts.messages == [["a", "ß", ""]]
    (got,) = heard.contexts
    assert (got.correlation_id, got.timeout_ms, dict(got.headers)) == ("c1", 700, {"tenant": "bücher"})
    assert got.topic == {"region": "eu"}
    assert [each.topic for each in everywhere.contexts] == [{"region": "eu"}, {"region": "us"}]


async def test_messages_of_a_subscription_are_handled_in_order_and_a_queue_group_shares_them(
    connection: NatsConnection,
) -> None:
    provider = ScopeProvider(connection)
    alone, one, other = Heard(), Heard(), Heard()
    subscriber, publisher = OrdersSubscriber(provider), OrdersPublisher(provider)
    async with (
        await subscriber.subscribe_Counted("q", alone),
        await subscriber.subscribe_Counted("q", one, queue="workers"),
        await subscriber.subscribe_Counted("q", other, queue="workers"),
    ):
        for number in range(200):
            await publisher.publish_Counted(Context(), "q", number)
        await alone.wait_for(200)
    assert alone.messages == list(range(200))
    assert sorted(one.messages + other.messages) == list(range(200))
    assert one.messages
    assert other.messages


async def test_nothing_that_comes_ends_a_subscription(
    connection: NatsConnection, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []
    done = asyncio.Event()

    async def handle(_ctx: Context, message: int) -> None:
        seen.append(message)
        if message == 1:
            raise LookupError("no such order")
        if message == 2:
            raise asyncio.CancelledError
        done.set()

    provider = ScopeProvider(connection)
    subscription = await OrdersSubscriber(provider).subscribe_Counted("bad", handle)
    subject = "frugal.shop.bad.Orders.Counted"
    body = BINARY.encode("Counted", MessageKind.CALL, 0, COUNTED.spec, 3)
    good = encode_frame(HEADERS, body)
    hostile = [
        b"",
        b"\0\0\0\0",
        good[:-1],
        good + b"\0",
        b"\xff" * 64,
        good[:4] + b"\1" + good[5:],  # another version
        encode_frame({}, body),  # no _opid
        encode_frame(HEADERS, BINARY.encode("Placed", MessageKind.CALL, 0, COUNTED.spec, 3)),
        encode_frame(HEADERS, BINARY.encode("Counted", MessageKind.REPLY, 0, COUNTED.spec, 3)),
        encode_frame(HEADERS, b""),
        encode_frame(HEADERS, body + b"\0"),
    ]
    with caplog.at_level(logging.WARNING, "penstock.frugal.scopes"):
        for payload in hostile:
            await connection.publish(subject, payload)
        publisher = OrdersPublisher(provider)
        for number in (1, 2, 3):
            await publisher.publish_Counted(Context(), "bad", number)
        async with asyncio.timeout(60):
            await done.wait()
    assert seen == [1, 2, 3]
    assert subscription.counts == {"handled": 1, "failed": 2, "malformed": len(hostile)}
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2  # one line of each kind, however many messages
    assert "skipped a message on frugal.shop.bad.Orders.Counted" in told[0]
    assert "Orders.Counted: the handler failed" in told[1]
    assert "LookupError: no such order" in told[1]
    await subscription.unsubscribe()
    await subscription.unsubscribe()


async def test_several_handlers_run_beside_each_other_and_no_more_than_are_wanted(connection: NatsConnection) -> None:
    running, most = 0, 0
    both, go_on = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    async def handle(_ctx: Context, message: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            both.set()
        await go_on.wait()
        running -= 1
        seen.append(message)

    provider = ScopeProvider(connection)
    subscription = await OrdersSubscriber(provider).subscribe_Counted("beside", handle, handlers=2)
    publisher = OrdersPublisher(provider)
    for number in range(6):
        await publisher.publish_Counted(Context(), "beside", number)
    async with asyncio.timeout(60):
        await both.wait()
        go_on.set()
    await subscription.drain()  # what has come is handled
    assert sorted(seen) == list(range(6))
    assert most == 2
    await subscription.wait()


async def test_a_drain_that_takes_too_long_ends_and_says_so(connection: NatsConnection) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handle(_ctx: Context, _message: int) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    provider = ScopeProvider(connection)
    for handlers in (1, 2):
        begun.clear()
        ended.clear()
        subscription = await OrdersSubscriber(provider).subscribe_Counted("slow", handle, handlers=handlers)
        await OrdersPublisher(provider).publish_Counted(Context(), "slow", 1)
        async with asyncio.timeout(60):
            await begun.wait()
            with pytest.raises(TimeoutError):
                await subscription.drain(timeout=0.05)
            await ended.wait()
            await subscription.wait()


async def test_waiting_for_a_subscription_ends_when_its_connection_is_closed(broker: BrokerProcess) -> None:
    connected = await nats.connect(broker.nats_url)
    provider, heard = ScopeProvider(connected), Heard()
    subscription = await OrdersSubscriber(provider).subscribe_Counted("eu", heard)
    waiting, other = (asyncio.create_task(subscription.wait()) for _ in range(2))
    await OrdersPublisher(provider).publish_Counted(Context(), "eu", 5)
    await heard.wait_for(1)
    assert not waiting.done()
    await connected.close()
    async with asyncio.timeout(60):
        for each in (waiting, other, subscription.wait()):
            with pytest.raises(TransportClosed, match="the NATS connection was closed"):
                await each
    assert subscription.counts["handled"] == 1


async def test_what_cannot_be_published_is_a_clear_error(connection: NatsConnection, broker: BrokerProcess) -> None:
    provider = ScopeProvider(connection)
    publisher = OrdersPublisher(provider)
    with pytest.raises(RequestTooLarge, match=r"Orders\.Noted: the message has [0-9,]+ bytes"):
        await publisher.publish_Noted(Context(), "eu", ["x" * connection.max_payload])
    with pytest.raises(RequestTooLarge):  # nats-py does not count the headers
        await publisher.publish_Noted(
            Context(), "eu", ["x" * (connection.max_payload - 1_000)], headers={"big": "x" * 2_000}
        )
    with pytest.raises(CodecError):
        await publisher.publish_Counted(Context(), "eu", "no number")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="variable region"):
        await publisher.publish_Counted(Context(), "*", 1)
    with pytest.raises(ValueError, match="needs a client"):
        await publisher.publish_Placed(Context(), "eu", order(1))
    closed = await nats.connect(broker.nats_url)
    await closed.close()
    with pytest.raises(TransportClosed):
        await OrdersPublisher(ScopeProvider(closed)).publish_Counted(Context(), "eu", 1)
    subscriber = OrdersSubscriber(provider)
    for options, text in [
        ({"retry": None, "dead_letters": "x"}, "options of a durable"),
        ({"stream": "orders"}, "options of a durable"),
        ({"group": "g", "queue": "q"}, "option of a live"),
        ({"group": "g"}, "no stream keeps it"),
        ({"handlers": 0}, "handlers is 0"),
        ({"handlers": 100_000}, "handlers is 100000"),
    ]:
        with pytest.raises(ValueError, match=text):
            await subscriber.subscribe_Counted("eu", Heard(), **options)


async def test_middleware_is_around_publish_and_handler_on_both_sides(connection: NatsConnection) -> None:
    steps: list[str] = []

    def noting(name: str) -> Any:
        async def middleware(ctx: Context, call: Call, proceed: Proceed) -> Any:
            steps.append(f"{name} {call.side} {call} {call.subject} {dict(call.annotations)} {call.deliveries}")
            if call.side is Side.PUBLISHER:
                ctx.set_header("seen-by", name)
            try:
                return await proceed(ctx, call)
            finally:
                steps.append(f"{name} end")

        return middleware

    heard = Heard()
    provider = ScopeProvider(connection, middleware=[noting("outer")])
    subscription: Subscription = await OrdersSubscriber(provider, middleware=[noting("inner")]).subscribe_Counted(
        "m", heard
    )
    await OrdersPublisher(provider, middleware=[noting("inner")]).publish_Counted(Context(), "m", 4)
    await heard.wait_for(1)
    await subscription.drain()
    said = "Orders.Counted frugal.shop.m.Orders.Counted {'unit': 'orders'} 1"
    published = [f"outer publisher {said}", f"inner publisher {said}", "inner end", "outer end"]
    handled = [f"outer subscriber {said}", f"inner subscriber {said}", "inner end", "outer end"]
    assert [step for step in steps if "subscriber" not in step][:4] == published
    assert steps[-4:] == handled
    assert dict(heard.contexts[0].headers) == {"seen-by": "inner"}


async def test_a_subscription_outlives_a_restart_of_nats(broker: BrokerProcess, tmp_path_factory: Any) -> None:
    from tests.broker_process import running_nats

    with running_nats(tmp_path_factory.mktemp("nats")) as server:
        connected = await nats.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.02)
        heard = Heard()
        provider = ScopeProvider(connected)
        publisher = OrdersPublisher(provider)
        async with await OrdersSubscriber(provider).subscribe_Counted("r", heard):
            await publisher.publish_Counted(Context(), "r", 1)
            await heard.wait_for(1)
            server.kill()
            server.start()

            async def is_heard() -> bool:
                await publisher.publish_Counted(Context(), "r", 2)
                return 2 in heard.messages

            await eventually(is_heard, "a message after the restart")
        await connected.close()


async def test_what_comes_faster_than_it_is_handled_is_bounded_and_the_rest_is_dropped_and_counted(
    connection: NatsConnection,
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(_ctx: Context, _message: int) -> None:
        begun.set()
        await go_on.wait()

    provider = ScopeProvider(connection)
    subscription = await OrdersSubscriber(provider).subscribe_Counted("flood", handle, pending=100)
    publisher = OrdersPublisher(provider)
    await publisher.publish_Counted(Context(), "flood", 0)
    async with asyncio.timeout(60):
        await begun.wait()
    for number in range(110):
        await publisher.publish_Counted(Context("c"), "flood", number)

    async def are_dropped() -> bool:
        return subscription.counts.get("dropped") == 10

    await eventually(are_dropped, "ten messages that were dropped")
    go_on.set()
    await subscription.drain()
    assert subscription.counts["handled"] == 101
