"""Messages with a time to live on real brokers: JetStream's answers, and gone for good on every replica."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import APIError
from typer.testing import CliRunner

import penstock
from penstock import aio
from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.cli_app import app
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses
from tests.integration.publishers import connected_to

CONFIG = {"allow_message_ttl": True, "dedup_window_ms": None}
SAID = (
    "1", "90", "001", "00", "000", "0", "0s", "1s", "999ms", "1500ms", "1.5s", ".5m", "1.m", "1h30m", "+5s", "-5s",
    "-5", "+5", "5x", "1d", "1 s", "soon", "never", "NEVER", "nevermore", "5us", "2000000us", "1e3s", ".s",
    "s", "1h1", "", "9000000000",
)  # fmt: skip


async def answers(js: JetStreamContext, subject: str) -> list[tuple[object, ...]]:
    """What a publisher hears of each: that it is stored, or code and text."""
    found: list[tuple[object, ...]] = []
    for said in SAID:
        try:
            await js.publish(subject, b"v", headers={"Nats-TTL": said})
            found.append((said, "stored"))
        except APIError as error:
            found.append((said, error.code, error.err_code, error.description))
    return found


async def add_stream(js: JetStreamContext, name: str, **config: bool) -> None:
    """One of JetStream's, with what its client does not know yet."""
    wanted = StreamConfig(name=name, subjects=[name]).as_dict() | config
    made = await js._api_request(f"{js._prefix}.STREAM.CREATE.{name}", json.dumps(wanted).encode())
    assert all(made["config"].get(field) == value for field, value in config.items())


@each_change
async def test_the_answers_are_those_of_jetstream(tmp_path: Path) -> None:
    with (
        running_nats(tmp_path / "real", f'jetstream {{ store_dir: "{tmp_path}/real/js" }}') as real,
        running_nats(tmp_path / "nats") as server,
        running_broker(tmp_path / "data", nats=server.url) as broker,
    ):
        async with (
            await broker.client() as client,
            connected_to(real.url) as beside,
            connected_to(server.url) as connection,
        ):
            await client.create_stream("allowed", "allowed", allow_message_ttl=True)
            await client.create_stream("plain", "plain")
            await add_stream(beside.jetstream(), "allowed", allow_msg_ttl=True)
            await add_stream(beside.jetstream(), "plain")
            for subject in ("allowed", "plain"):
                wanted = await answers(beside.jetstream(), subject)
                assert await answers(connection.jetstream(), subject) == wanted
                assert ("5x", 400, 10165, "invalid per-message TTL") in wanted
            assert ("90", 400, 10166, "per-message TTL is disabled") in wanted
            stored = [one.headers["Nats-TTL"] async for one in client.messages("plain")]
            assert stored == ["00", "000", ""]


async def values(client: aio.Client, stream: str) -> list[bytes | None]:
    return [message.value async for message in client.messages(stream)]


async def holds(client: aio.Client, wanted: list[bytes | None]) -> bool:
    return await values(client, "orders") == wanted


async def fill(js: JetStreamContext, subject: str, round_number: int) -> None:
    """Some that stay, between some that go."""
    for number in range(10):
        headers = {"Nats-TTL": "1"} if number % 3 else {"Nats-TTL": "1h"} if number % 2 else None
        await js.publish(subject, b"%d %d" % (round_number, number), headers=headers)


def kept(*rounds: int) -> list[bytes | None]:
    return [b"%d %d" % (one, number) for one in rounds for number in (0, 3, 6, 9)]


@needs_time
async def test_what_is_over_goes_also_after_a_kill(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client, connected_to(broker.nats_url) as connection:
            await client.create_stream("orders", "orders", **CONFIG)  # type: ignore[arg-type]
            await fill(connection.jetstream(), "orders", 0)
            await eventually(
                partial(holds, client, kept(0)), "what was to live for a second has gone, though nothing more came"
            )
            with pytest.raises(penstock.MessageNotFound, match="has expired"):
                await client.get("orders", 1)
            await fill(connection.jetstream(), "orders", 1)
        broker.kill()
        broker.start()
        async with await broker.client() as client:
            await eventually(partial(holds, client, kept(0, 1)), "it has gone after the start")
        shown = CliRunner().invoke(app, ["stream", "show", "orders"], env={"PENSTOCK_SERVER": broker.client_address})
        assert "allow-message-ttl" in shown.output
        assert broker.stop() == 0


async def test_a_batch_that_is_not_allowed(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("appended", "appended")
    rows = [{"value": b"1"}, {"value": b"2", "headers": {"Nats-TTL": "5"}}]
    with pytest.raises(penstock.RemoteError, match="does not allow"):
        await client.append("appended", rows)
    await client.alter_stream("appended", allow_message_ttl=True)
    await client.append("appended", rows)
    with pytest.raises(penstock.RemoteError, match="neither seconds"):
        await client.append("appended", [{"value": b"2", "headers": {"Nats-TTL": "5 s"}}])
    assert await values(client, "appended") == [b"1", b"2"]


@needs_time
async def test_it_goes_on_every_replica_and_stays_gone_when_another_one_leads(cluster: ClusterProcesses) -> None:
    async with cluster.client(1) as client, connected_to(client.nats_urls[0]) as connection:
        await client.create_stream("orders", "orders", replicas=3, **CONFIG)  # type: ignore[arg-type]
        await fill(connection.jetstream(), "orders", 0)
    other = 1
    for filled in ([0], [0, 1]):
        leader = await cluster.leader_of("orders", other)
        cluster.brokers[leader].kill()
        other = leader % 3 + 1
        await cluster.in_sync("orders", {1, 2, 3} - {leader}, other)
        async with cluster.client(other) as client, connected_to(client.nats_urls[0]) as connection:
            await eventually(partial(holds, client, kept(*filled)), "the next leader has let it go, too")
            await fill(connection.jetstream(), "orders", filled[-1] + 1)
        cluster.brokers[leader].launch()
        await cluster.in_sync("orders", {1, 2, 3}, other, 30.0)
