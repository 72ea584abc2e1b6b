"""Ranges of a partition, in batches that are not small."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

import penstock
from penstock import aio
from penstock.base import limits
from penstock.client.bulk.ranges import Joining, LogRange, read_range, read_range_async
from penstock.messages import FetchRequest, ListOffsetsRequest
from tests.fake_broker import FakeBroker
from tests.unit.client.read.test_reading import batch, stream_of


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as broker:
        stream_of(broker, *(batch(start, start + 5) for start in range(0, 100, 5)))
        yield broker


async def read(broker: FakeBroker, start: int, end: int, epoch: int | None, **options: object) -> list[list[int]]:
    async with await aio.connect(broker.address) as client:
        what = LogRange(await client.stream("a"), 0, start, end, epoch)
        found = read_range_async(client, what, **options)  # type: ignore[arg-type]
        return [one.column("offset").to_pylist() async for one in found]


@pytest.mark.parametrize("columns", [None, ["offset"]])
async def test_small_batches_of_several_fetches_are_joined(broker: FakeBroker, columns: list[str] | None) -> None:
    found = await read(broker, 3, 99, 1, columns=columns, batch_rows_min=30, batch_rows_max=50)
    assert [row for rows in found for row in rows] == list(range(3, 99))
    assert [len(rows) for rows in found] == [32, 30, 30, 4]
    assert not [one for one in broker.requests if isinstance(one, ListOffsetsRequest)]
    assert {one.leader_epoch for one in broker.requests if isinstance(one, FetchRequest)} == {1}


async def test_without_an_epoch_the_log_is_asked_first(broker: FakeBroker) -> None:
    assert await read(broker, 97, 100, None) == [[97, 98, 99]]
    with pytest.raises(penstock.OffsetOutOfRange):
        await read(broker, 97, 101, None)


async def test_the_blocking_face(broker: FakeBroker) -> None:
    def blocking() -> list[int]:
        with penstock.connect(broker.address) as client:
            what = LogRange(client.stream("a"), 0, 0, 100, 1)
            return [one.num_rows for one in read_range(client, what)]

    assert await asyncio.to_thread(blocking) == [100]


def joined(rows_min: int, rows_max: int, *sizes: int) -> list[int]:
    joining = Joining(rows_min, rows_max)
    parts = [pa.record_batch({"offset": pa.array(range(size))}) for size in sizes]
    found = [one.num_rows for part in parts for one in joining.add(part)]
    return found + [one.num_rows for one in joining.end()]


def test_batches_lie_between_their_bounds() -> None:
    assert joined(10, 20, 3, 3, 5, 20, 9, 20, 1) == [11, 20, 20, 10]
    assert joined(10, 20) == []
    assert joined(1, 20, 4, 4) == [4, 4]
    with pytest.raises(ValueError, match="at least and 5 at most"):
        Joining(10, 5)


def test_few_large_rows_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RANGE_BATCH_BYTES_MAX", 64)
    assert joined(10, 20, 4, 4, 4) == [8, 4]
