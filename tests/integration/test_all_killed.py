"""Three real brokers that are all killed at once, as by a power loss, and come back with unequal disks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.broker_process import eventually
from tests.extent import needs_time
from tests.integration.clusters import check, load, running_cluster


@needs_time
@pytest.mark.parametrize("disk", ["older", "empty"])
async def test_all_acked_is_there_though_one_disk_is(disk: str, tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders.>", replicas=3)
        leader = await cluster.leader_of("orders")
        async with load(cluster.nats.url, "orders.a") as publishers:
            await publishers.acks(100)
            if disk == "older":  # of this very run: nothing else tells it from the disk that it is a copy of
                shutil.copytree(cluster.brokers[leader].data_dir, tmp_path / "copy")
            await publishers.acks(500)
        for broker in cluster.brokers.values():
            broker.kill()
        cluster.empty_disk(leader)
        if disk == "older":
            shutil.move(tmp_path / "copy", cluster.brokers[leader].data_dir)
        for number, broker in cluster.brokers.items():
            if number != leader:
                broker.launch()
        cluster.brokers[leader].launch()
        await cluster.in_sync("orders", {1, 2, 3}, 1, 30.0)
        for number in cluster.brokers:
            async with cluster.client(number) as client:
                await check(client, "orders", publishers)

        async def told() -> bool:
            return "has the longest log of 1 partition: orders/0 (broker" in cluster.said

        await eventually(told, "the log tells which logs were compared")
