"""Committed offsets name the leader epoch whose log holds them, on the simulation."""

from __future__ import annotations

import asyncio

import pytest

import penstock
from penstock import aio
from penstock.testing import Cluster


async def appended(client: aio.Client, count: int) -> None:
    await client.append("orders", [{"value": b"x"}] * count, timeout=60)


def test_an_offset_beyond_what_was_read_is_of_the_epoch_of_the_leader_that_has_it() -> None:
    """A consumer has read five messages when the leader dies, and commits past five that its successor appended."""
    cluster = Cluster(7, brokers=3, faults=False, limit_s=600.0)

    async def main() -> None:
        async with aio.connect(timeout=60) as client:
            await client.create_stream("orders", "orders", replicas=3, min_isr=2)
            await appended(client, 5)
            async with client.consumer("orders", group="billing", session=5.0, timeout=60) as consumer:
                assert (await consumer.next_batch()) is not None
                leader = cluster.leader("orders")
                assert leader is not None
                cluster.kill(leader)
                while cluster.leader("orders") in (None, leader):  # noqa: ASYNC110 (the simulation has no event for it)
                    await asyncio.sleep(0.5)
                await appended(client, 5)
                await consumer.commit({0: 10})
            await appended(client, 1)
            async with client.consumer("orders", group="billing", session=5.0, timeout=60) as consumer:
                batch = await consumer.next_batch()
                assert batch is not None
                assert batch.column("offset").to_pylist() == [10]

    cluster.run(main())


def test_an_offset_that_no_log_holds_is_not_committed() -> None:
    cluster = Cluster(7, brokers=1, faults=False, limit_s=600.0)

    async def main() -> None:
        async with aio.connect(timeout=60) as client:
            await client.create_stream("orders", "orders")
            await appended(client, 5)
            async with client.consumer("orders", group="billing", timeout=60) as consumer:
                with pytest.raises(penstock.OffsetOutOfRange):
                    await consumer.commit({0: 6})
                assert (await consumer.next_batch()) is not None
                await consumer.commit({0: 3})
            assert [one.offset for one in await client.groups.offsets("billing", "orders")] == [3]

    cluster.run(main())
