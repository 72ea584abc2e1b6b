"""A stream of several partitions with real processes: each has its subject, its offsets, its acks and its readers."""

from __future__ import annotations

import nats
import pytest

import penstock
from penstock import aio
from penstock.batch.schema import PARTITION_KEY
from penstock.hot.keyhash import partition_of as partition_of_key
from tests.broker_process import BrokerProcess
from tests.extent import each_change, needs_time


def partition_of(batch: object) -> int:
    """Which partition a batch says that it is of."""
    return int(batch.schema.metadata[PARTITION_KEY], 16)  # type: ignore[attr-defined]


@each_change
async def test_an_unmodified_publisher_is_acked_by_the_partition_of_its_subject(
    broker: BrokerProcess, client: aio.Client
) -> None:
    info = await client.create_stream("p-acks", "p.acks", partitions=3)
    assert [one.state for one in info.partitions] == ["online"] * 3
    connection = await nats.connect(broker.nats_url)
    try:
        js = connection.jetstream()
        for subject, seq in (("p.acks.2", 1), ("p.acks", 1), ("p.acks.2", 2)):
            ack = await js.publish(subject, subject.encode())
            assert (ack.stream, ack.seq) == ("p-acks", seq)
    finally:
        await connection.close()
    ours = await client.publish("p.acks.2", b"3")
    assert ours is not None
    assert (ours.partition, ours.offset) == (2, 2)
    assert [found.name for found in await client.streams_for("p.acks.1")] == ["p-acks"]
    assert [found.name for found in await client.streams_for("p.acks.3")] == []
    assert [message.partition async for message in client.messages("p-acks", partition=2)] == [2, 2, 2]
    values = [message.value async for message in client.messages("p-acks", partition=2)]
    assert values == [b"p.acks.2", b"p.acks.2", b"3"]


async def test_reading_all_keeps_the_order_of_each(client: aio.Client) -> None:
    await client.create_stream("p-read", "p.read", partitions=4)
    sent = {number: [b"%d-%d" % (number, row) for row in range(500)] for number in range(3)}
    for number, values in sent.items():
        for start in range(0, 500, 100):
            rows = [{"value": value} for value in values[start : start + 100]]
            await client.append("p-read", rows, partition=number)
    found: dict[int, list[bytes]] = {}
    async for batch in client.read("p-read", batch_rows_max=70):
        assert batch.num_rows <= 70
        found.setdefault(partition_of(batch), []).extend(batch.column("value").to_pylist())
    assert found == sent
    assert (await client.to_table("p-read", columns=["value"])).num_rows == 1_500
    assert (await client.to_table("p-read", partition=3)).num_rows == 0
    table = await client.to_table("p-read")
    assert table.column_names[-1] == "partition"
    places = await client.to_table("p-read", columns=["partition", "offset"])
    by_place = [("partition", "ascending"), ("offset", "ascending")]
    assert places.sort_by(by_place).equals(table.select(["partition", "offset"]).sort_by(by_place))
    assert len(set(zip(*places.to_pydict().values(), strict=True))) == 1_500
    assert set(places.column("partition").to_pylist()) <= {0, 1, 2, 3}
    got = await client.get("p-read", 7, partition=2)
    assert (got.partition, got.value) == (2, b"2-7")
    async for message in client.messages("p-read"):
        assert message.value == b"%d-%d" % (message.partition, message.offset)
    assert (await client.offsets("p-read", penstock.LATEST, partition=3)).offset == 0


@needs_time
async def test_a_follower_of_all_hears_of_each(client: aio.Client) -> None:
    info = await client.create_stream("p-follow", "p.follow", partitions=20)
    following = client.messages(info, follow=True)
    for number in (19, 0, 7, 19):
        await client.append(info, [{"value": b"%d" % number}], partition=number)
        assert (await anext(following)).value == b"%d" % number
    await following.aclose()


