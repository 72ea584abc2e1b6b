"""Publishers and consumers of a run: each writes down what it was told, and goes on through whatever happens.

Rules: a publisher's values count up, and each is sent on one connection after the other; who has no id in his messages
sends each once, and is another publisher on the next connection. A consumer names its position itself; where it is told
that its position is no more it begins a new turn, which is counted.

| publisher | its messages                                              | sent again           |
|-----------|-----------------------------------------------------------|----------------------|
| `once`    | ask for an ack, some of them wait for theirs side by side | no                   |
| `id`      | have a Nats-Msg-Id                                        | until they are acked |
| `again`   | have none                                                 | until they are acked |
| `silent`  | ask for no ack                                            | no                   |
| `append`  | appended over the socket by a producer                    | by the client        |

| consumer  | reads from                                               |
|-----------|----------------------------------------------------------|
| `follows` | whoever leads, as the client finds out                   |
| `replica` | one broker, whatever it is, over a socket of its own     |
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from contextlib import suppress

from penstock import aio
from penstock.base.errors import CorruptionError, PenstockError, RemoteError
from penstock.base.ids import LeaderEpoch, Offset, PartitionId, StreamId
from penstock.batch import codec
from penstock.client.append.producing import Producer
from penstock.client.errors import LogTruncated, OffsetOutOfRange
from penstock.messages import FetchRequest, FetchResponse
from penstock.wire import decode_response
from tests.chaos.history import Acked, History, Place, Polled, Sent, SentBack
from tests.chaos.system import NatsNode, System, now_s
from tests.integration.raw_client import RawClient

_ACK_S = 2.0  # then a message is sent again, or given up
_PAUSE_S = 0.05
_BETWEEN_S = 0.03  # two messages of one publisher
_WINDOW = 16
_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"name":"chaos"}\r\n'

Rows = dict[int, tuple[str, bytes]]


class _Line:
    """One connection to a nats-server: publishes, and hears acks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.waiting: dict[str, asyncio.Future[dict[str, object]]] = {}
        self._numbers = itertools.count()
        self._inbox = f"_INBOX.chaos{id(self)}"
        self.ended = asyncio.create_task(self._listen())

    @classmethod
    async def open(cls, server: NatsNode) -> _Line:
        """OSError, TimeoutError."""
        async with asyncio.timeout(3.0):
            line = cls(*await asyncio.open_connection(server.host, server.port))
        line._writer.write(_CONNECT + f"SUB {line._inbox}.* 1\r\n".encode())
        return line

    def publish(
        self, subject: str, value: bytes, headers: str, *, wants_ack: bool
    ) -> asyncio.Future[dict[str, object]] | None:
        """Send it; what is heard of it, if anything is wanted."""
        future: asyncio.Future[dict[str, object]] | None = None
        reply = ""
        if wants_ack:
            number = str(next(self._numbers))
            future = self.waiting[number] = asyncio.get_running_loop().create_future()
            reply = f"{self._inbox}.{number} "
        head = f"NATS/1.0\r\n{headers}\r\n".encode()
        self._writer.write(f"HPUB {subject} {reply}{len(head)} {len(head) + len(value)}\r\n".encode())
        self._writer.write(head + value + b"\r\n")
        return future

    async def drain(self) -> None:
        """OSError once it is broken, TimeoutError if nothing is taken."""
        if self.ended.done():
            raise ConnectionResetError
        async with asyncio.timeout(3.0):
            await self._writer.drain()

    async def _listen(self) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, ValueError):
            while line := await self._reader.readline():
                words = line.split()
                if words[:1] == [b"PING"]:
                    self._writer.write(b"PONG\r\n")
                elif words[:1] in ([b"MSG"], [b"HMSG"]):
                    body = (await self._reader.readexactly(int(words[-1]) + 2))[:-2]
                    self._heard(words[1].decode().rpartition(".")[2], body if words[0] == b"MSG" else b"{}")

    def _heard(self, number: str, body: bytes) -> None:
        future = self.waiting.pop(number, None)
        if future is not None and not future.done():
            future.set_result(json.loads(body))

    async def close(self) -> None:
        """Twice is fine."""
        self.ended.cancel()
        self._writer.transport.abort()
        with suppress(asyncio.CancelledError):
            await self.ended


