"""`penstock bench subjects`: one stream with many subjects, in Penstock and in JetStream.

Rules: Both store the same messages on random subjects, from the same publisher, and ack each; then both are idle.
Memory is what the process has grown by since it was empty: of nats-server, which serves both, only JetStream's counts.
The last message of a subject is looked up in turns, by clients on asyncio: nats-py's direct get, and `penstock.aio`.
Each server is killed with SIGKILL and started again, until it answers such a look-up, beside the same with an empty
directory. Finally each takes messages to two further streams:

| stream    | its messages                                                                     |
|-----------|----------------------------------------------------------------------------------|
| `expects` | each on a new subject, and only if that has no message yet                       |
| `limited` | on random subjects; the stream keeps the last one of each                        |
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import nats
import nats.js.errors

import penstock.aio
from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.limits import GIB
from penstock.client.blocking import client as blocking
from penstock.client.errors import MessageNotFound
from penstock_bench.experiments.experiment import Findings, Said
from penstock_bench.load import subject_load
from penstock_bench.load.nats_socket import NatsSocket
from penstock_bench.load.subject_load import SubjectLoad, SubjectsPublished, subject_of
from penstock_bench.machine import worker
from penstock_bench.machine.idle_resources import held
from penstock_bench.results.report import Figure
from penstock_bench.systems.brokers import TIMEOUT_S, Brokers
from penstock_bench.systems.system import nats_server, nats_server_that_may_end

PENSTOCK, JETSTREAM = "penstock", "jetstream"
STREAMS = ("many", "expects", "limited")
_MANY, _EXPECTS, _LIMITED = STREAMS
_TOLD = {_MANY: "random subjects", _EXPECTS: "new subjects, expected empty", _LIMITED: "last of each kept"}
_WARM_UP = 20  # look-ups of each kind that do not count
_SECONDS_A_MESSAGE = 2e-5  # for the time estimate
_BYTES_A_MESSAGE = 600  # on the disk, of each, at most


LookUp = Callable[[str], Awaitable[bool]]
"""Looks up the last message of a subject; True: there is one."""


class SubjectsPlan(msgspec.Struct, frozen=True):
    """Size of the streams, and the number of look-ups of each kind."""

    messages: int = 10_000_000
    subjects: int = 1_000_000
    further: int = 500_000  # messages to each of the other streams
    look_ups: int = 2_000
    window: int = 4_000

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds."""
        return 60.0 + 2 * (self.messages + 2 * self.further) * _SECONDS_A_MESSAGE + 4e-3 * self.look_ups

    @property
    def bytes_needed(self) -> int:
        """Disk space in bytes, at most."""
        return GIB + 2 * (self.messages + 2 * self.further) * _BYTES_A_MESSAGE

    @property
    def steps(self) -> int:
        """Number of steps that a run reports."""
        return 2 * 4 + 1

    def run(self, folder: Path, said: Said) -> Findings:
        """Run the whole plan and return its figures."""
        return Findings(figures(self, measure(self, folder, said)))


class Server(ABC):
    """A server of streams that can be killed and started again."""

    process_id: int
    nats: Address

    @abstractmethod
    def start(self) -> None:
        """Start it, and return once it answers."""

    @abstractmethod
    def kill(self) -> None:
        """End it with SIGKILL."""

    @abstractmethod
    def create(self, stream: str) -> None:
        """Create a stream: see the module's table."""

    @abstractmethod
    def looking_up(self) -> AbstractAsyncContextManager[LookUp]:
        """Connect a client; return the look-up of the last message of a subject in the first stream."""

    def first_look_up(self) -> None:
        """Look up a subject."""

        async def once() -> None:
            async with self.looking_up() as last:
                await last(subject_of(_MANY, 0))

        asyncio.run(once())


