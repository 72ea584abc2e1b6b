"""Consumers through backup, restore, copy and the import from a real JetStream, beside nats-py."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig

import penstock
from penstock import aio
from tests.broker_process import BrokerProcess, eventually, running_broker
from tests.cli_process import command
from tests.extent import each_change
from tests.integration.test_backup import Two, rows_of, verify
from tests.integration.test_import_buckets import servers
from tests.integration.test_jetstream_readers import delivering
from tests.integration.test_jetstream_streams import api_options, connected

pytestmark = each_change


@asynccontextmanager
async def two(folder: Path) -> AsyncIterator[Two]:
    """Two brokers that serve JetStream's API, and deliver."""
    with (
        running_broker(folder / "old", *api_options()) as old,
        running_broker(folder / "new", *api_options()) as new,
    ):
        for one in (old, new):
            async with connected(one.nats_url) as connection:
                await delivering(connection)
        async with await old.client() as here, await new.client() as there:
            yield Two(old, new, here, there)


async def worked(broker: BrokerProcess, stream: str, name: str, take: int, ack: int) -> None:
    """Take messages through nats-py, and ack the last ones of them."""
    async with connected(broker.nats_url) as connection:
        subscription = await connection.jetstream().pull_subscribe_bind(name, stream=stream)
        messages = await subscription.fetch(take)
        for message in messages[take - ack :]:
            await message.ack_sync()


async def taken(broker: BrokerProcess, stream: str, name: str, count: int) -> list[tuple[int, int]]:
    """Sequences and deliveries of the next messages, in the order of their sequences; they are acked."""
    async with connected(broker.nats_url) as connection:
        subscription = await connection.jetstream().pull_subscribe_bind(name, stream=stream)
        found: list[tuple[int, int]] = []
        while len(found) < count:
            for message in await subscription.fetch(count - len(found), timeout=20):
                found.append((message.metadata.sequence.stream, message.metadata.num_delivered))
                await message.ack_sync()
        return sorted(found)


async def filled(client: aio.Client, broker: BrokerProcess, stream: str = "orders", **config: Any) -> None:
    """A stream of 10 messages; `work` has taken 5 of them, and acked the last 2 of these; `idle` has taken none."""
    await client.create_stream(stream, f"{stream}.*", **config)
    await client.consumers.create(stream, "work", ack_wait=3.0, deliveries_max=5)
    for number in range(10):
        await client.publish(f"{stream}.{number % 2}", b"%d" % number)
    await worked(broker, stream, "work", 5, 2)


async def places(client: aio.Client, stream: str) -> dict[str, tuple[int, ...]]:
    return {
        one.name: (one.next_offset, one.acked_end, one.deliveries, one.pending, one.ack_pending)
        for one in await client.consumers.all(stream)
    }


WORK = (5, 0, 5, 5, 3)
AGAIN = [(1, 2), (2, 2), (3, 2), (6, 1), (7, 1), (8, 1), (9, 1), (10, 1)]
"""What `work` gets after that: nothing that it has acked."""


