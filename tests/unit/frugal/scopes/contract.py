"""A contract as generated code has it: the scope `Orders` with what the tests publish.

scope Orders prefix shop.{region} {
    Placed: Order (stream = "orders")
    Counted: i64
    Noted: list<string>
}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

from penstock.frugal.context import Context
from penstock.frugal.contracts import OperationType, ScopeType
from penstock.frugal.scopes.options import PublishOptions, SubscribeOptions
from penstock.frugal.scopes.publisher import Published, PublishedLater, ScopePublisher
from penstock.frugal.scopes.subscriber import ScopeSubscriber
from penstock.frugal.scopes.subscriptions import Handler, Subscription


@dataclass(slots=True, kw_only=True)
class Customer:
    id: str | None = None
    thrift_spec: ClassVar[Any] = (None, (1, 11, "id", "UTF8", None))


@dataclass(slots=True, kw_only=True)
class Order:
    number: int = 0
    customer: Customer | None = None
    from_: str | None = None
    thrift_spec: ClassVar[Any] = (
        None,
        (1, 10, "number", None, 0),
        (2, 12, "customer", [Customer, Customer.thrift_spec], None),
        (3, 11, "from_", "UTF8", None),
    )


def order(number: int, customer: str | None = "ann") -> Order:
    return Order(number=number, customer=None if customer is None else Customer(id=customer))


PLACED = OperationType("Placed", (12, [Order, Order.thrift_spec]), stream="orders", key=("customer", "id"))
COUNTED = OperationType("Counted", (10, None), annotations={"unit": "orders"})
NOTED = OperationType("Noted", (15, (11, "UTF8", False)))
ORDERS = ScopeType("Orders", "shop.{region}", ("region",), {each.name: each for each in (PLACED, COUNTED, NOTED)})


class OrdersPublisher(ScopePublisher):
    _scope = ORDERS

    async def publish_Placed(
        self, ctx: Context, region: str, message: Order, *, nowait: bool = False, **options: Unpack[PublishOptions]
    ) -> Published | PublishedLater:
        return await self._publish(PLACED, ctx, (region,), message, nowait=nowait, **options)

    async def publish_Counted(
        self, ctx: Context, region: str, message: int, *, nowait: bool = False, **options: Unpack[PublishOptions]
    ) -> Published | PublishedLater:
        return await self._publish(COUNTED, ctx, (region,), message, nowait=nowait, **options)

    async def publish_Noted(
        self, ctx: Context, region: str, message: list[str], *, nowait: bool = False, **options: Unpack[PublishOptions]
    ) -> Published | PublishedLater:
        return await self._publish(NOTED, ctx, (region,), message, nowait=nowait, **options)


class OrdersSubscriber(ScopeSubscriber):
    _scope = ORDERS

    async def subscribe_Placed(
        self, region: str, handler: Handler, *, queue: str = "", **options: Unpack[SubscribeOptions]
    ) -> Subscription:
        return await self._subscribe(PLACED, (region,), handler, queue=queue, **options)

    async def subscribe_Counted(
        self, region: str, handler: Handler, *, queue: str = "", **options: Unpack[SubscribeOptions]
    ) -> Subscription:
        return await self._subscribe(COUNTED, (region,), handler, queue=queue, **options)

    async def subscribe_Noted(
        self, region: str, handler: Handler, *, queue: str = "", **options: Unpack[SubscribeOptions]
    ) -> Subscription:
        return await self._subscribe(NOTED, (region,), handler, queue=queue, **options)
