"""Consumers of a whole log, each in a process of its own, each as a user of the product would write it.

Rules: Every value byte is touched: all values go through one CRC-32C, and the result is compared with what was sent.
All consumers connect and read a first message untimed; then they make PASSES passes over the whole log, each with its
own subscription, and the mean of the passes is reported. The clock runs from the call that requests the log's first
message, including the setup of a subscription, to the last message of the last pass. Ending a subscription is not
timed. Arrow batches take one checksum over a column, all others one for each message. The nats-py consumer is its
fastest kind that keeps order: an ordered push consumer with a callback.

| reader      | product    | the user gets                                                                |
|-------------|------------|------------------------------------------------------------------------------|
| `batches`   | Penstock   | Arrow batches: CRC, layout and rows verified; values summed a batch at a time |
| `blocking`  | Penstock   | the same through the blocking client: `batches` is on asyncio, as nats-py is |
| `loaded`    | Penstock   | the same of a log that a bulk writer appended in large batches                |
| `messages`  | Penstock   | as `batches`, on asyncio too, but single `Message` objects                    |
| `nats-py`   | JetStream  | single messages of nats-py's ordered consumer                                |
| `confluent-kafka` | Kafka | single messages of librdkafka's consumer, returned many at a time (in `systems.kafka`) |
| `grpc`      | Liftbridge | messages of its gRPC service, with only the value decoded (in `systems.liftbridge`) |
| `sendfile`  | none       | the bytes of Penstock's segments through `sendfile(2)` and loopback, unread: the limit |
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from crc32c import crc32c

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock.base.limits import BENCH_STALL_S, MIB
from penstock.client import aio
from penstock.client.blocking import client as blocking
from penstock_bench.load.content import Content, difference
from penstock_bench.machine import worker
from penstock_bench.machine.processes import Stopwatch

if TYPE_CHECKING:
    import pyarrow as pa
    from nats.aio.client import Client as NatsClient
    from nats.aio.msg import Msg

    from penstock.client.aio import Client as AsyncClient
    from penstock.client.blocking.client import Client

READER = "reader"
PASSES = 4
_READ_BYTES = 4 * MIB
_SENDFILE_BYTES = 64 * MIB


class ReadTask(msgspec.Struct, frozen=True):
    """A log and its number of messages. `address` is a URL for nats-server, and HOST:PORT for other services."""

    address: str
    stream: str
    subject: str
    messages: int
    passes: int = PASSES
    watched: dict[str, int] = {}


class Consumed(msgspec.Struct, frozen=True):
    """The content of one pass, and the mean cost of a pass."""

    seconds: float
    found: Content
    cpu_seconds: dict[str, float]


class Clock:
    """Measures wall and CPU time from its construction on."""

    def __init__(self, watched: dict[str, int]) -> None:
        self._watch = Stopwatch({**watched, READER: os.getpid()})

    def consumed(self, passes: list[Content]) -> Consumed:
        """Stop the clock and return the mean cost of a pass. Raise OperationalError if the passes differ in content."""
        seconds, cpu = self._watch.read()
        different = [reason for one in passes if (reason := difference(passes[0], one)) is not None]
        if different:
            raise OperationalError(f"two passes over one log differ: {different[0]}")
        return Consumed(seconds / len(passes), passes[0], {name: used / len(passes) for name, used in cpu.items()})


def _warm_up(client: Client, stream: str) -> None:
    """Read one message: imports of the first call are not part of the reading cost."""
    next(client.messages(stream, end=1))


def joined_values(batch: pa.RecordBatch) -> memoryview:
    """Return all values of a batch as one contiguous view."""
    column = batch.column("value")
    _, ends, data = column.buffers()
    offsets = memoryview(ends).cast("B").cast("i")
    return memoryview(data)[offsets[column.offset] : offsets[column.offset + len(column)]]


def read_batches(task: ReadTask) -> Iterator[Consumed]:
    """Worker: read Penstock's log as Arrow batches, on asyncio."""
    yield asyncio.run(_read_on_asyncio(task, _batches_once))


async def _read_on_asyncio(task: ReadTask, once: Callable[[AsyncClient, str], Awaitable[Content]]) -> Consumed:
    async with await aio.connect(task.address, name="penstock-bench", timeout=BENCH_STALL_S) as client:
        await anext(client.messages(task.stream, end=1))  # as `_warm_up`
        clock = Clock(task.watched)
        return clock.consumed([await once(client, task.stream) for _ in range(task.passes)])


async def _batches_once(client: AsyncClient, stream: str) -> Content:
    summed = _Summed()
    async for batch in client.read(stream):
        summed.add(batch)
    return summed.content


