"""Consumers that go on where they were: through restarts, kills and failovers, on real brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import penstock
from penstock import aio
from penstock.hot.keyhash import partition_of
from tests.broker_process import BrokerProcess, eventually, running_broker
from tests.cli_app import app
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses, running_cluster


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One of the test's own: groups outlive the streams that they read."""
    with running_broker(tmp_path / "data") as running:
        yield running


class BillingFailedError(Exception):
    """What goes wrong in whoever uses messages."""


async def publish(client: aio.Client, subject: str, *numbers: int) -> None:
    for number in numbers:
        await client.publish(subject, b"%d" % number)


async def taken(client: aio.Client, stream: str, group: str = "billing", **options: object) -> list[int]:
    """What a consumer gets that reads to the end."""
    async with client.consumer(stream, group, **options) as consumer:  # type: ignore[arg-type]
        return [int(message.value or b"") async for message in consumer.messages()]


async def test_a_consumer_goes_on_where_the_one_before_was(client: aio.Client) -> None:
    await client.create_stream("orders", "orders")
    await publish(client, "orders", 1, 2, 3)
    assert await client.groups.all() == []
    assert [one.name for one in await client.streams()] == ["orders"]  # whoever looks makes nothing
    assert await taken(client, "orders") == [1, 2, 3]
    assert await taken(client, "orders") == []
    await publish(client, "orders", 4)
    async with client.consumer("orders", "billing") as consumer:
        assert [batch.num_rows async for batch in consumer] == [1]
        assert consumer.positions == {0: 4}
    assert await taken(client, "orders", "other") == [1, 2, 3, 4]
    found = [(one.group, one.stream) for one in await client.groups.all()]
    assert found == [("billing", "orders"), ("other", "orders")]
    (at,) = await client.groups.offsets("billing", "orders")
    assert (at.offset, at.lag, at.committed_end) == (4, 0, 4)
    await publish(client, "orders", 5, 6)
    await client.groups.commit("other", "orders", {0: 3})
    assert [one.lag for one in await client.groups.all()] == [None, None]
    assert [one.lag for one in await client.groups.all(lag=True)] == [2, 3]


@each_change
async def test_what_was_in_hand_when_an_error_came_comes_again(client: aio.Client) -> None:
    await client.create_stream("orders", "orders")
    await publish(client, "orders", 1, 2, 3)
    seen: list[int] = []

    async def fail() -> None:
        async with client.consumer("orders", "billing") as consumer:
            async for message in consumer.messages():
                seen.append(int(message.value or b""))
                if len(seen) == 2:
                    raise BillingFailedError

    with pytest.raises(BillingFailedError):
        await fail()
    async with client.consumer("orders", "billing") as consumer:
        async for message in consumer.messages():
            seen.append(int(message.value or b""))
            break  # without an error: it is done
    assert await taken(client, "orders") == [3]
    assert seen == [1, 2, 2]


async def test_batches_are_done_one_by_one_and_offsets_can_be_named(client: aio.Client) -> None:
    await client.create_stream("orders", "orders")
    await publish(client, "orders", *range(10))

    async def fail() -> None:
        async with client.consumer("orders", "billing", batch_rows_max=4, columns=["value"]) as consumer:
            await anext(consumer)
            second = await anext(consumer)
            assert second.schema.names == ["value"]
            raise BillingFailedError

    with pytest.raises(BillingFailedError):
        await fail()
    (at,) = await client.groups.offsets("billing", "orders")
    assert at.offset == 4
    async with client.consumer("orders", "billing") as consumer:
        await anext(consumer)
        with pytest.raises(penstock.OffsetOutOfRange, match="11") as refused:
            await consumer.commit({0: 11})
        assert refused.value.details["committed_end"] == 10
        await consumer.commit({0: 7})
        await consumer.commit({0: 10})  # which is beyond what is done by now, and in the log
        await consumer.commit({0: 7})
    (at,) = await client.groups.offsets("billing", "orders")
    assert at.offset == 7
    async with client.consumer("orders", "billing") as consumer:
        await anext(consumer)
        await consumer.commit()
        (at,) = await client.groups.offsets("billing", "orders")
        assert at.offset == 10


