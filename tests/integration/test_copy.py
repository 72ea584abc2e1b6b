"""`penstock stream copy` with real brokers: the same rows at the same places, once, here and in another cluster."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import OffsetOutOfRange, aio, ops
from penstock.client.link.link import Link
from penstock.messages import AlterStreamRequest, AppendAtRequest
from tests.broker_process import BrokerProcess, eventually, running_broker
from tests.cli_process import command, launched
from tests.extent import needs_time
from tests.integration.clusters import running_cluster
from tests.integration.test_backup import row, rows_of


async def copy(broker: BrokerProcess, *arguments: str, code: int = 0) -> tuple[str, str]:
    return await command(broker.client_address, "stream", "copy", *arguments, code=code)


@needs_time
async def test_a_copy_has_the_same_rows_at_the_same_places(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("orders", "orders.*", max_age_ms=10**9, partitions=2, partition_by="key")
    for number in range(60):
        headers = {"Colour": "red"} if number % 3 else None
        await client.publish(f"orders.{number % 5}", b"%d" % number, key=f"k{number % 7}", headers=headers)
    said, errors = await copy(broker, "orders", "same")
    assert said == "copied 60 rows of stream orders to same, and compared them\n"
    assert "stream same is paused: run it again" in errors
    assert await rows_of(client, "same") == await rows_of(client, "orders")
    info = await client.stream("same")
    assert (info.intake, info.subject, info.config.max_age_ms) == ("paused", "orders.*", 10**9)
    # What has come since is brought the next time, and only that.
    await client.publish("orders.1", b"later", key="k1")
    said, _ = await copy(broker, "orders", "same", "--json")
    assert json.loads(said) == {"source": "orders", "target": "same", "rows": 1, "consumers": 0, "is_resumed": False}
    said, _ = await copy(broker, "orders", "same")
    assert said.startswith("copied 0 rows")
    assert await rows_of(client, "same") == await rows_of(client, "orders")
    # A sealed stream keeps all that it has: so does what is made of it.
    await client.seal_stream("orders")
    _, errors = await copy(broker, "orders", "archive")
    assert "stream archive gets no max_age: its source is sealed" in errors
    assert (await client.stream("archive")).config.max_age_ms is None


@needs_time
async def test_some_subjects_of_some_time(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("many", "orders.*.x")
    await client.append("many", [{"subject": f"orders.{n % 5}.x", "value": f"{n}"} for n in range(1_000)])
    said, _ = await copy(broker, "many", "some", "--subject", "orders.3.*", "--from", "100", "--until", "900")
    assert said.startswith("copied 160 rows")
    kept = [one for one in await rows_of(client, "many") if one[2] == "orders.3.x" and 100 <= int(str(one[0])) < 900]
    assert await rows_of(client, "some") == kept
    assert (await client.stream("some")).partitions[0].log_start == 100
    _, errors = await copy(broker, "many", "some", "--subject", "orders.3.*", "--from", "50", "--until", "900")
    assert "partition 0 of stream some begins at offset 100: earlier rows of many are not copied" in errors
    await client.create_stream("model", "nothing", compression="zstd", max_messages=50)
    await copy(broker, "many", "alike", "--like", "model")
    config = (await client.stream("alike")).config
    assert (config.compression, config.max_messages, config.subject) == ("zstd", 50, "orders.*.x")


@needs_time
async def test_what_cannot_be_copied_is_said(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("source", "source.*")
    await client.append("source", [{"subject": "source.a", "value": "1"}] * 3)
    await client.create_stream("open", "elsewhere")
    _, errors = await copy(broker, "source", "open", code=1)
    assert "exists, and is open" in errors
    _, errors = await copy(broker, "source", "source", code=2)
    assert "another name" in errors
    _, errors = await copy(broker, "source", "source", "--to-server", broker.client_address, code=2)
    assert "another name" in errors
    await client.create_stream("other", "source.*")
    await client.append("other", [{"subject": "source.b", "value": "1"}] * 2)
    await client.pause_stream("other")
    _, errors = await copy(broker, "source", "other", code=1)
    assert "holds another row at offset 1" in errors
    assert len(await rows_of(client, "other")) == 2


async def test_a_stream_that_is_no_copy_keeps_its_retention(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("kept", "kept.*")
    await client.append("kept", [{"subject": "kept.a", "value": "1"}])
    await client.create_stream("apart", "elsewhere.*", max_age_ms=10**9, max_bytes=10**7)
    await client.append("apart", [{"subject": "elsewhere.a", "value": "1"}])
    await client.pause_stream("apart")
    before = await client.stream("apart")
    _, errors = await copy(broker, "kept", "apart", code=1)
    assert "it is not a copy of it" in errors
    after = await client.stream("apart")
    assert after.config == before.config


@needs_time
async def test_a_copy_that_fails_in_the_midst_leaves_deletion_suspended(
    broker: BrokerProcess, client: aio.Client
) -> None:
    await client.create_stream("large", "large.*")
    await client.append("large", [{"subject": "large.a", "value": "1"}])
    await client.create_stream("small", "large.*", max_age_ms=10**9, max_message_bytes=1_000)
    await client.pause_stream("small")
    await copy(broker, "large", "small", "--like", "small")
    await client.append("large", [{"subject": "large.a", "value": "1" * 2_000}])
    _, errors = await copy(broker, "large", "small", "--like", "small", code=1)
    assert "is over the limit of 1000" in errors
    assert "`penstock stream alter small --suspend-deletion no`" in " ".join(errors.split())
    config = (await client.stream("small")).config
    assert (config.max_age_ms, config.suspend_deletion) == (10**9, "copying")
    assert len(await rows_of(client, "small")) == 1


@needs_time
async def test_deletion_that_a_killed_copy_has_left_suspended_is_shown(
    broker: BrokerProcess, client: aio.Client
) -> None:
    await client.create_stream("half", "half.*", max_age_ms=86_400_000, suspend_deletion="copying")
    fix = ("stream", "alter", "half", "--suspend-deletion", "no")
    for what in ("show", "resume"):
        _, errors = await command(broker.client_address, "stream", what, "half")
        assert f"`penstock {' '.join(fix)}`" in " ".join(errors.split())
    said, _ = await command(broker.client_address, "stream", "show", "half", "--json")
    assert json.loads(said)["config"]["suspend_deletion"] == "copying"
    await command(broker.client_address, *fix)
    _, errors = await command(broker.client_address, "stream", "show", "half")
    assert "suspended" not in errors
    config = (await client.stream("half")).config
    assert (config.max_age_ms, config.is_deletion_suspended) == (86_400_000, False)


@needs_time
async def test_a_copy_that_is_killed_goes_on_in_another_cluster_and_takes_over(
    broker: BrokerProcess, client: aio.Client, tmp_path: Path
) -> None:
    await client.create_stream("moving", "orders.*")
    for begin in range(0, 200_000, 10_000):
        await client.append("moving", [row(n, value=f"{n}" * 20) for n in range(begin, begin + 10_000)])
    with running_broker(tmp_path / "new") as new:
        async with await new.client() as there:
            arguments = ("moving", "moving", "--to-server", new.client_address)
            with launched(broker.client_address, "stream", "copy", *arguments):

                async def is_in_the_midst() -> bool:
                    try:
                        return (await there.offsets("moving", "latest")).offset > 0
                    except (penstock.StreamNotFound, penstock.StorageFailed):
                        return False

                await eventually(is_in_the_midst, "some rows are there")
            assert (await there.offsets("moving", "latest")).offset < 200_000, "it was killed in the midst"
            new.restart()
            assert (await there.stream("moving")).config.suspend_deletion == "copying"
            said, _ = await copy(broker, *arguments, "--resume")
            assert said.endswith("of stream moving to moving, and compared them\n")
            assert await rows_of(there, "moving") == await rows_of(client, "moving")
            assert not (await there.stream("moving")).config.is_deletion_suspended
            assert (await there.publish("orders.1", b"here")).offset == 200_000


@needs_time
@pytest.mark.parametrize("step", ["copying", "rows", "no"])
async def test_deletion_stays_suspended_where_a_leader_is_killed_during_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The metadata leader where deletion is suspended or resumed, the copy's leader where rows are put."""
    call, puts = Link.call, [0]

    async def struck(link: Link, request: Any, *args: Any, **options: Any) -> Any:
        puts[0] += isinstance(request, AppendAtRequest)
        is_altering = isinstance(request, AlterStreamRequest) and request.changes.get("suspend_deletion") == step
        if (is_altering or (step == "rows" and puts[0] == 2)) and victims:
            victims.pop().kill()
        return await call(link, request, *args, **options)

    def copy() -> ops.Copied:
        with penstock.connect(servers) as client:
            return ops.copy_stream(client, "orders", "copy", timeout=30.0)

    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        servers = ",".join(one.client_address for one in cluster.brokers.values())
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders.*", replicas=3)
            await client.append("orders", [row(n) for n in range(10)])
            await asyncio.to_thread(copy)
            await client.alter_stream("copy", max_messages=100)
            for begin in range(0, 40_000, 4_000):
                await client.append("orders", [row(n, value="v" * 300) for n in range(begin, begin + 4_000)])
            victim = await cluster.leader_of("copy") if step == "rows" else await cluster.metadata_leader()
        victims = [cluster.brokers[victim]]
        with monkeypatch.context() as patch:
            patch.setattr(Link, "call", struck)
            done = await asyncio.to_thread(copy)
        assert (done.rows, victims) == (40_000, [])
        async with cluster.client(victim % 3 + 1) as client:

            async def is_resumed() -> bool:  # this broker may hear of it after the leader has answered the copy
                return not (await client.stream("copy")).config.is_deletion_suspended

            async def is_limited() -> bool:
                try:
                    return len(await rows_of(client, "copy")) == 100
                except OffsetOutOfRange:  # the limit took what this was about to read
                    return False

            await eventually(is_resumed, "deletion is resumed")
            await eventually(is_limited, "its limit holds again")
