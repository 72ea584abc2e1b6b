"""Whole streams as tables, and the last messages of them."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator

import pytest

import penstock
from penstock import aio
from penstock.client.blocking import client as blocking
from tests.fake_broker import FakeBroker, columns
from tests.unit.client.consume.test_tables import compact


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as broker:
        yield broker


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[aio.Client]:
    async with await aio.connect(broker.address) as client:
        yield client


async def test_json_becomes_columns_in_each_kind_of_table(broker: FakeBroker, client: aio.Client) -> None:
    broker.create("a").append(columns(b'{"total": 1}', b'{"total": 2.5, "who": "ann"}'))
    table = await client.to_table("a", decode="json")
    assert table.column_names == ["offset", "timestamp", "subject", "key", "headers", "total", "who"]
    assert table.column("total").to_pylist() == [1.0, 2.5]
    assert (await client.to_pandas("a", decode="json"))["total"].sum() == 3.5
    assert (await client.to_polars("a", decode="json"))["who"].to_list() == [None, "ann"]
    with pytest.raises(ValueError, match="decode needs the column 'value'"):
        await client.to_table("a", columns=["offset"], decode="json")
    with pytest.raises(ValueError, match="columns are"):
        await client.to_table("a", columns=["value", "nothing"], decode="json")


async def test_columns_are_chosen_with_json(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a", partitions=2)
    stream.append(columns(b'{"total": 1}'))
    stream.grow(2)
    table = await client.to_table("a", columns=["value", "offset", "partition"], decode="json")
    assert table.to_pylist() == [{"offset": 0, "partition": 0, "total": 1}]


async def test_a_warning_at_the_callers_line_counts_what_is_no_json(broker: FakeBroker, client: aio.Client) -> None:
    broker.create("a").append(columns(b'{"total": 1}', b"oops", b"[]"))
    with pytest.warns(
        penstock.DecodeWarning, match=r"2 of 3 values are not JSON objects \(first: offset 1\)"
    ) as caught:
        table = await client.to_table("a", decode="json")
    assert caught[0].filename == __file__
    assert table.column("total").to_pylist() == [1, None, None]
    with pytest.warns(penstock.DecodeWarning) as caught:
        await client.to_pandas("a", decode="json")
    assert caught[0].filename == __file__
    with warnings.catch_warnings(action="error"), pytest.raises(penstock.DecodeWarning):
        await client.to_table("a", decode="json")


async def test_a_table_of_a_part(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    for number in range(3):
        stream.append(columns(*(b"%d" % one for one in range(10 * number, 10 * number + 10))))
    table = await client.to_table("a", 5, limit=7, columns="offset")
    assert table.column("offset").to_pylist() == list(range(5, 12))
    assert (await client.to_table("a", -2, where=penstock.Filter(subject="s"))).num_rows == 2
    assert (await client.to_table("a", where=penstock.Filter(key="k"))).num_rows == 0


async def offsets(client: aio.Client, n: int, **options: object) -> list[tuple[int, int]]:
    found = await client.tail("a", n, **options)  # type: ignore[arg-type]
    return [(one.partition, one.offset) for one in found]


async def test_the_last_messages_of_all_partitions_are_the_latest(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a", partitions=2)
    stream.grow(2)
    other = stream.added[0]
    assert await offsets(client, 3) == []
    stream.append(columns(b"0", b"1"))  # at 2 s
    other.clock_us = 2_000_000
    other.append(columns(b"0"))  # at 3 s
    stream.clock_us = 3_000_000
    stream.append(columns(b"2"))  # at 4 s
    assert await offsets(client, 3) == [(0, 1), (1, 0), (0, 2)]
    assert await offsets(client, 2, partition=0) == [(0, 1), (0, 2)]
    assert len(await offsets(client, 100)) == 4
    assert await offsets(client, 0) == []
    with pytest.raises(ValueError, match="is -1"):
        await client.tail("a", -1)


async def test_the_last_messages_behind_gaps_and_filters(broker: FakeBroker, client: aio.Client) -> None:
    stream = broker.create("a")
    stream.append(columns(*(b"%d" % number for number in range(60))))
    compact(stream, 3, 5, 7)
    assert await offsets(client, 2) == [(0, 5), (0, 7)]
    assert await offsets(client, 10) == [(0, 3), (0, 5), (0, 7)]
    assert await offsets(client, 2, where=penstock.Filter(key="k")) == []
    found = await client.tail("a", 1)
    assert "<td>7</td>" in found._repr_html_()  # type: ignore[attr-defined]


async def test_a_table_by_keys_is_a_table(broker: FakeBroker, client: aio.Client) -> None:
    from tests.groups import Columns

    broker.create("a").append(Columns([b"s"] * 2, [b"x", b"y"], [b'{"n": 1}', b'{"n": 2}'], [None, None]))
    async with await client.table("a") as table:
        read = await client.to_table("a")
        assert table.to_table().equals(read)
        assert table.to_polars(decode="json")["n"].to_list() == [1, 2]
        assert table.to_pandas(decode="json")["n"].sum() == 3


async def test_the_blocking_face_decodes_on_the_callers_thread(broker: FakeBroker) -> None:
    import asyncio

    broker.create("a").append(columns(b'{"total": 1}', b"oops"))

    def call() -> int:
        with blocking.connect(broker.address) as client:
            assert [one.text for one in client.tail("a", 1)] == ["oops"]
            with pytest.warns(penstock.DecodeWarning) as caught:
                total = client.to_pandas("a", decode="json")["total"].sum()
            assert caught[0].filename == __file__
            assert client.to_table("a", limit=1, progress=True).num_rows == 1
            return int(total)

    assert await asyncio.to_thread(call) == 1
