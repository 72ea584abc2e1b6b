"""An unmodified JetStream publisher that sends again, through kill -9 and failover: stored once, acked each time."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext
from nats.js.api import PubAck
from nats.js.errors import APIError, NoStreamResponseError

from penstock import aio
from tests.broker_process import eventually, running_broker, running_nats
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses
from tests.integration.publishers import connected_to
from tests.integration.test_cluster import another, stream_led_by

MESSAGES = 40


async def send(js: JetStreamContext, subject: str, number: int) -> PubAck:
    return await js.publish(subject, b"%d" % number, headers={"Nats-Msg-Id": f"id-{number}"}, timeout=1.0)


async def send_until_acked(js: JetStreamContext, subject: str, number: int) -> PubAck:
    acked: list[PubAck] = []

    async def is_acked() -> bool:
        with contextlib.suppress(NoRespondersError, NoStreamResponseError, NatsTimeoutError, APIError):
            acked.append(await send(js, subject, number))
        return bool(acked)

    await eventually(is_acked, f"message {number} acked")
    return acked[0]


async def check(client: aio.Client, name: str, acks: dict[int, int]) -> None:
    """Each message is there once, and where its acks said."""
    stored = [(message.offset, int(message.value or b"")) async for message in client.messages(name)]
    assert {number: offset for offset, number in stored} == acks
    assert len(stored) == len(acks)


@each_change
async def test_sent_again_after_kill_9(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as server, running_broker(tmp_path / "data", nats=server.url) as broker:
        async with await broker.client() as client:
            await client.create_stream("orders", "orders.>")
        async with connected_to(server.url) as connection:
            js = connection.jetstream()
            first = [await send(js, "orders.a", number) for number in range(MESSAGES)]
            assert not any(ack.duplicate for ack in first)
            broker.kill()
            broker.restart()
            again = [await send_until_acked(js, "orders.a", number) for number in range(MESSAGES + 3)]
            assert [ack.seq for ack in again] == [*(ack.seq for ack in first), *range(MESSAGES + 1, MESSAGES + 4)]
            assert [ack.duplicate for ack in again[:MESSAGES]] == [True] * MESSAGES
            with pytest.raises(APIError) as refused:
                await js.publish("orders.a", b"", headers={"Nats-Expected-Last-Msg-Id": "id-0"})
            assert refused.value.err_code == 10070
            headers = {"Nats-Expected-Last-Msg-Id": f"id-{MESSAGES + 2}"}
            assert (await js.publish("orders.a", b"-1", headers=headers)).seq == MESSAGES + 4
        async with await broker.client() as client:
            status = await client.status()
            assert status.counters["duplicates"] == MESSAGES
            assert (await client.stream("orders")).partitions[0].dedup_ids == MESSAGES + 3
            await check(client, "orders", {**{n: n for n in range(MESSAGES + 3)}, -1: MESSAGES + 3})


@needs_time
async def test_sent_again_while_one_leader_follows_the_other(cluster: ClusterProcesses) -> None:
    name = await stream_led_by(cluster, False)
    victim = await cluster.leader_of(name)
    other = another(cluster, victim)
    acks: dict[int, int] = {}
    async with connected_to(cluster.nats.url) as connection:
        js = connection.jetstream()

        async def publish(start: int) -> None:
            """Three tries of each, two of them side by side; the third once it is acked."""
            for number in range(start, MESSAGES, 4):
                tries = (send_until_acked(js, f"{name}.a", number) for _ in range(2))
                found = [*await asyncio.gather(*tries), await send_until_acked(js, f"{name}.a", number)]
                assert len({ack.seq for ack in found}) == 1, found
                assert found[-1].duplicate
                acks[number] = found[0].seq - 1

        tasks = [asyncio.create_task(publish(start)) for start in range(4)]

        async def some() -> bool:
            return len(acks) >= MESSAGES // 4

        await eventually(some, "some are acked")
        cluster.brokers[victim].kill()
        await asyncio.gather(*tasks)
        assert await cluster.leader_of(name, other) != victim
        for number in range(MESSAGES):  # those of the leader that is gone, too
            ack = await send_until_acked(js, f"{name}.a", number)
            assert (ack.duplicate, ack.seq) == (True, acks[number] + 1)
    async with cluster.client(other) as client:
        await check(client, name, acks)
