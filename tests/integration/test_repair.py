"""Real brokers whose files are harmed: what the others have is put in the place of it, while publishers go on."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

import penstock
from penstock.client.bulk.raw_batches import raw_batches
from penstock.ops import CopyOptions, copy_stream
from tests.broker_process import eventually, running_broker
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses, load, running_cluster

PAYLOAD = b"." * 4096


def segments(cluster: ClusterProcesses, number: int) -> list[Path]:
    return sorted(cluster.brokers[number].data_dir.glob("streams/*-orders/0/*.arrows"))


def flip(path: Path, position: int | None = None) -> None:
    """Turn over a bit in a file; in the midst of it, if no position is given."""
    file = os.open(path, os.O_RDWR)
    try:
        position = path.stat().st_size // 2 if position is None else position
        (byte,) = os.pread(file, 1, position)
        os.pwrite(file, bytes([byte ^ 16]), position)
    finally:
        os.close(file)


async def fill(cluster: ClusterProcesses) -> None:
    """A stream of three replicas with some sealed segments."""
    await cluster.all_live()
    async with cluster.client(1) as client:
        stream = await client.create_stream("orders", "orders.>", replicas=3, segment_bytes=1 << 20)
        for _ in range(3):
            await client.append(stream, [{"subject": "orders.a", "value": PAYLOAD}] * 300)


@needs_time
@pytest.mark.parametrize("harm", ["flipped", "cut short", "gone"])
async def test_a_stopped_brokers_harmed_segment_is_mended(harm: str, tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await fill(cluster)
        leader = await cluster.leader_of("orders")
        harmed = next(number for number in cluster.brokers if number != leader)
        async with load(cluster.nats.url, "orders.b") as publishers:
            await publishers.acks(50)
            cluster.brokers[harmed].stop()
            path = segments(cluster, harmed)[0]
            path.with_suffix(".index").unlink()  # else nobody looks at it before it is read
            if harm == "flipped":
                flip(path)
            elif harm == "cut short":
                os.truncate(path, path.stat().st_size // 3)
            else:
                path.unlink()
            cluster.brokers[harmed].launch()
            cluster.brokers[harmed].logged("is mended: 1 damaged range")
            await cluster.in_sync("orders", {1, 2, 3}, leader)
            await publishers.acks(50)
        assert harm != "flipped" or list(path.parent.glob("*.cut-*"))
        await same_on_all(cluster)
        cluster.brokers[leader].kill()
        await cluster.in_sync("orders", {1, 2, 3} - {leader}, harmed)
        async with cluster.client(harmed) as client:
            rows = [value async for batch in client.read("orders") for value in batch.column("value").to_pylist()]
        assert {b"%d" % number for number in publishers.acked} <= set(rows)


async def same_on_all(cluster: ClusterProcesses) -> None:
    """The files of every replica hold the same rows, all of them verified."""

    def rows(number: int) -> list[tuple[int, bytes]]:
        (folder,) = cluster.brokers[number].data_dir.glob("streams/*-orders/0")
        found: list[tuple[int, bytes]] = []
        for path in penstock.segment_files(folder):
            with penstock.open_segment(path) as segment:
                table = segment.read_all()
            found += zip(table.column("offset").to_pylist(), table.column("value").to_pylist(), strict=True)
        return found

    async def are_same() -> bool:
        first, *others = (rows(number) for number in cluster.brokers)
        assert len(first) >= 900
        return all(one == first for one in others)

    await eventually(are_same, "all replicas have the same rows")


@needs_time
@pytest.mark.parametrize("reader", ["rows", "whole batches"])
async def test_damage_that_only_a_reader_finds_is_mended_and_the_reader_goes_on(reader: str, tmp_path: Path) -> None:
    """Whole batches are sent from the file as they are: the leader learns of the damage from who reads them."""
    with running_cluster(tmp_path) as cluster:
        await fill(cluster)
        leader = await cluster.leader_of("orders")
        await cluster.in_sync("orders", {1, 2, 3}, leader)
        flip(segments(cluster, leader)[1])  # the first batch of a log is read to find its begin
        async with cluster.client(leader) as client:
            if reader == "rows":
                offsets = [one async for batch in client.read("orders") for one in batch.column("offset").to_pylist()]
            else:
                offsets = await asyncio.to_thread(offsets_of_whole_batches, cluster.brokers[leader].client_address)
        assert offsets == list(range(900))
        cluster.brokers[leader].logged("is mended: 1 damaged range")
        await same_on_all(cluster)


def offsets_of_whole_batches(address: str) -> list[int]:
    with penstock.connect(address) as client:
        found = raw_batches(client, client.stream("orders"), 0, 0, 900)
        return [offset for one in found for offset in range(one.header.base_offset, one.header.end_offset)]


@needs_time
async def test_a_reader_of_a_damaged_log_without_replicas_hears_file_and_position(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            stream = await client.create_stream("orders", "orders.>", segment_bytes=1 << 20)
            await client.append(stream, [{"subject": "orders.a", "value": PAYLOAD}] * 300)
            (path,) = (tmp_path / "data").glob("streams/*-orders/0/*.arrows")
            flip(path)
            with pytest.raises(penstock.CorruptRange, match=re.escape(path.name)):
                [batch async for batch in client.read("orders", timeout=1.0)]


@each_change
async def test_what_lies_before_a_corrupt_batch_can_be_read_and_copied(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            stream = await client.create_stream("orders", "orders.>", segment_bytes=1 << 20)
            for _ in range(30):
                await client.append(stream, [{"subject": "orders.a", "value": b"v" * 100}] * 10)
            (path,) = (tmp_path / "data").glob("streams/*-orders/0/*.arrows")
            with penstock.open_segment(path) as segment:
                sizes = [header.size_bytes for header, _ in segment.messages()]
            flip(path, path.stat().st_size - sum(sizes[3:]) - 200)  # the third batch
            read = [batch async for batch in client.read("orders", end=15, timeout=3.0)]
            assert [one for batch in read for one in batch.column("offset").to_pylist()] == list(range(15))
        with penstock.connect(broker.client_address) as blocking:
            found = await asyncio.to_thread(lambda: [*raw_batches(blocking, blocking.stream("orders"), 0, 0, 15)])
            assert [one.header.base_offset for one in found] == [0, 10]
            done = await asyncio.to_thread(copy_stream, blocking, "orders", "copy", CopyOptions(end=15), timeout=3.0)
            assert done.rows == 15


@needs_time
async def test_the_scrubber_finds_what_nobody_reads(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        for broker in cluster.brokers.values():
            broker.stop()
            broker.arguments += ["--scrub-interval", "1s", "--scrub-rate", "1GiB"]
            broker.launch()
        await fill(cluster)
        leader = await cluster.leader_of("orders")
        flip(segments(cluster, leader)[0])
        cluster.brokers[leader].logged("is mended: 1 damaged range")
        await cluster.in_sync("orders", {1, 2, 3}, leader)

        async def counted() -> bool:
            status = await cluster.status(leader)
            return status is not None and status.counters.get("repaired_ranges") == 1

        await eventually(counted, "status counts what was mended")
        await same_on_all(cluster)
