"""`client.queue` at a real nats-server with JetStream: what is acked is done, and what is not comes again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import ConsumerConfig, StreamConfig

import penstock
from penstock.client.publish.nats_client import StrictNatsClient
from penstock.client.publish.publishing import connected_to
from penstock.client.queues.queue import Queue, QueueMessage, queue_settings
from tests.broker_process import NatsProcess, eventually, running_nats
from tests.extent import each_change

pytestmark = each_change
TIMEOUT_S = 20.0


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    """A nats-server with the stream `orders` on `orders.*`."""
    with running_nats(tmp_path / "nats", f'jetstream {{ store_dir: "{tmp_path / "js"}" }}\n') as running:
        connection = await nats.connect(running.url)
        await connection.jetstream().add_stream(StreamConfig(name="orders", subjects=["orders.*"]))
        await connection.close()
        yield running


def queue(server: NatsProcess, name: str = "work", *, follow: bool = True, batch: int = 10, **config: Any) -> Queue:
    async def connect(timeout_s: float) -> StrictNatsClient:
        return await connected_to(StrictNatsClient(), [server.url], "test", {}, timeout_s)

    async def sources(timeout_s: float) -> list[tuple[int, str]]:
        return [(0, "orders")]

    made = config.pop("made", True)
    settings = queue_settings(
        "orders", name, batch=batch, follow=follow, domain=None, timeout=TIMEOUT_S, config=config if made else None
    )
    return Queue(settings, connect, sources)


async def publish(server: NatsProcess, *values: str, subject: str = "orders.x", **headers: str) -> None:
    connection = await nats.connect(server.url)
    for value in values:
        await connection.jetstream().publish(subject, value.encode(), headers=headers or None)
    await connection.close()


async def info(server: NatsProcess, name: str = "work") -> Any:
    connection = await nats.connect(server.url)
    try:
        return await connection.jetstream().consumer_info("orders", name)
    finally:
        await connection.close()


async def taken(queued: Queue, count: int) -> list[QueueMessage]:
    async with asyncio.timeout(TIMEOUT_S):
        return [await anext(queued) for _ in range(count)]


async def test_what_is_acked_is_done(server: NatsProcess) -> None:
    await publish(server, "1", "2", "3", **{"Penstock-Key": "k1", "A": "b"})
    async with queue(server, follow=False) as queued:
        found = []
        async for message in queued:
            found.append((message.value, message.offset, message.deliveries))
            assert (message.subject, message.key, message.headers["A"]) == ("orders.x", b"k1", "b")
            await message.ack()
    assert found == [(b"1", 0, 1), (b"2", 1, 1), (b"3", 2, 1)]
    told = await info(server)
    assert (told.num_ack_pending, told.ack_floor.stream_seq, told.config.durable_name) == (0, 3, "work")
    async with queue(server, follow=False) as again:
        assert [message async for message in again] == []


async def test_a_confirmed_ack_is_there_at_once(server: NatsProcess) -> None:
    await publish(server, "1")
    async with queue(server) as queued:
        (message,) = await taken(queued, 1)
        await message.ack_sync()
        assert (await info(server)).ack_floor.stream_seq == 1
        assert message.is_ended
        with pytest.raises(ValueError, match="acked already"):
            await message.ack()


async def test_what_is_given_back_comes_again_and_what_is_ended_does_not(server: NatsProcess) -> None:
    await publish(server, "back", "later", "ended")
    async with queue(server, batch=3) as queued:
        back, later, ended = await taken(queued, 3)
        await ended.term("no such\norder")
        await later.nak(delay=0.3)
        await back.in_progress()
        await back.nak()
        (again,) = await taken(queued, 1)
        assert (again.value, again.deliveries) == (b"back", 2)
        await again.ack()
        (again,) = await taken(queued, 1)
        assert (again.value, again.deliveries) == (b"later", 2)
        await again.ack_sync()

        async def is_done() -> bool:
            told = await info(server)
            return bool(told.num_ack_pending == 0 and told.ack_floor.stream_seq == 3)

        await eventually(is_done, "all three have come to an end")


async def test_a_message_without_a_word_comes_again(server: NatsProcess) -> None:
    await publish(server, "1")
    async with queue(server, ack_wait=0.5, deliveries_max=2) as queued:
        first, second = await taken(queued, 2)
    assert (first.deliveries, second.deliveries) == (1, 2)


async def test_what_a_closed_queue_has_not_handed_over_is_with_others_at_once(server: NatsProcess) -> None:
    await publish(server, *map(str, range(10)))
    async with queue(server, batch=10) as queued:
        (first,) = await taken(queued, 1)
        await first.ack_sync()
    async with queue(server, batch=10) as other:  # `ack_wait` is 30 s
        found = await taken(other, 9)
    assert sorted(int(message.value) for message in found) == list(range(1, 10))


async def test_several_tasks_and_several_clients_share_the_messages(server: NatsProcess) -> None:
    await publish(server, *map(str, range(40)))
    seen: list[int] = []

    async def work(queued: Queue) -> None:
        async for message in queued:
            seen.append(int(message.value))
            await message.ack()

    async with queue(server, batch=4, follow=False) as one, queue(server, batch=4, follow=False) as two:
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(work(one), work(one), work(two))
    assert sorted(seen) == list(range(40))


async def test_it_waits_for_new_messages_and_through_a_restart_of_the_server(server: NatsProcess) -> None:
    async with queue(server) as queued:
        waiting = asyncio.create_task(taken(queued, 1))
        await publish(server, "1")
        ((message),) = await waiting
        await message.ack_sync()
        server.kill()
        server.start()
        await publish(server, "2")
        (message,) = await taken(queued, 1)
        assert message.value == b"2"
        await message.ack_sync()


async def test_another_config_a_missing_consumer_and_a_deleted_one_are_told(server: NatsProcess) -> None:
    async with queue(server, subject="orders.a"):
        pass
    with pytest.raises(penstock.ConsumerExists):
        await queue(server, subject="orders.b").open()
    with pytest.raises(penstock.ConsumerNotFound):
        await queue(server, "none", made=False).open()
    async with queue(server, "gone") as queued:
        waiting = asyncio.create_task(taken(queued, 1))
        connection = await nats.connect(server.url)
        await connection.jetstream().delete_consumer("orders", "gone")
        await connection.close()
        with pytest.raises(penstock.ConsumerNotFound):
            await waiting


async def test_a_consumer_of_others_is_used_as_it_is(server: NatsProcess) -> None:
    connection = await nats.connect(server.url)
    await connection.jetstream().add_consumer(
        "orders", ConsumerConfig(durable_name="theirs", filter_subject="orders.a")
    )
    await connection.close()
    await publish(server, "1", subject="orders.b")
    await publish(server, "2", subject="orders.a")
    async with queue(server, "theirs", made=False) as queued:
        (message,) = await taken(queued, 1)
        assert message.value == b"2"


def test_arguments_that_cannot_be_are_refused_before_a_connection() -> None:
    settings: dict[str, Any] = {"batch": 1, "follow": True, "domain": None, "timeout": 1.0, "config": None}
    for name in ("", "a.b", "a b", "*"):
        with pytest.raises(ValueError, match="name"):
            queue_settings("orders", name, **settings)
    for batch in (0, -1, 10_001):
        with pytest.raises(ValueError, match="batch"):
            queue_settings("orders", "work", **{**settings, "batch": batch})
    for given, meant in (
        ("unheard", "ack_wait"),
        ("max_deliver", "did you mean deliveries_max"),
        ("ackwait", "ack_wait"),
    ):
        with pytest.raises(TypeError, match=rf"client\.queue has no option '{given}'.*{meant}"):
            queue_settings("orders", "work", **{**settings, "config": {given: 1}})
    with pytest.raises(ValueError, match="ack_wait"):
        queue_settings("orders", "work", **{**settings, "config": {"ack_wait": 0}})
