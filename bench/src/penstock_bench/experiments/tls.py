"""`penstock bench tls`: cost of TLS for readers of a log, and for appends over the socket.

Rules: Two brokers, one of which uses TLS; `durability = os`, so that the socket is measured and not the disk. In every
round each broker has the same work in turn: a bulk writer appends batches of many rows, and a reader reads the log from
its first message on, several times, each in a process of its own. The reader touches every byte, and the checksum is
compared with that of the sent values. CPU is that of the broker and of the client. The reader also measures how long
its event loop is blocked, because applications share that loop.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
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
from penstock_bench.experiments.experiment import Experiment, Row, Turn
from penstock_bench.load.readers import joined_values
from penstock_bench.machine import worker
from penstock_bench.machine.processes import Stopwatch

ROUNDS = 7
PASSES = 4
_PLAIN, _TLS = "plain", "tls"
_ROWS = 4_096  # of one batch
_VALUES_BYTES_A_SECOND = 150_000_000  # for the time estimate
_LOOK_S = 0.001
_CLIENT, _BROKER = "client", "broker"
_KEPT = "kept"  # the stream that is read
_TIMEOUT_S = 2 * BENCH_STALL_S


def experiment(messages: int = 262_144, size: int = 1_024, rounds: int | None = None) -> Experiment:
    """Return the experiment, for logs of so many messages with values of `size` bytes."""
    rows = []
    for what, verb in (("append", "appended over the socket"), ("read", "read")):
        plain, tls = f"{what}-{_PLAIN}", f"{what}-{_TLS}"
        for system, how in ((plain, _PLAIN), (tls, _TLS)):
            title = f"{verb}, {how}, values of {size:,} B"
            rows.append(Row(system, title, "MB/s", "mb_per_s", system, at_least=True))
        title = f"{verb}, TLS by plain"
        rows += [
            Row(f"{what}-rate", title, "×", "mb_per_s", tls, plain, at_least=True),
            Row(f"{what}-cpu", f"{title}: CPU of broker and client for a byte", "×", "cpu_us", tls, plain),
        ]
    for how in (_PLAIN, _TLS):
        title = f"the reader's event loop stood still, {how}, the longest of {PASSES} passes"
        rows.append(Row(f"still-{how}", title, "ms", "still_ms", f"read-{how}"))
    return Experiment(
        systems=tuple(f"{what}-{how}" for what in ("append", "read") for how in (_PLAIN, _TLS)),
        begin=partial(_begin, messages=messages, size=size),
        rounds=rounds or ROUNDS,
        turn_seconds=2 * messages * size / _VALUES_BYTES_A_SECOND,
        bytes_needed=GIB + 3 * messages * (size + 128),
        rows=tuple(rows),
    )


@contextmanager
def _begin(folder: Path, *, messages: int, size: int) -> Iterator[Turn]:
    """Start both brokers, with one log on each to read; every round appends to a new one."""
    certificates = folder / "certificates"
    written(issued(["127.0.0.1"], "client", 1), certificates)
    own = ("--tls-cert", str(certificates / "broker.pem"), "--tls-key", str(certificates / "broker.key"))
    files = {"ca": str(certificates / "ca.pem")}
    with ExitStack() as running:
        tasks, clients = {}, {}
        for how, options in ((_PLAIN, ()), (_TLS, own)):
            places = ("--listen", "127.0.0.1:0", "--nats-port", "0", "--log-level", "error")
            broker = running.enter_context(launched(folder / how, *places, *options)).wait_until_ready()
            server = broker.client if how == _PLAIN else with_tls(broker.client, files)
            tasks[how] = TlsTask(server, _KEPT, messages, size, broker.process_id)
            clients[how] = running.enter_context(blocking.connect(server, timeout=_TIMEOUT_S))
        kept = {how: _appended(clients[how], task) for how, task in tasks.items()}

        def turn(name: str, _: int) -> dict[str, float]:
            what, how = name.split("-")
            if what == "append":
                try:
                    done = _appended(clients[how], msgspec.structs.replace(tasks[how], stream="appended"))
                finally:
                    clients[how].delete_stream("appended", timeout=_TIMEOUT_S)
            else:
                done = worker.run(read, tasks[how], timeout_s=4 * BENCH_STALL_S)
                if (done.messages, done.crc) != (kept[how].messages, kept[how].crc):
                    raise OperationalError("what was read is not what was sent")
            return {
                "mb_per_s": done.messages * size / done.seconds / 1e6,
                "cpu_us": 1e6 * sum(done.cpu_seconds.values()) / done.messages,
                "still_ms": done.stood_still_ms,
            }

        yield turn


def _appended(client: blocking.Client, task: TlsTask) -> Done:
    client.create_stream(task.stream, task.stream, durability="os", timeout=_TIMEOUT_S)
    done = worker.run(append, task, timeout_s=4 * BENCH_STALL_S)
    stored = client.stream(task.stream, timeout=_TIMEOUT_S).partitions[0].committed_end
    if stored != task.messages:
        raise OperationalError(f"{task.messages} messages were appended, and {stored} are stored")
    return done


class TlsTask(msgspec.Struct, frozen=True):
    """A log and its values. `broker` is the process id."""

    server: str
    stream: str
    messages: int
    size: int
    broker: int

    def watch(self) -> Stopwatch:
        """Start to measure the broker and this process."""
        return Stopwatch({_BROKER: self.broker, _CLIENT: os.getpid()})


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
        watch = task.watch()
        crc = sent = 0
        while sent < task.messages:
            piece = table.slice(0, min(_ROWS, task.messages - sent))
            client.append(task.stream, piece, timeout=_TIMEOUT_S)
            sent += piece.num_rows
            crc = crc32c(b"".join(values[: piece.num_rows]), crc)
        yield Done(*watch.read(), sent, crc)


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
        watch = task.watch()
        found = [await _once(client, task.stream) for _ in range(PASSES)]
        seconds, cpu = watch.read()
        looking.cancel()
        if any(one != found[0] for one in found):
            raise OperationalError("two passes over one log differ")
        cpu = {name: used / PASSES for name, used in cpu.items()}
        return Done(seconds / PASSES, cpu, *found[0], stood_still_s * 1_000)


async def _once(client: aio.Client, stream: str) -> tuple[int, int]:
    messages = crc = 0
    async for batch in client.read(stream):
        messages += batch.num_rows
        crc = crc32c(joined_values(batch), crc)
    return messages, crc
