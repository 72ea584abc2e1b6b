"""Order by key through nats-py: many workers, one key never in two hands, also when the leader is killed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from nats.js.errors import APIError, NoStreamResponseError

from tests.broker_process import running_nats
from tests.extent import each_change
from tests.integration.clusters import ClusterProcesses
from tests.integration.test_jetstream_readers import delivering
from tests.integration.test_jetstream_streams import api_options, connected, serving
from tests.ports import free_ports

WORKERS = 8
KEYS = 12
PER_KEY = 15
TIMEOUT_S = 20
RETRIED = (nats.errors.Error, TimeoutError, APIError, NoStreamResponseError)


class Shared:
    """What all workers saw. Messages of one key are numbered from 0 on."""

    def __init__(self) -> None:
        self.acking: dict[str, set[int]] = defaultdict(set)  # an ack was sent
        self.acked: dict[str, list[int]] = defaultdict(list)  # in the order of the answers
        self.given: set[tuple[str, int, int]] = set()  # with the number of the delivery
        self.wrong: list[str] = []
        self.workers: set[int] = set()
        self.is_a_third_done = asyncio.Event()

    @property
    def done(self) -> int:
        return sum(map(len, self.acked.values()))

    def note_acked(self, key: str, number: int) -> None:
        if number not in self.acked[key]:
            self.acked[key].append(number)
        if self.done >= KEYS * PER_KEY // 3:
            self.is_a_third_done.set()

    def receive(self, worker: int, key: str, number: int, delivery: int) -> None:
        """Look at a delivery: all messages of its key before it are done, and it never came with this number."""
        self.workers.add(worker)
        missing = set(range(number)) - self.acking[key]
        if missing:
            self.wrong.append(f"{key}/{number} came to worker {worker}, and {sorted(missing)} are in other hands")
        if (key, number, delivery) in self.given:
            self.wrong.append(f"{key}/{number} came twice as delivery {delivery}")
        self.given.add((key, number, delivery))


async def work(url: str, worker: int, shared: Shared) -> None:
    async with connected(url) as connection:
        pull = await bound(connection)
        has_left_one = worker > 0  # the first worker is as if it died with its first message in hand
        while shared.done < KEYS * PER_KEY:
            try:
                messages = await pull.fetch(3, timeout=1)
            except RETRIED:
                continue
            parsed = [(one, *one.data.decode().split("/"), one.metadata.num_delivered) for one in messages]
            for _, key, number, delivery in parsed:
                shared.receive(worker, key, int(number), delivery)
            for one, key, number, _ in parsed:
                await asyncio.sleep(0)  # others have their turn meanwhile
                if not has_left_one:
                    has_left_one = True
                    continue
                shared.acking[key].add(int(number))
                try:
                    await one.ack_sync(timeout=2)
                except RETRIED:
                    continue  # it comes again, unless the ack was stored
                finally:
                    shared.note_acked(key, int(number))


async def bound(connection: Any) -> Any:
    while True:
        try:
            return await connection.jetstream().pull_subscribe_bind("work", "s")
        except RETRIED:
            await asyncio.sleep(0.1)


@each_change
async def test_a_key_is_never_in_two_hands_though_the_leader_is_killed(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    shared = Shared()
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
                config = ConsumerConfig(
                    durable_name="work",
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=3,
                    metadata={"penstock.order_by": "key"},
                )
                await js.add_consumer("s", config)
                for number in range(PER_KEY):
                    for key in range(KEYS):
                        await js.publish("s", b"k%d/%d" % (key, number), headers={"Penstock-Key": f"k{key}"})
                workers = [asyncio.create_task(work(server.url, worker, shared)) for worker in range(WORKERS)]
                async with asyncio.timeout(6 * TIMEOUT_S):
                    await shared.is_a_third_done.wait()
                    brokers.brokers[await brokers.leader_of("s")].kill()
                    await asyncio.gather(*workers)
                await nothing_is_left(connection)
        finally:
            print(brokers.said)
            brokers.end()
    assert shared.wrong == []
    assert shared.acked == {f"k{key}": list(range(PER_KEY)) for key in range(KEYS)}
    assert len(shared.workers) > 1


async def nothing_is_left(connection: Any) -> None:
    """Ack what is left: messages whose acks were lost with the leader."""
    pull = await bound(connection)
    async with asyncio.timeout(3 * TIMEOUT_S):
        while True:
            try:
                info = await pull.consumer_info()
                if (info.num_ack_pending, info.num_pending) == (0, 0):
                    return
                for one in await pull.fetch(10, timeout=1):
                    await one.ack_sync(timeout=2)
            except RETRIED:
                await asyncio.sleep(0.1)
