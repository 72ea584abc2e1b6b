"""A typed service that is called over NATS, and a durable event that it publishes, from the contract in shop.frugal.

In a program of your own compile the contract (`penstock idl compile`), so that editors and type checkers know it.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

import nats

from penstock import aio
from penstock.frugal import Context, NatsTransport, ScopeProvider, Server, load

shop = load(Path(__file__).with_name("shop.frugal"))


class OrdersService:
    def __init__(self, events: Any) -> None:
        self.events = events

    async def place(self, ctx: Context, customer: str, cents: int) -> Any:
        if cents > 100_000:
            raise shop.OverLimit(limit=100_000)
        order = shop.Order(id=ctx.correlation_id, customer=customer, cents=cents)
        await self.events.publish_order_placed(ctx.copy(), "eu", order)  # returns once the event is stored
        return order


async def main() -> None:
    connection = await nats.connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"))
    async with aio.connect() as client:
        provider = ScopeProvider(client=client)
        service = OrdersService(shop.OrderEventsPublisher(provider, create={}))
        handled = asyncio.Event()

        async def on_order_placed(ctx: Context, order: Any) -> None:
            print("event:", order.customer, "ordered for", order.cents, "in", ctx.topic["region"])
            handled.set()

        async with Server(connection, "services.orders", [(shop.Orders, service)], queue="orders"):
            async with shop.OrdersClient(NatsTransport(connection, "services.orders")) as orders:
                print("call:", await orders.place(Context("order-1", timeout_ms=2_000), "anna", 4200))
                try:
                    await orders.place(Context(), "anna", 420_000)
                except shop.OverLimit as error:
                    print("refused: the limit is", error.limit)
            async with await shop.OrderEventsSubscriber(provider).subscribe_order_placed(on_order_placed, group="demo"):
                await handled.wait()
    await connection.close()


asyncio.run(main())
