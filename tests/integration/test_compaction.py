"""Compaction by real brokers: whoever reads knows of each key what was said last, also after a kill and a failover."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import penstock
from penstock import aio
from tests.broker_process import eventually, running_broker
from tests.extent import needs_time
from tests.integration.clusters import ClusterProcesses, running_cluster

KEYS = 10
ROUNDS = 60
CONFIG = {"compact": True, "dedup_window_ms": None, "segment_bytes": 16_384, "tombstone_retention_ms": 0}


async def append_rounds(client: aio.Client, first: int = 0) -> None:
    """Each key gets a value again and again, but for one, which is gone; and in each round comes one without a key."""
    for number in range(first, first + ROUNDS):
        rows = [{"key": b"%d" % key, "value": b"%d" % number if key else None} for key in range(KEYS)]
        await client.append("prices", [*rows, {"value": b"no key"}])


class Reader:
    """Reads all there is, whenever it is asked."""

    def __init__(self, client: aio.Client) -> None:
        self.client = client

    async def messages(self) -> list[penstock.Message]:
        return [one async for one in self.client.messages("prices")]

    async def latest(self) -> dict[bytes | None, bytes | None]:
        return {one.key: one.value for one in await self.messages() if one.value is not None}

    async def is_compacted(self) -> bool:
        """Most of what was overwritten is gone; and of what counts nothing is missing, whenever it is read."""
        messages = await self.messages()
        last = max(int(one.value or b"0") for one in messages if one.key)
        assert await self.latest() == {None: b"no key"} | {b"%d" % key: b"%d" % last for key in range(1, KEYS)}
        rounds = last + 1
        assert sum(one.key is None for one in messages) == rounds
        return len(messages) < rounds + KEYS * ROUNDS // 2


@needs_time
async def test_of_each_key_the_last_message_is_kept_while_a_client_reads(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("prices", "prices", **CONFIG)  # type: ignore[arg-type]
            await append_rounds(client)
            await eventually(Reader(client).is_compacted, "most of what was overwritten is gone")
            offsets = (await client.stream("prices")).partitions[0].committed_end or 0
            assert 0 < (await client.row_count("prices") or 0) < offsets
            with pytest.raises(penstock.MessageNotFound, match="compacted away"):
                await client.get("prices", 1)
            await client.alter_stream("prices", compact=False)
        broker.kill()
        broker.start()
        async with await broker.client() as client:
            await client.alter_stream("prices", compact=True)
            await append_rounds(client, ROUNDS)
            await eventually(Reader(client).is_compacted, "it is gone again")
            async with await client.table("prices") as table:
                assert len(table) == KEYS - 1
        assert broker.stop() == 0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterProcesses]:
    with running_cluster(tmp_path) as processes:
        yield processes


@needs_time
async def test_each_replica_compacts_and_a_new_one_gets_what_the_others_have_left(cluster: ClusterProcesses) -> None:
    await cluster.all_live()
    async with cluster.client(1) as client:
        await client.create_stream("prices", "prices", replicas=3, **CONFIG)  # type: ignore[arg-type]
        await append_rounds(client)
        await eventually(Reader(client).is_compacted, "most of what was overwritten is gone")
    leader = await cluster.leader_of("prices")
    other = next(number for number in cluster.brokers if number != leader)
    cluster.brokers[leader].kill()
    cluster.empty_disk(leader)
    async with cluster.client(other) as client:
        await append_rounds(client, ROUNDS)
        await eventually(Reader(client).is_compacted, "the one that leads now has compacted it, too")
    cluster.brokers[leader].launch()
    await cluster.in_sync("prices", {1, 2, 3}, other, 30.0)
    await cluster.all_vote()
    cluster.brokers[other].kill()
    async with cluster.client(leader) as client:
        await eventually(Reader(client).is_compacted, "it holds what the others have left")


@needs_time
async def test_replicas_show_the_same_and_whoever_leads_next_takes_nothing_back(cluster: ClusterProcesses) -> None:
    """The leader decides, by marks: rows and tombstones are the same on all, and stay so when leaders change."""
    await cluster.all_live()
    config = CONFIG | {"tombstone_retention_ms": 3_600_000}
    async with cluster.client(1) as client:
        await client.create_stream("prices", "prices", replicas=3, **config)  # type: ignore[arg-type]
        await append_rounds(client)
        await eventually(Reader(client).is_compacted, "most of what was overwritten is gone")
        before = [(one.offset, one.key, one.value) for one in await Reader(client).messages()]
        tombstones = [offset for offset, key, value in before if key == b"0" and value is None]
        assert tombstones

        async def all_show_it() -> bool:
            for _ in range(8):
                rows = [one async for one in client.messages("prices", read_from="any")]
                if [(one.offset, one.key, one.value) for one in rows] != before:
                    return False
            return True

        await eventually(all_show_it, "each replica shows what the leader shows")
    first = await cluster.leader_of("prices")
    other = next(number for number in cluster.brokers if number != first)
    cluster.brokers[first].kill()
    async with cluster.client(other) as client:

        async def is_led() -> bool:
            try:
                return await client.row_count("prices") is not None
            except penstock.PenstockError:
                return False

        await eventually(is_led, "another one leads")
        after = [(one.offset, one.key, one.value) for one in await Reader(client).messages()]
        assert {one[0] for one in after} <= {one[0] for one in before}, "nothing comes back"
        assert dict(one[1:] for one in after if one[2] is not None) == dict(
            one[1:] for one in before if one[2] is not None
        )
    cluster.empty_disk(first)
    cluster.brokers[first].launch()
    await cluster.in_sync("prices", {1, 2, 3}, other, 30.0)
    async with cluster.client(first) as client:

        async def it_shows_the_same() -> bool:
            rows = [one async for one in client.messages("prices", read_from="any")]
            return {one.offset for one in rows} <= {one[0] for one in before}

        for _ in range(6):
            assert await it_shows_the_same(), "a replica that was filled anew shows nothing that has gone"
