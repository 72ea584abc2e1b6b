"""FastStream's subscribers of JetStream: push, queue group, pull, batches, key-value and object watches.

The package is used as its examples do; its own tests run with `make conformance` (tests/conformance/faststream.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from faststream.exceptions import NackMessage
from faststream.nats import JStream, NatsBroker, NatsMessage, PullSub
from nats.js.api import AckPolicy, ConsumerConfig

from tests.acked_consumers import SYSTEMS
from tests.broker_process import DEADLINE_S
from tests.conformance.servers import System
from tests.docs.test_move_a_jetstream_application import serving
from tests.extent import each_change

STREAM = "orders"


def patient() -> ConsumerConfig:
    """Return the config of one consumer; nats-py writes into it."""
    return ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=60)


class Got:
    """What a subscriber got, until that is enough."""

    def __init__(self) -> None:
        self._got: asyncio.Queue[str] = asyncio.Queue()

    def __call__(self, value: str) -> None:
        self._got.put_nowait(value)

    async def next(self, count: int) -> list[str]:
        """Wait for so many values."""
        async with asyncio.timeout(DEADLINE_S):
            return [await self._got.get() for _ in range(count)]


@asynccontextmanager
async def started(broker: NatsBroker) -> AsyncIterator[None]:
    """Start the subscribers; stop them at the end."""
    await broker.start()
    try:
        yield
    finally:
        await broker.stop()


async def publish(broker: NatsBroker, count: int) -> None:
    for number in range(1, count + 1):
        await broker.publish(f"order {number}", "orders.eu", stream=STREAM)


@each_change
@pytest.mark.parametrize("system", SYSTEMS)
async def test_subscribers_of_streams(tmp_path: Path, system: System) -> None:
    pushed, shared, pulled, batched, failed = Got(), Got(), Got(), Got(), Got()
    stream = JStream(STREAM, subjects=["orders.>"])  # FastStream declares an object once
    with serving(system, tmp_path) as url:
        broker = NatsBroker(url)

        @broker.subscriber("orders.*", stream=stream, config=patient())
        async def push(value: str) -> None:
            pushed(value)

        for _ in range(2):

            @broker.subscriber("orders.*", queue="workers", stream=stream, config=patient())
            async def work(value: str) -> None:
                shared(value)

        @broker.subscriber("orders.*", stream=stream, durable="pull", pull_sub=PullSub(batch_size=10), config=patient())
        async def pull(value: str) -> None:
            pulled(value)

        @broker.subscriber(
            "orders.*", stream=stream, durable="batch", pull_sub=PullSub(batch_size=3, batch=True), config=patient()
        )
        async def batch(values: list[str], message: NatsMessage) -> None:
            for value in values:
                batched(value)
            await message.ack()

        @broker.subscriber("orders.*", queue="fails", stream=stream, config=patient())
        async def fails_once(value: str, message: NatsMessage) -> None:
            delivered = message.raw_message.metadata.num_delivered
            failed(f"{value}, delivery {delivered}")
            if delivered == 1:
                raise NackMessage

        async with started(broker):
            await publish(broker, 5)
            orders = [f"order {number}" for number in range(1, 6)]
            assert await pushed.next(5) == orders
            assert sorted(await shared.next(5)) == orders
            assert await pulled.next(5) == orders
            assert await batched.next(5) == orders
            assert sorted(await failed.next(10)) == [
                f"{order}, delivery {delivery}" for order in orders for delivery in (1, 2)
            ]
            for name in ("workers", "pull", "batch", "fails"):
                await acked(broker, name)


async def acked(broker: NatsBroker, consumer: str) -> None:
    """Wait until a consumer has nothing in hand and nothing to do."""
    assert broker.connection is not None
    jetstream = broker.connection.jetstream()
    async with asyncio.timeout(DEADLINE_S):
        while (info := await jetstream.consumer_info(STREAM, consumer)).num_ack_pending or info.num_pending:
            pass


@each_change
@pytest.mark.parametrize("system", list(System))
async def test_watches_of_buckets_and_objects(tmp_path: Path, system: System) -> None:
    values, files = Got(), Got()
    with serving(system, tmp_path) as url:
        broker = NatsBroker(url)

        @broker.subscriber("color", kv_watch="settings")
        async def value(message: str) -> None:
            values(message)

        @broker.subscriber("files", obj_watch=True)
        async def file(name: str) -> None:
            files(name)

        async with started(broker):
            await (await broker.key_value(bucket="settings")).put("color", b"red")
            await (await broker.object_storage("files")).put("report", b"x" * 300_000)
            assert (await values.next(1), await files.next(1)) == (["red"], ["report"])
