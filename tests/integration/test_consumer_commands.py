"""Consumers of JetStream's API through Penstock's client and `penstock consumer`, beside nats-py, on a real broker."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import nats
import pytest
from typer.testing import CliRunner

import penstock
from penstock import aio
from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.cli_app import app
from tests.extent import each_change
from tests.integration.clusters import ClusterProcesses
from tests.integration.test_jetstream_readers import delivering
from tests.integration.test_jetstream_streams import api_options, connected
from tests.ports import free_ports

pytestmark = each_change
HOUR_S = 3_600.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path / "data", *api_options()) as running:
        yield running


async def fill(client: aio.Client) -> None:
    await client.create_stream("orders", "orders.*")
    for number in range(6):
        await client.publish(f"orders.{number % 2}", b"%d" % number)


def run(broker: BrokerProcess, *args: str, code: int = 0, stdin: str | None = None) -> str:
    environment = {"PENSTOCK_SERVER": broker.client_address, "COLUMNS": "200"}
    result = CliRunner().invoke(app, ["consumer", *args], input=stdin, env=environment)
    assert result.exit_code == code, result.output
    return result.output


async def test_the_client_steers_what_nats_clients_read(broker: BrokerProcess) -> None:
    async with aio.connect(broker.client_address) as client:
        await fill(client)
        assert await client.consumers.all("orders") == []
        made = await client.consumers.create(
            "orders", "c", subject="orders.0", start=2, acks="none", inactive_after=HOUR_S, description="of a test"
        )
        assert (made.stream, made.filters, made.pending, made.ack_policy) == ("orders", ("orders.0",), 2, "none")
        assert [one.offset for one in await client.consumers.peek("orders", "c")] == [2, 4]
        connection = await nats.connect(broker.nats_url)
        try:
            js = connection.jetstream()
            (message,) = await (await js.pull_subscribe_bind(consumer="c", stream="orders")).fetch(1)
        finally:
            await connection.close()
        assert message.data == b"2"
        info = await client.consumers.info("orders", "c")
        assert (info.next_offset, info.acked_end, info.deliveries, info.pending) == (3, 3, 1, 1)
        assert info.last_delivered is not None
        assert [one.value for one in await client.consumers.peek("orders", "c", 1)] == [b"4"]
        paused = await client.consumers.pause("orders", "c", timedelta(hours=1))
        assert paused.paused_until is not None
        assert (await client.consumers.pause("orders", "c")).paused_until is not None
        assert (await client.consumers.resume("orders", "c")).paused_until is None
        assert (await client.consumers.reset("orders", "c", 2)).pending == 2
        with pytest.raises(penstock.ConsumerExists):
            await client.consumers.create("orders", "c", acks="none", inactive_after=HOUR_S)
        await client.consumers.delete("orders", "c")
        with pytest.raises(penstock.ConsumerNotFound):
            await client.consumers.info("orders", "c")
        with pytest.raises(penstock.ConsumerNotFound):
            await client.consumers.peek("orders", "c")


async def test_consumers_of_several_partitions_at_several_leaders(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with running_nats(tmp_path / "nats", f'leafnodes {{ listen: "127.0.0.1:{port}" }}\n') as server:
        options = api_options("--jetstream-rights", "manage", "--nats-leaf", f"nats://127.0.0.1:{port}")
        brokers = ClusterProcesses(tmp_path, server, 3, *options)
        try:
            brokers.start()
            await brokers.all_live()
            async with brokers.client(1) as client, connected(server.url) as connection:
                await delivering(connection)
                info = await client.create_stream("orders", "orders", partitions=6, replicas=1)
                assert len({part.leader_id for part in info.partitions}) > 1
                for number in range(6):
                    await client.consumers.create(
                        "orders", f"c{number}", acks="none", inactive_after=HOUR_S, partition=number
                    )
                found = await client.consumers.all("orders")
                assert [(one.partition, one.name) for one in found] == [(number, f"c{number}") for number in range(6)]
                assert [one.name for one in await client.consumers.all("orders", partition=3)] == ["c3"]
                with pytest.raises(ValueError, match="say which with partition="):
                    await client.consumers.info("orders", "c3")
        finally:
            brokers.end()


async def test_a_queue_without_acks_takes_what_is_there(broker: BrokerProcess) -> None:
    async with aio.connect(broker.client_address) as client:
        await client.create_stream("orders", "orders.*")
        await client.publish("orders.a", b"1", key="k\r\n", headers={"A": "b"})
        await client.publish("orders.b", b"2")
        async with client.queue("orders", "all", acks="none", inactive_after=HOUR_S, follow=False) as queue:
            found = [(one.subject, one.value, one.key, one.offset) async for one in queue]
        assert found == [("orders.a", b"1", b"k\r\n", 0), ("orders.b", b"2", None, 1)]
        (info,) = await client.consumers.all("orders")
        assert (info.name, info.next_offset, info.pending) == ("all", 2, 0)


def test_a_blocking_program_works_on_a_queue(broker: BrokerProcess) -> None:
    with penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.*")
        client.publish("orders.a", b"1")
        with client.queue("orders", "work", acks="none", inactive_after=HOUR_S, follow=False) as queue:
            for message in queue:
                assert (message.value, message.partition, message.is_ended) == (b"1", 0, False)
                message.ack()
                assert message.is_ended
        assert client.consumers.info("orders", "work").pending == 0
        assert [one.value for one in client.consumers.peek("orders", "work")] == []


def test_the_commands(broker: BrokerProcess) -> None:
    with penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.*")
        for number in range(6):
            client.publish(f"orders.{number % 2}", b"%d" % number)
    assert "no consumers" in run(broker, "ls")
    made = run(
        broker, "create", "orders", "c", "--subject", "orders.1", "--acks", "none", "--inactive-after", "1h",
        "--description", "of a test",
    )  # fmt: skip
    assert "c of stream orders" in made
    assert "3 not delivered yet" in made
    assert "all before offset 0 (0 deliveries)" in made
    assert "ephemeral pull, acks: none" in run(broker, "info", "orders", "c")
    (line,) = run(broker, "ls", "--json").splitlines()
    told = json.loads(line)
    assert (told["name"], told["stream"], told["pending"], told["is_full"]) == ("c", "orders", 3, False)
    assert told["config"]["description"] == "of a test"
    assert "orders" in run(broker, "ls", "orders")
    assert [json.loads(one)["value"] for one in run(broker, "peek", "orders", "c", "--json").splitlines()] == [
        "1", "3", "5",
    ]  # fmt: skip
    assert "orders.1" in run(broker, "peek", "orders", "c", "-n", "1")
    assert "paused until it is resumed" in run(broker, "pause", "orders", "c")
    assert "penstock consumer resume orders c" in run(broker, "info", "orders", "c")
    assert "paused" in run(broker, "ls")
    environment = {"PENSTOCK_SERVER": broker.client_address, "COLUMNS": "200"}
    assert "1, 1 paused" in CliRunner().invoke(app, ["stream", "show", "orders"], env=environment).output
    assert (
        "1 consumer, none is blocked; 1 paused" in CliRunner().invoke(app, ["doctor", "--json"], env=environment).output
    )
    assert "goes on; 3 messages are pending" in run(broker, "resume", "orders", "c")
    assert "is paused until 2" in run(broker, "pause", "orders", "c", "--for", "1h")
    run(broker, "reset", "orders", "c", "--to", "3", stdin="n\n", code=1)
    assert "2 messages are pending" in run(broker, "reset", "orders", "c", "--to", "3", "--yes")
    run(broker, "delete", "orders", "c", "--yes")
    gone = run(broker, "info", "orders", "c", code=1)
    assert "penstock consumer ls orders" in gone
    assert "white space" in run(broker, "info", "orders", "a b", code=2)


async def test_without_the_api_the_answer_says_what_to_do(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        async with aio.connect(broker.client_address) as client:
            await client.create_stream("orders", "orders")
        assert "--jetstream-api auto" in run(broker, "ls", "orders", code=1)


async def test_the_command_line_names_the_stream_of_dead_letters(broker: BrokerProcess) -> None:
    async with aio.connect(broker.client_address) as client:
        await client.create_stream("orders", "orders.*")
        await client.create_stream("dead", "penstock.dead.dead.>")
        await client.publish("orders.1", b"bad")
        run(broker, "create", "orders", "c", "--max-deliver", "1", "--dead-letters", "nowhere", code=1)
        run(broker, "create", "orders", "c", "--max-deliver", "1", "--dead-letters", "dead")
        assert (await client.consumers.info("orders", "c")).dead_letters == "dead"
        async with client.queue("orders", "c", create=False, follow=False) as queue:
            async for message in queue:
                await message.term("no use")
        await eventually(lambda: client.count("dead", subject=">"), "the letter is stored")
        letter = await client.get("dead", 0)
        assert (letter.value, letter.subject) == (b"bad", "penstock.dead.dead.orders.1")
        made = await client.consumers.create("orders", "q", dead_letters="dead", config={"metadata": {"team": "a"}})
        assert made.dead_letters == "dead"
        assert made.config["metadata"]["team"] == "a"


async def test_a_subject_that_the_stream_has_not_is_pointed_out(broker: BrokerProcess) -> None:
    async with aio.connect(broker.client_address) as client:
        await client.create_stream("orders", "orders.*")
    told = run(broker, "create", "orders", "c", "--subject", "order.1", "--subject", "orders.1")
    assert "consumer c takes nothing on order.1: the stream's subjects are orders.*" in " ".join(told.split())
    assert "takes nothing" not in run(broker, "create", "orders", "d", "--subject", "*.1")


async def test_metrics_tell_of_each_consumer(tmp_path: Path) -> None:
    http = f"127.0.0.1:{free_ports(1)[0]}"
    with running_broker(tmp_path / "data", *api_options(), "--http", http) as broker:
        async with aio.connect(broker.client_address) as client:
            await fill(client)
            await client.consumers.create("orders", "work", ack_pending_max=4)
            await client.consumers.create("orders", "short", inactive_after=HOUR_S)
            async with client.queue("orders", "work", create=False, follow=False, batch=1) as queue:
                for _ in range(2):
                    message = await anext(queue)
                    await message.ack_sync()
        with urllib.request.urlopen(f"http://{http}/metrics") as page:
            lines = page.read().decode().splitlines()
    of_work = 'stream="orders",partition="0",consumer="work"'
    assert f"penstock_consumer_ack_floor_offset{{{of_work}}} 2" in lines
    assert f'penstock_consumer_acks_total{{{of_work},kind="ack"}} 2' in lines
    assert 'penstock_consumer_pending{stream="orders",partition="0",consumer="*"} 6' in lines
