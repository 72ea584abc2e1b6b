"""Compressed streams of real brokers: read back by clients, tools and replicas, also after a kill and a failover."""

from __future__ import annotations

import json
from pathlib import Path

import polars
import pyarrow as pa
from typer.testing import CliRunner

import penstock
from penstock import aio
from penstock.batch import compression
from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.cli_app import app
from tests.extent import needs_time
from tests.integration.clusters import running_cluster
from tests.integration.publishers import connected_to
from tests.integration.test_duplicates import send, send_until_acked

SENT = 150
ROWS = 50
CONFIG = {"compression": "zstd", "segment_bytes": 65_536}


def rows_of(number: int, keys: int = 10) -> list[dict[str, object]]:
    text = b'{"customer":"customer-%d","text":"' % number + b"the same again " * 10 + b'"}'
    return [{"subject": "events.x", "key": b"k%d" % (row % keys), "value": text} for row in range(ROWS)]


async def append(client: aio.Client, first: int, count: int, keys: int = 10) -> None:
    for number in range(first, first + count):
        await client.append("events", rows_of(number, keys))


async def values_of(client: aio.Client) -> list[bytes | None]:
    return [value async for batch in client.read("events") for value in batch.column("value").to_pylist()]


def kinds(folder: Path) -> list[set[str]]:
    """How the batches of each segment are compressed."""
    while True:
        found = []
        try:
            for path in penstock.segment_files(folder):
                with penstock.open_segment(path) as reader:
                    found.append({str(compression.of(header)) for header, _ in reader.messages()})
        except FileNotFoundError:
            continue  # the cleaner has rewritten it and deleted the older file since they were listed
        return found


def folder_of(data: Path) -> Path:
    (folder,) = (data / "streams").glob("*-events/0")
    return folder


def check_files(folder: Path, wanted: list[bytes | None]) -> None:
    """Arrow readers that know nothing of Penstock find the same, in files some of which are compressed."""
    tables = []
    for path in penstock.segment_files(folder):
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            tables.append(reader.read_all())
        assert polars.read_ipc_stream(path)["value"].to_list() == tables[-1]["value"].to_pylist()
    assert pa.concat_tables(tables)["value"].to_pylist() == wanted


def shown(broker: BrokerProcess, *arguments: str) -> str:
    found = CliRunner().invoke(app, arguments, env={"PENSTOCK_SERVER": broker.client_address})
    assert found.exit_code == 0, found.output
    return found.stdout


async def check_looks(broker: BrokerProcess, client: aio.Client) -> None:
    """Whoever looks for one message in what is compressed finds it."""
    message = await client.get("events", 7)
    assert (message.offset, message.headers["Nats-Msg-Id"], message.value) == (7, "id-7", b"7")
    later = await client.get("events", SENT + 2 * ROWS + 3)
    assert (later.key, later.value) == (b"k3", rows_of(2)[3]["value"])
    assert (await client.offsets("events", later.timestamp)).offset <= later.offset
    lines = shown(broker, "read", "events", "--key", "k3", "--limit", "15", "--format", "json")
    offsets = [json.loads(line)["offset"] for line in lines.splitlines()]
    assert offsets == [SENT + n * ROWS + row for n in range(3) for row in range(ROWS) if row % 10 == 3]
    lines = shown(broker, "read", "events", "--header", "Nats-Msg-Id=id-9", "--limit", "3", "--format", "json")
    assert [json.loads(line)["offset"] for line in lines.splitlines()] == [9]


@needs_time
async def test_a_stream_is_compressed_and_read_as_before(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as server, running_broker(tmp_path / "data", nats=server.url) as broker:
        async with await broker.client() as client, connected_to(server.url) as connection:
            await client.create_stream("events", "events.>", **CONFIG)  # type: ignore[arg-type]
            assert "zstd" in shown(broker, "stream", "show", "events")
            js = connection.jetstream()
            acks = [await send(js, "events.x", number) for number in range(SENT)]
            await append(client, 0, 30)
            wanted: list[bytes | None] = [b"%d" % number for number in range(SENT)]
            wanted += [row["value"] for number in range(30) for row in rows_of(number)]  # type: ignore[misc]
            folder = folder_of(tmp_path / "data")

            async def is_compressed() -> bool:
                assert await values_of(client) == wanted
                *sealed, _ = kinds(folder)
                return len(sealed) > 3 and all(one == {"zstd"} for one in sealed)

            await eventually(is_compressed, "all sealed segments are compressed")
            await check_looks(broker, client)
            broker.kill()
            broker.restart()
            again = [await send_until_acked(js, "events.x", number) for number in range(SENT)]
            assert [(ack.seq, ack.duplicate) for ack in again] == [(ack.seq, True) for ack in acks]
        async with await broker.client() as client:
            await check_looks(broker, client)
            shown(broker, "stream", "alter", "events", "--compression", "lz4")
            await append(client, 30, 30)
            wanted += [row["value"] for number in range(30, 60) for row in rows_of(number)]  # type: ignore[misc]

            async def is_of_both() -> bool:
                assert await values_of(client) == wanted
                *sealed, _ = kinds(folder)
                return sealed[0] == {"zstd"} and sealed[-1] == {"lz4"}

            await eventually(is_of_both, "what comes is compressed otherwise")
        check_files(folder, wanted)
        assert broker.stop() == 0


@needs_time
async def test_a_stream_that_was_plain_is_compressed_when_it_is_altered(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("events", "events.>", segment_bytes=65_536)
            await append(client, 0, 40, ROWS)
            folder = folder_of(tmp_path / "data")
            await client.alter_stream("events", compression="lz4", compact=True, dedup_window_ms=None)

            async def is_compacted() -> bool:
                latest = {one.key: one.value async for one in client.messages("events")}
                assert latest == {row["key"]: row["value"] for row in rows_of(39, ROWS)}
                *sealed, _ = kinds(folder)
                return len(await values_of(client)) < 20 * ROWS and {"lz4"} in sealed

            await eventually(is_compacted, "it is compacted, and what is left is compressed")
        assert broker.stop() == 0


@needs_time
async def test_a_replica_with_an_empty_disk_takes_what_is_compressed_as_it_lies_there(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.create_stream("events", "events.>", replicas=3, **CONFIG)  # type: ignore[arg-type]
            await append(client, 0, 40)
            wanted: list[bytes | None] = [row["value"] for number in range(40) for row in rows_of(number)]  # type: ignore[misc]

            async def are_compressed() -> bool:
                found = [kinds(folder_of(broker.data_dir)) for broker in cluster.brokers.values()]
                return all(len(one) > 2 and all(kind == {"zstd"} for kind in one[:-1]) for one in found)

            await eventually(are_compressed, "each replica has compressed its own")
        leader = await cluster.leader_of("events")
        other = next(number for number in cluster.brokers if number != leader)
        cluster.brokers[leader].kill()
        cluster.empty_disk(leader)
        cluster.brokers[leader].launch()

        async def has_come() -> bool:
            folders = (cluster.brokers[leader].data_dir / "streams").glob("*-events/0")
            return any({"zstd"} in kinds(folder)[:-1] for folder in folders)

        await eventually(has_come, "what is compressed has come to it")
        await cluster.in_sync("events", {1, 2, 3}, other, 30.0)
        await cluster.all_vote()
        cluster.brokers[other].kill()
        async with cluster.client(leader) as client:

            async def is_all_there() -> bool:
                return await values_of(client) == wanted

            await eventually(is_all_there, "it holds what the others have")
            await append(client, 40, 1)
