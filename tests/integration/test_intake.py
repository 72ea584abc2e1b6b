"""A stream that is paused, read-only or sealed, as publishers, readers and whoever looks at it see that."""

from __future__ import annotations

import json
from pathlib import Path

import nats.js.errors
import pytest
from typer.testing import CliRunner

import penstock
from penstock import aio
from tests.broker_process import BrokerProcess, running_broker
from tests.cli_app import app
from tests.extent import each_change, needs_time
from tests.integration.clusters import running_cluster
from tests.integration.publishers import connected_to


async def values(client: aio.Client, stream: str) -> list[bytes | None]:
    return [message.value async for message in client.messages(stream)]


@each_change
async def test_nobody_listens_for_a_paused_stream(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("rests", "rests")
    await client.publish("rests", b"1")
    info = await client.pause_stream("rests")
    assert (info.intake, info.partitions[0].state) == ("paused", "online")
    assert info.intake_us is not None
    assert await client.pause_stream("rests") == info
    async with connected_to(client.nats_urls[0]) as connection:
        with pytest.raises(nats.js.errors.NoStreamResponseError):
            await connection.jetstream().publish("rests", b"2")
    with pytest.raises(penstock.ReadOnly, match="is paused, so it was not stored"):
        await client.publish("rests", b"2")
    with pytest.raises(penstock.ReadOnly, match="it is paused"):
        await client.append("rests", [{"value": b"2", "subject": "rests"}])
    assert await values(client, "rests") == [b"1"]
    again = await client.create_stream("rests", "rests")
    assert (again.stream_id, again.intake) == (info.stream_id, "paused")
    assert (await client.resume_stream("rests")).intake == "open"
    ack = await client.publish("rests", b"3")
    assert ack is not None
    assert ack.offset == 1
    assert (await client.stream("rests")).partitions[0].gaps == ()


async def test_messages_to_a_read_only_stream_are_refused(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("museum", "museum")
    await client.publish("museum", b"1")
    assert (await client.make_read_only("museum")).intake == "read_only"
    async with connected_to(client.nats_urls[0]) as connection:
        with pytest.raises(nats.js.errors.APIError) as refused:
            await connection.jetstream().publish("museum", b"2")
    assert (refused.value.code, refused.value.err_code) == (400, 10109)
    with pytest.raises(penstock.ReadOnly, match="it is read only"):
        await client.publish("museum", b"2")
    assert (await client.stream("museum")).partitions[0].dropped == {"read_only": 2}
    assert [one.log_start for one in await client.truncate_stream("museum", 1)] == [1]
    await client.resume_stream("museum")
    await client.publish("museum", b"3")
    assert await values(client, "museum") == [b"3"]


@needs_time
async def test_a_sealed_stream_stays_so_when_its_broker_is_killed(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("deed", "deed", max_messages=5)
            await client.publish("deed", b"1")
            await client.seal_stream("deed")
        broker.restart()
        async with await broker.client() as client:
            assert (await client.stream("deed")).intake == "sealed"
            for change in (client.resume_stream, client.pause_stream, client.make_read_only):
                with pytest.raises(penstock.ReadOnly, match="sealed, for good"):
                    await change("deed")
            with pytest.raises(penstock.ReadOnly, match="unless it is deleted as a whole"):
                await client.truncate_stream("deed", 1)
            with pytest.raises(penstock.InvalidConfig, match="because the stream is sealed"):
                await client.alter_stream("deed", max_age_ms=1)
            with pytest.raises(penstock.ReadOnly, match="invalid operation on sealed stream"):
                await client.publish("deed", b"2")
            assert await values(client, "deed") == [b"1"]
            await client.delete_stream("deed")


@needs_time
async def test_a_pause_outlives_the_leader(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders.>", replicas=3)
            await client.publish("orders.a", b"1")
            await client.pause_stream("orders")
        leader = await cluster.leader_of("orders")
        cluster.brokers[leader].kill()
        other = leader % 3 + 1
        await cluster.in_sync("orders", {1, 2, 3} - {leader}, other)
        async with cluster.client(other) as client:
            with pytest.raises(penstock.ReadOnly):
                await client.publish("orders.a", b"2")
            await client.resume_stream("orders", timeout=20.0)
            ack = await client.publish("orders.a", b"3")
            assert ack is not None
            assert (ack.offset, ack.leader_epoch) == (1, 2)


@each_change
async def test_the_commands(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("life", "life")

    def run(*args: str, code: int = 0, stdin: bytes | None = None) -> str:
        environment = {"PENSTOCK_SERVER": broker.client_address}
        result = CliRunner().invoke(app, ["stream", *args], input=stdin, env=environment)
        assert result.exit_code == code, result.output
        return result.output

    assert run("pause", "life") == "stream life is paused: brokers do not subscribe to life for it\n"
    assert json.loads(run("show", "life", "--json"))["intake"] == "paused"
    shown = run("show", "life")
    assert "paused since" in shown
    assert "is starting" not in shown
    assert "paused" in next(line for line in run("list").splitlines() if line.startswith("life"))
    assert run("resume", "life") == "stream life takes messages: it stores life\n"
    assert run("read-only", "life") == "stream life is read-only\n"
    assert "read-only since" in run("show", "life")
    assert run("pause", "life").startswith("stream life is paused, and no longer read-only: ")
    refused = run("read-only", "life", "--off", code=2)
    assert "stream life is paused, and not read-only: `penstock stream resume life`" in refused
    assert "paused since" in run("show", "life")
    assert run("read-only", "life") == "stream life is read-only, and no longer paused\n"
    assert run("read-only", "life", "--off") == "stream life takes messages\n"
    for closed, said in (("pause", "is paused"), ("read-only", "'life' takes no messages: it is read only")):
        run(closed, "life")
        done = CliRunner().invoke(app, ["publish", "life", "x"], env={"PENSTOCK_SERVER": broker.client_address})
        assert done.exit_code == 1
        assert said in done.output
        assert done.output.endswith("\n  `penstock stream resume life` lets it accept messages again\n")
    assert "takes no messages again" in run("seal", "life", code=1, stdin=b"n\n")
    assert "is sealed" in run("seal", "life", stdin=b"y\n")
    assert "for good" in run("resume", "life", code=1)
