"""Rows that are appended by producers, through kill -9 and failover: each is stored once, and where its answer says."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock import aio
from penstock.base.errors import ErrorCode, RemoteError
from tests.broker_process import BrokerProcess, eventually, running_broker
from tests.cli_app import app
from tests.extent import needs_time
from tests.integration.clusters import ClusterProcesses
from tests.integration.test_cluster import another, stream_led_by

CALLS = 60


def rows(subject: str, *numbers: int) -> list[dict[str, object]]:
    return [{"subject": subject, "value": b"%d" % number} for number in numbers]


async def stored(client: aio.Client, name: str) -> list[int]:
    return [int(message.value or b"") async for message in client.messages(name)]


async def append_all(client: aio.Client, name: str, acked: dict[int, int], first: int, calls: int) -> None:
    """Calls that overlap, of a producer of its own: two rows each."""
    producer = client.producer(name)

    async def append(number: int) -> None:
        (result,) = await producer.append(rows(f"{name}.a", number, number + 1))
        acked[number], acked[number + 1] = result.base_offset, result.base_offset + 1

    numbers = range(first, first + 2 * calls, 2)
    await asyncio.gather(*(append(number) for number in numbers))
    assert [acked[number] for number in numbers] == sorted(acked[number] for number in numbers)
    assert producer.epoch or producer.sequence == 2 * calls  # a new epoch counts from 0


@needs_time
async def test_rows_are_stored_once_through_kill_9(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("orders", "orders.>")
            acked: dict[int, int] = {}
            appending = asyncio.create_task(append_all(client, "orders", acked, 0, CALLS))

            async def some() -> bool:
                return len(acked) > CALLS // 4

            for _ in range(2):
                await eventually(some, "some are appended")
                broker.kill()
                broker.restart()
            await appending
            assert await stored(client, "orders") == list(range(2 * CALLS))
            assert acked == {number: number for number in range(2 * CALLS)}


@needs_time
async def test_who_begins_again_where_another_one_was(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        with penstock.connect(broker.client_address) as client:
            client.create_stream("orders", "orders.>")
            loader = client.producer("orders", producer_id=7)
            for number in range(4):
                loader.append(rows("orders.a", number))
            assert (loader.producer_id, loader.epoch, loader.sequence) == (7, 0, 4)
        broker.kill()
        broker.restart()
        async with await broker.client() as client2:
            again = client2.producer("orders", producer_id=7, sequence=2)
            assert [(await again.append(rows("orders.a", number)))[0].base_offset for number in range(2, 6)] == [
                2,
                3,
                4,
                5,
            ]
            await client2.producer("orders", producer_id=7, epoch=1).append(rows("orders.a", 6))
            with pytest.raises(RemoteError) as fenced:
                await again.append(rows("orders.a", 6))
            assert fenced.value.code == ErrorCode.PRODUCER_FENCED
            assert await stored(client2, "orders") == list(range(7))
            assert (await client2.status()).counters["duplicates"] == 2


@needs_time
async def test_rows_are_stored_once_while_one_leader_follows_the_other(cluster: ClusterProcesses) -> None:
    name = await stream_led_by(cluster, False)
    victim = await cluster.leader_of(name)
    other = another(cluster, victim)
    acked: dict[int, int] = {}
    async with cluster.client(other) as client:
        appending = [asyncio.create_task(append_all(client, name, acked, 1_000 * one, CALLS)) for one in range(3)]

        async def some() -> bool:
            return len(acked) > CALLS

        await eventually(some, "some are appended")
        cluster.brokers[victim].kill()
        await asyncio.gather(*appending)
        assert await cluster.leader_of(name, other) != victim
        found = await stored(client, name)
        assert {number: place for place, number in enumerate(found)} == acked
        assert len(found) == len(acked) == 3 * 2 * CALLS


async def test_who_appends_is_listed(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("lines", "lines", partitions=2)

    def run(*args: str) -> str:
        environment = {"PENSTOCK_SERVER": broker.client_address, "COLUMNS": "120"}
        result = CliRunner().invoke(app, ["stream", "show", "lines", *args], env=environment)
        assert result.exit_code == 0, result.output
        return result.output

    assert "no producer has appended" in run("--producers")
    assert await client.known_producers("lines") == []
    first, other = (
        client.producer("lines", producer_id=7),
        client.producer("lines", producer_id=5, epoch=2, partition=1),
    )
    await first.append(rows("lines", 1, 2, 3))
    await other.append(rows("lines.1", 1))
    await first.append(rows("lines", 4))
    found = await client.known_producers("lines")
    assert [one[:5] for one in found] == [(0, 7, 0, 3, 3), (1, 5, 2, 0, 0)]
    assert await client.known_producers("lines", partition=1) == found[1:]
    with penstock.connect(broker.client_address) as blocking:
        assert await asyncio.to_thread(blocking.known_producers, "lines") == found
    lines = [json.loads(line) for line in run("--producers", "--json").splitlines()]
    assert [(one["producer_id"], one["last_sequence"]) for one in lines] == [(7, 3), (5, 0)]
    table = run("--producers").splitlines()
    assert table[-2].split()[:5] == ["0", "7", "0", "3", "3"]
    shown = run()
    assert re.search(r"partition 0 producers +1 *\n", shown)
    assert json.loads(run("--json"))["partitions"][1]["producers"] == 1
    await client.delete_stream("lines")
