"""Consumers with acks of real brokers under kills and stops, with unmodified clients; and the checker's own tests."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from tests.broker_process import eventually, running_nats
from tests.chaos.acked import SLACK_S, AckHistory, Confirmed, Stopped, Taken
from tests.chaos.go_workers import GoProgram
from tests.chaos.workers import FAILURES, NumberPublisher, Worker, client_of
from tests.extent import extent, needs_time
from tests.integration.clusters import ClusterProcesses
from tests.integration.test_jetstream_readers import delivering
from tests.integration.test_jetstream_streams import api_options, serving
from tests.nats_programs import built_by_go
from tests.ports import free_ports

CONSUMERS: dict[str, dict[str, Any]] = {
    "plain": {"ack_wait": 2},
    "counted": {"ack_wait": 2, "max_deliver": 1_000, "backoff": [0.5, 1, 2]},
    "narrow": {"ack_wait": 1, "max_ack_pending": 5},
    "limited": {"ack_wait": 2, "max_deliver": 20},
    "pushed": {"ack_wait": 2, "deliver_subject": "deliver.pushed", "deliver_group": "g", "max_ack_pending": 50},
}
COUNTED = ("counted", "limited")
LIMITS = {"limited": 20}
GO_WORKERS = (  # kind of worker, consumer, most messages of one request
    *(("consume", "plain", 20), ("messages", "plain", 20)),
    *(("fetch", "counted", 20), ("consume", "counted", 20)),
    *(("fetch", "narrow", 2), ("consume", "narrow", 2)),
    *(("fetch", "limited", 20), ("messages", "limited", 20)),
    *(("push", "pushed", 0), ("pushed", "pushed", 0)),
)
FAULTS = ("kill", "stop", "nats", "kill two", "roll", "kill", "stop")
SEED = int(os.environ.get("CHAOS_ACKED_SEED", "1"))
ROUNDS = extent(1, 5)  # of all faults
CrewOf = Callable[[str, AckHistory], Awaitable["Crew"]]
SESSION_S = 4.0  # a broker's session with the metadata leader ends before


def test_what_must_not_be_is_found() -> None:
    history = AckHistory()
    history.published |= {"1", "2", "3"}
    history.stored |= {"1", "2"}
    history.taken += [Taken(0.0, "c", "1", 1), Taken(1.0, "c", "1", 1), Taken(2.0, "c", "9", 1)]
    history.confirmed += [Confirmed(0.5, "c", "1")]
    history.acking |= {("c", "1"), ("other", "2")}
    found = history.mistakes(["c"], ["c"])
    assert found == {
        "never delivered": ["c: 1, the first ['2']"],
        "from nowhere": ["c: 1, the first ['9']"],
        "count told twice": ["c: 1, the first ['1 1']"],
        "never acked": ["c: 1, the first ['2']"],
    }
    assert "past max_deliver" not in history.mistakes(["c"], [], {"c": 2})
    assert history.mistakes(["c"], [], {"c": 1})["past max_deliver"] == ["c: 1, the first ['1']"]
    history.taken.append(Taken(0.6 + SLACK_S, "c", "1", 2))
    assert history.mistakes(["c"], [])["confirmed, and back"] == ["c: 1, the first ['1']"]
    history.stopped.append(Stopped(0.2, 1.0))
    assert "confirmed, and back" not in history.mistakes(["c"], [])
    history.taken.append(Taken(1.1 + SLACK_S, "c", "1", 3))
    assert "confirmed, and back" in history.mistakes(["c"], [])


async def strike(
    fault: str, brokers: ClusterProcesses, server: Any, history: AckHistory, chance: random.Random
) -> None:
    """Do one thing to the leader, or to others, and undo it."""
    alive = [number for number, broker in brokers.brokers.items() if broker.is_running]
    leader = None
    with suppress(AssertionError, TimeoutError):
        leader = await brokers.leader_of("s", chance.choice(alive))
    first = leader if leader in alive else chance.choice(alive)
    match fault:
        case "kill" | "kill two":
            struck = [first]
            if fault == "kill two":
                struck.append(chance.choice([number for number in brokers.brokers if number != first]))
            for number in struck:
                brokers.brokers[number].kill()
            await asyncio.sleep(chance.random() * SESSION_S)
            for number in struck:
                brokers.brokers[number].launch()
        case "roll":
            brokers.brokers[first].stop()
            brokers.brokers[first].launch()
        case "stop":
            begin_s = time.monotonic()
            brokers.brokers[first].signal(signal.SIGSTOP)
            await asyncio.sleep(SESSION_S + 2 * chance.random())
            brokers.brokers[first].signal(signal.SIGCONT)
            history.stopped.append(Stopped(begin_s, time.monotonic()))
        case "nats":
            server.kill()
            await asyncio.sleep(chance.random())
            server.start()
    await asyncio.sleep(1 + chance.random())


async def is_made(js: Any, config: ConsumerConfig) -> bool:
    """True once a consumer is made: the leader may have no leaf connection yet."""
    try:
        return bool(await js.add_consumer("s", config))
    except FAILURES:
        return False


async def is_idle(js: Any, name: str, last: int) -> bool:
    """True if a consumer has nothing left; its info must then be exact."""
    try:
        info = await js.consumer_info("s", name, timeout=5)
    except FAILURES:
        return False
    if (info.num_pending, info.num_ack_pending) != (0, 0):
        return False
    assert info.ack_floor.stream_seq <= last
    assert (info.ack_floor.consumer_seq, info.num_redelivered) == (info.delivered.consumer_seq, 0), info
    return True


class Crew(Protocol):
    """Clients that keep consumers busy."""

    def calm(self) -> None:
        """Let all workers ack all from now on."""

    async def lose(self, chance: random.Random) -> None:
        """End a worker that has messages in hand, and begin another one."""

    async def stop_publishing(self) -> None:
        """End once the last message is stored."""

    async def stop(self) -> None:
        """End all workers."""


class PythonCrew:
    """Unmodified nats-py."""

    def __init__(self, url: str, history: AckHistory, seed: int) -> None:
        self._publisher = NumberPublisher(url, "s", history)
        self._workers = [
            Worker(url, "s", name, history, seed + number, group=group, batch=batch)
            for name, group, batch in (
                ("plain", "", 20),
                ("counted", "", 20),
                ("narrow", "", 2),
                ("pushed", "g", 20),
                ("limited", "", 20),
            )
            for number in range(2)
        ]

    def calm(self) -> None:
        for worker in self._workers:
            worker.calm()

    async def lose(self, chance: random.Random) -> None:
        """None is lost: workers share a process, and a task that is cancelled is no client that died."""

    async def stop_publishing(self) -> None:
        await self._publisher.stop()

    async def stop(self) -> None:
        for worker in self._workers:
            print(worker.consumer, worker.heard)
            await worker.stop()


class GoCrew:
    """Unmodified nats.go: each worker is a process."""

    def __init__(self, program: Path, url: str, history: AckHistory, seed: int) -> None:
        self._publisher = GoProgram(program, history, "publish", url, "s")
        self._workers = [
            GoProgram(program, history, kind, url, "s", name, str(seed + number), str(batch))
            for number, (kind, name, batch) in enumerate(GO_WORKERS)
        ]

    async def start(self) -> None:
        for one in (self._publisher, *self._workers):
            await one.start()

    def calm(self) -> None:
        for worker in self._workers:
            worker.signal(signal.SIGUSR1)

    async def lose(self, chance: random.Random) -> None:
        worker = chance.choice(self._workers)
        await worker.kill()
        await worker.start()

    async def stop_publishing(self) -> None:
        self._publisher.signal(signal.SIGTERM)
        await self._publisher.ended()

    async def stop(self) -> None:
        for one in (self._publisher, *self._workers):
            print(*one.arguments[2:4], one.heard)
            await one.kill()


async def run(server: Any, brokers: ClusterProcesses, seed: int, crew_of: CrewOf, faults: Iterable[str]) -> AckHistory:
    """Keep all consumers busy, strike, let all come to rest, and return what was seen."""
    history, chance = AckHistory(), random.Random(seed)
    connection = await client_of(server.url)
    crew: Crew | None = None
    try:
        await serving(connection)
        await delivering(connection)
        js = connection.jetstream(timeout=20)
        await js.add_stream(StreamConfig(name="s", num_replicas=3))
        for name, config in CONSUMERS.items():
            wanted: Any = {"durable_name": name, "ack_policy": AckPolicy.EXPLICIT, **config}
            await eventually(partial(is_made, js, ConsumerConfig(**wanted)), f"consumer {name} is made")
        crew = await crew_of(server.url, history)
        await asyncio.sleep(1)
        for fault in faults:
            await strike(fault, brokers, server, history, chance)
            await crew.lose(chance)
            print(fault, len(history.stored), len(history.taken), len(history.confirmed))
        await crew.stop_publishing()
        crew.calm()
        for name in CONSUMERS:
            await eventually(partial(is_idle, js, name, len(history.stored)), f"{name} is idle", 60)
    finally:
        if crew is not None:
            await crew.stop()
        await connection.close()
    return history


async def promises_are_kept(folder: Path, crew_of: CrewOf, faults: Iterable[str]) -> None:
    (port,) = free_ports(1)
    with running_nats(folder / "nats", f'leafnodes {{ listen: "127.0.0.1:{port}" }}\n') as server:
        options = api_options("--jetstream-rights", "manage", "--nats-leaf", f"nats://127.0.0.1:{port}")
        brokers = ClusterProcesses(folder, server, 3, *options)
        try:
            brokers.start()
            await brokers.all_live()
            history = await run(server, brokers, SEED, crew_of, faults)
        finally:
            print(brokers.said)
            brokers.end()
    assert history.mistakes(CONSUMERS, COUNTED, LIMITS) == {}
    assert len(history.stored) > 50
    assert len(history.confirmed) > len(CONSUMERS) * 30
    assert "Traceback" not in brokers.said


@needs_time
async def test_consumers_keep_their_promises_while_brokers_are_killed_and_stopped(tmp_path: Path) -> None:
    async def crew_of(url: str, history: AckHistory) -> Crew:
        return PythonCrew(url, history, SEED)

    await promises_are_kept(tmp_path, crew_of, FAULTS)


@needs_time
async def test_consumers_keep_their_promises_to_nats_go(tmp_path: Path) -> None:
    program = built_by_go(Path(__file__).parent / "go", tmp_path / "chaos")

    async def crew_of(url: str, history: AckHistory) -> Crew:
        crew = GoCrew(program, url, history, SEED)
        await crew.start()
        return crew

    await promises_are_kept(tmp_path, crew_of, FAULTS * ROUNDS)
