"""The source over a consumer group, on the simulation: brokers die, networks fail, members come and go.

Whatever strikes, each acked message is handled or is a dead letter, those of a partition in order, and the group's
offsets say so at the end.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable

import pytest

import penstock
from penstock import aio
from penstock.client.values import Message
from penstock.frugal.scopes.dead_letters import DELIVERIES, GROUP, OFFSET, PARTITION, REASON, STREAM, DeadLetters
from penstock.frugal.scopes.durable import Delivery
from penstock.frugal.scopes.group_source import GroupSettings, GroupSource
from penstock.frugal.scopes.redelivery import RetryPolicy
from penstock.messages import StreamInfo
from penstock.testing import Cluster
from tests.extent import needs_time

QUICK = RetryPolicy(attempts_max=3, wait_s=0.2, wait_s_max=1.0, total_s_max=600.0)


class HandlerError(Exception):
    """What goes wrong in a handler."""


def every_message(_info: StreamInfo, _message: Message) -> bool:
    return True


def source(client: aio.Client, stream: str = "orders", group: str = "billing", *, handlers: int = 4) -> GroupSource:
    dead = DeadLetters(client, f"{stream}-dead", group, timeout_s=20.0)
    wanted = GroupSettings(stream, group, handlers_max=handlers, session_s=5.0, retry=QUICK, timeout_s=20.0)
    return GroupSource(client, wanted, dead, is_wanted=every_message, random=random.Random(1).random)


async def handle_all(source: GroupSource, handle: Callable[[Delivery], None]) -> None:
    """One handler: it takes messages until the source ends."""
    while (delivery := await source.next()) is not None:
        try:
            await asyncio.sleep(0.001)
            handle(delivery)
        except HandlerError as error:
            source.failed(delivery, f"HandlerError: {error}")
        except BaseException:
            source.abandoned(delivery)
            raise
        else:
            source.handled(delivery)


async def run_handlers(source: GroupSource, handle: Callable[[Delivery], None], count: int = 4) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(handle_all(source, handle))


async def is_read(client: aio.Client) -> bool:
    offsets = await client.groups.offsets("billing", "orders")
    return all(one.offset == one.committed_end for one in offsets)


class Shop:
    """A publisher, two programs that handle with failures, and all faults."""

    def __init__(self, seed: int, *, brokers: int, faults: bool, messages: int = 60) -> None:
        self.cluster = Cluster(seed, brokers=brokers, faults=faults, every_s=3.0, limit_s=900.0)
        self.messages = messages
        self.acked: set[tuple[int, int]] = set()  # partition and offset
        self.handled: dict[int, list[int]] = defaultdict(list)  # by partition, the offsets in the order of handling
        self.failed: dict[tuple[int, int], int] = defaultdict(int)

    def handle(self, delivery: Delivery) -> None:
        message = delivery.message
        number = int(message.value or b"0")
        if number % 7 == 3 or (number % 5 == 1 and delivery.deliveries == 1):
            self.failed[message.partition, message.offset] += 1
            raise HandlerError(f"cannot take {number}")
        self.handled[message.partition].append(message.offset)

    async def publish(self) -> None:
        async with aio.connect(timeout=60) as client:
            for number in range(self.messages):
                while True:
                    try:
                        ack = await client.publish(
                            "orders.eu", b"%d" % number, key=f"k{number % 9}", retries=3, timeout=20
                        )
                        break
                    except penstock.PenstockError:
                        await asyncio.sleep(0.5)
                self.acked.add((ack.partition, ack.offset))
                await asyncio.sleep(0.2)

    async def consume(self) -> None:
        async with aio.connect(timeout=60) as client:
            made = source(client)
            await made.open()
            try:
                await run_handlers(made, self.handle)
            finally:
                await made.close()

    async def main(self) -> None:
        async with aio.connect(timeout=60) as client:
            await client.create_stream("orders", "orders.*", partitions=3, partition_by="key", timeout=60)
        readers = [self.cluster.start(self.consume, f"reader-{number}") for number in range(2)]
        writer = self.cluster.start(self.publish, "writer")
        await writer.finished()
        await self.cluster.settle()
        async with aio.connect(timeout=60) as client:
            while not await is_read(client):  # noqa: ASYNC110 (other programs cannot set an event here)
                await asyncio.sleep(1.0)
            dead = [message async for message in client.messages("orders-dead")]
        self.check(dead)
        for reader in readers:
            reader.stop()

    def check(self, dead: list[Message]) -> None:
        letters = {(int(one.headers[PARTITION]), int(one.headers[OFFSET])) for one in dead}
        handled = {(number, offset) for number, offsets in self.handled.items() for offset in offsets}
        assert self.acked <= handled | letters
        assert not handled & letters
        assert letters
        for offsets in self.handled.values():  # repeats aside, in order, whichever program handled them
            assert list(dict.fromkeys(offsets)) == sorted(set(offsets))
        for message in dead:
            assert message.headers[STREAM] == "orders"
            assert message.headers[GROUP] == "billing"
            assert message.headers[REASON].startswith("HandlerError: cannot take")
            assert int(message.headers[DELIVERIES]) == QUICK.attempts_max
            assert message.subject == "penstock.dead.orders-dead.orders.eu"
            assert (message.key or b"").startswith(b"k")

    def run(self) -> None:
        self.cluster.run(self.main())


def test_each_message_is_handled_in_order_or_is_a_dead_letter() -> None:
    shop = Shop(1, brokers=1, faults=False)
    shop.run()
    for offsets in shop.handled.values():  # none of them twice
        assert len(offsets) == len(set(offsets))
    assert len(shop.acked) == shop.messages


@pytest.mark.parametrize(
    ("seed", "brokers"), [(1, 3), (2, 1), *(pytest.param(seed, 3, marks=needs_time) for seed in range(3, 9))]
)
def test_nothing_is_lost_whatever_strikes(seed: int, brokers: int) -> None:
    shop = Shop(seed, brokers=brokers, faults=True)
    shop.run()
    assert " 0 faults" not in shop.cluster.summary()
