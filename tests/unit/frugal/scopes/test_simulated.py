"""Durable scopes on the simulation: brokers, NATS, networks and programs fail, and members come and go.

Whatever strikes: each message that was published is stored once, and is handled or is a dead letter; those of a key are
handled in order; and the group's offsets say so at the end.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest

import penstock
from penstock import aio
from penstock.base.dead_letters import DELIVERIES, GROUP, HEADER, REASON, STREAM
from penstock.client.values import Message
from penstock.frugal.context import Context
from penstock.frugal.scopes.group_source import GIVEN_AT_ONCE
from penstock.frugal.scopes.options import SubscribeOptions
from penstock.frugal.scopes.provider import ScopeProvider
from penstock.frugal.scopes.redelivery import RetryPolicy
from penstock.frugal.scopes.subscriber import DURABLE_HANDLERS
from penstock.testing import Cluster
from tests.extent import needs_time
from tests.unit.frugal.scopes.contract import Order, OrdersPublisher, OrdersSubscriber, order

QUICK = RetryPolicy(attempts_max=3, wait_s=0.2, wait_s_max=1.0, total_s_max=600.0)
CREATE = {"partitions": 3, "dedup_window_ms": 3_600_000}
NAME = "billing.shop._.Orders.Placed"
KEYS = 9


class HandlerError(Exception):
    """What goes wrong in a handler."""


class Shop:
    """A program that publishes, two that handle and sometimes fail, and all faults."""

    def __init__(self, seed: int, *, brokers: int, faults: bool, messages: int = 60) -> None:
        self.cluster = Cluster(seed, brokers=brokers, faults=faults, every_s=3.0, limit_s=900.0)
        self.seed = seed
        self.messages = messages
        self.published = 0
        self.handled: dict[str, list[int]] = defaultdict(list)  # by key, in the order of handling
        self.attempts: dict[int, int] = defaultdict(int)

    async def handle(self, _ctx: Context, message: Order) -> None:
        await asyncio.sleep(0.001)
        number = message.number
        self.attempts[number] += 1
        if number % 7 == 3 or (number % 5 == 1 and self.attempts[number] == 1):
            raise HandlerError(f"cannot take {number}")
        assert message.customer is not None
        self.handled[message.customer.id or ""].append(number)

    def provider(self, client: aio.Client) -> ScopeProvider:
        return ScopeProvider(client=client, random=random.Random(self.seed).random)

    async def publish(self) -> None:
        async with aio.connect(timeout=60) as client:
            publisher = OrdersPublisher(self.provider(client), create=CREATE)
            while self.published < self.messages:
                number = self.published
                try:  # with the same id, whatever became of the last try
                    await publisher.publish_Placed(
                        Context(), "eu", order(number, f"c{number % KEYS}"), message_id=f"order-{number}", timeout=20
                    )
                except penstock.PenstockError:
                    await asyncio.sleep(0.5)
                    continue
                self.published += 1
                await asyncio.sleep(0.2)

    async def consume(self) -> None:
        async with aio.connect(timeout=60) as client:
            subscriber = OrdersSubscriber(self.provider(client), create=CREATE)
            options: SubscribeOptions = {"group": "billing", "retry": QUICK, "session": 5.0, "timeout": 20.0}
            async with await subscriber.subscribe_Placed("*", self.handle, **options) as subscription:
                await subscription.wait()

    async def main(self) -> None:
        readers = [self.cluster.start(self.consume, f"reader-{number}") for number in range(2)]
        writer = self.cluster.start(self.publish, "writer")
        await writer.finished()
        await self.cluster.settle()
        async with aio.connect(timeout=60) as client:
            while not await is_read(client):  # noqa: ASYNC110 (other programs cannot set an event here)
                await asyncio.sleep(1.0)
            stored = [message async for message in client.messages("orders")]
            dead = [message async for message in client.messages("orders-dead")]
        self.check(stored, dead)
        for reader in readers:
            reader.stop()

    def check(self, stored: list[Message], dead: list[Message]) -> None:
        ids = [message.headers["Nats-Msg-Id"] for message in stored]
        assert sorted(ids) == sorted(f"order-{number}" for number in range(self.messages))
        letters = {int(one.headers[HEADER + "Nats-Msg-Id"].removeprefix("order-")) for one in dead}
        assert letters == {number for number in range(self.messages) if number % 7 == 3}
        handled = {number for numbers in self.handled.values() for number in numbers}
        assert handled == set(range(self.messages)) - letters
        for numbers in self.handled.values():  # repeats aside, in order, whichever program handled them
            assert list(dict.fromkeys(numbers)) == sorted(set(numbers))
        for message in dead:
            assert (message.headers[STREAM], message.headers[GROUP]) == ("orders", NAME)
            assert message.headers[REASON].startswith("HandlerError: cannot take")
            assert int(message.headers[DELIVERIES]) == QUICK.attempts_max
            assert message.subject == "penstock.dead.orders-dead.frugal.shop.eu.Orders.Placed"

    def run(self) -> None:
        self.cluster.run(self.main())


MANY = 200


async def _handle_without_waiting() -> list[int]:
    """Handle many messages of one partition; return for each how many were handled until the loop got its turn."""
    handled: list[int] = []
    turns: list[int] = []
    done = asyncio.Event()

    def handle(_ctx: Context, message: Order) -> None:
        handled.append(message.number)
        before = len(handled)
        asyncio.get_running_loop().call_soon(lambda: turns.append(len(handled) - before))
        if len(handled) == MANY:
            done.set()

    async with aio.connect(timeout=60) as client:
        provider = ScopeProvider(client=client)
        publisher = OrdersPublisher(provider, create={})
        for number in range(MANY):
            await publisher.publish_Placed(Context(), "eu", order(number), nowait=True)
        await publisher.flush()
        async with await OrdersSubscriber(provider).subscribe_Placed("eu", handle, group="billing") as subscription:
            await done.wait()
        assert subscription.counts["handled"] == MANY
        assert await is_read(client, "billing.shop.eu.Orders.Placed")
    assert handled == list(range(MANY))
    return turns


def test_handlers_that_do_not_wait_leave_the_loop_its_turns_and_need_none_for_each_message() -> None:
    turns: list[int] = []
    cluster = Cluster(1, brokers=1, faults=False, limit_s=900.0)

    async def main() -> None:
        turns.extend(await _handle_without_waiting())

    cluster.run(main())
    assert len(turns) == MANY
    # In a turn each handler may begin one more; a callback runs in the turn after the one that it was asked for in.
    assert 1 < max(turns) <= 2 * (GIVEN_AT_ONCE + DURABLE_HANDLERS)


async def is_read(client: aio.Client, group: str = NAME) -> bool:
    offsets = await client.groups.offsets(group, "orders")
    return all(one.offset == one.committed_end for one in offsets)


def test_each_message_is_handled_once_and_in_order_or_is_a_dead_letter() -> None:
    shop = Shop(1, brokers=1, faults=False)
    shop.run()
    for numbers in shop.handled.values():
        assert len(numbers) == len(set(numbers))


@pytest.mark.parametrize(
    ("seed", "brokers"), [(1, 3), (2, 1), *(pytest.param(seed, 3, marks=needs_time) for seed in range(3, 9))]
)
def test_nothing_is_lost_whatever_strikes(seed: int, brokers: int) -> None:
    shop = Shop(seed, brokers=brokers, faults=True)
    shop.run()
    assert " 0 faults" not in shop.cluster.summary()
