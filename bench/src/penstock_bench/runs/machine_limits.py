"""Limits of the machine itself, measured in the same run: upper bounds for every product.

Rules: Every limit is measured several times; median, minimum and maximum are reported. Each is bounded in messages,
bytes or tries, and in time. Files are in the folder of the logs and are deleted afterwards. No code of Penstock's
brokers or clients is measured.

| limit            | measurement                                                                                 |
|------------------|---------------------------------------------------------------------------------------------|
| `nats-ping`      | PING to nats-server, PONG back: two system calls on each side                               |
| `nats-echo`      | a message to a responder on asyncio, and its answer: twice through nats-server              |
| `nats-subscribe` | a subscriber on a raw socket takes 256-byte messages of core NATS, and only counts bytes    |
| `sendfile`       | `sendfile(2)` of a file in the page cache, over loopback, to a reader that ignores the data |
| `write`          | `write(2)` of whole MiB to a new file: into the page cache                                  |
| `fdatasync`      | append 1 KiB to a file, and `fdatasync(2)`, repeatedly                                      |
| `fdatasync-rest` | the same 50 times a second: an idle disk may take longer to answer                          |
"""

from __future__ import annotations

import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock.base.limits import BENCH_STALL_S, MIB
from penstock_bench.load.frames import Pool
from penstock_bench.load.nats_socket import NatsSocket, inbox
from penstock_bench.machine import worker
from penstock_bench.results.report import Limit
from penstock_bench.systems.responders import RespondTask, respond_asyncio
from penstock_bench.systems.system import nats_server

ROUNDS = 5
_MIB = float(MIB)
_SECONDS_EACH = 0.5  # approximately
_TRIES_WARM_UP = 50
_SYNC_BYTES = 1024
_PAUSE_S = 0.02  # between two syncs at 50/s
_FLOOD_MESSAGES = 200_000  # with protocol lines they fit nats-server's buffer for a slow subscriber (64 MiB)
_FLOOD_BYTES = 256
_FILE_BYTES = 64 * MIB
_READ_BYTES = 1 * MIB


class Amounts(NamedTuple):
    """The amount of work of one measurement."""

    tries: int = 400  # round trips; their median counts
    syncs: int = 50
    sent_bytes: int = 1024 * MIB
    written_bytes: int = 256 * MIB


class LimitsPlace(NamedTuple):
    """The folder for files, the nats-server, and the amounts."""

    folder: Path
    nats: Address
    amounts: Amounts = Amounts()


class LimitKind(NamedTuple):
    """A row of the table. `measure` takes one measurement, in `unit`."""

    name: str
    title: str
    unit: str
    measure: Callable[[LimitsPlace], float]


def count(rounds: int) -> int:
    """Return the number of measurements in `rounds` rounds."""
    return rounds * len(LIMITS)


def seconds(rounds: int) -> float:
    """Return the estimated duration of `rounds` rounds, in seconds."""
    return rounds * len(LIMITS) * _SECONDS_EACH


def measured(
    folder: Path,
    *,
    rounds: int = ROUNDS,
    said: Callable[[str], None] = lambda name: None,
    amounts: Amounts = Amounts(),  # noqa: B008 (a tuple of numbers)
) -> list[Limit]:
    """Measure every limit; `said` receives the name after each measurement."""
    values: dict[str, list[float]] = {kind.name: [] for kind in LIMITS}
    with tempfile.TemporaryDirectory(prefix="limits-", dir=folder) as inside, nats_server(Path(inside)) as (nats, _):
        place = LimitsPlace(Path(inside), nats, amounts)
        for _ in range(rounds):
            for kind in LIMITS:
                values[kind.name].append(kind.measure(place))
                said(kind.name)
    return [limit_of(kind, values[kind.name]) for kind in LIMITS]


def limit_of(kind: LimitKind, values: list[float]) -> Limit:
    """Return the limit with median, minimum and maximum of its values."""
    return Limit(kind.name, kind.title, kind.unit, statistics.median(values), min(values), max(values), len(values))


# Round trips


def _ping(place: LimitsPlace) -> float:
    with NatsSocket(place.nats) as nats:
        return _median_us(nats.barrier, place.amounts.tries)


def _echo(place: LimitsPlace) -> float:
    subject, reply = inbox(), inbox()
    with worker.working(respond_asyncio, RespondTask(place.nats, subject)), NatsSocket(place.nats) as nats:
        nats.send(f"SUB {reply} 1\r\n".encode())
        nats.barrier()
        frame = f"PUB {subject} {reply} 5\r\nhello\r\n".encode()

        def once() -> None:
            nats.send(frame)
            nats.deliveries()

        return _median_us(once, place.amounts.tries)


def _median_us(once: Callable[[], None], tries: int) -> float:
    took: list[int] = []
    deadline_s = time.monotonic() + BENCH_STALL_S
    while len(took) < tries + _TRIES_WARM_UP and time.monotonic() < deadline_s:
        started_ns = time.perf_counter_ns()
        once()
        took.append(time.perf_counter_ns() - started_ns)
    return statistics.median(took[min(_TRIES_WARM_UP, len(took) - 1) :]) / 1000


# Streams of bytes over sockets


class FloodTask(msgspec.Struct, frozen=True):
    """The destination of an unpaced publisher."""

    nats: Address
    subject: str