async def test_consumers_come_back_where_they_were(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with two(tmp_path) as pair:
        await filled(pair.here, pair.old)
        await pair.here.consumers.create("orders", "late", start=7, acks="all")
        await pair.here.consumers.create("orders", "reader", acks="none", inactive_after=600.0)
        _, errors = await pair.backup(folder)
        assert "note: consumer reader of stream orders is left out: it is not durable and has no acks" in errors
        said, _ = await verify(folder)
        assert "Sound: a backup of 10 rows, of 2 consumers" in said
        said, errors = await pair.restore(folder)
        assert "consumers" in said
        assert "note" not in errors
        before = await places(pair.here, "orders")
        before.pop("reader")
        assert before["work"] == WORK
        assert await places(pair.there, "orders") == before
        assert await taken(pair.new, "orders", "work", 8) == AGAIN
        assert await taken(pair.new, "orders", "late", 3) == [(8, 1), (9, 1), (10, 1)]
        # A run that is repeated takes nothing back.
        after = await places(pair.there, "orders")
        await pair.there.pause_stream("orders")
        await pair.restore(folder)
        assert await places(pair.there, "orders") == after


async def test_without_consumers_none_come(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with two(tmp_path) as pair:
        await filled(pair.here, pair.old)
        await pair.backup(folder, "--no-consumers")
        assert not (folder / "consumers").exists()
        await pair.backup(folder)
        (file,) = (folder / "consumers").iterdir()
        await pair.backup(folder, "--no-consumers")  # it keeps those that it has
        assert [*(folder / "consumers").iterdir()] == [file]
        await pair.restore(folder, "--no-consumers")
        assert await places(pair.there, "orders") == {}
        # A damaged file is found before anything is made of the backup.
        file.write_bytes(b"{}")
        _, errors = await verify(folder, code=1)
        assert f"{file}: at byte 0: expected a file with the SHA-256" in errors
        await pair.restore(folder, "--stream", "orders", "--as", "again", code=1)
        with pytest.raises(penstock.StreamNotFound):
            await pair.there.stream("again")


async def test_a_broker_without_the_api_gets_the_rows_and_says_which_consumers_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with (
        running_broker(tmp_path / "old", *api_options()) as old,
        running_broker(tmp_path / "new", "--jetstream-api", "off") as new,
    ):
        async with await old.client() as here, await new.client() as there:
            pair = Two(old, new, here, there)
            async with connected(old.nats_url) as connection:
                await delivering(connection)
            await filled(here, old)
            await pair.backup(folder)
            _, errors = await pair.restore(folder)
            assert "note: consumer work of stream orders is left out: this broker does not answer JetStream's" in errors
            assert await rows_of(there, "orders") == await rows_of(here, "orders")
            _, errors = await command(new.client_address, "backup", str(tmp_path / "another"))
            assert "left out" not in errors, "there can be none"


async def test_a_stream_whose_retention_is_interest_shows_all_that_it_showed(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with two(tmp_path) as pair:
        await filled(pair.here, pair.old)
        await pair.here.alter_stream("orders", retention="interest")
        await pair.backup(folder)
        await pair.restore(folder)
        info = await pair.there.stream("orders")
        assert (info.config.retention_policy, info.intake) == ("interest", "open")

        async def are_same() -> bool:
            return await rows_of(pair.there, "orders") == await rows_of(pair.here, "orders")

        await eventually(are_same, "what the consumer has acked goes on both sides, a moment later")
        assert await places(pair.there, "orders") == {"work": WORK}
        copy = ("stream", "copy", "orders", "copied")
        for more, retention in (((), "limits"), (("--resume",), "interest")):
            await command(pair.old.client_address, *copy, *more)
            assert (await pair.here.stream("copied")).config.retention_policy == retention
            assert await rows_of(pair.here, "copied") == await rows_of(pair.here, "orders")


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_streams_that_are_consumed_come_back_with_what_is_left(tmp_path: Path, retention: str) -> None:
    folder = tmp_path / "backup"
    async with two(tmp_path) as pair:
        await filled(pair.here, pair.old, retention=retention)
        await pair.backup(folder)
        await pair.restore(folder)
        info = await pair.there.stream("orders")
        assert (info.config.retention_policy, info.intake) == (retention, "open")
        assert [one.offset async for one in pair.there.messages("orders")] == [0, 1, 2, 5, 6, 7, 8, 9]
        assert await places(pair.there, "orders") == {"work": WORK}
        assert await taken(pair.new, "orders", "work", 8) == AGAIN
        assert await pair.there.count("orders", subject=">") == 0


async def test_a_copy_that_takes_over_has_the_consumers(tmp_path: Path) -> None:
    async with two(tmp_path) as pair:
        await filled(pair.here, pair.old)
        copy = ("stream", "copy", "orders", "orders", "--to-server", pair.new.client_address)
        await command(pair.old.client_address, *copy)
        assert await places(pair.there, "orders") == {}
        await pair.here.publish("orders.0", b"10")
        said, errors = await command(pair.old.client_address, *copy, "--resume")
        assert said.endswith("stream orders has 1 consumer of orders\n"), (said, errors)
        assert await places(pair.there, "orders") == {"work": (5, 0, 5, 6, 3)}
        assert await taken(pair.new, "orders", "work", 9) == [*AGAIN, (11, 1)]
        without = ("stream", "copy", "orders", "plain", "--resume", "--no-consumers")
        await command(pair.old.client_address, *without)
        assert await places(pair.here, "plain") == {}


async def test_each_partition_has_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    async with two(tmp_path) as pair:
        await pair.here.create_stream("orders", "orders.*", partitions=2, partition_by="key")
        await pair.here.append(
            "orders", [{"subject": "orders.x", "key": f"k{number}", "value": ""} for number in range(20)]
        )
        for number in range(2):
            await pair.here.consumers.create("orders", "work", partition=number)
        await worked(pair.old, "orders-p1", "work", 2, 1)
        await pair.backup(folder)
        await pair.restore(folder)
        found = [(one.partition, one.next_offset, one.ack_pending) for one in await pair.there.consumers.all("orders")]
        assert found == [(0, 0, 0), (1, 2, 1)]


async def test_an_import_brings_the_consumers_of_jetstream(tmp_path: Path) -> None:
    async with servers(tmp_path) as (js, here, broker, client):
        await _imported(js, here, broker, client)


async def _imported(js: Any, here: Any, broker: BrokerProcess, client: aio.Client) -> None:
    await js.add_stream(StreamConfig(name="ORDERS", subjects=["orders.>"], retention=RetentionPolicy.LIMITS))
    for number in range(10):
        await js.publish(f"orders.{number % 2}", b"%d" % number)
    work = await js.pull_subscribe("orders.>", durable="work", config=ConsumerConfig(ack_wait=60, max_deliver=7))
    first, second, _, fourth = await work.fetch(4)
    for message in (first, second, fourth):
        await message.ack_sync()
    odd = ConsumerConfig(durable_name="odd", filter_subject="orders.1", ack_policy=AckPolicy.ALL)
    await js.add_consumer("ORDERS", odd)
    (message,) = await (await js.pull_subscribe_bind("odd", stream="ORDERS")).fetch(1)
    await message.ack_sync()
    await js.add_consumer("ORDERS", ConsumerConfig(durable_name="push", deliver_subject="in", ack_policy=AckPolicy.ALL))
    await js.add_consumer("ORDERS", ConsumerConfig(name="short", inactive_threshold=60, ack_policy=AckPolicy.EXPLICIT))
    run = ("import", "--from-jetstream", "ORDERS", "--as", "orders")
    said, errors = await command(broker.client_address, *run)
    assert "consumer" not in said + errors
    assert await client.consumers.all("orders") == [], "they move with the cut-over"
    await js.publish("orders.0", b"10")
    said, errors = await command(broker.client_address, *run, "--cut-over", "--yes")
    assert "orders has 3 consumers of ORDERS\n" in said, (said, errors)
    assert "consumer short of stream orders is left out: it is not durable" in errors
    text = "had 1 message without an ack: what is above its ack floor, sequence 2, is delivered again, and counted anew"
    assert f"note: consumer work of stream orders {text}" in errors
    found = await places(client, "orders")
    assert (found["work"], found["odd"]) == ((2, 2, 2, 9, 0), (2, 2, 1, 4, 0))
    config = (await client.consumers.info("orders", "work")).config
    assert (config["ack_wait"], config["max_deliver"]) == (60_000_000_000, 7)
    assert (await client.consumers.info("orders", "push")).is_push
    messages = await (await here.pull_subscribe_bind("work", stream="orders")).fetch(9, timeout=20)
    assert [one.metadata.sequence.stream for one in messages] == [*range(3, 12)]
    # Once it is complete, a repeated run changes nothing.
    said, _ = await command(broker.client_address, *run, "--cut-over", "--yes")
    assert "consumer" not in said


async def test_a_cut_over_sets_interest_once_all_consumers_are_here(tmp_path: Path) -> None:
    async with servers(tmp_path) as (js, here, broker, client):
        for name in ("ALL", "NONE"):
            stream = StreamConfig(name=name, subjects=[f"{name}.>"], retention=RetentionPolicy.INTEREST)
            await js.add_stream(stream)
            await js.add_consumer(name, ConsumerConfig(durable_name="work", ack_policy=AckPolicy.EXPLICIT))
            await js.publish(f"{name}.1", b"1")
        run = ("import", "--from-jetstream")
        _, errors = await command(broker.client_address, *run, "NONE", "--no-consumers", "--cut-over", "--yes")
        assert "note: stream NONE has not got the retention interest of JetStream's stream, as none of its" in errors
        assert (await client.stream("NONE")).config.retention_policy == "limits"
        _, errors = await command(broker.client_address, *run, "ALL", "--cut-over", "--yes")
        assert "note: stream ALL has retention interest now, as JetStream's stream" in errors
        assert (await client.stream("ALL")).config.retention_policy == "interest"
        (message,) = await (await here.pull_subscribe_bind("work", stream="ALL")).fetch(1, timeout=20)
        assert message.data == b"1"
        await message.ack_sync()

        async def is_empty() -> bool:
            return not await client.count("ALL", subject=">")

        assert await eventually(is_empty, "the acked message is gone")
