"""Generated publishers, subscribers, clients and handlers over a real NATS server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nats
import pytest

from penstock.frugal.context import Context
from penstock.frugal.errors import CodecError
from penstock.frugal.nats_transport import NatsTransport
from penstock.frugal.scopes import ScopeProvider
from penstock.frugal.server import Server
from penstock.idl.python.load import load
from tests.broker_process import BrokerProcess

CONTRACT = Path(__file__).parents[1] / "unit/idl/python/golden/shop.frugal"


async def test_a_message_goes_from_a_generated_publisher_to_a_generated_subscriber(broker: BrokerProcess) -> None:
    shop = load(CONTRACT)
    order = shop.Order(id=7, customer=shop.Customer(id="ann"), state=shop.State.SENT, past={shop.State.NEW})
    heard: asyncio.Queue[tuple[dict[str, str], Any]] = asyncio.Queue()

    async def handle(ctx: Context, message: Any) -> None:
        await heard.put((dict(ctx.topic), message))

    connection = await nats.connect(broker.nats_url)
    provider = ScopeProvider(connection)
    publisher = shop.OrderEventsPublisher(provider, stream="")  # live: the contract's stream is not there
    subscriber = shop.OrderEventsSubscriber(provider)
    async with (
        asyncio.timeout(60),
        await subscriber.subscribe_order_placed(handle, region="eu") as one,
        await subscriber.subscribe_counted(handle),
    ):
        assert one.subject == "frugal.shop.eu.orders.*.OrderEvents.OrderPlaced"
        await publisher.publish_order_placed(Context(), "us", "a", order)
        await publisher.publish_order_placed(Context(), "eu", "b", order)
        assert await heard.get() == ({"region": "eu", "class": "b"}, order)
        await publisher.publish_counted(Context(), "us", "a", 3)
        assert await heard.get() == ({"region": "us", "class": "a"}, 3)
        later = await publisher.publish_counted(Context(), "us", "a", 4, nowait=True)
        assert (later.done(), await later) == (True, None)  # no stream keeps it
    await connection.close()


async def test_a_message_that_its_subscribers_could_not_read_is_not_stored(broker: BrokerProcess) -> None:
    shop = load(CONTRACT)
    async with asyncio.timeout(60), await broker.client() as client:
        publisher = shop.OrderEventsPublisher(ScopeProvider(client=client), stream="poison", create={})
        order = shop.Order(id=7, customer=shop.Customer(id="ann"))
        await publisher.publish_order_placed(Context(), "eu", "a", order)
        order.customer.id = None
        with pytest.raises(CodecError, match=r"^OrderEvents\.OrderPlaced: Order\.customer\.id: None, and the field is"):
            await publisher.publish_order_placed(Context(), "eu", "a", order, key="ann")
        assert [message.offset async for message in client.messages("poison")] == [0]


async def test_a_generated_client_calls_a_generated_handler(broker: BrokerProcess) -> None:
    shop = load(CONTRACT)

    class Rates:
        async def rate(self, ctx: Context, base: int, other: int) -> float:
            return base / other

    connection = await nats.connect(broker.nats_url)
    server = Server(connection, "test.rates", [(shop.money.Rates, Rates())])
    async with server:
        transport = NatsTransport(connection, "test.rates")
        async with asyncio.timeout(60), shop.money.RatesClient(transport) as client:
            assert await client.rate(Context(), shop.money.Currency.USD, shop.money.Currency.EUR) == 2.0
        with shop.money.RatesBlockingClient(NatsTransport.connecting(broker.nats_url, "test.rates")) as blocking:
            found = await asyncio.to_thread(blocking.rate, Context(), shop.money.Currency.EUR, 4)
            assert found == pytest.approx(0.25)
    await connection.close()
