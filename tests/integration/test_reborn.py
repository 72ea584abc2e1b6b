"""A log that is not the one that was read any more: begun anew in memory, or cut by a power loss. Nobody is fooled."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

import penstock
from penstock import aio
from penstock.client.read.reading import Reader
from tests.broker_process import BrokerProcess, running_broker
from tests.extent import needs_time


def rows(word: str, count: int) -> list[dict[str, bytes]]:
    return [{"value": b"%s%d" % (word.encode(), number)} for number in range(count)]


async def take(reader: AsyncGenerator[penstock.Message, None], count: int) -> list[bytes | None]:
    async with asyncio.timeout(20):
        return [(await anext(reader)).value for _ in range(count)]


async def truncation(reader: AsyncGenerator[penstock.Message, None]) -> penstock.LogTruncated:
    """What the reader is told instead of the next message."""
    async with asyncio.timeout(20):
        with pytest.raises(penstock.LogTruncated) as caught:
            raise AssertionError(f"it read on: {await anext(reader)}")
    return caught.value


async def planned_at_the_end(client: aio.Client) -> Reader:
    """A follower that knows where it begins and has not fetched yet."""
    return await client._reader("m", penstock.LATEST, follow=True, batch_rows_max=1_000, timeout=20.0)


def begin_anew(broker: BrokerProcess, *appends: int) -> None:
    """Kill, start, and append before the follower is back: the blocking client holds up our loop meanwhile."""
    broker.kill()
    broker.start()
    with penstock.connect(broker.client_address) as other:
        for count in appends:
            other.append("m", rows("new", count))


@pytest.mark.parametrize("appends", [*(pytest.param(one, marks=needs_time) for one in ((), (50,), (150,))), (100, 50)])
async def test_a_follower_hears_that_a_memory_stream_began_anew(tmp_path: Path, appends: tuple[int, ...]) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            broker.listen = broker.client_address
            await client.create_stream("m", "m", storage="memory")
            await client.append("m", rows("old", 100))
            planned = await planned_at_the_end(client)
            reader = client.messages("m", follow=True, timeout=20.0)
            assert await take(reader, 100) == [b"old%d" % number for number in range(100)]
            begin_anew(broker, *appends)
            error = await truncation(reader)
            assert error.details == {
                "offset": 100,
                "end_offset": 0,
                "log_start": 0,
                "committed_end": sum(appends),
            }
            assert "offsets 0 to 99" in str(error)
            async with asyncio.timeout(20), planned:
                with pytest.raises(penstock.LogTruncated):
                    await planned.next_batches()
            # What the error says to do works.
            again = client.messages("m", error.details["end_offset"], timeout=20.0)
            assert len([message async for message in again]) == sum(appends)


@needs_time
async def test_a_follower_of_a_log_that_a_power_loss_cut_hears_from_where(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        await _store(broker, "old", 100, durability="os")
        assert broker.stop() == 0
        folder = next(broker.data_dir.glob("streams/*-m"))
        shutil.copytree(folder, tmp_path / "synced")
        broker.start()
        broker.listen = broker.client_address
        async with await broker.client() as client:
            await client.append("m", rows("lost", 50))
            reader = client.messages("m", follow=True, timeout=20.0)
            assert len(await take(reader, 150)) == 150
            broker.kill()
            # As a power loss leaves it: the journal was synced, the last rows and their epoch's beginning were not.
            shutil.rmtree(folder)
            shutil.copytree(tmp_path / "synced", folder)
            broker.start()
            with penstock.connect(broker.client_address) as other:
                other.append("m", rows("new", 200))
            error = await truncation(reader)
            assert (error.details["offset"], error.details["end_offset"]) == (150, 100)
            again = client.messages("m", error.details["end_offset"])
            assert [message.value async for message in again] == [b"new%d" % number for number in range(200)]


@needs_time
async def test_a_follower_of_a_log_that_is_whole_hears_nothing(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        await _store(broker, "old", 100)
        broker.listen = broker.client_address
        async with await broker.client() as client:
            reader = client.messages("m", follow=True, timeout=20.0)
            planned = await planned_at_the_end(client)
            assert len(await take(reader, 100)) == 100
            for restart in range(3):
                begin_anew(broker, 10)
                assert await take(reader, 10) == [b"new%d" % number for number in range(10)]
                if restart == 0:
                    async with asyncio.timeout(20), planned:
                        found = await planned.next_batches()
                        assert found is not None
                        assert next(found).column("offset").to_pylist() == list(range(100, 110))


async def _store(broker: BrokerProcess, word: str, count: int, **config: object) -> None:
    async with await broker.client() as client:
        await client.create_stream("m", "m", **config)
        await client.append("m", rows(word, count))
