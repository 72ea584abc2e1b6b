"""Readers of real brokers that do not want all: they get the same as those who read all and select, only cheaper."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import aio
from penstock.base.subjects import matches
from penstock.batch.reader import segment_files
from penstock.batch.schema import PARTITION_KEY
from penstock.client.bulk.ranges import LogRange, read_range_async
from tests.broker_process import BrokerProcess, eventually, running_broker
from tests.extent import each_change, needs_time

NARROW = ["subject", "offset", "key"]


def rows_of(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {
            "subject": f"events.{number % 7}.{'rare' if number % 50 == 0 else 'often'}",
            "key": b"k%d" % (number % 40) if number % 3 else None,
            "value": b"%d " % number * 20,
        }
        for number in range(first, first + count)
    ]


async def fill(client: aio.Client, name: str, count: int, per_batch: int, **config: Any) -> None:
    await client.create_stream(name, "events.>", **config)
    for first in range(0, count, per_batch):
        await client.append(name, rows_of(first, min(per_batch, count - first)))


async def fetched_bytes(client: aio.Client) -> int:
    return int((await client.status()).counters.get("fetched_bytes", 0))


async def check_the_same(client: aio.Client, name: str) -> None:
    """Of all columns, and of some, in whichever way they are asked for."""
    whole = await client.to_table(name)
    assert (await client.to_table(name, columns=NARROW)).equals(whole.select(NARROW))
    subjects = whole.column("subject").to_pylist()
    for pattern in ("events.*.rare", "events.3.>"):
        mask = pa.array([matches(pattern, one) for one in subjects])
        for columns in (None, ["offset"], ["value", "subject"]):
            wanted = whole.filter(mask) if columns is None else whole.filter(mask).select(columns)
            read = client.read(name, where=penstock.Filter(subject=pattern), columns=columns)
            assert pa.Table.from_batches([one async for one in read], wanted.schema).equals(wanted)


@each_change
async def test_less_is_sent_and_it_is_the_same(client: aio.Client) -> None:
    await fill(client, "plain", 5_000, 500)
    before = await fetched_bytes(client)
    await client.to_table("plain", columns=["offset"])
    narrow = await fetched_bytes(client) - before
    assert 5_000 * 8 <= narrow < 5_000 * 8 + 4_000
    await check_the_same(client, "plain")
    (batch,) = [one async for one in client.read("plain", columns=["offset"])]
    assert batch.num_rows == 5_000
    await client.delete_stream("plain")


@each_change
async def test_lone_messages_make_large_batches(client: aio.Client) -> None:
    await fill(client, "lone", 60, 1)
    info = await client.stream("lone")
    what = LogRange(info, 0, 10, 55)
    for columns in (None, ["key"]):
        found = [one async for one in read_range_async(client, what, columns=columns)]
        assert [one.num_rows for one in found] == [45]
    await client.delete_stream("lone")


async def test_several_partitions_say_which_they_are(client: aio.Client) -> None:
    await client.create_stream("parts", "parts", partitions=3)
    for number in range(3):
        await client.append("parts", [{"value": b"x"}] * (number + 1), partition=number)
    found = {
        int(batch.schema.metadata[PARTITION_KEY], 16): batch.num_rows
        async for batch in client.read("parts", columns=["key"])
    }
    assert found == {0: 1, 1: 2, 2: 3}
    await client.delete_stream("parts")


async def test_who_follows_hears_of_what_comes(client: aio.Client) -> None:
    await client.create_stream("news", "news.>")
    reading = client.read("news", follow=True, columns=["offset"], where=penstock.Filter(subject="news.wanted"))
    first = asyncio.ensure_future(anext(reading))
    await client.publish("news.other", b"1")
    await client.publish("news.wanted", b"2")
    assert (await first).column("offset").to_pylist() == [1]
    await reading.aclose()
    await client.delete_stream("news")


async def test_a_consumer_of_some_columns_knows_how_far_it_is(client: aio.Client) -> None:
    await fill(client, "grouped", 200, 20)
    async with client.consumer("grouped", "g", columns=["key"], batch_rows_max=50) as consumer:
        batch = await anext(consumer)
        assert batch.schema.names == ["key"]
        assert batch.num_rows == 50
        assert consumer.positions == {0: 0}
        messages = consumer.messages()
        message = await anext(messages)
        assert (message.offset, message.value) == (50, b"50 " * 20)
        assert consumer.positions == {0: 50}
        await messages.aclose()
    await client.delete_stream("grouped")


@needs_time
@pytest.mark.parametrize("config", [{"compression": "zstd"}, {"compression": "lz4", "compact": True}], ids=str)
async def test_what_the_cleaner_has_written_anew(tmp_path: Path, config: dict[str, Any]) -> None:
    if "compact" in config:
        config = {**config, "dedup_window_ms": None, "tombstone_retention_ms": 0}
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await fill(client, "cleaned", 10_000, 100, segment_bytes=65_536, **config)
            seen: list[str] = []

            async def is_cleaned() -> bool:
                """All sealed segments are written anew, and none was since the last look."""
                nonlocal seen
                (folder,) = (tmp_path / "data" / "streams").glob("*-cleaned/0")
                before, seen = seen, [path.name for path in segment_files(folder)]
                return before == seen and all(name.count(".") == 2 for name in seen[:-1])

            await eventually(is_cleaned, "all sealed segments are written anew")
            if "compact" in config:

                async def is_compacted() -> bool:
                    return (await client.to_table("cleaned", columns=["offset"])).num_rows < 10_000

                await eventually(is_compacted, "older messages of a key are gone")
                await client.alter_stream("cleaned", compact=False)
                seen = []
                await eventually(is_cleaned, "nothing more is written anew")
            await check_the_same(client, "cleaned")


@each_change
async def test_damage_is_told_where_it_lies(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await fill(client, "hurt", 100, 10)
            (path,) = (tmp_path / "data" / "streams").glob("*-hurt/0/*.arrows")
            content = bytearray(path.read_bytes())
            position = content.index(b"55 " * 20)
            with path.open("r+b") as file:
                file.seek(position)
                file.write(b"!")
            found: list[int] = []

            async def read() -> None:
                async for batch in client.read("hurt", columns=["offset"]):
                    found.extend(batch.column("offset").to_pylist())

            with pytest.raises(penstock.CorruptRange) as caught:
                await read()
            assert found == list(range(50))
            assert (caught.value.details["base_offset"], caught.value.details["end_offset"]) == (50, 60)
            assert caught.value.details["file"].endswith(path.name)
            assert 0 < caught.value.details["position"] < position
            assert (await client.to_table("hurt", 60, columns=["offset"])).num_rows == 40


async def test_a_stream_that_goes_while_it_is_followed(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("gone", "gone")
    reading = client.read("gone", follow=True, columns=["offset"])
    first = asyncio.ensure_future(anext(reading))
    await client.append("gone", [{"value": b"x"}])
    assert (await first).num_rows == 1
    following = asyncio.ensure_future(anext(reading))
    async with await broker.client() as other:
        await other.delete_stream("gone")
    with pytest.raises(penstock.StreamChanged):
        await following
