"""Waiting for more, and reading from followers, on real brokers."""

from __future__ import annotations

import asyncio
import time

import penstock
from penstock import aio
from penstock.client.bulk.ranges import LogRange, read_range_async
from penstock.client.bulk.wait_for_data import wait_for_more
from penstock.client.link.read_from import FOLLOWERS
from tests.broker_process import BrokerProcess, eventually
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses


def waited_s(client: penstock.Client, ends: dict[tuple[int, int], int], timeout: float) -> float:
    began = time.monotonic()
    wait_for_more(client, ends, timeout)
    return time.monotonic() - began


@each_change
def test_whoever_waits_is_woken_by_the_first_message(broker: BrokerProcess) -> None:
    with penstock.connect(broker.client_address) as client:
        info = client.create_stream("grows", "grows", partitions=3)
        ends = {(int(info.stream_id), number): 0 for number in range(3)}
        assert waited_s(client, ends, 0.3) >= 0.25
        with penstock.connect(broker.client_address) as other:
            done = asyncio.run(_woken(client, other, ends))
    assert done < 25


async def _woken(client: penstock.Client, other: penstock.Client, ends: dict[tuple[int, int], int]) -> float:
    waiting = asyncio.create_task(asyncio.to_thread(waited_s, client, ends, 30))
    await asyncio.to_thread(other.append, "grows", [{"value": b"1"}], partition=2)
    return await waiting


def test_nothing_to_wait_for_is_no_error(broker: BrokerProcess) -> None:
    with penstock.connect(broker.client_address) as client:
        assert waited_s(client, {}, 0.1) < 5
        assert waited_s(client, {(999_999, 0): 0}, 10) < 9  # no such stream: whoever asks then hears of it


@needs_time
async def test_a_range_comes_from_a_follower(cluster: ClusterProcesses) -> None:
    async with cluster.client(1) as client:
        await client.create_stream("far", "far", replicas=3)
        await client.append("far", [{"value": b"%d" % one} for one in range(10_000)])
        info = await client.stream("far")
        leader = int(info.partitions[0].leader_id or 0)
        assert len(info.partitions[0].isr) == 3
        what = LogRange(info, 0, 0, 10_000, int(info.partitions[0].leader_epoch), read_from=FOLLOWERS)

        async def leaves_the_leader_alone() -> bool:
            before = {number: await _fetched(one) for number, one in cluster.brokers.items()}
            rows = sum([batch.num_rows async for batch in read_range_async(client, what, timeout=30)])
            after = {number: await _fetched(one) for number, one in cluster.brokers.items()}
            assert rows == 10_000
            assert sum(after.values()) > sum(before.values())
            return after[leader] == before[leader]

        await eventually(leaves_the_leader_alone, "the followers know that it is committed")


async def _fetched(broker: BrokerProcess) -> int:
    async with await aio.connect(broker.client_address) as client:
        return int((await client.status()).counters.get("fetched_bytes", 0))
