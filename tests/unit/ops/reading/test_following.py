"""A reader that follows outlives its broker's outages, and says so once each way."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator

import pytest

from penstock.base.errors import OperationalError
from penstock.client.blocking import client as blocking
from penstock.client.errors import TimedOut, Unavailable
from penstock.messages.session import BrokerLimits
from penstock.ops.progress import Progress
from penstock.ops.reading.following import following
from tests.fake_broker import FakeBroker, columns

TIMEOUT_S = 20.0
SHORT_S = 0.5


class Said(Progress):
    """The notes, in order."""

    def __init__(self) -> None:
        self.lines: queue.Queue[str] = queue.Queue()

    def note(self, text: str) -> None:
        self.lines.put(text)


async def connected(broker: FakeBroker, clients: list[blocking.Client]) -> blocking.Client:
    client = await asyncio.to_thread(blocking.connect, broker.address)
    clients.append(client)
    return client


@pytest.fixture
async def clients() -> AsyncIterator[list[blocking.Client]]:
    """Closed at the end, so that no reader goes on."""
    made: list[blocking.Client] = []
    yield made
    for client in made:
        await asyncio.to_thread(client.close)


async def test_an_outage_is_waited_out_and_told_once_each_way(clients: list[blocking.Client]) -> None:
    async with FakeBroker(limits=BrokerLimits(fetch_wait_ms_max=100)) as broker:
        said = Said()
        stream = broker.create("orders")
        stream.append(columns(b"0", b"1"))
        port = int(broker.address.rpartition(":")[2])
        client = await connected(broker, clients)
        batches = following(client, stream.info(), 0, 4, SHORT_S, progress=said, for_ever=True)
        first = await asyncio.to_thread(next, batches)
        assert first.column("value").to_pylist() == [b"0", b"1"]
        rest = asyncio.create_task(asyncio.to_thread(list, batches))
        await broker.stop()
        lost = await asyncio.to_thread(said.lines.get, timeout=TIMEOUT_S)
        assert lost.startswith(f"waiting for the broker at {broker.address}: ")
        stream.append(columns(b"2", b"3"))
        await broker.start(port)
        found = await asyncio.wait_for(rest, TIMEOUT_S)
        assert [value for batch in found for value in batch.column("value").to_pylist()] == [b"2", b"3"]
        assert said.lines.get_nowait() == f"the broker at {broker.address} answers again; going on at offset 2"
        assert said.lines.empty()


async def test_a_client_that_was_closed_is_not_waited_for(clients: list[blocking.Client]) -> None:
    async with FakeBroker(limits=BrokerLimits(fetch_wait_ms_max=100)) as broker:
        said = Said()
        stream = broker.create("orders")
        stream.append(columns(b"0"))
        client = await connected(broker, clients)
        batches = following(client, stream.info(), 0, None, SHORT_S, progress=said, for_ever=True)
        await asyncio.to_thread(next, batches)
        link = client._client._link  # closed before its thread is stopped, as at Ctrl-C
        closing = asyncio.run_coroutine_threadsafe(link.close(), client._thread.loop)
        await asyncio.wrap_future(closing)
        with pytest.raises(OperationalError, match="the client is closed"):
            await asyncio.wait_for(asyncio.to_thread(next, batches), TIMEOUT_S)
        assert said.lines.empty()


async def test_a_time_out_that_was_asked_for_ends_it(clients: list[blocking.Client]) -> None:
    async with FakeBroker(limits=BrokerLimits(fetch_wait_ms_max=100)) as broker:
        said = Said()
        stream = broker.create("orders")
        client = await connected(broker, clients)
        batches = following(client, stream.info(), 0, None, SHORT_S, progress=said, for_ever=False)
        rest = asyncio.create_task(asyncio.to_thread(list, batches))
        await broker.stop()
        with pytest.raises((Unavailable, TimedOut)):
            await asyncio.wait_for(rest, TIMEOUT_S)
        assert said.lines.empty()


async def test_a_log_that_began_anew_meanwhile_is_not_taken_for_the_same(clients: list[blocking.Client]) -> None:
    async with FakeBroker(limits=BrokerLimits(fetch_wait_ms_max=100)) as broker:
        said = Said()
        stream = broker.create("orders", storage="memory")
        stream.append(columns(b"0"))
        port = int(broker.address.rpartition(":")[2])
        client = await connected(broker, clients)
        batches = following(client, stream.info(), 0, None, SHORT_S, progress=said, for_ever=True)
        await asyncio.to_thread(next, batches)
        rest = asyncio.create_task(asyncio.to_thread(list, batches))
        await broker.stop()
        await asyncio.to_thread(said.lines.get, timeout=TIMEOUT_S)
        stream.batches.clear()
        stream.end = 0
        stream.append(columns(b"another", b"life"))
        await broker.start(port)
        with pytest.raises(OperationalError, match="orders began anew meanwhile"):
            await asyncio.wait_for(rest, TIMEOUT_S)