@each_change
async def test_latest_means_when_the_group_began_and_a_checkpoint_is_made_while_nothing_comes(
    broker: BrokerProcess, client: aio.Client
) -> None:
    await client.create_stream("orders", "orders")
    await publish(client, "orders", 1)
    async with client.consumer("orders", "late", start="latest") as consumer:
        assert await consumer.next_batch() is None
    await publish(client, "orders", 2)
    assert await taken(client, "orders", "late", start="latest") == [2]
    async with client.consumer("orders", "tail", follow=True, checkpoint_interval=0.05) as consumer:
        assert (await anext(consumer)).num_rows == 2
        async with await broker.client() as other:
            await publish(other, "orders", 3)
            assert (await anext(consumer)).num_rows == 1
            waiting = asyncio.create_task(consumer.next_batch())  # what it was given before is done

            async def is_committed() -> bool:
                (at,) = await other.groups.offsets("tail", "orders")
                return at.offset == 3

            await eventually(is_committed, "a checkpoint while nothing comes")
            await publish(other, "orders", 4)
            batch = await waiting
            assert batch is not None
            assert batch.num_rows == 1


@each_change
async def test_all_partitions_are_one_group(client: aio.Client) -> None:
    await client.create_stream("orders", "orders", partitions=3)
    await client.append("orders", [{"value": b"1"}, {"value": b"2"}], partition=0)
    await client.append("orders", [{"value": b"3", "subject": "orders.2"}], partition=2)
    assert sorted(await taken(client, "orders")) == [1, 2, 3]
    assert [one.offset for one in await client.groups.offsets("billing", "orders")] == [2, 0, 1]
    await client.append("orders", [{"value": b"4", "subject": "orders.1"}], partition=1)
    assert await taken(client, "orders", partition=0) == []
    assert [one.lag for one in await client.groups.offsets("billing", "orders")] == [0, 1, 0]
    assert await taken(client, "orders") == [4]
    with pytest.raises(ValueError, match="say which with partition="):
        await client.groups.reset("billing", "orders", 1)
    with pytest.raises(ValueError, match="say which with partition="):
        await taken(client, "orders", "new", start=1)
    shown = await client.groups.reset("billing", "orders", "earliest", dry_run=True)
    assert [(one.offset, one.lag) for one in shown] == [(0, 2), (0, 1), (0, 1)]
    assert await taken(client, "orders") == []
    await client.groups.reset("billing", "orders", 1, partition=0)
    assert await taken(client, "orders") == [2]
    await client.groups.reset("billing", "orders", "earliest")
    assert sorted(await taken(client, "orders")) == [1, 2, 3, 4]


@each_change
async def test_offsets_out_of_a_data_frame_are_committed(client: aio.Client) -> None:
    await client.create_stream("orders", "orders")
    await publish(client, "orders", 1, 2, 3)
    offset: Any = (await client.to_pandas("orders"))["offset"].iloc[-1]
    partition: Any = np.int32(0)
    assert offset.dtype == "int64"
    async with client.consumer("orders", "billing") as consumer:
        await anext(consumer)
        await consumer.commit({partition: offset})
    assert await taken(client, "orders") == [3]
    await client.groups.commit("billing", "orders", {partition: offset - 1})
    assert await taken(client, "orders") == [2, 3]
    await client.groups.reset("billing", "orders", offset)
    assert await taken(client, "orders") == [3]
    assert await taken(client, "orders", "new", start=offset) == [3]


@each_change
async def test_what_retention_has_overtaken_is_told(client: aio.Client) -> None:
    await client.create_stream("orders", "orders")
    await publish(client, "orders", 1, 2, 3)
    async with client.consumer("orders", "billing") as consumer:
        await anext(consumer)
        await consumer.commit({0: 1})
    await client.truncate_stream("orders", 2)
    with pytest.raises(penstock.OffsetOutOfRange, match="group 'billing' is at an offset that no longer") as told:
        await taken(client, "orders")
    assert (told.value.details["offset"], told.value.details["log_start"]) == (1, 2)
    (at,) = await client.groups.offsets("billing", "orders")
    assert (at.offset, at.lag) == (1, 1)
    with pytest.raises(penstock.OffsetOutOfRange):
        await client.groups.reset("billing", "orders", 1)
    await client.groups.reset("billing", "orders", "earliest")
    assert await taken(client, "orders") == [3]