def flood(task: FloodTask) -> Iterator[str]:
    """Worker: yield `ready`, then publish as fast as nats-server accepts."""
    pool = Pool(task.subject, inbox(), _FLOOD_BYTES, _FLOOD_MESSAGES, 1, bytes_max=2 * _FLOOD_MESSAGES * _FLOOD_BYTES)
    with NatsSocket(task.nats, timeout_s=BENCH_STALL_S) as nats:
        yield "ready"
        nats.send(pool.frames)
        nats.barrier()


def _subscribe(place: LimitsPlace) -> float:
    """Return messages per second, from the first bytes to the last."""
    subject = inbox()
    with NatsSocket(place.nats) as nats:
        nats.send(f"SUB {subject} 1\r\n".encode())
        nats.barrier()
        nats.socket.settimeout(BENCH_STALL_S)
        with worker.working(flood, FloodTask(place.nats, subject)):
            # `MSG subject 1 reply 256␍␊`, the payload, `␍␊`: two characters longer than the frames of `flood`.
            frame_bytes = len(f"MSG {subject} 1 {inbox()} {_FLOOD_BYTES}\r\n") + _FLOOD_BYTES + 2
            seconds = _seconds_to_read(nats.socket, _FLOOD_MESSAGES * frame_bytes)
    return _FLOOD_MESSAGES / seconds


class SendFileTask(msgspec.Struct, frozen=True):
    """A file to be sent repeatedly, up to `total` bytes."""

    file: str
    total: int


def send_file(task: SendFileTask) -> Iterator[Address]:
    """Worker: listen, and send the file to the first connection."""
    number = os.open(task.file, os.O_RDONLY)
    size = os.fstat(number).st_size
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(BENCH_STALL_S)
        yield Address(*server.getsockname())
        connection, _ = server.accept()
        with connection:
            connection.setblocking(True)
            sent = 0
            while sent < task.total:
                position = sent % size
                sent += os.sendfile(connection.fileno(), number, position, min(size - position, task.total - sent))
    os.close(number)


def _sendfile(place: LimitsPlace) -> float:
    """Return MiB per second."""
    with _file(place) as (file, number):
        _write(number, _FILE_BYTES)
        sent_bytes = place.amounts.sent_bytes
        task = SendFileTask(str(file), sent_bytes)
        serving = worker.working(send_file, task)
        with serving as (address, _), socket.create_connection(address, BENCH_STALL_S) as reader:
            return sent_bytes / _MIB / _seconds_to_read(reader, sent_bytes)


def _seconds_to_read(connection: socket.socket, wanted: int) -> float:
    """Return the seconds from the first bytes to the last."""
    buffer = bytearray(_READ_BYTES)
    received = connection.recv_into(buffer)
    started_s = time.perf_counter()
    deadline_s = started_s + BENCH_STALL_S
    while received < wanted:
        came = connection.recv_into(buffer)
        received += came
        if not came or time.perf_counter() > deadline_s:
            raise OperationalError(f"{received:,} of {wanted:,} bytes came")
    return max(time.perf_counter() - started_s, 1e-9)


# The disk


def _page_cache(place: LimitsPlace) -> float:
    """Return MiB per second."""
    with _file(place) as (_, number):
        started_s = time.perf_counter()
        _write(number, place.amounts.written_bytes)
        return place.amounts.written_bytes / _MIB / (time.perf_counter() - started_s)


def _sync(place: LimitsPlace, *, pause_s: float = 0.0) -> float:
    """Return the median in microseconds."""
    data = os.urandom(_SYNC_BYTES)
    took: list[int] = []
    deadline_s = time.monotonic() + BENCH_STALL_S
    with _file(place) as (_, number):
        while len(took) < place.amounts.syncs and time.monotonic() < deadline_s:
            os.write(number, data)
            started_ns = time.perf_counter_ns()
            os.fdatasync(number)
            took.append(time.perf_counter_ns() - started_ns)
            if pause_s:
                time.sleep(pause_s)
    return statistics.median(took) / 1000


def _sync_rested(place: LimitsPlace) -> float:
    return _sync(place, pause_s=_PAUSE_S)


@contextmanager
def _file(place: LimitsPlace) -> Iterator[tuple[Path, int]]:
    number, name = tempfile.mkstemp(dir=place.folder)
    try:
        yield Path(name), number
    finally:
        os.close(number)
        Path(name).unlink()


def _write(number: int, size: int) -> None:
    block = os.urandom(MIB)
    for _ in range(size // MIB):
        written = 0
        while written < MIB:
            written += os.write(number, block[written:])


LIMITS = (
    LimitKind("nats-ping", "PING and PONG of nats-server", "µs", _ping),
    LimitKind("nats-echo", "NATS echo round trip (asyncio)", "µs", _echo),
    LimitKind("nats-subscribe", "raw NATS subscriber, 256 B", "messages/s", _subscribe),
    LimitKind("sendfile", "sendfile over loopback", "MiB/s", _sendfile),
    LimitKind("write", "write to the page cache", "MiB/s", _page_cache),
    LimitKind("fdatasync", "append 1 KiB and fdatasync", "µs", _sync),
    LimitKind("fdatasync-rest", "the same, 50 times a second", "µs", _sync_rested),
)
