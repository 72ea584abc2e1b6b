"""Consumers of a whole log, each in a process of its own, each as its users would write it.

Rules: every value byte is touched: all values go through one CRC-32C, and what a consumer got is compared with what was
sent. The clock runs from the call that asks for the log's first message to its last message; connecting is not timed.
Who is fast reads the log several times in a round, for the clock's sake; each pass is a reading of its own.
nats-py's consumer is its fastest kind that keeps order: an ordered push consumer with a callback.

| reader      | of         | what a user gets                                                             |
|-------------|------------|------------------------------------------------------------------------------|
| `batches`   | Penstock   | Arrow batches: CRC, layout and rows verified; values summed a batch at a time |
| `loaded`    | Penstock   | the same of a log that a bulk writer appended in large batches                |
| `messages`  | Penstock   | as `batches`, but single `Message` objects                                    |
| `nats-py`   | JetStream  | single messages of nats-py's ordered consumer                                |
| `confluent-kafka` | Kafka | single messages of librdkafka's consumer, handed out many at a time (in `kafka`) |
| `grpc`      | Liftbridge | messages of its gRPC service, of which only the value is decoded (in `liftbridge`) |
| `sendfile`  | no product | the bytes of Penstock's segments through `sendfile(2)` and loopback, unread: the limit |
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from crc32c import crc32c

from penstock.base.errors import OperationalError
from penstock.base.limits import BENCH_STALL_S, MIB
from penstock.bench import worker
from penstock.bench.content import Content, difference
from penstock.bench.processes import cpu_seconds_of
from penstock.broker.settings import Address
from penstock.client import blocking

if TYPE_CHECKING:
    import pyarrow as pa
    from nats.aio.msg import Msg

    from penstock.client.blocking import Client

READER = "reader"
_READ_BYTES = 4 * MIB
_SENDFILE_BYTES = 64 * MIB


class ReadTask(msgspec.Struct, frozen=True):
    """Which log, of how many messages: a stream of nats-server (`address` URL), or of what listens on HOST:PORT."""

    address: str
    stream: str
    subject: str
    messages: int
    passes: int = 1
    watched: dict[str, int] = {}


class Consumed(msgspec.Struct, frozen=True):
    """What came in one pass, and what a pass took."""

    seconds: float
    found: Content
    cpu_seconds: dict[str, float]


class Clock:
    """Wall and CPU time from now on."""

    def __init__(self, watched: dict[str, int]) -> None:
        self._watched = {**watched, READER: os.getpid()}
        self._before = cpu_seconds_of(self._watched)
        self._started_s = time.perf_counter()

    def consumed(self, passes: list[Content]) -> Consumed:
        """Stop. OperationalError if the passes did not all bring the same."""
        seconds = time.perf_counter() - self._started_s
        after = cpu_seconds_of(self._watched)
        cpu = {name: (after[name] - self._before[name]) / len(passes) for name in self._watched}
        different = [reason for one in passes if (reason := difference(passes[0], one)) is not None]
        if different:
            raise OperationalError(f"two passes over one log differ: {different[0]}")
        return Consumed(seconds / len(passes), passes[0], cpu)


def _warm_up(client: Client, stream: str) -> None:
    """Read one message: what a first call imports is not what reading costs."""
    next(client.messages(stream, end=1))


def joined_values(batch: pa.RecordBatch) -> memoryview:
    """All values of a batch behind each other, as they lie in it."""
    column = batch.column("value")
    _, ends, data = column.buffers()
    offsets = memoryview(ends).cast("B").cast("i")
    return memoryview(data)[offsets[column.offset] : offsets[column.offset + len(column)]]


def read_batches(task: ReadTask) -> Iterator[Consumed]:
    """A worker: Penstock's log as Arrow batches."""
    with blocking.connect(task.address, name="penstock-bench", timeout=BENCH_STALL_S) as client:
        _warm_up(client, task.stream)
        clock = Clock(task.watched)
        yield clock.consumed([_batches_once(client, task.stream) for _ in range(task.passes)])


