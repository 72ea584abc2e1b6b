"""`penstock bench tls`: cost of TLS for readers of a log, and for appends over the socket.

Rules: Two brokers, one of which uses TLS; `durability = os`, so that the socket is measured and not the disk. In every
round each broker has the same work in turn: a bulk writer appends batches of many rows, and a reader reads the log from
its first message on, several times, each in a process of its own. The reader touches every byte, and the checksum is
compared with that of the sent values. CPU is that of the broker and of the client. The reader also measures how long
its event loop is blocked, because applications share that loop.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
from crc32c import crc32c

from penstock.base.errors import OperationalError
from penstock.base.limits import BENCH_STALL_S, GIB
from penstock.broker.security.certificate_authority import issued, written
from penstock.broker.supervision.child import launched
from penstock.client import aio
from penstock.client.blocking import client as blocking
from penstock.client.link.addresses import with_tls
from penstock_bench import worker
from penstock_bench.processes import cpu_seconds_of
from penstock_bench.readers import joined_values
from penstock_bench.report import Figure
from penstock_bench.rounds import Measurement, Ratio, cpu_ratio, interleave, median, ratio

ROUNDS = 7
PASSES = 4
_PLAIN, _TLS = "plain", "tls"
_ROWS = 4_096  # of one batch
_VALUES_BYTES_A_SECOND = 150_000_000  # for the time estimate
_LOOK_S = 0.001
_CLIENT, _BROKER = "client", "broker"
_TIMEOUT_S = 2 * BENCH_STALL_S
Step = Callable[[str], None]


class TlsPlan(msgspec.Struct, frozen=True):
    """The messages and rounds to measure."""

    messages: int = 262_144
    size: int = 1_024
    rounds: int = ROUNDS

    @property
    def steps(self) -> int:
        """Number of steps for a progress bar."""
        return 4 * (self.rounds + 1)

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds."""
        return 10 + self.steps * 2 * self.messages * self.size / _VALUES_BYTES_A_SECOND

    @property
    def bytes_needed(self) -> int:
        """Disk space in bytes, at most."""
        return GIB + 3 * self.messages * (self.size + 128)


class TlsTask(msgspec.Struct, frozen=True):
    """A log and its values. `broker` is the process id."""

    server: str
    stream: str
    messages: int
    size: int
    broker: int


class Done(msgspec.Struct, frozen=True):
    """The cost and the content of a task."""

    seconds: float
    cpu_seconds: dict[str, float]
    messages: int
    crc: int
    stood_still_ms: float = 0.0  # longest time for which the event loop was blocked


def append(task: TlsTask) -> Iterator[Done]:
    """Worker: append as a bulk writer."""
    import pyarrow as pa

    values = [bytes((number % 251,)) * 8 + os.urandom(task.size - 8) for number in range(_ROWS)]
    table = pa.table({"value": pa.array(values, pa.binary())})
    with blocking.connect(task.server, name="penstock-bench", timeout=_TIMEOUT_S) as client:
        client.status()
        clock = _Clock(task)
        crc = sent = 0
        while sent < task.messages:
            piece = table.slice(0, min(_ROWS, task.messages - sent))
            client.append(task.stream, piece, timeout=_TIMEOUT_S)
            sent += piece.num_rows
            crc = crc32c(b"".join(values[: piece.num_rows]), crc)
        yield clock.done(sent, crc)


def read(task: TlsTask) -> Iterator[Done]:
    """Worker: read on asyncio."""
    yield asyncio.run(_read(task))


async def _read(task: TlsTask) -> Done:
    async with await aio.connect(task.server, name="penstock-bench", timeout=_TIMEOUT_S) as client:
        await anext(client.messages(task.stream, end=1))  # imports of the first call are not part of the reading cost
        stood_still_s = 0.0

        async def look() -> None:
            nonlocal stood_still_s
            while True:
                before_s = time.perf_counter()
                await asyncio.sleep(_LOOK_S)
                stood_still_s = max(stood_still_s, time.perf_counter() - before_s - _LOOK_S)

        looking = asyncio.create_task(look())
        clock = _Clock(task)
        found = [await _once(client, task.stream) for _ in range(PASSES)]
        done = clock.done(*found[0])
        looking.cancel()
        if any(one != found[0] for one in found):
            raise OperationalError("two passes over one log differ")
        cpu = {name: seconds / PASSES for name, seconds in done.cpu_seconds.items()}
        still_ms = stood_still_s * 1_000
        return msgspec.structs.replace(done, seconds=done.seconds / PASSES, cpu_seconds=cpu, stood_still_ms=still_ms)


async def _once(client: object, stream: str) -> tuple[int, int]:
    from penstock.client.aio import Client

    assert isinstance(client, Client)
    messages = crc = 0
    async for batch in client.read(stream):
        messages += batch.num_rows
        crc = crc32c(joined_values(batch), crc)
    return messages, crc


class _Clock:
    """Measures wall and CPU time from its construction on."""

    def __init__(self, task: TlsTask) -> None:
        self._processes = {_BROKER: task.broker, _CLIENT: os.getpid()}
        self._before = cpu_seconds_of(self._processes)
        self._started_s = time.perf_counter()

    def done(self, messages: int, crc: int) -> Done:
        seconds = time.perf_counter() - self._started_s
        after = cpu_seconds_of(self._processes)
        return Done(seconds, {name: after[name] - self._before[name] for name in after}, messages, crc)


