"""Cost of a typed call over NATS (`tools/rpc_cost.py`), beside plain request/reply of nats-py with the same payload.

Rules: One nats-server, one process that serves and one that calls; each has one connection. The same processes serve
both sides of a comparison: plain messages are the very bytes that the typed call sends and receives. A call takes and
returns the flat struct of the contract below. CPU is that of both processes, nats-server's not
included, since it is the same for both.

| turn            | calls                                                                         |
|-----------------|-------------------------------------------------------------------------------|
| plain, typed    | so many, 100 in flight: seconds of CPU                                        |
| plain, typed -1 | one at a time: median time of a round trip                                    |
| alone, beside   | quick typed calls, 10 in flight, alone or beside a slow one: their percentile |
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from penstock.base.errors import OperationalError
from penstock.base.limits import BENCH_STALL_S
from penstock.frugal.codecs import BINARY
from penstock.frugal.context import Context
from penstock.frugal.framing import FRUGAL
from penstock.frugal.nats_transport import NatsTransport
from penstock.frugal.server import Server
from penstock.idl.python.load import load_text
from penstock_bench.experiments.experiment import Experiment, Row, Turn
from penstock_bench.machine import worker
from penstock_bench.machine.processes import Stopwatch
from penstock_bench.systems.system import nats_server

ROUNDS = 7
CONTRACT = """
struct Reading {
    1: i64 number, 2: i64 device, 3: i64 time, 4: i64 count, 5: double low, 6: double high,
    7: string name, 8: string place, 9: string unit, 10: bool valid
}
service Meters { Reading echo(1: Reading reading), void wait(1: double seconds) }
"""
_PLAIN, _TYPED = "plain", "typed"
_ALONE, _BESIDE = "alone", "beside"
_SUBJECT = "meters"
_IN_FLIGHT = 100
_IN_FLIGHT_QUICK = 10
_TIMEOUT_MS = 60_000
_SLOW_S = 0.5  # a slow call is renewed until the quick ones are done
_CALL_SECONDS = 4e-4  # of one call, for the time estimate


def experiment(calls: int = 5_000, rounds: int | None = None) -> Experiment:
    """Return the experiment, with so many calls per turn, and a fifth of that one at a time."""
    quick = f"{_IN_FLIGHT_QUICK} in flight"
    return Experiment(
        systems=(_PLAIN, _TYPED, f"{_PLAIN}-1", f"{_TYPED}-1", _ALONE, _BESIDE),
        begin=partial(_begin, calls=calls),
        rounds=rounds or ROUNDS,
        turn_seconds=calls * _CALL_SECONDS,
        bytes_needed=0,
        rows=(
            Row(_PLAIN, f"plain request/reply, {_IN_FLIGHT} in flight: CPU of a call", "µs", "cpu_us", _PLAIN),
            Row(_TYPED, f"typed, {_IN_FLIGHT} in flight: CPU of a call", "µs", "cpu_us", _TYPED),
            Row(
                "in-flight",
                "calls by second of CPU, typed by plain",
                "×",
                "per_cpu_s",
                _TYPED,
                _PLAIN,
                0.7,
                at_least=True,
            ),
            Row(f"{_PLAIN}-1", "plain request/reply, one at a time", "µs", "median_us", f"{_PLAIN}-1"),
            Row(f"{_TYPED}-1", "typed, one at a time", "µs", "median_us", f"{_TYPED}-1"),
            Row("one", "one at a time, typed by plain", "×", "median_us", f"{_TYPED}-1", f"{_PLAIN}-1", 1.4),
            Row(_ALONE, f"p99 of quick calls, {quick}", "µs", "p99_us", _ALONE),
            Row(_BESIDE, f"p99 of quick calls beside a slow one, {quick}", "µs", "p99_us", _BESIDE),
            Row("slow", "p99 of quick calls, beside a slow one by without it", "×", "p99_us", _BESIDE, _ALONE, 1.3),
        ),
    )


@contextmanager
def _begin(folder: Path, *, calls: int) -> Iterator[Turn]:
    """Start nats-server, and the process that serves."""
    with nats_server(folder, "") as (address, _):
        url = f"nats://{address.host}:{address.port}"
        with worker.working(serve, ServeTask(url)) as (served, _child):

            def turn(name: str, round_number: int) -> dict[str, float]:
                task = CallTask(url, served.process_id, name, calls)
                return worker.run(measure, task, timeout_s=2 * BENCH_STALL_S).measures

            yield turn


class ServeTask(msgspec.Struct, frozen=True):
    """The address of NATS."""

    url: str


class Served(msgspec.Struct, frozen=True):
    """The process that serves."""

    process_id: int


class CallTask(msgspec.Struct, frozen=True):
    """A turn. `server`: the process id of what serves."""

    url: str
    server: int
    turn: str
    calls: int


class Called(msgspec.Struct, frozen=True):
    """The measures of a turn."""

    measures: dict[str, float]


@cache
def contract() -> ModuleType:
    """Return the module of the contract."""
    return load_text(CONTRACT, file="meters.frugal")


def reading() -> Any:
    """Return what a call sends."""
    return contract().Reading(
        number=1, device=2**40, time=1_700_000_000_000_000, count=7, low=1.25, high=-3.5, name="outside!",
        place="northern", unit="degree C", valid=True,
    )  # fmt: skip


class Meters:
    """The handler."""

    async def echo(self, ctx: Context, value: Any) -> Any:
        """Return what came."""
        return value

    async def wait(self, ctx: Context, seconds: float) -> None:
        """Be slow."""
        await asyncio.sleep(seconds)


def plain_messages() -> tuple[bytes, bytes]:
    """Return the bytes of a typed request and of its answer."""
    service = contract().MetersClient._service  # noqa: SLF001 (for those who write a server by hand)
    method = service.methods["echo"]
    sent = FRUGAL.encode_request(BINARY, method, Context("0" * 32), 1000, 0.0, method.arguments(reading=reading()))
    request = FRUGAL.decode_request(BINARY, sent)
    return sent.data, FRUGAL.encode_result(request, method.result(success=reading())).data


def serve(task: ServeTask) -> Iterator[Served]:
    """Serve both, plain and typed."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_start(task))
    yield Served(os.getpid())
    loop.run_forever()


