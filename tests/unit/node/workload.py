"""What people do with a broker, and what they may rely on afterwards: a model that any crash is held against.

Rules: a promise is what was answered or acked, and nothing else. What was asked and not answered may have happened or
not. Every value is unique, so that a message that is there twice, or in the wrong place, is seen. One of the streams
has several partitions.

| promise                      | holds after any crash                                              |
|------------------------------|--------------------------------------------------------------------|
| a PubAck, an append's answer | the value is at that offset of that partition, once, however often |
|                              | it was sent with its id                                            |
| a create's, alter's answer   | the stream is there under its id with that config                  |
| a delete's answer            | it is gone, and so are its files                                   |
| a truncation's answer        | nothing before that offset is there                                |
| nothing                      | what is at an offset that nobody asked to give up is there         |
| nothing                      | what is there was sent to that stream, without holes               |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.errors import RemoteError
from penstock.base.ids import Offset, PartitionId, StreamId
from penstock.base.subjects import partition_subject
from penstock.messages import (
    AlterStreamRequest,
    AppendOnceRequest,
    AppendOnceResponse,
    AppendRequest,
    AppendResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    DeleteStreamRequest,
    Request,
    TruncateRequest,
    TruncateResponse,
)
from tests.unit.node.harness import Broker, Executed, batch_of, nats_matches

NAMES = ("a", "b", "c")
PARTITIONS = {"a": 1, "b": 1, "c": 3}
_WINDOW_MS = 10**9  # however much time passes in a test
Key = tuple[int, int]  # stream and partition


@dataclass
class Asked:
    """A request that is not answered yet."""

    request: Request
    values: tuple[bytes, ...] = ()


@dataclass
class Producing:
    """A producer in one epoch: what it goes on with, and its last batches, each with its sequence."""

    epoch: int = 0
    next: int = 0
    sent: deque[tuple[int, tuple[bytes, ...]]] = field(default_factory=lambda: deque(maxlen=5))


class Workload:
    """Drives one broker, with disk work held back, and keeps the promises."""

    def __init__(self, broker: Broker) -> None:
        self.begin(broker)
        self.configs: dict[int, list[dict[str, Any]]] = {}  # of streams that were promised: those that they may have
        self.deleting: set[int] = set()
        self.deleted: set[int] = set()
        self.stored: dict[Key, dict[int, bytes]] = {}  # partition → offset → value that was promised
        self.sent: dict[Key, set[bytes]] = {}
        self.truncating: dict[Key, int] = {}  # before which somebody has asked to give up
        self.truncated: dict[Key, int] = {}  # … and was told that it is gone
        self._producing: dict[Key, Producing] = {}
        self.repeated = 0  # batches of producers that were there already
        self._values = self._replies = 0
        self._named: list[tuple[str, int, bytes]] = []  # values that were sent with an id: stream, partition, value

    def begin(self, broker: Broker) -> None:
        """Go on with this broker."""
        self.broker = broker
        broker.disk_runs_at_once = False
        self.executed: list[Executed] = []
        self._asked: dict[Hashable, Asked] = {}
        self._published: dict[str, tuple[bytes, dict[str, Key]]] = {}
        self._acks_seen = 0

    # Doing

    def _next_value(self) -> bytes:
        self._values += 1
        return f"value-{self._values}".encode()

    def _ask(self, request: Request, raw: bytes | bytearray = b"", values: tuple[bytes, ...] = ()) -> None:
        caller = f"w{self._values}-{len(self._asked)}-{len(self.broker.replies)}"
        self._asked[caller] = Asked(request, values)
        self.broker.request(request, raw, caller=caller)
        self.listen()

    def create(self, name: str, **config: Any) -> None:
        """Ask for a stream."""
        partitions = PARTITIONS[name]
        subject = name if partitions > 1 else f"{name}.>"
        wanted = msgspec.convert({"name": name, "subject": subject, "partitions": partitions, **config}, StreamConfig)
        wanted = msgspec.structs.replace(wanted, dedup_window_ms=_WINDOW_MS)
        self._ask(CreateStreamRequest(config=wanted))

    def alter(self, name: str, **changes: Any) -> None:
        """Ask for another config, unless somebody does so already."""
        stream_id = self.promised().get(name)
        if stream_id is None or any(isinstance(asked.request, AlterStreamRequest) for asked in self._asked.values()):
            return
        self.configs[stream_id].append({**self.configs[stream_id][-1], **changes})
        self._ask(AlterStreamRequest(name=name, stream_id=StreamId(stream_id), changes=changes))

    def delete(self, name: str) -> None:
        """Ask for a stream's end."""
        stream_id = self.promised().get(name)
        if stream_id is not None:
            self.deleting.add(stream_id)
            self._ask(DeleteStreamRequest(name=name, stream_id=StreamId(stream_id)))

    def truncate(self, name: str, number: int) -> None:
        """Ask to give up the beginning of a partition, sometimes more than there is."""
        stream_id = self.promised().get(name)
        info = self.broker.streams().get(name)
        if info is None or info.stream_id != stream_id:
            return
        part = info.partitions[number % PARTITIONS[name]]
        assert part.committed_end is not None
        before = number % (part.committed_end + 2)
        key = (int(stream_id), int(part.partition))
        if before <= part.committed_end:
            self.truncating[key] = max(before, self.truncating.get(key, 0))
        self._ask(TruncateRequest(stream_id=StreamId(stream_id), partition=part.partition, before=Offset(before)))

    def publish(self, name: str, count: int, size_bytes: int = 0) -> None:
        """One read of the NATS connection with so many messages; all want an ack, and every other one has an id."""
        partition = self._values % PARTITIONS[name]
        values = [self._next_value().ljust(size_bytes, b".") for _ in range(count)]
        named = [(name, partition, value) for value in values[::2]]
        self._named += named
        self._deliver(name, partition, values, {value for _, _, value in named})

    def publish_again(self, number: int) -> None:
        """One read with a message that was sent before, and one with a new message twice."""
        if not self._named:
            return
        name, partition, value = self._named[number % len(self._named)]
        new = self._next_value()
        self._named.append((name, partition, new))
        self._deliver(name, partition, [new, value, new], {new, value})

    def _deliver(self, name: str, partition: int, values: list[bytes], named: set[bytes]) -> None:
        subject = self._subject(name, partition)
        ids = {stream: int(info.stream_id) for stream, info in self.broker.streams().items()}
        patterns = self.broker.nats.subscriptions.values()
        streams = {p[0]: (ids[p[0]], partition) for p in patterns if nats_matches(p, subject)}
        messages = []
        for value in values:
            self._replies += 1
            reply = f"r{self._replies}"
            self._published[reply] = (value, streams)
            for key in streams.values():
                self.sent.setdefault(key, set()).add(value)
            headers = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % value.rstrip(b".") if value in named else None
            messages.append((subject.encode(), reply.encode(), headers, value))
        self.broker.deliver(messages)
        self.listen()

    def append(self, name: str, count: int) -> None:
        """A batch over the socket."""
        stream_id = self.promised().get(name)
        if stream_id is None:
            return
        values = tuple(self._next_value() for _ in range(count))
        partition = self._values % PARTITIONS[name]
        self.sent.setdefault((stream_id, partition), set()).update(values)
        raw = batch_of([(self._subject(name, partition), None, value, None) for value in values])
        self._ask(AppendRequest(stream_id=StreamId(stream_id), partition=PartitionId(partition)), raw, values)

    def append_once(self, name: str, number: int) -> None:
        """The next batch of a producer, or one of its last ones again, whatever became of it; sometimes in a new epoch.

        A value that is stored twice is seen.
        """
        stream_id = self.promised().get(name)
        if stream_id is None:
            return
        key = (stream_id, number % PARTITIONS[name])
        producing = self._producing.setdefault(key, Producing())
        if number % 11 == 10:
            producing = self._producing[key] = Producing(producing.epoch + 1)
        if number % 3 == 0 and producing.sent:
            sequence, values = producing.sent[number // 3 % len(producing.sent)]
        else:
            sequence, values = producing.next, tuple(self._next_value() for _ in range(1 + number % 2))
            producing.sent.append((sequence, values))
            producing.next += len(values)
        self.sent.setdefault(key, set()).update(values)
        raw = batch_of([(self._subject(name, key[1]), None, value, None) for value in values])
        request = AppendOnceRequest(
            stream_id=StreamId(stream_id),
            partition=PartitionId(key[1]),
            producer_id=1,
            producer_epoch=producing.epoch,
            sequence=sequence,
        )
        self._ask(request, raw, values)

    @staticmethod
    def _subject(name: str, partition: int) -> str:
        return partition_subject(name, partition) if PARTITIONS[name] > 1 else f"{name}.x"

    def run_disk(self, number: int) -> None:
        """Some piece of disk work runs; the broker hears of it later."""
        if self.broker.disk:
            self.executed.append(self.broker.execute(number % len(self.broker.disk)))

    def complete(self, number: int) -> None:
        """The broker hears of some piece of disk work."""
        if self.executed:
            self.broker.complete(self.executed.pop(number % len(self.executed)))
            self.listen()

    def settle(self) -> None:
        """All disk work is done, and the broker has heard of it."""
        while self.broker.disk or self.executed:
            self.run_disk(0)
            self.complete(0)

    # Promises

    def promised(self) -> dict[str, int]:
        """Name → id of streams that were promised and that nobody has asked to delete."""
        return {
            configs[0]["name"]: stream_id
            for stream_id, configs in self.configs.items()
            if stream_id not in self.deleting
        }

    def listen(self) -> None:
        """Take note of what the broker has promised."""
        for ack in self.broker.acks[self._acks_seen :]:
            if not ack.err_code:
                assert ack.body["fsynced"]
                value, streams = self._published[ack.reply]
                key = streams[ack.body["stream"]]
                assert ack.body["partition"] == key[1]
                self._store(key, ack.body["offset"], value, is_again=ack.body.get("duplicate", False))
        self._acks_seen = len(self.broker.acks)
        for caller in [caller for caller in self._asked if caller in self.broker.replies]:
            self._heard(self._asked.pop(caller), self.broker.replies[caller].response)

    def _store(self, key: Key, offset: int, value: bytes, *, is_again: bool = False) -> None:
        stored = self.stored.setdefault(key, {})
        assert offset not in stored or (is_again and stored[offset] == value), f"offset {offset} was promised twice"
        stored[offset] = value

    def _heard(self, asked: Asked, response: object) -> None:
        request = asked.request
        if isinstance(response, CreateStreamResponse):
            self.configs.setdefault(response.stream.stream_id, [msgspec.to_builtins(response.stream.config)])
        elif isinstance(response, AppendResponse):
            assert isinstance(request, AppendRequest | AppendOnceRequest)
            is_again = isinstance(response, AppendOnceResponse) and response.duplicate
            self.repeated += is_again
            for number, value in enumerate(asked.values):
                key = (request.stream_id, request.partition)
                self._store(key, response.base_offset + number, value, is_again=is_again)
        elif isinstance(request, AlterStreamRequest) and not isinstance(response, RemoteError):
            assert request.stream_id is not None
            del self.configs[request.stream_id][:-1]
        elif isinstance(request, TruncateRequest) and isinstance(response, TruncateResponse):
            key = (int(request.stream_id), int(request.partition))
            self.truncated[key] = max(request.before, self.truncated.get(key, 0))
        elif isinstance(request, DeleteStreamRequest) and not isinstance(response, RemoteError):
            assert request.stream_id is not None
            self.deleted.add(request.stream_id)

    def check(self, after: Broker) -> None:
        """Hold the promises against a broker that was just started."""
        after.settle()
        found = {int(info.stream_id): info for info in after.streams().values()}
        for stream_id, configs in self.configs.items():
            if stream_id not in self.deleting:
                assert msgspec.to_builtins(found[stream_id].config) in configs
        assert not self.deleted & found.keys()
        for stream_id, info in found.items():
            assert len(info.partitions) == PARTITIONS[info.name]
            for one in info.partitions:
                key = (stream_id, int(one.partition))
                rows = after.read(info.name, one.partition)
                assert one.state == "online", info
                assert one.log_start is not None
                assert [row.offset for row in rows] == list(range(one.log_start, one.log_start + len(rows)))
                values = [row.value for row in rows]
                assert len(set(values)) == len(values)
                assert set(values) <= self.sent.get(key, set())
                self.hold(key, one.log_start, {row.offset: row.value for row in rows})
        folders = {path.split("/")[1] for path in after.memory.files() if path.startswith("streams/")}
        assert folders == {f"{stream_id:08d}-{info.name}" for stream_id, info in found.items()}
        assert not any(path.startswith("quarantine/") for path in after.memory.files())

    def hold(self, key: Key, log_start: int, there: Mapping[int, bytes | None]) -> None:
        """Hold what is promised of a partition against what is there from `log_start` on."""
        assert self.truncated.get(key, 0) <= log_start <= self.truncating.get(key, 0)
        for offset, value in self.stored.get(key, {}).items():
            if offset >= log_start:
                assert there[offset] == value

    def go_on_with(self, after: Broker) -> None:
        """After a crash: what this broker shows is what it promises from now on."""
        found = after.streams()
        for info in found.values():
            for number in range(len(info.partitions)):
                rows = after.read(info.name, number)
                self.stored[info.stream_id, number] = {row.offset: row.value or b"" for row in rows}
            self.configs[info.stream_id] = [msgspec.to_builtins(info.config)]
        ids = {int(info.stream_id) for info in found.values()}
        self.deleted |= self.deleting - ids
        self.deleting -= ids
        self.configs = {stream_id: configs for stream_id, configs in self.configs.items() if stream_id in ids}
        self.begin(after)
