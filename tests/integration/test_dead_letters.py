"""Dead letters through nats-py: each message that is given up is stored once, also when leaders are killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError

from tests.broker_process import running_nats
from tests.extent import each_change
from tests.integration.clusters import ClusterProcesses
from tests.integration.test_jetstream_readers import delivering, published
from tests.integration.test_jetstream_streams import api_options, connected, serving
from tests.ports import free_ports

TIMEOUT_S = 20
MESSAGES = 120
RETRIED = (nats.errors.Error, TimeoutError, APIError, NoStreamResponseError)


@each_change
async def test_each_message_is_acked_or_one_dead_letter_though_leaders_are_killed(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with running_nats(tmp_path / "nats", f'leafnodes {{ listen: "127.0.0.1:{port}" }}\n') as server:
        options = api_options("--jetstream-rights", "manage", "--nats-leaf", f"nats://127.0.0.1:{port}")
        brokers = ClusterProcesses(tmp_path, server, 3, *options)
        try:
            brokers.start()
            await brokers.all_live()
            async with connected(server.url) as connection:
                await serving(connection)
                await delivering(connection)
                js = connection.jetstream()
                await js.add_stream(StreamConfig(name="s", num_replicas=3))
                await js.add_stream(StreamConfig(name="s-dead", subjects=["penstock.dead.s-dead.>"], num_replicas=3))
                for number in range(MESSAGES):
                    await published(js, b"%d" % number)
                config = ConsumerConfig(
                    durable_name="d",
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=1,
                    max_deliver=2,
                    metadata={"penstock.dead_letters": "s-dead"},
                )
                await js.add_consumer("s", config)
                working = asyncio.create_task(work(server.url))
                for stream, least in (("s", MESSAGES // 8), ("s-dead", MESSAGES // 4)):
                    await stored(connection, least)
                    broker = await brokers.leader_of(stream)
                    brokers.brokers[broker].restart()
                    await brokers.all_live()
                await asyncio.wait_for(settled(connection), 8 * TIMEOUT_S)
                working.cancel()
                found = await letters(connection)
            assert sorted(found) == sorted(set(found)), "a message is stored twice"
            odd = {str(number) for number in range(1, MESSAGES, 2)}
            assert odd <= set(found), f"{len(odd - set(found))} messages are neither acked nor stored"
        finally:
            print(brokers.said)
            brokers.end()


async def work(url: str) -> None:
    """Ack even numbers, terminate every third of the odd ones, and say nothing of the others."""
    async with connected(url) as connection:
        while True:
            try:
                pull = await connection.jetstream().pull_subscribe_bind("d", "s")
                while True:
                    for one in await pull.fetch(10, timeout=1):
                        number = int(one.data)
                        if number % 2 == 0:
                            await one.ack()
                        elif number % 3 == 0:
                            await one.term()
            except RETRIED:
                await asyncio.sleep(0.1)


async def stored(connection: Any, least: int) -> None:
    """Wait until so many letters are stored."""
    async with asyncio.timeout(4 * TIMEOUT_S):
        while True:
            try:
                if (await connection.jetstream().stream_info("s-dead")).state.messages >= least:
                    return
            except RETRIED:
                pass
            await asyncio.sleep(0.05)


async def settled(connection: Any) -> None:
    """Wait until the consumer has nothing left."""
    while True:
        try:
            info = await connection.jetstream().consumer_info("s", "d")
            if (info.num_pending, info.num_ack_pending) == (0, 0):
                return
        except RETRIED:
            pass
        await asyncio.sleep(0.2)


async def letters(connection: Any) -> list[str]:
    """Return the values of all letters."""
    found: list[str] = []
    async with asyncio.timeout(4 * TIMEOUT_S):
        while True:
            try:
                js = connection.jetstream()
                count = (await js.stream_info("s-dead")).state.messages
                pull = await js.pull_subscribe("penstock.dead.s-dead.>", stream="s-dead")
                found = []
                while len(found) < count:
                    for one in await pull.fetch(100, timeout=2):
                        assert one.headers is not None
                        assert one.headers["Penstock-Dead-Sequence"] == str(int(one.data) + 1)
                        found.append(one.data.decode())
                        await one.ack()
            except RETRIED:
                await asyncio.sleep(0.1)
            else:
                return found