@pytest.mark.parametrize("partition_by", ["publisher", "key", "token:2"])
async def test_rows_without_a_partition_go_where_they_belong(client: aio.Client, partition_by: str) -> None:
    name = f"split-{partition_by.replace(':', '-')}"
    subject = "split.*" if partition_by == "token:2" else name
    info = await client.create_stream(name, subject, partitions=4, partition_by=partition_by)
    rows = [{"key": f"k{n % 9}", "value": f"{n}"} for n in range(200)]
    if partition_by == "token:2":
        rows = [{"subject": f"split.{n % 9}", "value": f"{n}"} for n in range(200)]
    results = await client.append(name, rows)
    numbers = penstock.partitions_of(rows, info).to_pylist()
    assert [one.partition for one in results] == sorted(set(numbers))
    for result in results:
        own = [row["value"].encode() for row, number in zip(rows, numbers, strict=True) if number == result.partition]
        assert (result.base_offset, result.end_offset) == (0, len(own))
        found = [one async for one in client.messages(name, partition=result.partition)]
        assert [one.value for one in found] == own
        if partition_by == "publisher":
            assert {one.subject for one in found} == {info.config.subject_of(result.partition)}
    assert await client.append(name, []) == []


async def test_a_client_that_knows_fewer_partitions_looks_again(client: aio.Client) -> None:
    await client.create_stream("grown", "grown", partitions=2, partition_by="key")
    async with penstock.aio.connect(client.server) as other:
        await other.append("grown", [{"key": "a", "value": b"1"}])
        await client.alter_stream("grown", partitions=8)
        rows = [{"key": f"k{n}", "value": b"2"} for n in range(50)]
        results = await other.append("grown", rows)
    assert sum(one.end_offset - one.base_offset for one in results) == 50
    assert len(results) > 2


async def test_a_place_that_means_no_partition_is_refused(client: aio.Client) -> None:
    info = await client.create_stream("p-places", "p.places", partitions=2)
    with pytest.raises(ValueError, match="say which with partition="):
        await anext(client.read(info, 0))
    with pytest.raises(ValueError, match="2 partitions, counted from 0; there is no partition 2"):
        await anext(client.read(info, partition=2))
    with pytest.raises(ValueError, match="there is no partition 2"):
        await client.append(info, [{"value": b"x"}], partition=2)
    with pytest.raises(penstock.RemoteError, match="there is no partition 9"):
        await client.get(info, 0, partition=9)


async def test_a_key_finds_its_partition_and_the_others_take_turns(client: aio.Client) -> None:
    await client.create_stream("p-keys", "p.keys", partitions=3)
    acks = [await client.publish("p.keys", b"x", key=f"k{number}") for number in range(20)]
    wanted = [partition_of_key(f"k{number}".encode(), 3) for number in range(20)]
    assert [ack.partition for ack in acks] == wanted
    assert set(wanted) == {0, 1, 2}
    spread = [await client.publish("p.keys", b"x") for _ in range(6)]
    assert sorted(ack.partition for ack in spread) == [0, 0, 1, 1, 2, 2]


async def test_each_try_of_a_message_with_an_id_and_no_key_comes_to_one_partition(
    broker: BrokerProcess, client: aio.Client
) -> None:
    await client.create_stream("p-ids", "p.ids", partitions=3)
    ids = [f"id-{number}" for number in range(12)]
    first = [await client.publish("p.ids", b"x", headers={"Nats-Msg-Id": one}) for one in ids]
    assert [ack.partition for ack in first] == [partition_of_key(one.encode(), 3) for one in ids]
    assert {ack.partition for ack in first} == {0, 1, 2}
    await client.publish("p.ids", b"of nobody's")
    async with await broker.client() as other:  # which has not seen the stream
        for try_of in (client, other):
            again = [await try_of.publish("p.ids", b"x", headers={"Nats-Msg-Id": one}) for one in ids]
            assert [(ack.partition, ack.offset) for ack in again] == [(ack.partition, ack.offset) for ack in first]
            assert all(ack.duplicate for ack in again)
    keyed = [await client.publish("p.ids", b"x", key="k", headers={"Nats-Msg-Id": f"k-{one}"}) for one in ids]
    assert {ack.partition for ack in keyed} == {partition_of_key(b"k", 3)}