def run(plan: TlsPlan, folder: Path, said: Step) -> list[Figure]:
    """Run the whole plan. Raise OperationalError if no measurement is valid."""
    certificates = folder / "certificates"
    written(issued(["127.0.0.1"], "client", 1), certificates)
    own = ("--tls-cert", str(certificates / "broker.pem"), "--tls-key", str(certificates / "broker.key"))
    files = {"ca": str(certificates / "ca.pem")}
    with ExitStack() as running:
        servers: dict[str, tuple[str, int]] = {}
        for name, options in ((_PLAIN, ()), (_TLS, own)):
            places = ("--listen", "127.0.0.1:0", "--nats-port", "0", "--log-level", "error")
            broker = running.enter_context(launched(folder / name, *places, *options)).wait_until_ready()
            servers[name] = (broker.client if name == _PLAIN else with_tls(broker.client, files), broker.process_id)
        stood_still: dict[str, list[float]] = {_PLAIN: [], _TLS: []}
        measures = _Measures(plan, servers, stood_still, said)
        found = list(interleave({name: measures.of(name) for name in measures.names}, rounds=plan.rounds))
        measures.close()
    if median(found, f"read-{_PLAIN}") is None:
        raise OperationalError(f"nothing could be measured: {next(one.void for one in found if one.void)}")
    return _figures(plan, found, stood_still)


class _Measures:
    """One log on each broker to read, and a new one in every round to append to."""

    names = tuple(f"{what}-{how}" for what, how in itertools.product(("append", "read"), (_PLAIN, _TLS)))

    def __init__(
        self,
        plan: TlsPlan,
        servers: dict[str, tuple[str, int]],
        stood_still: dict[str, list[float]],
        said: Step,
    ) -> None:
        self._plan = plan
        self._servers = servers
        self._stood_still = stood_still
        self._said = said
        self._kept: dict[str, Done] = {}  # by transport: count and checksum of the log that is read
        self._stack = ExitStack()
        self._clients = {
            how: self._stack.enter_context(blocking.connect(server, timeout=_TIMEOUT_S))
            for how, (server, _) in servers.items()
        }
        for how in servers:
            self._append(how, "kept")

    def close(self) -> None:
        self._stack.close()

    def of(self, name: str) -> Callable[[int], Measurement]:
        """Return the function that measures one round of `name`."""
        what, _, how = name.partition("-")

        def once(round_number: int) -> Measurement:
            done = self._append(how, "appended") if what == "append" else self._read(how, round_number)
            self._said(name)
            void = None if what == "append" else self._untrue(how, done)
            return Measurement(
                system=name,
                round_number=round_number,
                value=done.messages * self._plan.size / done.seconds / 1e6,
                seconds=done.seconds,
                messages=done.messages,
                cpu_seconds=done.cpu_seconds,
                void=void,
            )

        return once

    def _append(self, how: str, stream: str) -> Done:
        client = self._clients[how]
        client.create_stream(stream, stream, durability="os", timeout=_TIMEOUT_S)
        done = worker.run(append, self._task(how, stream), timeout_s=4 * BENCH_STALL_S)
        stored = client.stream(stream, timeout=_TIMEOUT_S).partitions[0].committed_end
        if stored != self._plan.messages:
            raise OperationalError(f"{self._plan.messages} messages were appended, and {stored} are stored")
        if stream == "kept":
            self._kept[how] = done
        else:
            client.delete_stream(stream, timeout=_TIMEOUT_S)
        return done

    def _read(self, how: str, round_number: int) -> Done:
        done = worker.run(read, self._task(how, "kept"), timeout_s=4 * BENCH_STALL_S)
        if round_number >= 0:
            self._stood_still[how].append(done.stood_still_ms)
        return done

    def _task(self, how: str, stream: str) -> TlsTask:
        server, process = self._servers[how]
        return TlsTask(server, stream, self._plan.messages, self._plan.size, process)

    def _untrue(self, how: str, done: Done) -> str | None:
        kept = self._kept[how]
        return None if (done.messages, done.crc) == (kept.messages, kept.crc) else "what was read is not what was sent"


def _figures(plan: TlsPlan, found: list[Measurement], stood_still: dict[str, list[float]]) -> list[Figure]:
    figures = []
    for what, verb in (("append", "appended over the socket"), ("read", "read")):
        for how in (_PLAIN, _TLS):
            values = sorted(one.value for one in found if one.system == f"{what}-{how}" and one.void is None)
            if values:
                middle = values[len(values) // 2]
                title = f"{verb}, {how}, values of {plan.size:,} B"
                figures.append(
                    Figure(f"{what}-{how}", title, "MB/s", middle, low=values[0], high=values[-1], at_least=True)
                )
        rate = ratio(found, f"{what}-{_TLS}", f"{what}-{_PLAIN}")
        cpu = cpu_ratio(found, f"{what}-{_TLS}", f"{what}-{_PLAIN}")
        figures += _ratios(what, f"{verb}, TLS by plain", rate, cpu)
    for how, values in stood_still.items():
        if values:
            still = sorted(values)
            title = f"the reader's event loop stood still, {how}, the longest of {PASSES} passes"
            figures.append(Figure(f"still-{how}", title, "ms", still[len(still) // 2], low=still[0], high=still[-1]))
    return figures


def _ratios(what: str, title: str, rate: Ratio | None, cpu: Ratio | None) -> list[Figure]:
    figures = []
    if rate is not None:
        figures.append(Figure(f"{what}-rate", title, "×", rate.median, low=rate.low, high=rate.high, at_least=True))
    if cpu is not None:
        title = f"{title}: CPU of broker and client for a byte"
        figures.append(Figure(f"{what}-cpu", title, "×", cpu.median, low=cpu.low, high=cpu.high))
    return figures
