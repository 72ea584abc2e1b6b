"""Messages that others go for, on real brokers: JetStream's answers, and gone for good on every replica."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from pathlib import Path

import pytest
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext
from nats.js.api import PubAck, StreamConfig
from nats.js.errors import APIError, NotFoundError
from typer.testing import CliRunner

import penstock
from penstock import aio
from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.cli_app import app
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses
from tests.integration.publishers import connected_to
from tests.integration.test_message_ttl import add_stream, values

CONFIG = {"allow_rollup": True, "segment_age_ms": 1_000, "dedup_window_ms": None}
SAID = ("sub", "Sub", "SUB", "all", "ALL", "", "none", "subject", "sub,all", "al", "1")


async def answers(js: JetStreamContext, subject: str, **more: str) -> list[tuple[object, ...]]:
    """What a publisher hears of each: that it is stored, or the codes; and what is there in the end."""
    found: list[tuple[object, ...]] = []
    for said in SAID:
        headers = {"Nats-Rollup": said} | {name.replace("_", "-"): value for name, value in more.items()}
        try:
            await js.publish(subject, b"v", headers=headers)
            found.append((said, "stored"))
        except APIError as error:
            is_disabled = error.description == "rollup not permitted"
            found.append((said, error.code, error.err_code, is_disabled))
    return found


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
            await client.create_stream("allowed", "allowed", allow_rollup=True)
            await client.create_stream("plain", "plain")
            await add_stream(beside.jetstream(), "allowed", allow_rollup_hdrs=True)
            await add_stream(beside.jetstream(), "plain")
            for subject in ("allowed", "plain"):
                wanted = await answers(beside.jetstream(), subject)
                assert await answers(connection.jetstream(), subject) == wanted
                wrong = await answers(beside.jetstream(), subject, Nats_Expected_Last_Sequence="999")
                assert await answers(connection.jetstream(), subject, Nats_Expected_Last_Sequence="999") == wrong
                assert (subject == "plain") == (("sub", 500, 10111, True) in wanted)
            assert ("subject", 500, 10111, False) in await answers(connection.jetstream(), "allowed")


async def holds(client: aio.Client, wanted: list[bytes | None], stream: str = "orders") -> bool:
    try:
        return await values(client, stream) == wanted
    except penstock.OffsetOutOfRange:  # what it began with has gone since
        return False


async def rolled(js: JetStreamContext, subject: str, said: str, value: bytes) -> None:
    await js.publish(subject, value, headers={"Nats-Rollup": said})


@each_change
@pytest.mark.parametrize("limit", [None, 1, 3])
async def test_what_is_left_is_what_jetstream_leaves(tmp_path: Path, limit: int | None) -> None:
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
            config: dict[str, object] = {"allow_rollup": True, "max_messages_per_subject": limit}
            await client.create_stream("orders", "orders.>", segment_bytes=4_096, **config)  # type: ignore[arg-type]
            made = StreamConfig(name="orders", subjects=["orders.>"], max_msgs_per_subject=limit or -1)
            js, ours = beside.jetstream(), connection.jetstream()
            wanted = made.as_dict() | {"allow_rollup_hdrs": True}
            await js._api_request(f"{js._prefix}.STREAM.CREATE.orders", json.dumps(wanted).encode())
            for number in range(90):
                subject, value = f"orders.{'abc'[number * 7 % 3]}", b"%d" % number + b"." * 150
                headers = {"Nats-Rollup": "all" if number % 29 == 28 else "sub"} if number % 8 == 4 else None
                one, other = [await each.publish(subject, value, headers=headers) for each in (js, ours)]
                assert one.seq == other.seq
                if headers is not None and headers["Nats-Rollup"] == "all":
                    await eventually(partial(begins_at, client, number), "the log begins there")
                if number % 10 == 9:
                    left = [message async for message in client.messages("orders")]
                    assert [one.offset + 1 for one in left] == await sequences(js, number + 1)
                    info = await js.stream_info("orders")
                    assert await client.row_count("orders") == info.state.messages


async def sequences(js: JetStreamContext, end: int) -> list[int]:
    """Of the messages that JetStream has, up to the end."""
    found = []
    for sequence in range(1, end + 1):
        with contextlib.suppress(NotFoundError):
            found.append((await js.get_msg("orders", sequence)).seq)
    return [one for one in found if one is not None]


@needs_time
async def test_what_is_to_go_is_not_shown_from_the_ack_on_nor_after_a_kill(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client, connected_to(broker.nats_url) as connection:
            js = connection.jetstream()
            await client.create_stream("orders", "orders.>", **CONFIG)  # type: ignore[arg-type]
            for number in range(20):
                await js.publish(f"orders.{number % 2}", b"%d" % number)
            await rolled(js, "orders.0", "sub", b"sub")
            assert await values(client, "orders") == [*(b"%d" % number for number in range(1, 20, 2)), b"sub"]
            with pytest.raises(penstock.MessageNotFound, match="deleted"):
                await client.get("orders", 0)
            await rolled(js, "orders.1", "sub", b"again")
            broker.kill()
        broker.start()
        async with await broker.client() as client, connected_to(broker.nats_url) as connection:
            assert await values(client, "orders") == [b"sub", b"again"]
            await rolled(connection.jetstream(), "orders.1", "all", b"all")
            await eventually(partial(holds, client, [b"all"]), "all have gone")
            await eventually(partial(begins_at, client, 22), "the log begins there")
        broker.kill()
        broker.start()
        async with await broker.client() as client:
            assert await values(client, "orders") == [b"all"]
        shown = CliRunner().invoke(app, ["stream", "show", "orders"], env={"PENSTOCK_SERVER": broker.client_address})
        assert "allow-rollup" in shown.output
        assert broker.stop() == 0


async def begins_at(client: aio.Client, offset: int) -> bool:
    return (await client.stream("orders")).partitions[0].log_start == offset


async def published(js: JetStreamContext, subject: str, value: bytes, headers: dict[str, str] | None = None) -> PubAck:
    """Publish until it is acked: a leader may be elected just then. It may be stored twice."""
    while True:
        with contextlib.suppress(NatsTimeoutError):
            return await js.publish(subject, value, timeout=2.0, headers=headers)


@needs_time
async def test_each_replica_shows_a_rollup_or_what_is_before_it_also_when_its_leader_is_killed(
    cluster: ClusterProcesses,
) -> None:
    async with cluster.client(1) as client:
        await client.create_stream("orders", "orders.>", replicas=3, **CONFIG)  # type: ignore[arg-type]
    other, before, kept = 1, 0, 0
    for _ in range(2):
        leader = await cluster.leader_of("orders", other)
        other = leader % 3 + 1
        async with cluster.client(other) as client, connected_to(client.nats_urls[0]) as connection:
            js = connection.jetstream()
            for _ in range(10):
                for _ in range(3):
                    await published(js, "orders.a", b"before")
                    await published(js, "orders.b", b"kept")
                    kept += 1
                ack = await published(js, "orders.a", b"rollup", headers={"Nats-Rollup": "sub"})
                for which in ("followers", "any", "leader"):
                    rows = [one async for one in client.messages("orders", read_from=which)]  # type: ignore[arg-type]
                    # A read takes several requests: it may see the end of the log before, and what is there after.
                    of_a = [one.offset + 1 for one in rows if one.subject == "orders.a"]
                    assert not of_a or of_a[0] >= before
                    assert which != "leader" or of_a == [ack.seq]
                before = ack.seq
            cluster.brokers[leader].kill()
            rows = [one async for one in client.messages("orders")]
            assert [one.offset + 1 for one in rows if one.subject == "orders.a"] == [ack.seq]
            assert len(rows) > kept
        cluster.brokers[leader].launch()
        await cluster.in_sync("orders", {1, 2, 3}, other, 30.0)


@each_change
async def test_a_batch_that_is_not_allowed(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("appended", "appended")
    rows = [{"value": b"1"}, {"value": b"2", "headers": {"Nats-Rollup": "all"}}, {"value": b"3"}]
    with pytest.raises(penstock.RemoteError, match="does not allow"):
        await client.append("appended", rows)
    await client.alter_stream("appended", allow_rollup=True)
    await client.append("appended", rows)
    with pytest.raises(penstock.RemoteError, match="neither"):
        await client.append("appended", [{"value": b"2", "headers": {"Nats-Rollup": "some"}}])
    await eventually(partial(holds, client, [b"2", b"3"], "appended"), "what came before it has gone")


@needs_time
async def test_it_is_gone_on_every_replica_and_stays_gone_when_its_leader_is_killed_at_once(
    cluster: ClusterProcesses,
) -> None:
    async with cluster.client(1) as client:
        await client.create_stream("orders", "orders", replicas=3, **CONFIG)  # type: ignore[arg-type]
    other = 1
    for number in range(2):
        leader = await cluster.leader_of("orders", other)
        other = leader % 3 + 1
        async with cluster.client(other) as client, connected_to(client.nats_urls[0]) as connection:
            for _ in range(5):
                await connection.jetstream().publish("orders", b"gone")
            await rolled(connection.jetstream(), "orders", "all", b"%d" % number)
            cluster.brokers[leader].kill()
        await cluster.in_sync("orders", {1, 2, 3} - {leader}, other)
        async with cluster.client(other) as client:
            await eventually(partial(holds, client, [b"%d" % number]), "the next leader goes on")
        cluster.brokers[leader].launch()
        await cluster.in_sync("orders", {1, 2, 3}, other, 30.0)
    for broker_id in (1, 2, 3):
        async with cluster.client(broker_id) as client:
            assert (await client.stream("orders")).partitions[0].log_start == 11
