"""Cost of durable typed events (`tools/events_cost.py`): publishing beside nats-py, and the handling of stored ones.

Rules: One nats-server and one broker; the client is a process of its own in each turn. Both publishers send the same
bytes into the same stream, with so many messages in flight, and wait for all acks: `plain` by `publish_async` of
nats-py's JetStream context, typed by the generated publisher with `nowait`. `handled` subscribes a new group to what
the turns before have stored, with a handler that only counts, from the first message handled to the last.

| turn         | messages                                         |
|--------------|--------------------------------------------------|
| plain, typed | published, so many in flight: by second          |
| handled      | handled by one subscriber of one partition       |
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import ModuleType

import msgspec
import nats

import penstock.aio
from penstock.base.limits import BENCH_STALL_S
from penstock.frugal import Context, ScopeProvider
from penstock.frugal.codecs import BINARY
from penstock.frugal.scopes.framing import ScopeFraming, encode_message
from penstock.idl.python.load import load_text
from penstock_bench.experiments.experiment import Experiment, Row, Turn
from penstock_bench.machine import worker
from penstock_bench.systems.brokers import running_brokers
from penstock_bench.systems.system import nats_server

ROUNDS = 5
CONTRACT = """
struct Reading {
    1: i64 number, 2: i64 device, 3: i64 time, 4: i64 count, 5: double low, 6: double high,
    7: string name, 8: string place, 9: string unit, 10: bool valid
}
scope Meters prefix plant { Measured: Reading (stream = "meters") }
"""
_PLAIN, _TYPED, _HANDLED = "plain", "typed", "handled"
_STREAM, _SUBJECT = "meters", "frugal.plant.Meters.Measured"
_IN_FLIGHT = 100
_MESSAGE_SECONDS = 3e-4  # for the time estimate
_MESSAGE_BYTES = 1_000  # on the disk, at most
Took = tuple[float, float]
"""Seconds by the clock, and of this process's CPU."""


def experiment(messages: int = 10_000, rounds: int | None = None) -> Experiment:
    """Return the experiment, with so many messages per turn."""
    rounds = rounds or ROUNDS
    flight = f"{_IN_FLIGHT} in flight"
    return Experiment(
        systems=(_PLAIN, _TYPED, _HANDLED),
        begin=partial(_begin, messages=messages),
        rounds=rounds,
        turn_seconds=messages * _MESSAGE_SECONDS,
        bytes_needed=2 * messages * (rounds + 1) * _MESSAGE_BYTES,
        all_count=True,
        rows=(
            Row(_PLAIN, f"nats-py's publish_async, {flight}", "/s", "per_s", _PLAIN),
            Row(_TYPED, f"typed durable publish, {flight}", "/s", "per_s", _TYPED),
            Row("publish", "durable publish, typed by plain", "×", "per_s", _TYPED, _PLAIN, 0.8, at_least=True),
            Row(f"{_PLAIN}-cpu", "nats-py's publish_async: CPU of a message, client", "µs", "cpu_us", _PLAIN),
            Row(f"{_TYPED}-cpu", "typed durable publish: CPU of a message, client", "µs", "cpu_us", _TYPED),
            Row("publish-cpu", "durable publish: CPU of a message, typed by plain", "×", "cpu_us", _TYPED, _PLAIN),
            Row(_HANDLED, "events handled, one partition", "/s", "per_s", _HANDLED, reach=10_000, at_least=True),
        ),
    )


class TurnTask(msgspec.Struct, frozen=True):
    """A turn. `group`: a new one."""

    nats_url: str
    broker: str
    turn: str
    group: str
    messages: int


class TurnTaken(msgspec.Struct, frozen=True):
    """Seconds of a turn, by the clock and of the client's CPU."""

    seconds: float
    cpu_seconds: float


@contextmanager
def _begin(folder: Path, *, messages: int) -> Iterator[Turn]:
    with nats_server(folder / "nats") as (nats_address, _), running_brokers(folder, nats_address, 1) as brokers:
        brokers.client.create_stream(_STREAM, _SUBJECT)
        url = f"nats://{nats_address.host}:{nats_address.port}"

        def turn(name: str, round_number: int) -> dict[str, float]:
            task = TurnTask(url, brokers.client.server, name, f"round{round_number + 1}", messages)
            taken = worker.run(take, task, timeout_s=2 * BENCH_STALL_S)
            return {"per_s": messages / taken.seconds, "cpu_us": 1e6 * taken.cpu_seconds / messages}

        yield turn


@cache
def contract() -> ModuleType:
    """Return the module of the contract."""
    return load_text(CONTRACT, file="meters.frugal")


def take(task: TurnTask) -> Iterator[TurnTaken]:
    """Take a turn."""
    turns = {_PLAIN: _publish_plain, _TYPED: _publish_typed, _HANDLED: _handle}
    seconds, cpu_seconds = asyncio.run(turns[task.turn](task))
    yield TurnTaken(seconds, cpu_seconds)


def _reading() -> object:
    return contract().Reading(
        number=1, device=2**40, time=1_700_000_000_000_000, count=7, low=1.25, high=-3.5, name="outside!",
        place="northern", unit="degree C", valid=True,
    )  # fmt: skip


async def _publish_plain(task: TurnTask) -> Took:
    operation = contract().Meters.operations["Measured"]
    ctx = Context("0" * 32)
    payload = encode_message(ScopeFraming.FRUGAL, BINARY, ctx, operation, _reading(), operation_id=1, now=0.0).payload
    connection = await nats.connect(task.nats_url)
    jetstream = connection.jetstream(publish_async_max_pending=_IN_FLIGHT)
    began = _now()
    for _ in range(task.messages):
        await jetstream.publish_async(_SUBJECT, payload)
    await jetstream.publish_async_completed()
    took = _since(began)
    await connection.close()
    return took


async def _publish_typed(task: TurnTask) -> Took:
    reading = _reading()
    async with await penstock.aio.connect(task.broker) as client:
        publisher = contract().MetersPublisher(ScopeProvider(client=client))
        ctx = Context("0" * 32)
        window = asyncio.Semaphore(_IN_FLIGHT)
        began = _now()
        for _ in range(task.messages):
            await window.acquire()
            (await publisher.publish_measured(ctx, reading, nowait=True)).add_done_callback(lambda _: window.release())
        await publisher.flush()
        return _since(began)


async def _handle(task: TurnTask) -> Took:
    times: list[Took] = []
    done = asyncio.Event()

    def count(ctx: Context, message: object) -> None:
        times.append(_now())
        if len(times) == task.messages + 1:
            done.set()

    async with await penstock.aio.connect(task.broker) as client:
        subscriber = contract().MetersSubscriber(ScopeProvider(client=client))
        async with await subscriber.subscribe_measured(count, group=task.group):
            await done.wait()
    (began_s, began_cpu_s), (ended_s, ended_cpu_s) = times[0], times[task.messages]
    return ended_s - began_s, ended_cpu_s - began_cpu_s


def _now() -> Took:
    return time.perf_counter(), time.process_time()


def _since(began: Took) -> Took:
    now_s, cpu_s = _now()
    return now_s - began[0], cpu_s - began[1]