class Publisher:
    """One that publishes on a subject; see the module's table."""

    def __init__(
        self, system: System, history: History, name: str, kind: str, stream: str, subject: str, partition: int = 0
    ) -> None:
        self.name, self.kind = name, kind
        self.heard: Counter[str] = Counter()
        self._system, self._history = system, history
        self._stream, self._subject, self._partition = stream, subject, partition
        self._pending: str | None = None  # what is sent until it is acked
        self._client: aio.Client | None = None
        self._producer: Producer | None = None
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._append() if kind == "append" else self._publish())

    async def stop(self) -> None:
        """It has ended, and sends nothing more."""
        self._stop.set()
        await self._task

    def _sent(self, value: str) -> None:
        self._history.add(Sent(self._stream, value, may_repeat=self.kind == "again"))
        self.heard["sent"] += 1

    def _acked(self, value: str, partition: int, offset: int) -> None:
        self._history.add(Acked(now_s(), Place(self._stream, partition), offset, value))
        self.heard["acked"] += 1

    async def _publish(self) -> None:
        numbers = itertools.count()
        for run in itertools.count():
            if self._stop.is_set():
                return
            server = self._system.nats[(run + len(self.name)) % len(self._system.nats)]
            try:
                line = await _Line.open(server)
            except OSError:
                await asyncio.sleep(_PAUSE_S)
                continue
            try:
                if self.kind in ("id", "again"):
                    await self._until_acked(line, numbers)
                else:
                    await self._once(line, f"{self.name}.{run}")
            except OSError:
                self.heard["reconnected"] += 1
            finally:
                await line.close()

    async def _once(self, line: _Line, name: str) -> None:
        waiting: set[asyncio.Task[None]] = set()
        for number in itertools.count():
            if self._stop.is_set():
                break
            value = f"{name}:{number}"
            self._sent(value)
            answer = line.publish(self._subject, value.encode(), self._key(number), wants_ack=self.kind == "once")
            if answer is not None:
                task = asyncio.create_task(self._wait(answer, value))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
                if len(waiting) >= _WINDOW:
                    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            await line.drain()
            await asyncio.sleep(_BETWEEN_S)
        if waiting:
            await asyncio.wait(waiting)

    def _key(self, number: int) -> str:
        return f"Penstock-Key: k{number % 7}\r\n" if self._stream == "keyed" else ""

    async def _wait(self, answer: asyncio.Future[dict[str, object]], value: str) -> bool:
        """Whether it was acked."""
        try:
            async with asyncio.timeout(_ACK_S):
                said = await answer
        except TimeoutError:
            self.heard["not heard of"] += 1
            return False
        if isinstance(said.get("offset"), int):
            self._acked(value, int(str(said.get("partition", 0))), int(str(said["offset"])))
            return True
        error = said.get("error")
        self.heard[str(error.get("err_code")) if isinstance(error, dict) else "nobody"] += 1
        return False

    async def _until_acked(self, line: _Line, numbers: itertools.count[int]) -> None:
        while not self._stop.is_set():
            pending = self._pending
            if pending is None:
                pending = self._pending = f"{self.name}:{next(numbers)}"
                self._sent(pending)
            number = int(pending.rpartition(":")[2])
            headers = f"Nats-Msg-Id: {pending}\r\n" if self.kind == "id" else ""
            answer = line.publish(self._subject, pending.encode(), headers + self._key(number), wants_ack=True)
            await line.drain()
            assert answer is not None
            if await self._wait(answer, pending):
                self._pending = None
            await asyncio.sleep(_BETWEEN_S)

    async def _append(self) -> None:
        for value in (f"{self.name}:{number}" for number in itertools.count()):
            if self._stop.is_set():
                return
            self._sent(value)
            row = {"value": value.encode(), **({"subject": self._subject} if self._subject else {})}
            try:
                if self._client is None or self._producer is None:
                    self._client = await aio.connect(self._system.addresses(), name=self.name, timeout=5.0)
                    self._producer = self._client.producer(self._stream, partition=self._partition)
                for result in await self._producer.append([row], timeout=20.0):
                    self._acked(value, self._partition, result.base_offset)
            except (PenstockError, OSError) as error:
                self.heard[type(error).__name__] += 1
                await asyncio.sleep(_PAUSE_S)
            await asyncio.sleep(_BETWEEN_S)

    async def close(self) -> None:
        """Give back what it holds."""
        if self._client is not None:
            await self._client.close()