async def _start(task: ServeTask) -> None:
    connection = await nats.connect(task.url)
    _, answer = plain_messages()

    async def respond(message: Msg) -> None:
        await message.respond(answer)

    await connection.subscribe(f"{_SUBJECT}.{_PLAIN}", cb=respond)
    service = contract().MetersClient._service  # noqa: SLF001
    await Server(connection, f"{_SUBJECT}.{_TYPED}", [(service, Meters())]).start()


def measure(task: CallTask) -> Iterator[Called]:
    """Take a turn."""
    yield Called(asyncio.run(_take_turn(task)))


async def _take_turn(task: CallTask) -> dict[str, float]:
    connection = await nats.connect(task.url)
    client = contract().MetersClient(NatsTransport(connection, f"{_SUBJECT}.{_TYPED}"))
    call = _plain_call(connection) if task.turn.startswith(_PLAIN) else _typed_call(client)
    watched = {"client": os.getpid(), "server": task.server}
    await _timed(call, task.calls // 10, 1)
    try:
        if task.turn in {_PLAIN, _TYPED}:
            watch = Stopwatch(watched)
            await _timed(call, task.calls, _IN_FLIGHT)
            _, used = watch.read()
            cpu_s = sum(used.values())
            return {"cpu_us": 1e6 * cpu_s / task.calls, "per_cpu_s": task.calls / cpu_s}
        if task.turn in {_ALONE, _BESIDE}:
            slow = asyncio.create_task(_be_slow(client)) if task.turn == _BESIDE else None
            times = await _timed(call, task.calls, _IN_FLIGHT_QUICK)  # a hundredth is several rounds of them
            if slow is not None:
                slow.cancel()
            return {"p99_us": 1e6 * statistics.quantiles(times, n=100)[98]}
        return {"median_us": 1e6 * statistics.median(await _timed(call, task.calls // 5, 1))}
    finally:
        await connection.close()


def _plain_call(connection: Client) -> Callable[[], Awaitable[None]]:
    sent, expected = plain_messages()

    async def call() -> None:
        answer = await connection.request(f"{_SUBJECT}.{_PLAIN}", sent, timeout=_TIMEOUT_MS / 1_000)
        if answer.data != expected:
            raise OperationalError("the plain answer is another one")

    return call


def _typed_call(client: Any) -> Callable[[], Awaitable[None]]:
    value = reading()

    async def call() -> None:
        if (await client.echo(Context(timeout_ms=_TIMEOUT_MS), value)).number != value.number:
            raise OperationalError("the typed answer is another one")

    return call


async def _timed(call: Callable[[], Awaitable[None]], calls: int, in_flight: int) -> list[float]:
    """Return the seconds of each call; so many are in flight at a time."""
    times: list[float] = []
    to_do = iter(range(calls))

    async def one_after_another() -> None:
        for _ in to_do:
            began = time.perf_counter()
            await call()
            times.append(time.perf_counter() - began)

    await asyncio.gather(*(one_after_another() for _ in range(in_flight)))
    return times


async def _be_slow(client: Any) -> None:
    while True:
        await client.wait(Context(timeout_ms=_TIMEOUT_MS), _SLOW_S)
