"""A stream's life as its users see it: kept in memory, altered, retained, deleted, made again, found after restarts."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

import pytest

import penstock
from penstock import aio
from tests.broker_process import BrokerProcess, eventually, running_broker
from tests.extent import each_change, needs_time
from tests.integration.publishers import connected_to


async def _values(client: aio.Client, stream: str) -> list[bytes | None]:
    return [message.value async for message in client.messages(stream)]


@needs_time
async def test_a_memory_stream_behaves_like_any_other_until_the_broker_ends(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("ram", "ram", storage="memory")
            await client.create_stream("disk", "disk")
            for name in ("ram", "disk"):
                for number in range(100):
                    await client.publish(name, b"%d" % number, key=f"k{number % 3}")
                await client.append(name, [{"value": b"x" * 3_000_000}])
                assert (await _values(client, name))[:100] == [b"%d" % number for number in range(100)]
                assert (await client.last(name, key="k0")).value == b"99"
                assert (await client.get(name, 100)).value == b"x" * 3_000_000
            assert not list(broker.data_dir.glob("streams/*ram*/0/*.arrows"))
        broker.restart()
        async with await broker.client() as client:
            assert await _values(client, "ram") == []
            ack = await client.publish("ram", b"again")
            assert ack is not None
            assert (ack.offset, ack.leader_epoch) == (0, 2)
            assert len(await _values(client, "disk")) == 101
        # It was killed: nothing of the memory stream is on the disk, and the name is still its own.
        assert broker.stop() == 0


@each_change
async def test_altering_takes_effect_at_once(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("altered", "altered")
    ack = await client.publish("altered", b"1")
    assert ack is not None
    assert ack.fsynced
    info = await client.alter_stream("altered", durability="os", max_message_bytes=10)
    assert (info.config.durability, info.config.max_message_bytes) == ("os", 10)
    ack = await client.publish("altered", b"2")
    assert ack is not None
    assert not ack.fsynced
    with pytest.raises(penstock.RemoteError) as refused:
        await client.publish("altered", b"more than ten")
    assert refused.value.code == "too_large"
    await client.alter_stream("altered", acks="never", max_message_bytes=100)
    with pytest.raises(penstock.TimedOut):
        await client.publish("altered", b"3", timeout=0.3)
    await client.alter_stream("altered", acks="reply", durability="fsync")
    ack = await client.publish("altered", b"4")
    assert ack == penstock.PubAck("altered", 3, 0, False, 1, 1, True)
    with pytest.raises(penstock.InvalidConfig, match="subject: cannot be changed") as error:
        await client.alter_stream("altered", subject="other", nonsense=1, max_age_ms=5)  # type: ignore[call-arg]
    assert "nonsense" in str(error.value)
    assert (await client.stream("altered")).config.max_age_ms is None
    with pytest.raises(penstock.StreamNotFound):
        await client.alter_stream("nobody", max_age_ms=5)


@each_change
async def test_a_deleted_and_remade_stream_is_another_one(broker: BrokerProcess, client: aio.Client) -> None:
    first = await client.create_stream("phoenix", "phoenix")
    for number in range(10):
        await client.publish("phoenix", b"%d" % number)
    follower = client.read(first, follow=True)
    assert (await anext(follower)).num_rows >= 1
    waiting = asyncio.ensure_future(_end_of(follower))
    folder = next(broker.data_dir.glob("streams/*-phoenix"))
    await client.delete_stream("phoenix")
    with pytest.raises(penstock.StreamChanged):
        await asyncio.wait_for(waiting, 10)

    async def nobody_listens() -> bool:  # NATS may hear of it a moment later than we
        try:
            await client.publish("phoenix", b"nobody listens", timeout=2.0)
        except (penstock.StreamNotFound, penstock.TimedOut) as error:
            return isinstance(error, penstock.StreamNotFound)
        raise AssertionError("a deleted stream acks")

    await eventually(nobody_listens, "NATS knows that nobody listens")

    async def is_removed() -> bool:
        return not folder.exists()

    await eventually(is_removed, "the folder is removed")
    second = await client.create_stream("phoenix", "phoenix")
    assert second.stream_id > first.stream_id
    with pytest.raises(penstock.StreamChanged):
        await client.get(first, 0)
    with pytest.raises(penstock.StreamChanged):
        await client.append(first, [{"value": b"x"}])
    with pytest.raises(penstock.StreamChanged):
        await anext(client.read(first))
    with pytest.raises(penstock.StreamChanged):
        await client.delete_stream(first)
    ack = await client.publish("phoenix", b"new")
    assert ack is not None
    assert ack.offset == 0
    assert await _values(client, "phoenix") == [b"new"]


async def _end_of(source: object) -> None:
    async for _ in source:  # type: ignore[attr-defined]
        pass


@needs_time
async def test_made_deleted_and_made_again_through_restarts(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        for number in range(4):
            async with await broker.client() as client:
                await client.create_stream("again", "again")
                for value in range(5):
                    await client.publish("again", b"%d.%d" % (number, value))
                await client.delete_stream("again")
                await client.create_stream("again", "again")
                for value in range(3):
                    await client.publish("again", b"%d.new.%d" % (number, value))
            if number % 2:
                assert broker.stop() == 0
                broker.start()
            else:
                broker.restart()
            async with await broker.client() as client:
                assert await _values(client, "again") == [b"%d.new.%d" % (number, value) for value in range(3)]
                await client.delete_stream("again")
        assert not (broker.data_dir / "quarantine").exists()
        # A folder that nobody knows is neither adopted nor deleted.
        stranger = broker.data_dir / "streams" / "00000001-stranger" / "0"
        stranger.mkdir(parents=True)
        (stranger / "00000000000000000000.arrows").write_bytes(b"somebody's")
        broker.restart()
        kept = broker.data_dir / "quarantine" / "00000001-stranger" / "0" / "00000000000000000000.arrows"
        assert kept.read_bytes() == b"somebody's"
        assert "belongs to no stream of this broker" in broker.said


@each_change
async def test_retention_is_seen_by_readers(broker: BrokerProcess, client: aio.Client) -> None:
    info = await client.create_stream("kept", "kept", max_messages=50, segment_bytes=4_096)
    slow = client.read(info, batch_rows_max=1)
    for number in range(200):
        await client.publish("kept", b"%d" % number)

    async def is_retained() -> int | None:
        partition = (await client.stream("kept")).partitions[0]
        return partition.log_start if (partition.log_start or 0) >= 150 else None

    log_start = await eventually(is_retained, "old messages are dropped")
    assert log_start == 150
    assert await _values(client, "kept") == [b"%d" % number for number in range(150, 200)]
    with pytest.raises(penstock.OffsetOutOfRange) as error:
        await anext(client.read(info, 10))
    assert error.value.details["log_start"] == 150
    assert (await anext(slow)).column("offset")[0].as_py() >= 150  # it began where the log begins now
    await slow.aclose()
    await client.alter_stream("kept", max_messages=None, max_bytes=3_000)

    async def is_small() -> bool:
        partition = (await client.stream("kept")).partitions[0]
        return (partition.log_start or 0) > 190

    await eventually(is_small, "max_bytes is applied")
    assert (await _values(client, "kept"))[-1] == b"199"
    await client.alter_stream("kept", max_bytes=None, max_age_ms=1)

    async def is_empty() -> bool:
        partition = (await client.stream("kept")).partitions[0]
        return partition.log_start == partition.log_end == 200

    await eventually(is_empty, "max_age is applied")
    await client.alter_stream("kept", max_age_ms=None)
    ack = await client.publish("kept", b"goes on")
    assert ack is not None
    assert ack.offset == 200


async def test_places_in_the_log_by_time(client: aio.Client) -> None:
    await client.create_stream("timed", "timed")
    for number in range(20):
        await client.publish("timed", b"%d" % number)
    found = [message async for message in client.messages("timed")]
    middle = found[10]
    assert (await client.offsets("timed", middle.timestamp)).offset <= 10
    later = [message.value async for message in client.messages("timed", middle.timestamp)]
    assert later == [message.value for message in found if message.timestamp_us >= middle.timestamp_us]
    behind = found[-1].timestamp + datetime.timedelta(microseconds=1)
    place = await client.offsets("timed", behind)
    assert (place.offset, place.timestamp, place.committed_end) == (20, None, 20)
    recent = [message.value async for message in client.messages("timed", datetime.timedelta(hours=1))]
    assert len(recent) == 20
    assert [message async for message in client.messages("timed", penstock.LATEST)] == []


@needs_time
async def test_many_streams_are_there_after_a_restart(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            for number in range(60):
                await client.create_stream(f"many-{number}", f"many.{number}")
        async with connected_to(broker.nats_url) as connection:
            js = connection.jetstream()
            futures = [await js.publish_async(f"many.{number % 60}", b"%d" % number) for number in range(600)]
            await asyncio.gather(*futures)
        assert broker.stop() == 0
        broker.start()
        async with await broker.client() as client:
            assert len(await client.streams()) == 60
            for number in range(0, 60, 7):
                assert await _values(client, f"many-{number}") == [b"%d" % (number + 60 * row) for row in range(10)]