class JetStream(Server):
    """nats-server with JetStream."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._running = stack.enter_context(ExitStack())
        self._socket: NatsSocket

    def start(self) -> None:
        """Start it; JetStream recovers its streams before the server is ready."""
        text = f'jetstream {{ store_dir: "{self._folder / "store"}" }}\n'
        running = nats_server_that_may_end(self._folder, text, start_s=limits.BENCH_RECOVERY_S)
        started = self._running.enter_context(running)
        self.nats, self.process_id = started
        self._socket = self._running.enter_context(NatsSocket(self.nats, timeout_s=TIMEOUT_S))
        self._socket.request("$JS.API.INFO", {})

    def kill(self) -> None:
        """End it with SIGKILL."""
        os.kill(self.process_id, signal.SIGKILL)
        self._running.close()

    def create(self, stream: str) -> None:
        """Create a stream."""
        config: dict[str, object] = {"name": stream, "subjects": [f"{stream}.*"], "num_replicas": 1}
        config |= {"allow_direct": True, "storage": "file"}
        if stream == _LIMITED:
            config["max_msgs_per_subject"] = 1
        self._socket.request(f"$JS.API.STREAM.CREATE.{stream}", config)

    @asynccontextmanager
    async def looking_up(self) -> AsyncIterator[LookUp]:
        """Connect nats-py; a look-up is a direct get."""
        connection = await nats.connect(f"nats://{self.nats.host}:{self.nats.port}")
        jetstream = connection.jetstream()

        async def last(subject: str) -> bool:
            try:
                await jetstream.get_last_msg(_MANY, subject, direct=True)
            except nats.js.errors.NotFoundError:
                return False
            return True

        yield last
        await connection.close()


class Penstock(Server):
    """One broker on a nats-server."""

    def __init__(self, folder: Path, nats: Address, stack: ExitStack) -> None:
        self._brokers = Brokers(folder, nats, 1)
        stack.callback(self._brokers.close)
        self._connections = stack.enter_context(ExitStack())
        self.nats = nats

    def start(self) -> None:
        """Start it, and connect."""
        self._brokers.start(1)
        self.process_id = self._brokers.process_ids[1]
        self._client = self._connections.enter_context(
            blocking.connect(self._brokers.addresses[1], name="penstock-bench", timeout=TIMEOUT_S)
        )

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._connections.close()
        self._brokers.kill(1)

    def create(self, stream: str) -> None:
        """Create a stream."""
        limit: Any = {"max_messages_per_subject": 1} if stream == _LIMITED else {}
        self._client.create_stream(stream, f"{stream}.*", timeout=TIMEOUT_S, **limit)

    @asynccontextmanager
    async def looking_up(self) -> AsyncIterator[LookUp]:
        """Connect the client."""
        async with penstock.aio.connect(self._brokers.addresses[1], name="penstock-bench") as client:

            async def last(subject: str) -> bool:
                try:
                    await client.last(_MANY, subject=subject, timeout=TIMEOUT_S)
                except MessageNotFound:
                    return False
                return True

            yield last


class ServerFound(msgspec.Struct, frozen=True, kw_only=True):
    """The measures of one server."""

    published: Mapping[str, SubjectsPublished]  # by stream
    grown_bytes: int  # resident memory, since it was empty
    start_empty_s: float
    start_s: float  # after kill -9, until the first answer
    present_us: float = 0.0
    absent_us: float = 0.0  # look-ups: medians


def measure(plan: SubjectsPlan, folder: Path, said: Said) -> dict[str, ServerFound]:
    """Run the whole plan; return what was found by the server's name."""
    with ExitStack() as stack:
        nats, _ = stack.enter_context(nats_server(folder / "nats"))
        servers: dict[str, Server] = {
            PENSTOCK: Penstock(folder, nats, stack),
            JETSTREAM: JetStream(folder / JETSTREAM, stack),
        }
        found: dict[str, ServerFound] = {}
        for name, server in servers.items():
            began_s = time.monotonic()
            server.start()
            start_empty_s = time.monotonic() - began_s
            found[name] = _of_server(plan, name, server, start_empty_s, said)
        times = asyncio.run(_look_ups(plan, servers))
        said("look-ups")
        return {
            name: msgspec.structs.replace(
                one,
                present_us=1e6 * statistics.median(times[name, True]),
                absent_us=1e6 * statistics.median(times[name, False]),
            )
            for name, one in found.items()
        }