class _Summed:
    """One checksum over all values, a batch at a time."""

    def __init__(self) -> None:
        self._messages = self._value_bytes = self._crc = 0

    @property
    def content(self) -> Content:
        return Content(self._messages, self._value_bytes, None, self._crc)

    def add(self, batch: pa.RecordBatch) -> None:
        """Touch every byte of the batch's values."""
        values = joined_values(batch)
        self._messages += batch.num_rows
        self._value_bytes += len(values)
        self._crc = crc32c(values, self._crc)


def read_blocking(task: ReadTask) -> Iterator[Consumed]:
    """Worker: read Penstock's log as Arrow batches, through the blocking client."""
    with blocking.connect(task.address, name="penstock-bench", timeout=BENCH_STALL_S) as client:
        _warm_up(client, task.stream)
        clock = Clock(task.watched)
        yield clock.consumed([_blocking_once(client, task.stream) for _ in range(task.passes)])


def _blocking_once(client: Client, stream: str) -> Content:
    summed = _Summed()
    for batch in client.read(stream):
        summed.add(batch)
    return summed.content


def read_messages(task: ReadTask) -> Iterator[Consumed]:
    """Worker: read Penstock's log as single messages, on asyncio."""
    yield asyncio.run(_read_on_asyncio(task, _messages_once))


async def _messages_once(client: AsyncClient, stream: str) -> Content:
    messages = value_bytes = crc = 0
    async for message in client.messages(stream):
        value = message.value or b""
        messages += 1
        value_bytes += len(value)
        crc = crc32c(value, crc)
    return Content(messages, value_bytes, None, crc)


def chained(values: Iterable[bytes]) -> Content:
    """Return the content of single values; touches every byte, in their order."""
    messages = value_bytes = crc = 0
    for value in values:
        messages += 1
        value_bytes += len(value)
        crc = crc32c(value, crc)
    return Content(messages, value_bytes, None, crc)


def read_nats_py(task: ReadTask) -> Iterator[Consumed]:
    """Worker: read a JetStream stream through nats-py's ordered consumer."""
    yield asyncio.run(_read_nats_py(task))


async def _read_nats_py(task: ReadTask) -> Consumed:
    import nats

    async with await nats.connect(task.address, allow_reconnect=False) as connection:
        await _NatsPyPass(1).run(connection, task)  # as `_warm_up`; further deliveries end with the connection
    async with await nats.connect(task.address, allow_reconnect=False) as connection:
        clock = Clock(task.watched)
        passes = [_NatsPyPass(task.messages) for _ in range(task.passes)]
        for one in passes:
            await one.run(connection, task)
        return clock.consumed([one.content for one in passes])


class _NatsPyPass:
    """One ordered consumer for `wanted` messages. It ends with its connection, after the clock has stopped."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._messages = self._value_bytes = self._crc = 0
        self._all_there = asyncio.Event()

    @property
    def content(self) -> Content:
        return Content(self._messages, self._value_bytes, None, self._crc)

    async def run(self, connection: NatsClient, task: ReadTask) -> None:
        """Subscribe and receive. Raise OperationalError after a stall."""
        stream = connection.jetstream()
        await stream.subscribe(task.subject, stream=task.stream, ordered_consumer=True, cb=self._take)
        seen = -1
        while not self._all_there.is_set():
            if self._messages == seen:
                came = f"{seen:,} of {self._wanted:,} messages"
                raise OperationalError(f"nats-py got {came}, and then no more")
            seen = self._messages
            try:
                async with asyncio.timeout(BENCH_STALL_S):
                    await self._all_there.wait()
            except TimeoutError:
                continue  # check in the next turn if messages came meanwhile

    async def _take(self, message: Msg) -> None:
        value = message.data
        self._messages += 1
        self._value_bytes += len(value)
        self._crc = crc32c(value, self._crc)
        if self._messages >= self._wanted:
            self._all_there.set()


class FilesTask(msgspec.Struct, frozen=True):
    """The files to send, in order."""

    files: list[str]


def send_files(task: FilesTask) -> Iterator[Address]:
    """Worker: send the files to each connection."""
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


class FileReceiveTask(msgspec.Struct, frozen=True):
    """The address to receive from until the sender closes, and the number of passes."""

    address: Address
    passes: int
    watched: dict[str, int] = {}


def receive_all(task: FileReceiveTask) -> Iterator[Consumed]:
    """Worker: receive all bytes into one buffer, without looking at them."""
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
    """Measure sending these files with sendfile(2) over loopback."""
    with worker.working(send_files, FilesTask([str(file) for file in files])) as (address, sender):
        task = FileReceiveTask(address, passes, {"sender": sender.process_id})
        return worker.run(receive_all, task, timeout_s=2 * BENCH_STALL_S)
