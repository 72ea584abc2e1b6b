"""Typed services whose processes or nats-server are killed: calls end, none is made twice, no acked event is lost."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from penstock import aio
from penstock.base.dead_letters import OFFSET, PARTITION
from penstock.frugal.context import Context
from penstock.frugal.errors import ApplicationError, TransportError
from penstock.frugal.nats_transport import NatsTransport
from penstock.frugal.shipped.retry import retry
from tests.broker_process import DEADLINE_S, Child, broker_environment, eventually
from tests.extent import extent, needs_time
from tests.frugal_shop import SHOP, Order, ShopClient
from tests.integration.clusters import running_cluster
from tests.nats_servers import RunningNats, running_nats

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:nats.*")

ROOT = Path(__file__).resolve().parents[2]
KILLS = extent(8, 40)
CALL_MS = 2_000
POISON = 7  # an event whose number it divides is never handled
GROUP = "billing.shop._.Orders.Placed"

SERVER = """
import asyncio, os, sys, nats
from penstock.frugal.server import Server
from tests.frugal_shop import SHOP, Shop
done = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
class Noting(Shop):
    async def place(self, ctx, order, copies):
        os.write(done, b"%d\\n" % order.number)
        return order
    async def count(self, ctx, customer):
        return len(customer)
async def main():
    connection = await nats.connect(sys.argv[1], reconnect_time_wait=0.05, max_reconnect_attempts=-1)
    await Server(connection, "shop", [(SHOP, Noting())], queue="shops").start()
    print("ready", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""

PUBLISHER = """
import asyncio, itertools, os, sys
from penstock import aio
from penstock.frugal.context import Context
from penstock.frugal.scopes.provider import ScopeProvider
from tests.unit.frugal.scopes.contract import OrdersPublisher, order
acked = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
async def main():
    async with aio.connect(sys.argv[1]) as client:
        publisher = OrdersPublisher(ScopeProvider(client=client))
        print("ready", flush=True)
        for number in itertools.count(int(sys.argv[3])):
            named = {"number": str(number)}
            await publisher.publish_Placed(Context(), "eu", order(number, f"c{number % 5}"), headers=named)
            os.write(acked, b"%d\\n" % number)
asyncio.run(main())
"""

SUBSCRIBER = """
import asyncio, os, sys
from penstock import aio
from penstock.frugal.scopes.provider import ScopeProvider
from penstock.frugal.scopes.redelivery import RetryPolicy
from tests.unit.frugal.scopes.contract import OrdersSubscriber
handled = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
async def handle(ctx, order):
    if order.number % int(sys.argv[3]) == 0:
        raise LookupError("never")
    os.write(handled, b"%d\\n" % order.number)
async def main():
    async with aio.connect(sys.argv[1]) as client:
        quick = RetryPolicy(attempts_max=2, wait_s=0.01, wait_s_max=0.02)
        subscriber = OrdersSubscriber(ScopeProvider(client=client))
        async with await subscriber.subscribe_Placed("*", handle, group="billing", retry=quick) as subscription:
            print("ready", flush=True)
            await subscription.wait()
asyncio.run(main())
"""


class Program(Child):
    """A Python program that notes numbers in a file, one a line."""

    def __init__(self, text: str, where: str, notes: Path, *arguments: str) -> None:
        super().__init__()
        self._command = [sys.executable, "-W", "ignore", "-c", text, where, str(notes)]
        self._arguments = arguments
        self._notes = notes

    def launch(self, *arguments: str) -> None:
        """Start it; it may take a while until it notes anything."""
        environment = broker_environment({"PYTHONPATH": str(ROOT)})
        self._launch([*self._command, *self._arguments, *arguments], environment)

    @property
    def numbers(self) -> list[int]:
        """What it has noted in all of its runs."""
        return [int(line) for line in self._notes.read_text().split()] if self._notes.exists() else []

    async def notes(self, count: int) -> None:
        """Wait until it has noted `count` more."""
        wanted = len(self.numbers) + count

        async def look() -> bool:
            assert self.is_running, self.said
            return len(self.numbers) >= wanted

        await eventually(look, f"{count} more are noted; it said {self.said}")


async def _silent(error: Exception) -> None:
    """Nothing: else nats-py logs each loss of its connection."""


@asynccontextmanager
async def connected(server: RunningNats) -> AsyncIterator[Client]:
    connection = await nats.connect(server.url, error_cb=_silent, reconnect_time_wait=0.05, max_reconnect_attempts=-1)
    try:
        yield connection
    finally:
        await connection.close()


class Caller:
    """Calls one after the other: orders, which must not be placed twice, and counts, which may be repeated."""

    def __init__(self, client: ShopClient, first: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.answered: set[int] = set()
        self.undone: set[int] = set()  # calls whose errors say that nothing was done
        self._client = client
        self._number = first

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self._number += 1
            try:
                async with asyncio.timeout(DEADLINE_S):  # of a call that hangs
                    if self._number % 4 == 0:
                        assert await self._client.count(Context(timeout_ms=CALL_MS), "abc") == 3
                        self.outcomes["counted"] += 1
                        continue
                    placed = await self._client.place(Context(timeout_ms=CALL_MS), Order(number=self._number), 1)
            except (ApplicationError, TransportError) as error:
                self.outcomes[type(error).__name__] += 1
                if not error.may_be_done:
                    self.undone.add(self._number)
                await asyncio.sleep(0.01)
            else:
                assert placed.number == self._number
                self.answered.add(self._number)


async def stop_until_calls_are_late(server: RunningNats, callers: list[Caller]) -> None:
    """SIGSTOP: its connections stay, and nothing comes through; then it goes on with what it was sent."""
    before = sum(one.outcomes["DeadlineExceeded"] for one in callers)

    async def are_late() -> bool:
        return sum(one.outcomes["DeadlineExceeded"] for one in callers) >= before + 2 * len(callers)

    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        await eventually(are_late, "calls end by their deadlines")
    finally:
        server.process.send_signal(signal.SIGCONT)


@needs_time
async def test_calls_end_and_orders_are_placed_once_while_servers_and_nats_are_killed(tmp_path: Path) -> None:
    chance = random.Random(KILLS)
    async with running_nats(tmp_path) as server, AsyncExitStack() as stack:
        programs = [Program(SERVER, server.url, tmp_path / f"placed-{number}") for number in range(2)]
        for program in programs:
            stack.callback(program.end)
            program.launch()
        transport = NatsTransport(await stack.enter_async_context(connected(server)), "shop")
        client = await stack.enter_async_context(ShopClient(transport, SHOP, middleware=[retry()]))
        stop = asyncio.Event()
        callers = [Caller(client, 1_000_000 * number) for number in range(4)]
        tasks = [asyncio.create_task(caller.run(stop)) for caller in callers]
        try:
            for kill in range(KILLS):
                program = programs[kill % 2]
                await program.notes(chance.randrange(1, 200))
                if kill % 4 == 2:
                    await server.kill()
                    await server.start()
                elif kill % 4 == 3:
                    await stop_until_calls_are_late(server, callers)
                else:
                    program.end()
                    program.launch()
            for program in programs:
                await program.notes(10)
        finally:
            stop.set()
            await asyncio.wait(tasks, timeout=DEADLINE_S)
        await asyncio.gather(*tasks)
        placed = [number for program in programs for number in program.numbers]
        print(Counter[str](sum((one.outcomes for one in callers), Counter[str]())))
        assert not [number for number, count in Counter(placed).items() if count > 1]
        for caller in callers:
            assert caller.answered <= set(placed)
            assert not caller.undone & set(placed)
            assert caller.outcomes["counted"]


async def settled(client: aio.Client, subscriber: Program) -> tuple[dict[int, int], set[tuple[int, int]]]:
    """Return committed offsets by partition, and then the places of dead letters."""
    committed = {one.partition: int(one.offset) for one in await client.groups.offsets(GROUP, "orders")}
    if "orders-dead" not in {one.name for one in await client.streams()}:
        return committed, set()
    letters = [letter async for letter in client.messages("orders-dead")]
    return committed, {(int(one.headers[PARTITION]), int(one.headers[OFFSET])) for one in letters}


@needs_time
@pytest.mark.parametrize("brokers", [1, 3])
async def test_every_acked_event_is_handled_or_a_dead_letter_while_programs_and_leaders_are_killed(
    tmp_path: Path, brokers: int
) -> None:
    chance = random.Random(KILLS)
    with running_cluster(tmp_path, brokers) as cluster:
        await cluster.all_live()
        async with AsyncExitStack() as stack:
            address = ",".join(broker.client_address for broker in cluster.brokers.values())
            client = await stack.enter_async_context(aio.connect(address))
            await client.create_stream(
                "orders", "frugal.shop.*.Orders.Placed", partitions=2, partition_by="key", replicas=brokers
            )
            publisher = Program(PUBLISHER, address, tmp_path / "acked")
            subscriber = Program(SUBSCRIBER, address, tmp_path / "handled", str(POISON))
            for program in (publisher, subscriber):
                stack.callback(program.end)
            publisher.launch("1")
            subscriber.launch()
            for kill in range(KILLS):
                await subscriber.notes(chance.randrange(1, 150))
                if kill % 4 == 3:
                    await publisher.notes(chance.randrange(1, 50))
                    publisher.end()
                    publisher.launch(str(1_000_000 * (kill + 1)))
                    continue
                if kill % 4 == 1:
                    leader = cluster.brokers[await cluster.leader_of("orders", chance.choice(list(cluster.brokers)))]
                    leader.kill()
                    leader.start()
                    await cluster.all_live()
                    continue
                subscriber.end()
                committed, dead = await settled(client, subscriber)
                handled = set(subscriber.numbers)
                for place, number in (await stored(client)).items():
                    if place[1] < committed.get(place[0], 0):
                        assert number in handled or place in dead, f"{place} is committed: {committed}"
                subscriber.launch()
            await publisher.notes(1)
            publisher.end()
            ends = dict.fromkeys(range(2), 0)
            events = await stored(client)
            for partition, offset in events:
                ends[partition] = max(ends[partition], offset + 1)

            async def is_done() -> bool:
                return (await settled(client, subscriber))[0] == ends

            await eventually(is_done, "the group has come to the end")
            _, dead = await settled(client, subscriber)
            assert set(publisher.numbers) <= set(events.values())
            assert len(set(events.values())) == len(events)
            handled = set(subscriber.numbers)
            assert handled == {number for number in events.values() if number % POISON}
            assert dead == {place for place, number in events.items() if number % POISON == 0}


async def stored(client: aio.Client) -> dict[tuple[int, int], int]:
    """Return the numbers of all events in the stream by partition and offset."""
    return {(one.partition, one.offset): int(one.headers["number"]) async for one in client.messages("orders")}
