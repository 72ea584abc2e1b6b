"""A push consumer of a real JetStream that delivers onto a stream's subject: what is stored is acked there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, StreamConfig

from penstock import aio
from tests.broker_process import BrokerProcess, running_broker, running_nats
from tests.extent import each_change
from tests.integration.publishers import connected_to

TIMEOUT_S = 60


class Bridge(NamedTuple):
    """JetStream, and Penstock on the same nats-server."""

    js: Any
    broker: BrokerProcess
    client: aio.Client
    told: list[bytes]  # whatever has been published as an ack to JetStream

    async def push(self, *, ack_wait_s: float = 30, **more: Any) -> None:
        config = ConsumerConfig(
            durable_name="bridge", deliver_subject="copy", ack_policy=AckPolicy.EXPLICIT, ack_wait=ack_wait_s, **more
        )
        await self.js.add_consumer("SOURCE", config)

    async def until_acked(self, count: int, stream: str = "SOURCE", consumer: str = "bridge") -> ConsumerInfo:
        """Ask JetStream until the consumer is done with so many messages."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                info = await self.js.consumer_info(stream, consumer)
                if info.ack_floor is not None and info.ack_floor.stream_seq >= count:
                    return info

    async def values(self) -> list[bytes | None]:
        return [message.value async for message in self.client.messages("copy")]


@asynccontextmanager
async def bridge(folder: Path) -> AsyncIterator[Bridge]:
    config = f"jetstream {{ store_dir: {json.dumps(str(folder / 'js'))} }}"
    with running_nats(folder / "nats", config) as server, running_broker(folder / "data", nats=server.url) as broker:
        async with connected_to(server.url) as connection, await broker.client() as client:
            told: list[bytes] = []

            async def hear(message: Any) -> None:
                told.append(message.data)

            await connection.subscribe("$JS.ACK.>", cb=hear)
            js = connection.jetstream()
            await js.add_stream(StreamConfig(name="SOURCE", subjects=["source.>"]))
            yield Bridge(js, broker, client, told)


async def test_each_message_is_stored_once_and_acked(tmp_path: Path) -> None:
    async with bridge(tmp_path) as there:
        await there.client.create_stream("copy", "copy")
        expecting = {"Nats-Msg-Id": "3", "Nats-Expected-Stream": "SOURCE", "Nats-Expected-Last-Sequence": "3"}
        for number in range(6):
            await there.js.publish("source.a", b"%d" % number, headers=expecting if number == 3 else None)
        await there.push()
        info = await there.until_acked(6)
        assert (info.num_ack_pending, info.num_redelivered) == (0, 0)
        assert await there.values() == [b"0", b"1", b"2", b"3", b"4", b"5"]
        await there.js.publish("source.a", b"later")
        await there.until_acked(7)
        assert set(there.told) == {b"+ACK"}


@each_change
async def test_heartbeats_are_no_rows_and_flow_control_is_answered(tmp_path: Path) -> None:
    """JetStream sends a request after 1 MiB, and no more than 2 MiB before it is answered."""
    async with bridge(tmp_path) as there:
        await there.client.create_stream("copy", "copy")
        value = b"x" * 60_000
        requests: list[str] = []
        heartbeats = asyncio.Event()

        async def hear(message: Any) -> None:
            if message.reply.startswith("$JS.FC."):
                requests.append(message.reply)
            elif message.headers is not None and "Idle" in str(message.headers):
                heartbeats.set()

        answers: list[str] = []

        async def answered(message: Any) -> None:
            answers.append(message.subject)

        await there.js._nc.subscribe("copy", cb=hear)
        await there.js._nc.subscribe("$JS.FC.>", cb=answered)
        await there.js._nc.flush()
        for _ in range(80):
            await there.js.publish("source.a", value)
        await there.push(flow_control=True, idle_heartbeat=0.1)
        await there.until_acked(80)
        async with asyncio.timeout(TIMEOUT_S):
            await heartbeats.wait()
        await there.js.publish("source.a", b"last")
        await there.until_acked(81)
        assert await there.values() == [value] * 80 + [b"last"]
        assert requests
        assert set(requests) <= set(answers)
        dropped = (await there.client.stream("copy")).partitions[0].dropped
        assert [*dropped] == ["consumer_control"]
        assert dropped["consumer_control"] > len(requests)


@each_change
async def test_what_is_refused_is_delivered_again_until_it_is_taken(tmp_path: Path) -> None:
    async with bridge(tmp_path) as there:
        await there.client.create_stream("copy", "copy", max_message_bytes=1_000)
        await there.js.publish("source.a", b"x" * 2_000)
        await there.push(ack_wait_s=0.2)
        async with asyncio.timeout(TIMEOUT_S):
            while not (await there.js.consumer_info("SOURCE", "bridge")).num_redelivered:
                pass
        assert there.told == []
        assert (await there.client.stream("copy")).partitions[0].dropped["refused"] >= 1
        await there.client.alter_stream("copy", max_message_bytes=4_000)
        await there.until_acked(1)
        assert await there.values() == [b"x" * 2_000]
        assert set(there.told) == {b"+ACK"}
        told = [line for line in there.broker.said.splitlines() if "JetStream" in line]
        assert len(told) == 1, there.broker.said
        assert "message size exceeds maximum allowed" in told[0]