class Consumer:
    """One that reads a place from its beginning on, for as long as it is let."""

    def __init__(self, system: System, history: History, place: Place, stream_id: int, broker: int | None) -> None:
        """`broker`: from whom it reads; None: whoever leads."""
        self.name = f"{place} at broker {broker}" if broker is not None else f"{place}"
        self.place, self.position = place, 0
        self.broker = broker
        self.sent_back = 0
        self.is_damaged = False
        self.said: Counter[str] = Counter()
        self._turn = 0
        self._system, self._history, self._stream_id = system, history, stream_id
        self._epoch: int | None = None
        self._task = asyncio.create_task(self._follow() if broker is None else self._fetch(broker))

    async def stop(self) -> None:
        """It has ended."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def _polled(self, rows: list[tuple[int, str]]) -> None:
        if rows:
            self._history.add(Polled(now_s(), self.name, self._turn, self.place, self.position, tuple(rows)))
            self.position = rows[-1][0] + 1

    def _begin_again(self) -> None:
        self._history.add(SentBack(now_s(), self.name, self._turn, self.place))
        self.sent_back += 1
        self._turn += 1
        self.position, self._epoch = 0, None

    async def _follow(self) -> None:
        stream, partition = self.place
        while True:
            try:
                async with await aio.connect(self._system.addresses(), name=self.name, timeout=5.0) as client:
                    batches = client.read(stream, self.position, partition=partition, follow=True)
                    async for batch in batches:
                        offsets, values = (batch.column(name).to_pylist() for name in ("offset", "value"))
                        self._polled([(o, v.decode()) for o, v in zip(offsets, values, strict=True)])
            except (LogTruncated, OffsetOutOfRange) as error:
                self.said[type(error).__name__] += 1
                self._begin_again()
            except (PenstockError, OSError) as error:
                self.said[type(error).__name__] += 1
            await asyncio.sleep(_PAUSE_S)

    async def _fetch(self, broker: int) -> None:
        while True:
            try:
                await self._fetch_from(broker)
            except RemoteError as error:
                self.said[str(error.code)] += 1
                if error.code in ("log_truncated", "offset_out_of_range"):
                    self._begin_again()
            except CorruptionError:
                self.said["damage"] += 1
                self.is_damaged = True
            except (PenstockError, OSError, AssertionError) as error:
                self.said[type(error).__name__] += 1
            await asyncio.sleep(_PAUSE_S)

    async def _fetch_from(self, broker: int) -> None:
        connection = await connected(self._system, broker)
        try:
            while True:
                rows, epoch = await fetched(connection, self._stream_id, self.place, self.position, self._epoch, 300)
                self._epoch = epoch
                self._polled([(offset, value) for offset, (value, _) in rows.items()])
                await asyncio.sleep(_PAUSE_S)
        finally:
            connection.writer.transport.abort()


async def connected(system: System, broker: int) -> RawClient:
    """A connection to that broker and no other. OSError."""
    host, _, port = system.brokers[broker].client_address.rpartition(":")
    async with asyncio.timeout(3.0):
        reader, writer = await asyncio.open_connection(host, int(port))
        connection = RawClient(reader, writer)
        try:
            await connection.hello()
        except BaseException:
            writer.transport.abort()
            raise
    return connection


async def fetched(
    connection: RawClient, stream_id: int, place: Place, offset: int, epoch: int | None, wait_ms: int
) -> tuple[Rows, int | None]:
    """The next rows from an offset on, and the leader epoch of the last one. RemoteError, OSError, CorruptionError."""
    request = FetchRequest(
        stream_id=StreamId(stream_id),
        partition=PartitionId(place.partition),
        offset=Offset(offset),
        wait_ms_max=wait_ms,
        leader_epoch=None if epoch is None else LeaderEpoch(epoch),
    )
    connection.ask(request, 2)
    async with asyncio.timeout(10.0):
        frame = await connection.frame()
    if frame is None:
        raise ConnectionResetError
    response = decode_response(frame, FetchRequest)
    assert isinstance(response, FetchResponse)
    rows: Rows = {}
    view = memoryview(frame.raw)
    while view:
        header = codec.read_header(view)
        message = view[: header.size_bytes]
        codec.verify(message)
        rows.update(one for one in rows_of(message).items() if one[0] >= offset)
        epoch = header.leader_epoch
        view = view[header.size_bytes :]
    return rows, epoch


def rows_of(message: bytes | memoryview) -> Rows:
    """The rows of a verified batch: offset → its value, and all of it."""
    columns = codec.check_rows(message).to_pydict()
    names = ("timestamp", "subject", "key", "value", "headers")
    return {
        offset: (columns["value"][at].decode(), repr([columns[name][at] for name in names]).encode())
        for at, offset in enumerate(columns["offset"])
    }