def _batches_once(client: Client, stream: str) -> Content:
    messages = value_bytes = crc = 0
    for batch in client.read(stream):
        values = joined_values(batch)
        messages += batch.num_rows
        value_bytes += len(values)
        crc = crc32c(values, crc)
    return Content(messages, value_bytes, None, crc)


def read_messages(task: ReadTask) -> Iterator[Consumed]:
    """A worker: Penstock's log as single messages."""
    with blocking.connect(task.address, name="penstock-bench", timeout=BENCH_STALL_S) as client:
        _warm_up(client, task.stream)
        clock = Clock(task.watched)
        yield clock.consumed([_messages_once(client, task.stream) for _ in range(task.passes)])


def _messages_once(client: Client, stream: str) -> Content:
    messages = value_bytes = crc = 0
    for message in client.messages(stream):
        value = message.value or b""
        messages += 1
        value_bytes += len(value)
        crc = crc32c(value, crc)
    return Content(messages, value_bytes, None, crc)


def chained(values: Iterable[bytes]) -> Content:
    """Touch every byte of single values, in their order."""
    messages = value_bytes = crc = 0
    for value in values:
        messages += 1
        value_bytes += len(value)
        crc = crc32c(value, crc)
    return Content(messages, value_bytes, None, crc)


def read_nats_py(task: ReadTask) -> Iterator[Consumed]:
    """A worker: a JetStream stream through nats-py's ordered consumer."""
    yield asyncio.run(_read_nats_py(task))


async def _read_nats_py(task: ReadTask) -> Consumed:
    import nats

    messages = value_bytes = crc = 0
    all_there = asyncio.Event()

    async def take(message: Msg) -> None:
        nonlocal messages, value_bytes, crc
        value = message.data
        messages += 1
        value_bytes += len(value)
        crc = crc32c(value, crc)
        if messages >= task.messages:
            all_there.set()

    async with await nats.connect(task.address, allow_reconnect=False) as connection:
        clock = Clock(task.watched)
        await connection.jetstream().subscribe(task.subject, stream=task.stream, ordered_consumer=True, cb=take)
        seen = -1
        while not all_there.is_set():
            if messages == seen:
                raise OperationalError(f"nats-py got {messages:,} of {task.messages:,} messages, and then no more")
            seen = messages
            try:
                async with asyncio.timeout(BENCH_STALL_S):
                    await all_there.wait()
            except TimeoutError:
                continue  # slow is not stalled
        return clock.consumed([Content(messages, value_bytes, None, crc)])


class FilesTask(msgspec.Struct, frozen=True):
    """The files to send, in their order."""

    files: list[str]


def send_files(task: FilesTask) -> Iterator[Address]:
    """A worker: sends the files to whoever connects, again and again."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Address(*server.getsockname())
        while True:
            connection, _ = server.accept()
            with connection:
                for file in task.files:
                    _send_file(connection, Path(file))


def _send_file(connection: socket.socket, file: Path) -> None:
    with file.open("rb") as opened:
        position = 0
        while sent := os.sendfile(connection.fileno(), opened.fileno(), position, _SENDFILE_BYTES):
            position += sent


class ReceiveTask(msgspec.Struct, frozen=True):
    """Where to receive, until the sender ends, so many times."""

    address: Address
    passes: int
    watched: dict[str, int] = {}


def receive_all(task: ReceiveTask) -> Iterator[Consumed]:
    """A worker: receives all bytes into one buffer, and looks at none."""
    room = bytearray(_READ_BYTES)
    clock = Clock(task.watched)
    yield clock.consumed([_received_once(task.address, room) for _ in range(task.passes)])


def _received_once(address: Address, room: bytearray) -> Content:
    received = 0
    with socket.create_connection(address, BENCH_STALL_S) as connection:
        while count := connection.recv_into(room):
            received += count
    return Content(0, received, None, None)


def through_sendfile(files: list[Path], passes: int) -> Consumed:
    """How long these files take through sendfile(2) and loopback."""
    with worker.working(send_files, FilesTask([str(file) for file in files])) as (address, sender):
        task = ReceiveTask(address, passes, {"sender": sender.process_id})
        return worker.run(receive_all, task, timeout_s=2 * BENCH_STALL_S)
