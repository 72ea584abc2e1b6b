"""`penstock stream purge` and `truncate_stream`: what is answered as gone stays gone, whoever is killed."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock import aio
from tests.broker_process import BrokerProcess, eventually, running_broker
from tests.cli_app import app
from tests.extent import each_change, extent, needs_time
from tests.integration.clusters import running_cluster

ROUNDS = extent(2, 6)


async def offsets_of(client: aio.Client, stream: str, **options: int) -> list[int]:
    return [message.offset async for message in client.messages(stream, **options)]


@needs_time
async def test_what_was_answered_as_gone_is_gone_when_its_leader_is_killed_at_once(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders.>", replicas=3, segment_bytes=8_192)
        start = end = 0
        for _ in range(ROUNDS):
            leader = await cluster.leader_of("orders")
            async with cluster.client(leader % 3 + 1) as client:
                for _ in range(40):
                    await client.publish("orders.a", b"." * 700)
                end += 40
                start = end - 7
                (went,) = await client.truncate_stream("orders", start)
                cluster.brokers[leader].kill()
                assert (went.log_start, went.messages > 0, went.size_bytes > 0) == (start, True, True)
                assert await offsets_of(client, "orders") == list(range(start, end))
                with pytest.raises(penstock.OffsetOutOfRange):
                    await client.get("orders", start - 1)
                assert (await client.stream("orders")).partitions[0].log_start == start
            cluster.brokers[leader].launch()
            await cluster.in_sync("orders", {1, 2, 3}, leader % 3 + 1)
        for broker in cluster.brokers.values():
            broker.kill()
        cluster.start()
        await cluster.all_live()
        async with cluster.client(1) as client:
            assert await offsets_of(client, "orders") == list(range(start, end))


@asynccontextmanager
async def with_orders(folder: Path) -> AsyncIterator[tuple[BrokerProcess, aio.Client]]:
    with running_broker(folder / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("orders", "orders", segment_bytes=4_096, partitions=2)
            for partition in ("", ".1"):
                for number in range(20):
                    rows = [{"value": b"%d" % number + b"." * 900, "subject": f"orders{partition}"}]
                    await client.append("orders", rows, partition=int(partition[1:] or 0))
            yield broker, client


@needs_time
async def test_a_killed_broker_begins_where_it_was_told_to(tmp_path: Path) -> None:
    async with with_orders(tmp_path) as (broker, client):
        (would_go,) = await client.truncate_stream("orders", 15, partition=1, dry_run=True)
        assert would_go == penstock.Truncation(1, 15, 15, would_go.size_bytes)
        assert 15 * 900 < would_go.size_bytes < 15 * 2_500
        assert await offsets_of(client, "orders", partition=1) == list(range(20))
        (gone,) = await client.truncate_stream("orders", 15, partition=1)
        assert gone == penstock.Truncation(1, 15, 15, gone.size_bytes)
        assert gone.size_bytes <= would_go.size_bytes, "the cleaner may have been there meanwhile"
        broker.restart()
        async with await broker.client() as after:
            assert await offsets_of(after, "orders", partition=1) == list(range(15, 20))
            assert await offsets_of(after, "orders", partition=0) == list(range(20))
            folder = next(broker.data_dir.glob("streams/*-orders/1"))

            async def files_are_gone() -> bool:
                return min(int(one.name.partition(".")[0]) for one in folder.glob("*.arrows")) >= 12

            await eventually(files_are_gone, "segments are removed")


@each_change
async def test_a_time_is_looked_up_in_every_partition(tmp_path: Path) -> None:
    async with with_orders(tmp_path) as (_, client):
        found = await client.truncate_stream("orders", datetime(2020, 1, 1, tzinfo=UTC))
        assert [(one.log_start, one.messages, one.size_bytes) for one in found] == [(0, 0, 0)] * 2
        moment = (await client.get("orders", 8, partition=1)).timestamp
        found = await client.truncate_stream("orders", moment, partition=1)
        assert found[0].log_start <= 8  # several may have one timestamp
        assert (await client.get("orders", found[0].log_start, partition=1)).timestamp == moment
        found = await client.truncate_stream("orders", "latest")
        assert [one.log_start for one in found] == [20, 20]
        assert await offsets_of(client, "orders") == []
        assert (await client.append("orders", [{"value": b"x", "subject": "orders"}]))[0].base_offset == 20


@each_change
async def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    async with with_orders(tmp_path) as (_, client):
        with pytest.raises(penstock.OffsetOutOfRange, match="nothing was truncated"):
            await client.truncate_stream("orders", 21, partition=0)
        with pytest.raises(ValueError, match="say which with partition="):
            await client.truncate_stream("orders", 3)
        with pytest.raises(ValueError, match="-1 changes with each new message"):
            await client.truncate_stream("orders", -1, partition=0)
        old = await client.stream("orders")
        await client.delete_stream("orders")
        await client.create_stream("orders", "orders", partitions=2)
        with pytest.raises(penstock.StreamChanged):
            await client.truncate_stream(old, 0, partition=0)


@each_change
async def test_the_command_asks_first_and_says_what_goes(tmp_path: Path) -> None:
    async with with_orders(tmp_path) as (broker, client):

        def run(*args: str, code: int = 0, stdin: bytes | None = None, command: str = "purge") -> str:
            environment = {"PENSTOCK_SERVER": broker.client_address}
            result = CliRunner().invoke(app, ["stream", command, "orders", *args], input=stdin, env=environment)
            assert result.exit_code == code, result.output
            return result.output

        assert "stream orders, partition 1: 7 messages" in run("--before", "7", "--partition", "1", "--dry-run")
        told = json.loads(run("--before", "7", "--partition", "1", "--dry-run", "--json"))
        assert {**told, "size_bytes": 0} == {"partition": 1, "log_start": 7, "messages": 7, "size_bytes": 0}
        said = run("--before", "7", "--partition", "1", code=1, stdin=b"n\n")
        assert "Purge 7 messages" in said
        assert "keeps what it has" in said
        assert await offsets_of(client, "orders", partition=1) == list(range(20))
        assert "--yes" in run("--before", "7", "--partition", "1", code=1, stdin=b"")
        said = run("--before", "7", "--partition", "1", stdin=b"y\n")
        freed = r"gone; it begins at offset 7; on disk: [0-9.]+ \S+ freed so far \(whole segment files only\)\n"
        assert re.search(freed, said)
        assert await offsets_of(client, "orders", partition=1) == list(range(7, 20))
        assert "say which with --partition" in run("--before", "7", "--yes", code=2)
        said = run("--before", "99", "--partition", "0", "--yes", code=1)
        assert "beyond what is committed" in said
        assert said.endswith("\n  give --before an offset in that range\n")
        assert "-N changes with each new message" in run("--before=-5", "--yes", code=2)
        assert "with one of --before" in run("--yes", code=2)
        assert "with one of" in run("--keep", "3", "--all", "--yes", code=2)
        said = run("--keep", "3", stdin=b"n\n", code=1)
        assert "stream orders, partition 0: 17 messages" in said, "what goes is said of each partition first"
        assert "stream orders, partition 1: 10 messages" in said
        assert "Purge 27 messages" in said
        run("--keep", "30", "--yes")
        assert await offsets_of(client, "orders", partition=0) == list(range(20))
        assert run("--keep", "3", "--partition", "0", "--yes", command="truncate").count("begins at offset 17") == 1
        assert await offsets_of(client, "orders", partition=0) == [17, 18, 19]
        assert await offsets_of(client, "orders", partition=1) == list(range(7, 20))
        assert run("--all", "--yes").count("begins at offset 20") == 2
        assert await offsets_of(client, "orders") == []
