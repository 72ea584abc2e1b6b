"""Order by key, dead letters and a work queue of real brokers whose leaders are killed every 5 s, with nats-py.

| stream | consumer               | what must hold                                                                  |
|--------|------------------------|---------------------------------------------------------------------------------|
| `k`    | ordered by the key     | a message comes only once a worker was about to settle all before it of its key |
| `d`    | with dead letters      | what no worker acked has one letter; what was confirmed gets none               |
| `w`    | of a work queue        | what was confirmed does not come back; nothing is left in the stream            |
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig

from tests.broker_process import eventually, running_nats
from tests.chaos.acked import AckHistory
from tests.chaos.workers import FAILURES, NumberPublisher, Worker, client_of
from tests.extent import extent, needs_time
from tests.integration.clusters import ClusterProcesses
from tests.integration.test_jetstream_readers import delivering
from tests.integration.test_jetstream_streams import api_options, serving
from tests.ports import free_ports

SEED = int(os.environ.get("CHAOS_QUEUES_SEED", "1"))
KILLS = extent(8, 40)
KEYS = 7
EVERY_S = 5.0
DOWN_S = 2.0
IDLE_S = 90.0
STREAMS: dict[str, dict[str, Any]] = {"k": {}, "d": {}, "w": {"retention": RetentionPolicy.WORK_QUEUE}}
CONSUMERS: dict[str, dict[str, Any]] = {
    "k": {"ack_wait": 1, "metadata": {"penstock.order_by": "token:2"}},
    "d": {"ack_wait": 1, "max_deliver": 3, "metadata": {"penstock.dead_letters": "dead"}},
    "w": {"ack_wait": 1},
}


class Settling(Worker):
    """A worker that also terminates, and notes order."""

    def __init__(self, *given: Any, **more: Any) -> None:
        self.early: list[str] = []
        super().__init__(*given, **more)

    async def _take(self, message: Any) -> None:
        if "Status" not in (message.headers or {}) and self.consumer == "k":
            number = int(message.data)
            settled = {int(value) for consumer, value in self._history.acking if consumer == "k"}
            before = set(range(number % KEYS, number, KEYS)) - settled
            if before:
                self.early.append(f"{number} before {sorted(before)[:3]}")
        await super()._take(message)

    async def _settle(self, message: Any, value: str) -> None:
        if self.consumer == "d" and not self.is_calm and self._chance.random() < 0.1:
            await message.term()
        else:
            await super()._settle(message, value)


class KeyPublisher(NumberPublisher):
    """Publishes to one subject for each key."""

    def subject_of(self, number: int) -> str:
        return f"{self._subject}.{number % KEYS}"


async def is_done(call: Any) -> bool:
    """Return whether a call of the API succeeded; without a leader it fails."""
    try:
        await call()
    except FAILURES:
        return False
    return True


async def make(js: Any) -> None:
    await js.add_stream(StreamConfig(name="dead", subjects=["penstock.dead.dead.>"], num_replicas=3))
    for name, more in STREAMS.items():
        await js.add_stream(StreamConfig(name=name, subjects=[f"{name}.*"], num_replicas=3, **more))
        wanted = ConsumerConfig(durable_name=name, ack_policy=AckPolicy.EXPLICIT, **CONSUMERS[name])
        await eventually(partial(is_done, partial(js.add_consumer, name, wanted)), f"consumer {name} is made")


async def kill_leaders(brokers: ClusterProcesses, chance: random.Random) -> None:
    for turn in range(KILLS):
        stream = "kdw"[turn % 3]
        leader = chance.choice(list(brokers.brokers))
        with suppress(AssertionError, TimeoutError):
            leader = await brokers.leader_of(stream, leader)
        brokers.brokers[leader].kill()
        await asyncio.sleep(DOWN_S)
        brokers.brokers[leader].launch()
        await asyncio.sleep(EVERY_S - DOWN_S)


async def is_idle(js: Any, name: str) -> bool:
    try:
        info = await js.consumer_info(name, name, timeout=5)
    except FAILURES:
        return False
    return (info.num_pending, info.num_ack_pending, info.num_redelivered) == (0, 0, 0)


async def letters(js: Any) -> dict[str, list[float]]:
    """Return by message when its letters say that it was given up, in seconds since the epoch."""
    found: dict[str, list[float]] = {}
    for sequence in range(1, (await js.stream_info("dead")).state.last_seq + 1):
        letter = await js.get_msg("dead", sequence)
        at_s = datetime.fromisoformat(letter.headers["Penstock-Dead-Time"]).timestamp()
        found.setdefault(letter.data.decode(), []).append(at_s)
    return found


async def mistakes(js: Any, histories: dict[str, AckHistory], workers: list[Settling]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, history in histories.items():
        limits = {"d": 3} if name == "d" else None
        found |= {f"{name}: {kind}": what for kind, what in history.mistakes([name], limits or (), limits).items()}
    found["early"] = [what for worker in workers for what in worker.early]
    dead, history = await letters(js), histories["d"]
    acked = {value for _, value in history.acking}
    epoch_s = time.time() - time.monotonic()
    found["letters twice"] = [value for value, ends in dead.items() if len(ends) > 1]
    found["no letter"] = sorted(history.stored - acked - dead.keys())
    # a late ack of what was given up is confirmed too
    found["confirmed, then a letter"] = [
        one.value for one in history.confirmed if one.value in dead and one.at_s + epoch_s < max(dead[one.value])
    ]
    found["left"] = (await js.stream_info("w")).state.messages
    print(len(dead), "letters", {name: (len(one.stored), len(one.taken)) for name, one in histories.items()})
    for value in found["confirmed, then a letter"]:
        ends = [(one.at_s + epoch_s, one) for one in history.confirmed if one.value == value]
        print(dead[value], ends, [(one.at_s + epoch_s, one) for one in history.taken if one.value == value])
    assert dead
    return {kind: what for kind, what in found.items() if what}


async def run(url: str, brokers: ClusterProcesses) -> dict[str, Any]:
    """Keep all consumers busy while leaders are killed; return what must not be."""
    histories = {name: AckHistory() for name in STREAMS}
    connection = await client_of(url)
    workers: list[Settling] = []
    try:
        await serving(connection)
        await delivering(connection)
        js = connection.jetstream(timeout=20)
        await make(js)
        workers += [
            Settling(url, name, name, history, SEED + number, batch=10)
            for name, history in histories.items()
            for number in range(3)
        ]
        publishers = [KeyPublisher(url, name, history) for name, history in histories.items()]
        await kill_leaders(brokers, random.Random(SEED))
        await asyncio.gather(*(publisher.stop() for publisher in publishers))
        for worker in workers:
            worker.calm()
        for name in STREAMS:
            await eventually(partial(is_idle, js, name), f"{name} is idle", IDLE_S)
        return await mistakes(js, histories, workers)
    finally:
        for worker in workers:
            print(worker.consumer, worker.heard)
            await worker.stop()
        await connection.close()


@needs_time
async def test_order_dead_letters_and_a_work_queue_while_leaders_are_killed(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with running_nats(tmp_path / "nats", f'leafnodes {{ listen: "127.0.0.1:{port}" }}\n') as server:
        options = api_options("--jetstream-rights", "manage", "--nats-leaf", f"nats://127.0.0.1:{port}")
        brokers = ClusterProcesses(tmp_path, server, 3, *options)
        try:
            brokers.start()
            await brokers.all_live()
            found = await run(server.url, brokers)
        finally:
            print(brokers.said)
            brokers.end()
    assert found == {}
    assert "Traceback" not in brokers.said
