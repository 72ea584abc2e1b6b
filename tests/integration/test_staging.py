"""Rows that are staged and published exactly once: by a real client, through kill -9, failovers and what is lost."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock
from penstock import aio
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionId, StreamId
from penstock.base.staged import plan_mark, plan_offset, staged_name
from penstock.client.append import staged_runs
from penstock.client.append.staged_runs import PublishRun, StagedBatch
from penstock.client.append.staging import Staged
from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.cli_app import app
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses
from tests.integration.in_process import MovedClock, broker_with_clock
from tests.integration.test_cluster import another, stream_led_by

_names = (f"lines{number}" for number in count())


def rows(*numbers: int) -> list[dict[str, object]]:
    return [{"key": b"k%d" % number, "value": b"%d" % number} for number in numbers]


async def stored(client: aio.Client, name: str, partition: int = 0) -> list[int]:
    return [int(message.value or b"") async for message in client.messages(name, partition=partition)]


async def with_stream(client: aio.Client, **config: object) -> str:
    name = next(_names)
    await client.create_stream(name, name, **config)  # type: ignore[arg-type]
    return name


@each_change
async def test_what_is_published_comes_once_and_whole(client: aio.Client) -> None:
    name = await with_stream(client, partitions=2)
    query = uuid4()
    first = await client.staging.stage(name, rows(1, 2), partition=1)
    second = await client.staging.stage(name, rows(3), partition=1)
    assert (first.rows, second.rows, first.partition) == (2, 1, 1)
    assert first.size_bytes > 720
    assert await stored(client, name, 1) == []
    again = Staged.from_dict(json.loads(json.dumps(first.to_dict())))
    assert again == first
    publish = client.staging.publish
    done = await publish(name, [second, again], query_id=query, batch_id=0, partition=1)
    assert done == (0, 3, 3, False, False)
    other = await client.staging.stage(name, rows(9), partition=1)
    assert await publish(name, [other], query_id=str(query), batch_id=0, partition=1) == (0, 3, 3, True, False)
    assert await publish(name, [other], query_id=query.bytes, batch_id=5, partition=1) == (3, 4, 1, False, False)
    assert await publish(name, [first], query_id=query, batch_id=0, partition=1) == (None, None, None, True, True)
    assert await publish(name, [], query_id=query, batch_id=6, partition=1) == (None, None, 0, False, False)
    assert await stored(client, name, 1) == [3, 1, 2, 9]
    assert (await client.get(name, 2, partition=1)).value == b"2"
    assert (await client.last(name, key="k3", partition=1)).offset == 0
    assert (await client.to_table(name, partition=1, columns=["key"])).column(0).to_pylist() == [
        b"k3",
        b"k1",
        b"k2",
        b"k9",
    ]
    (known,) = await client.staging.queries(name)
    assert known[:6] == (1, query, 5, 1, True, 3)
    assert await client.staging.queries(name, partition=0) == []
    assert [info.name for info in await client.streams() if not info.config.is_internal].count(name) == 1


async def test_what_cannot_be_is_refused(client: aio.Client) -> None:
    name = await with_stream(client, max_message_bytes=100)
    staging = client.staging
    with pytest.raises(RemoteError, match="over the limit of 100"):
        await staging.stage(name, [{"value": b"x" * 101}])
    with pytest.raises(penstock.StreamNotFound):
        await staging.stage("nowhere", rows(1))
    with pytest.raises(ValueError, match="unknown columns"):
        await staging.stage(name, [{"value": b"a", "colour": b"1"}])
    one = await staging.stage(name, rows(1))
    with pytest.raises(ValueError, match="not all zeros"):
        await staging.publish(name, [one], query_id=bytes(16), batch_id=0)
    with pytest.raises(ValueError, match="they count from 0"):
        await staging.publish(name, [one], query_id=uuid4(), batch_id=-1)
    other = await with_stream(client, partitions=2)
    with pytest.raises(penstock.StreamChanged, match="were staged for stream"):
        await staging.publish(other, [one], query_id=uuid4(), batch_id=0)
    two = await staging.stage(other, rows(1), partition=1)
    with pytest.raises(ValueError, match="for partition 1"):
        await staging.publish(other, [two], query_id=uuid4(), batch_id=0)
    with pytest.raises(ValueError, match="not what was staged"):
        Staged.from_dict({"stream_id": "x"})
    await client.make_read_only(name)
    with pytest.raises(penstock.ReadOnly):
        await staging.publish(name, [one], query_id=uuid4(), batch_id=0)
    await client.resume_stream(name)
    assert (await staging.publish(name, [one], query_id=uuid4(), batch_id=0)).rows == 1


@each_change
async def test_rows_that_are_gone_are_said_to_be(client: aio.Client) -> None:
    name = await with_stream(client)
    one = await client.staging.stage(name, rows(1))
    batch = one.batches[0]
    for lost in (
        one.__class__(one.stream_id, 0, one.staged_stream_id, (batch.__class__(5, 6, batch.leader_epoch, 9),)),
        one.__class__(one.stream_id, 0, one.staged_stream_id, (batch.__class__(0, 1, batch.leader_epoch + 1, 9),)),
        one.__class__(one.stream_id, 0, one.staged_stream_id + 1, one.batches),
    ):
        with pytest.raises((penstock.StagedLost, penstock.TimedOut)):
            await client.staging.publish(name, [lost], query_id=uuid4(), batch_id=0, timeout=1.0)
    await client.delete_stream(name)
    with pytest.raises((penstock.StreamChanged, penstock.StreamNotFound)):
        await client.staging.publish(name, [one], query_id=uuid4(), batch_id=0)
    await client.create_stream(name, name)
    with pytest.raises(penstock.StreamChanged):
        await client.staging.publish(name, [one], query_id=uuid4(), batch_id=0)
    again = await client.staging.stage(name, rows(7))
    assert again.stream_id != one.stream_id
    assert (await client.staging.publish(name, [again], query_id=uuid4(), batch_id=0)).rows == 1
    assert await stored(client, name) == [7]


async def test_a_large_batch_goes_in_pieces(client: aio.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_ROWS_MAX", 4)  # in this process: the broker takes more
    name = await with_stream(client)
    query = uuid4()
    staged = [await client.staging.stage(name, rows(*range(3 * number, 3 * number + 3))) for number in range(5)]
    done = await client.staging.publish(name, staged, query_id=query, batch_id=3)
    assert done == (0, 15, 15, False, False)
    assert await stored(client, name) == list(range(15))
    (known,) = await client.staging.queries(name)
    assert (known.batch_id, known.pieces, known.is_complete) == (3, 5, True)
    assert (await client.staging.publish(name, staged, query_id=query, batch_id=3)).duplicate
    assert await stored(client, name) == list(range(15))


async def driver_of(
    client: aio.Client, name: str, query: UUID, staged: Sequence[Staged]
) -> tuple[PublishRun, list[tuple[StagedBatch, ...]]]:
    """What publishes batch 0 of a query step by step, so that it can be killed between two, and its pieces."""
    info = await client.stream(name)
    holder = StreamId(staged[0].staged_stream_id)
    run = PublishRun(client._link, info.stream_id, PartitionId(0), holder, query.bytes, 0, float("inf"))
    return run, staged_runs._pieces([batch for one in staged for batch in one.batches])


async def test_another_attempt_goes_on_by_the_plan_of_the_first(
    client: aio.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of an attempt come in another order, cut otherwise: none of them is published."""
    monkeypatch.setattr(limits, "BATCH_ROWS_MAX", 4)
    name = await with_stream(client)
    query = uuid4()
    first = [await client.staging.stage(name, rows(*range(3 * number, 3 * number + 3))) for number in range(5)]
    second = [await client.staging.stage(name, rows(*range(100 + number, 102 + number))) for number in range(0, 15, 2)]
    run, pieces = await driver_of(client, name, query, first)
    plan = await run._write_plan(pieces)
    for number in range(2):  # then its driver is killed
        await run._ask(pieces[number], number, plan, is_last=False)
    assert await stored(client, name) == list(range(6))
    with pytest.raises(RemoteError) as unfinished:
        await client.staging.publish(name, second, query_id=query, batch_id=1)
    assert unfinished.value.code == ErrorCode.RUN_UNFINISHED
    monkeypatch.setattr(limits, "BATCH_ROWS_MAX", 100)
    done = await client.staging.publish(name, second, query_id=query, batch_id=0)  # as one piece, it would be
    assert done == (None, 15, 15, False, False)
    assert await stored(client, name) == list(range(15))
    assert await client.staging.publish(name, second, query_id=query, batch_id=0) == (None, None, None, True, False)