def _of_server(plan: SubjectsPlan, name: str, server: Server, start_empty_s: float, said: Said) -> ServerFound:
    empty = held(server.process_id).resident_bytes
    published = {}
    server.create(_MANY)
    published[_MANY] = _publish(plan, server, _MANY, plan.messages)
    os.sync()
    grown_bytes = held(server.process_id).resident_bytes - empty
    said(f"{name}: {plan.messages:,} messages")
    server.kill()
    began_s = time.monotonic()
    server.start()
    server.first_look_up()
    start_s = time.monotonic() - began_s
    said(f"{name}: started again")
    for stream in (_EXPECTS, _LIMITED):
        server.create(stream)
        published[stream] = _publish(plan, server, stream, plan.further)
        said(f"{name}: {stream}")
    return ServerFound(published=published, grown_bytes=grown_bytes, start_empty_s=start_empty_s, start_s=start_s)


def _publish(plan: SubjectsPlan, server: Server, stream: str, messages: int) -> SubjectsPublished:
    load = SubjectLoad(
        server.nats,
        stream,
        messages,
        plan.subjects,
        window=plan.window,
        is_new=stream == _EXPECTS,
        watched={"server": server.process_id},
    )
    return worker.run_alone(subject_load.publish, load, f"load of {stream}")


async def _look_ups(plan: SubjectsPlan, servers: Mapping[str, Server]) -> dict[tuple[str, bool], list[float]]:
    """Return the seconds of all look-ups, in turns, of subjects that are present and absent."""
    chance = random.Random(2)  # noqa: S311 (which subjects, no secret)
    times: dict[tuple[str, bool], list[float]] = {(name, there): [] for name in servers for there in (True, False)}
    async with AsyncExitStack() as stack:
        last = {name: await stack.enter_async_context(server.looking_up()) for name, server in servers.items()}
        for number in range(-_WARM_UP, plan.look_ups):
            for is_present in (True, False):
                subject = subject_of(_MANY, chance.randrange(plan.subjects) + (0 if is_present else plan.subjects))
                for name in sorted(servers, reverse=bool(number % 2)):
                    began_s = time.perf_counter()
                    was_found = await last[name](subject)
                    if number >= 0:
                        times[name, is_present].append(time.perf_counter() - began_s)
                    assert is_present or not was_found, subject
    return times


def figures(plan: SubjectsPlan, found: Mapping[str, ServerFound]) -> list[Figure]:
    """Return the figures of the report."""
    ours, theirs = found[PENSTOCK], found[JETSTREAM]
    what = f"{plan.subjects:,} subjects, {plan.messages:,} messages"
    shown: list[Figure] = []
    for name, one in found.items():
        shown += [
            Figure(f"{name}-memory", f"{name}: {what}: memory grown by", "MB", one.grown_bytes / 1e6),
            Figure(f"{name}-start", f"{name}: the same: start after kill -9", "s", one.start_s),
            Figure(f"{name}-start-empty", f"{name}: start with an empty directory", "s", one.start_empty_s),
            Figure(f"{name}-present", f"{name}: last of a subject, present, median", "µs", one.present_us),
            Figure(f"{name}-absent", f"{name}: last of a subject, absent, median", "µs", one.absent_us),
        ]
        for stream, told in (
            (_MANY, "random subjects"),
            (_EXPECTS, "new subjects, expected empty"),
            (_LIMITED, "last of each kept"),
        ):
            published = one.published[stream]
            count = plan.messages if stream == _MANY else plan.further
            cpu_us = 1e6 * sum(published.cpu_seconds.values()) / count
            shown += [
                Figure(f"{name}-{stream}", f"{name}: {told}: acked", "/s", count / published.seconds),
                Figure(f"{name}-{stream}-cpu", f"{name}: the same: CPU of the server, a message", "µs", cpu_us),
            ]
    shown += [
        Figure("memory", "memory, by JetStream's", "×", ours.grown_bytes / max(1, theirs.grown_bytes), 0.1),
        Figure("start", "start after kill -9, by an empty one", "×", ours.start_s / ours.start_empty_s, 2.0),
        Figure("present", "last of a subject, present, by JetStream", "×", ours.present_us / theirs.present_us, 1.5),
        Figure("absent", "last of a subject, absent, by JetStream", "×", ours.absent_us / theirs.absent_us, 1.5),
    ]
    for stream in (_EXPECTS, _LIMITED):
        rate = theirs.published[stream].seconds / ours.published[stream].seconds
        shown.append(Figure(stream, f"{_TOLD[stream]}: acked, by JetStream", "×", rate, 1.0, at_least=True))
    return shown