@each_change
async def test_groups_are_forgotten_by_name_and_with_their_stream(client: aio.Client) -> None:
    await client.create_stream("orders", "orders")
    await client.create_stream("other", "other")
    await publish(client, "orders", 1)
    await taken(client, "orders")
    await taken(client, "other")
    assert [one.stream for one in await client.groups.delete("billing", "other")] == ["other"]
    assert [one.stream for one in await client.groups.delete("billing")] == ["orders"]
    assert await client.groups.delete("billing") == []
    assert await client.groups.all() == []
    assert await taken(client, "orders") == [1]
    await client.delete_stream("orders")
    assert [one.stream for one in await client.groups.all()] == [None]
    await client.create_stream("orders", "orders")
    await publish(client, "orders", 7)
    assert await taken(client, "orders") == [7]


@needs_time
async def test_a_killed_broker_forgets_nothing_that_was_committed(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("orders", "orders")
            await publish(client, "orders", *range(5))
            async with client.consumer("orders", "billing", batch_rows_max=2) as consumer:
                await anext(consumer)
                await consumer.commit()
                await anext(consumer)
                broker.restart()  # kill -9
                rest = [batch.num_rows async for batch in consumer]
                assert rest == [1]
            (at,) = await client.groups.offsets("billing", "orders")
            assert at.offset == 5
        broker.restart()
        async with await broker.client() as client:
            assert await taken(client, "orders") == []
            assert [one.group for one in await client.groups.all()] == ["billing"]


@needs_time
async def test_the_next_leader_of_the_offsets_goes_on(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders", replicas=3)
            await publish(client, "orders", *range(6))
            async with client.consumer("orders", "billing", batch_rows_max=2) as consumer:
                await anext(consumer)
                await consumer.commit()
                (kept,) = [one for one in await client.streams() if one.name == "__offsets"]
                assert all(len(part.replicas) == 3 for part in kept.partitions)
                leader = kept.partitions[partition_of(b"billing", len(kept.partitions))].leader_id
                assert leader is not None
                cluster.brokers[leader].kill()
                await anext(consumer)
                await consumer.commit()
                assert consumer.positions == {0: 4}
        other = leader % 3 + 1
        async with cluster.client(other) as client:
            (at,) = await client.groups.offsets("billing", "orders", timeout=20.0)
            assert (at.offset, at.lag) == (4, 2)
            assert await taken(client, "orders", timeout=20.0) == [4, 5]


def interrupt(batch: object) -> None:
    """Ctrl-C, while a batch is in hand."""
    raise KeyboardInterrupt


@each_change
def test_the_blocking_face_does_the_same(broker: BrokerProcess) -> None:
    with penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders")
        client.append("orders", [{"value": b"%d" % number} for number in range(5)])
        with client.consumer("orders", "billing", batch_rows_max=3) as consumer:
            assert next(consumer).num_rows == 3
            consumer.commit()
        with client.consumer("orders", "billing") as consumer:
            assert [message.offset for message in consumer.messages()] == [3, 4]
            assert (consumer.group, consumer.positions) == ("billing", {0: 5})
        with client.consumer("orders", "billing") as consumer:
            assert list(consumer) == []
        with pytest.raises(KeyboardInterrupt), client.consumer("orders", "slow") as consumer:
            interrupt(next(consumer))
        assert [one.offset for one in client.groups.offsets("slow", "orders")] == [0]
        assert [one.group for one in client.groups.all()] == ["billing", "slow"]
        assert client.groups.reset("billing", "orders", 2)[0].offset == 2
        assert [one.group for one in client.groups.delete("slow")] == ["slow"]
        for name in ("", "a/b", "x" * 129):
            with pytest.raises(ValueError, match="group"):
                client.consumer("orders", name)
        with pytest.raises(TypeError, match="no option 'from'"):
            client.consumer("orders", "g", **{"from": 1})  # type: ignore[arg-type]


@needs_time
async def test_the_commands(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("orders", "orders")
    await publish(client, "orders", *range(6))

    def run(*args: str, code: int = 0, stdin: str | None = None) -> str:
        environment = {"PENSTOCK_SERVER": broker.client_address}
        result = CliRunner().invoke(app, list(args), input=stdin, env=environment)
        assert result.exit_code == code, result.output
        return result.output

    def read(*args: str) -> list[int]:
        lines = run("read", "orders", "--group", "billing", "--format", "json", *args).splitlines()
        return [json.loads(line)["offset"] for line in lines if line.startswith("{")]

    assert "no groups yet" in run("group", "list")
    assert read("--limit", "2") == [0, 1]
    assert read("--limit", "1") == [2]
    assert read() == [3, 4, 5]
    assert "group billing has read all messages" in run("read", "orders", "--group", "billing")
    assert "billing" in run("group", "list")
    (shown,) = map(json.loads, run("group", "show", "billing", "orders", "--json").splitlines())
    assert (shown["stream"], shown["offset"], shown["lag"], shown["committed_end"]) == ("orders", 6, 0, 6)
    run("stream", "create", "refunds", "refunds")
    for nowhere in (["nosuch", "orders"], ["billing", "refunds"], ["nosuch"], ["nosuch", "orders", "--json"]):
        said = run("group", "show", *nowhere, code=1)
        assert said.startswith(f"Error: group {nowhere[0]} has nothing committed")
        assert len(said.splitlines()) == 1
    run("publish", "refunds", "x")
    run("read", "refunds", "--group", "billing")
    both = [json.loads(line) for line in run("group", "show", "billing", "--json").splitlines()]
    assert [(one["stream"], one["offset"]) for one in both] == [("orders", 6), ("refunds", 1)]
    assert "refunds" in run("group", "show", "billing")
    assert "refunds" not in run("group", "show", "billing", "orders")
    run("group", "delete", "billing", "refunds", "--yes")
    run("stream", "delete", "refunds", "--yes")
    assert "6" in run("group", "show", "billing", "orders")
    said = run("group", "reset", "billing", "orders", "--to", "4", "--dry-run")
    assert said == "group billing would go on in orders at offset 4; it was at 6\n"
    assert read() == []
    assert "stays where it is" in run("group", "reset", "billing", "orders", "--to", "4", code=1, stdin="n\n")
    assert "goes on in orders at offset 4" in run("group", "reset", "billing", "orders", "--to", "4", stdin="y\n")
    assert read() == [4, 5]
    run("group", "reset", "billing", "orders", "--to", "1h ago", "--yes")
    assert read("--limit", "3") == [0, 1, 2]
    assert "any more in orders" in run("group", "delete", "billing", "--yes")
    run("group", "delete", "billing", "--yes", code=1)
    assert read("--from", "latest") == []
    for wrong in (["--to", "3"], ["--from", "-2"], ["--group", "a/b"]):
        run("read", "orders", "--group", "billing", *wrong, code=2)
    assert "give --to an offset in that range" in run("group", "reset", "billing", "orders", "--to", "99", code=1)
    assert "give --from an offset in that range" in run("read", "orders", "--group", "new", "--from", "99", code=1)
    run("group", "reset", "billing", "orders", "--to", "1", "--yes")
    for filters in (["--key", "a"], ["--key", ""], ["--subject", "orders"], ["--header", "A"]):
        assert "read without --group" in " ".join(run("read", "orders", "--group", "billing", *filters, code=2).split())
    run("stream", "truncate", "orders", "--before", "3", "--yes")
    gone = run("read", "orders", "--group", "billing", "--from", "earliest", code=1)
    assert "group 'billing' is at an offset that no longer exists" in gone
    assert "`penstock group reset billing orders --to earliest`" in gone
    assert "--from" not in gone
    run("group", "reset", "billing", "orders", "--to", "earliest", "--yes")
    assert read() == [3, 4, 5]
    names = [json.loads(line)["config"]["name"] for line in run("stream", "list", "--json").splitlines()]
    assert names == ["orders"]
    names = [json.loads(line)["config"]["name"] for line in run("stream", "list", "--all", "--json").splitlines()]
    assert names == ["__offsets", "orders"]


@each_change
async def test_offsets_beyond_the_end_are_refused_whoever_leads_the_partition(cluster: ClusterProcesses) -> None:
    """Of 24 groups each broker keeps the offsets of some, and leads one of the three partitions."""
    async with cluster.client(1) as client:
        stream = await client.create_stream("orders", "orders", partitions=3, partition_by="key", replicas=3)
        assert len({one.leader_id for one in (await client.stream("orders")).partitions}) == 3
        for number in range(24):
            group, partition = f"group-{number}", number % 3
            with pytest.raises(penstock.OffsetOutOfRange):
                await client.groups.commit(group, stream, {partition: 1_000})