async def test_a_plan_is_not_taken_for_one_that_lay_at_its_offset(
    client: aio.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Power loss took a plan of which a piece was published, and another attempt's was staged in its place."""
    monkeypatch.setattr(limits, "BATCH_ROWS_MAX", 4)
    name = await with_stream(client)
    query = uuid4()
    staged = [await client.staging.stage(name, rows(*range(3 * number, 3 * number + 3))) for number in range(3)]
    run, pieces = await driver_of(client, name, query, staged)
    there = await run._write_plan(pieces)
    lost = plan_mark(plan_offset(there), pieces[0][0].leader_epoch + 1)
    await run._ask(pieces[0], 0, lost, is_last=False)
    with pytest.raises(penstock.StagedLost, match="where something else is stored now"):
        await client.staging.publish(name, staged, query_id=query, batch_id=0)
    assert await stored(client, name) == [0, 1, 2]


async def test_the_blocking_face_does_the_same(broker: BrokerProcess, client: aio.Client) -> None:
    name = await with_stream(client)

    def publish() -> None:
        with penstock.connect(broker.client_address) as blocking:
            table = pa.table({"value": pa.array([b"%d" % number for number in range(100_000)], pa.binary())})
            staged = blocking.staging.stage(name, table)
            query = uuid4()
            done = blocking.staging.publish(name, [staged], query_id=query, batch_id=0)
            assert done == (0, 100_000, 100_000, False, False)
            assert blocking.staging.queries(name)[0].query_id == query
            assert blocking.staging.publish(name, [staged], query_id=query, batch_id=0).duplicate

    await asyncio.to_thread(publish)
    assert (await client.to_table(name, columns=["value"])).num_rows == 100_000


@needs_time
async def test_it_is_published_once_through_kill_9(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            name = await with_stream(client)
            query = uuid4()
            done = 0

            async def publish() -> None:
                nonlocal done
                for number in range(30):
                    staged = [await client.staging.stage(name, rows(2 * number, 2 * number + 1)) for _ in range(2)]
                    await client.staging.publish(name, staged[1:], query_id=query, batch_id=number)
                    await client.staging.publish(name, staged[:1], query_id=query, batch_id=number)
                    done += 1

            publishing = asyncio.create_task(publish())
            for wanted in (4, 12):

                async def some(wanted: int = wanted) -> bool:
                    return done > wanted

                await eventually(some, "some are published")
                broker.kill()
                broker.restart()
            await publishing
            assert await stored(client, name) == list(range(60))


@needs_time
async def test_it_is_published_once_while_one_leader_follows_the_other(
    cluster: ClusterProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two attempts at once at each batch, some of several pieces; leaders are killed between any two steps."""
    monkeypatch.setattr(limits, "BATCH_ROWS_MAX", 5)
    name = await stream_led_by(cluster, False)
    victim = await cluster.leader_of(name)
    other = another(cluster, victim)
    chance = random.Random(7)
    query = UUID(int=7)
    done = 0

    async with cluster.client(other) as client:
        subject = (await client.stream(name)).subject.replace(">", "x")

        async def attempt(batch: int) -> None:
            numbers = list(range(10 * batch, 10 * batch + 10))
            chance.shuffle(numbers)
            cut = chance.randrange(1, 10)
            staged = [
                await client.staging.stage(name, [{**row, "subject": subject} for row in rows(*part)])
                for part in (numbers[:cut], numbers[cut:])
            ]
            await client.staging.publish(name, staged, query_id=query, batch_id=batch)

        async def publish() -> None:
            nonlocal done
            for batch in range(40):
                await asyncio.gather(attempt(batch), attempt(batch))
                done += 1

        async def some() -> bool:
            return done > 12

        publishing = asyncio.create_task(publish())
        await eventually(some, "some are published")
        cluster.brokers[victim].kill()
        await publishing
        assert await cluster.leader_of(name, other) != victim
        found = await stored(client, name)
        assert [sorted(found[start : start + 10]) for start in range(0, 400, 10)] == [
            list(range(start, start + 10)) for start in range(0, 400, 10)
        ]
        assert len(found) == 400


@each_change
async def test_queries_are_listed(broker: BrokerProcess, client: aio.Client) -> None:
    name = await with_stream(client, partitions=2)

    def run(*args: str) -> str:
        environment = {"PENSTOCK_SERVER": broker.client_address, "COLUMNS": "140"}
        result = CliRunner().invoke(app, ["stream", "show", name, "--queries", *args], env=environment)
        assert result.exit_code == 0, result.output
        return result.output

    assert "no query has published" in await asyncio.to_thread(run)
    query = UUID(int=5)
    staged = await client.staging.stage(name, rows(1, 2), partition=1)
    await client.staging.publish(name, [staged], query_id=query, batch_id=4, partition=1)
    line = (await asyncio.to_thread(run)).splitlines()[-1].split()
    assert line[:5] == ["1", str(query), "4", "1", "1"]
    found = json.loads(await asyncio.to_thread(run, "--json"))
    assert (found["query_id"], found["batch_id"], found["is_complete"]) == (str(query), 4, True)


@each_change
async def test_the_disk_is_free_again_once_staged_rows_are_published(tmp_path: Path) -> None:
    clock = MovedClock()
    with running_nats(tmp_path / "nats") as nats_server:
        async with (
            broker_with_clock(tmp_path / "data", nats_server.url, clock) as address,
            await aio.connect(address) as client,
        ):
            info = await client.create_stream("orders", "orders", segment_bytes=65_536)
            query, data = uuid4(), [{"value": bytes(10_000)}] * 5
            folder = f"*-{staged_name(info.stream_id)}"

            def taken() -> int:
                (staged,) = (tmp_path / "data" / "streams").glob(folder)
                sizes = []
                for one in staged.rglob("*.arrows"):
                    with suppress(FileNotFoundError):  # the broker removes files meanwhile
                        sizes.append(one.stat().st_size)
                return sum(sizes)

            for number in range(6):
                rows = await client.staging.stage(info, data, query_id=query, batch_id=number)
                await client.staging.publish(info, [rows], query_id=query, batch_id=number)
            waits = await client.staging.stage(info, data, query_id=query, batch_id=6)
            assert taken() > 7 * 50_000

            async def is_free() -> bool:
                clock.elapsed_us += limits.STAGED_KEEP_MS * 1_000 // 2
                clock.wall_us += limits.STAGED_KEEP_MS * 1_000 // 2
                await client.status()
                return taken() < 3 * 50_000

            await eventually(is_free, "the folder of what is staged shrinks")
            assert (await client.staging.publish(info, [waits], query_id=query, batch_id=6)).rows == 5
            assert len(await client.to_table(info)) == 35


async def test_rows_are_published_as_the_batch_for_which_they_are_staged(client: aio.Client) -> None:
    name, query = await with_stream(client), uuid4()
    rows_of_7 = await client.staging.stage(name, rows(1), query_id=query, batch_id=7)
    for other in ({"query_id": query, "batch_id": 8}, {"query_id": uuid4(), "batch_id": 7}):
        with pytest.raises(RemoteError, match="staged for batch 7 of query") as refused:
            await client.staging.publish(name, [rows_of_7], **other)  # type: ignore[arg-type]
        assert refused.value.code == ErrorCode.BAD_REQUEST
    assert (await client.staging.publish(name, [rows_of_7], query_id=query, batch_id=7)).rows == 1
    with pytest.raises(ValueError, match="both query_id and batch_id"):
        await client.staging.stage(name, rows(2), query_id=query)
    with pytest.raises(ValueError, match="both query_id and batch_id"):
        await client.staging.stage(name, rows(2), batch_id=0)
    with pytest.raises(ValueError, match="they count from 0"):
        await client.staging.stage(name, rows(2), query_id=query, batch_id=-1)
