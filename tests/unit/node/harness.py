"""A broker without sockets, threads or a clock of its own: the real node over a file system in memory.

Rules: nothing happens that the test did not ask for. A step is carried out top to bottom, as the real driver does it.
Every request gets exactly one answer, which is asserted here for every test. The file of an answer is read when the
answer is carried out, before the disk work behind it.

| what            | how                                                                                       |
|-----------------|-------------------------------------------------------------------------------------------|
| time            | `clock.advance_ms`, `clock.set_back_ms`; then `tick`                                      |
| disk            | `disk_runs_at_once`, or `run_disk(number)` in any order; `execute` and `complete` apart   |
| syncs           | `syncs_hang`: those of logs do not come back, while other disk work does                  |
| other disk work | `hung`: what is done by these classes does not come back                                  |
| disk faults     | `vfs.plan` of the FaultyVfs around the memory                                             |
| NATS            | `nats.up`, `nats.down`; `publish` delivers to every subscription that matches             |
| power           | `crash(keep)` gives the broker that starts on what the crash left                         |
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
import pyarrow as pa

from penstock.access.handshake import Principal
from penstock.base.clock import Now
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, PenstockError, RemoteError
from penstock.base.ids import Offset, PartitionId, StreamId
from penstock.batch import schema
from penstock.commitlog import Flush
from penstock.hot.scan import GROUP_BITS
from penstock.messages import (
    AppendRequest,
    CreateStreamRequest,
    DeleteStreamRequest,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    Request,
    Response,
    StreamInfo,
)
from penstock.node.node import Node
from penstock.node.security.access import NO_ORIGIN
from penstock.node.settings import Settings
from penstock.node.step import Barrier, DiskWork, FileRange, Reply, Step, Subscribe, Unsubscribe
from penstock.vfs import Buffer
from penstock.vfs.faulty import FaultyVfs
from penstock.vfs.memory import Keep, MemoryVfs
from tests.chance import Chance
from tests.envelopes import ACK_HEADER, ack_body
from tests.groups import Columns, Message, encoded, group_of

START_US = 1_700_000_000_000_000
_PUB = re.compile(rb"PUB ([^ \r\n]+) (\d+)\r\n")
_R = TypeVar("_R", bound=Response)


class Row(NamedTuple):
    """One message as a reader gets it."""

    offset: int
    subject: str
    key: bytes | None
    value: bytes | None
    headers: bytes | None


class Ack(NamedTuple):
    """One message that the broker published: to which subject, and its JSON, or what Liftbridge's ack says."""

    reply: str
    body: dict[str, Any]

    @property
    def err_code(self) -> int:
        """JetStream's error code, 0 for an ack."""
        error = self.body.get("error")
        return 0 if error is None else int(error["err_code"])


class Clock:
    """A time that only the test moves, and who began in it: one clock for all brokers of a story."""

    def __init__(self, wall_us: int = START_US) -> None:
        self.wall_us = wall_us
        self.elapsed_us = 0
        self.processes = count(1)  # a broker draws from its process's name, so no other test has a part in that

    @property
    def now(self) -> Now:
        """Both times."""
        return Now(self.wall_us, self.elapsed_us)

    def advance_ms(self, ms: float) -> None:
        """Time passes."""
        self.wall_us += int(ms * 1_000)
        self.elapsed_us += int(ms * 1_000)

    def set_back_ms(self, ms: int) -> None:
        """Somebody sets the calendar back."""
        self.wall_us -= ms * 1_000


class Refusal(NamedTuple):
    """nats-server refuses a subscription, perhaps without saying which."""

    sid: int | None
    reason: str


@dataclass
class Nats:
    """The link and nats-server: what the link was asked for, what the server has taken, what it has yet to answer.

    `confirms` False holds the answers back. `forbidden` subjects are refused by name, those beyond `limit` without one.
    """

    is_up: bool = True
    confirms: bool = True
    forbidden: set[str] = field(default_factory=set)
    limit: int = 1_000_000
    wanted: dict[int, str] = field(default_factory=dict)
    subscriptions: dict[int, str] = field(default_factory=dict)
    answers: deque[Barrier | Refusal] = field(default_factory=deque)

    def take(self, command: Subscribe | Unsubscribe | Barrier) -> None:
        """Do what a step says."""
        match command:
            case Subscribe(sid, subject):
                assert sid not in self.wanted, sid
                self.wanted[sid] = subject
                if self.is_up:
                    self._subscribe(sid, subject)
            case Unsubscribe(sid):
                self.wanted.pop(sid, None)
                self.subscriptions.pop(sid, None)
            case Barrier():
                assert self.is_up
                self.answers.append(command)

    def connect(self) -> None:
        """A new connection: the link subscribes everything again."""
        self.is_up = True
        self.subscriptions.clear()
        for sid, subject in self.wanted.items():
            self._subscribe(sid, subject)

    def disconnect(self) -> None:
        """Everything on its way is lost."""
        self.is_up = False
        self.subscriptions.clear()
        self.answers.clear()

    def forbid(self, subject: str) -> None:
        """Permissions change while the connection is there."""
        self.forbidden.add(subject)
        for sid in self.sids(subject):
            del self.subscriptions[sid]
            self.answers.append(Refusal(sid, "permissions violation"))

    def sids(self, subject: str) -> list[int]:
        """The subscriptions to exactly this subject."""
        return [sid for sid, taken in self.subscriptions.items() if taken == subject]

    def _subscribe(self, sid: int, subject: str) -> None:
        if subject in self.forbidden:
            self.answers.append(Refusal(sid, "permissions violation"))
        elif len(self.subscriptions) >= self.limit:
            self.answers.append(Refusal(None, "maximum subscriptions exceeded"))
        else:
            self.subscriptions[sid] = subject


@dataclass
class Executed:
    """Disk work that has run and not yet been told to the node."""

    work: DiskWork
    error: Exception | None


def _owner(work: DiskWork) -> object:
    return getattr(work.run, "__self__", None)


class Broker:
    """One node and its driver."""

    def __init__(
        self,
        memory: MemoryVfs | None = None,
        *,
        clock: Clock | None = None,
        nats_is_up: bool = True,
        **settings: Any,
    ) -> None:
        self.memory = MemoryVfs() if memory is None else memory
        self.vfs = FaultyVfs(self.memory)
        self.clock = Clock() if clock is None else clock
        self.settings = settings
        self.nats = Nats(is_up=nats_is_up)
        self.disk_runs_at_once = True
        self.syncs_hang = False
        self.hung: tuple[type, ...] = ()
        self.disk: list[DiskWork] = []
        self.acks: list[Ack] = []
        self.replies: dict[Hashable, Reply] = {}
        self.payloads: dict[Hashable, bytes] = {}
        self.open_requests: set[Hashable] = set()
        self.notices: list[str] = []
        self.news: list[tuple[str, bool]] = []
        self.failure = ""  # why it cannot go on
        self.steps: list[Step] = []
        self.who: Principal | None = None  # has logged in, and asks
        self.origin = NO_ORIGIN  # from where
        self._callers = self._callers_aside = 0
        own = Settings(
            **{
                "broker_version": "1",
                "address": "here:1",
                "data_dir_id": "disk",
                "process": f"p{next(self.clock.processes)}",
                **settings,
            }
        )
        self.node = Node(self.vfs, own, Chance(own.broker_id))

    # Life

    def start(self) -> Self:
        """Recover; then NATS confirms, if it is up."""
        self.do(self.node.start(self.clock.now))
        self.turn()
        if self.nats.is_up:
            self.nats_back()
        return self

    def stop(self) -> None:
        """A clean stop, as the driver does it: NATS drained, disk idle, node stopped."""
        self.settle()
        self.do(self.node.stop(self.clock.now))
        assert not self.disk
        assert not self.open_requests, f"never answered: {self.open_requests}"

    def crash(self, keep: Keep = Keep.SYNCED, random: Random | None = None, *, memory: MemoryVfs | None = None) -> Self:
        """The broker that starts on what a crash now (or one that left `memory`) has left."""
        left = self.memory.crash_clone(keep, random) if memory is None else memory
        return type(self)(left, clock=self.clock, nats_is_up=self.nats.is_up, **self.settings)

    # Carrying out

    def turn(self) -> None:
        """Carry out all that is decided; the disk too, if it runs at once."""
        while True:
            while step := self.node.take():
                self.do(step)
            if self.nats.confirms and self.nats.answers:
                self.hear()
            elif self.disk_runs_at_once and (number := self._next_work()) is not None:
                self.run_disk(number)
            else:
                return

    def _next_work(self) -> int | None:
        hung = (*self.hung, Flush) if self.syncs_hang else self.hung
        return next((n for n, work in enumerate(self.disk) if not isinstance(_owner(work), hung)), None)

    def settle(self) -> None:
        """Run disk work until there is none."""
        self.turn()
        while self.disk:
            self.run_disk()
            self.turn()

    def do(self, step: Step) -> None:
        """One step, top to bottom."""
        self.steps.append(step)
        for published in step.publish:
            self.acks += parse_acks(published.commands)
        for reply in step.replies:
            self._reply(reply)
        for command in step.nats:
            self.nats.take(command)
        for note in step.notes:
            note()
        self.disk += step.disk
        self.notices += step.notices
        self.news += [(one.text, one.is_warning) for one in step.news]
        self.failure = self.failure or step.failure

    def _reply(self, reply: Reply) -> None:
        assert reply.caller in self.open_requests, f"answered twice, or never asked: {reply}"
        self.open_requests.discard(reply.caller)
        self.replies[reply.caller] = reply
        payload = reply.payload
        if isinstance(payload, tuple):
            self.payloads[reply.caller] = b"".join(map(_read, payload))
        elif payload is not None:
            self.payloads[reply.caller] = _read(payload)

    def execute(self, number: int = 0) -> Executed:
        """Run one piece of disk work; the node is not told yet."""
        work = self.disk.pop(number)
        error: Exception | None = None
        try:
            work.run()
        except (OSError, PenstockError) as raised:  # anything else is a mistake of ours, and fails the test
            error = raised
        return Executed(work, error)

    def complete(self, executed: Executed) -> None:
        """Tell the node what became of disk work."""
        self.node.complete(executed.work, executed.error, self.clock.now)
        self.turn()

    def run_disk(self, number: int = 0) -> None:
        """Run one piece of disk work and tell the node."""
        executed = self.execute(number)
        self.node.complete(executed.work, executed.error, self.clock.now)
        while step := self.node.take():
            self.do(step)

    def tick(self, advance_ms: float = 0) -> None:
        """Time passes, and the node is told."""
        self.clock.advance_ms(advance_ms)
        self.tick_node()
        self.turn()

    def tick_node(self) -> None:
        """As `tick`, and nothing is carried out yet."""
        self.node.tick(self.clock.now, self.clock.now.wall_us if self.nats.is_up else None)

    # NATS

    def hear(self) -> None:
        """The next answer of NATS arrives."""
        answer = self.nats.answers.popleft()
        if isinstance(answer, Barrier):
            self.node.barrier_reached(answer.token, self.clock.now)
        else:
            self.node.subscription_refused(answer.sid, answer.reason, self.clock.now)

    def nats_down(self, reason: str = "the connection broke") -> None:
        """The connection is gone."""
        self.nats.disconnect()
        self.node.nats_lost(self.clock.now, reason)
        self.turn()

    def nats_back(self) -> None:
        """It is there again, and so are the subscriptions."""
        self.nats.connect()
        while self.nats.answers:
            self.hear()  # the link is up only when its own barrier is through
        self.node.nats_up()
        self.turn()

    def publish(
        self, subject: str, *values: bytes, reply: str | None = None, headers: bytes | None = None, count: int = 1
    ) -> None:
        """One read of the NATS connection with these messages; the n-th of several has the reply subject `reply.n`."""
        values = values * count
        replies = [
            None if reply is None else (reply if len(values) == 1 else f"{reply}.{n}").encode()
            for n in range(len(values))
        ]
        self.deliver([(subject.encode(), r, headers, value) for r, value in zip(replies, values, strict=True)])

    def deliver(self, messages: list[Message]) -> None:
        """One read of the NATS connection: (subject, reply, header block, value) in the order of the wire."""
        found: dict[int, list[Message]] = {}
        for message in messages:
            for sid, pattern in self.nats.subscriptions.items():
                if self.nats.is_up and nats_matches(pattern, message[0].decode("utf-8", "replace")):
                    found.setdefault(sid & ((1 << GROUP_BITS) - 1), []).append(message)
        groups = {sid: group_of(own) for sid, own in found.items()}
        self.node.messages_received(groups, self.clock.now)
        self.turn()

    # Requests

    def request(self, request: Request, raw: Buffer = b"", *, caller: Hashable | None = None) -> Hashable:
        """Ask; the caller to look for in `replies`."""
        if caller is None:
            self._callers += 1
            caller = f"c{self._callers}"
        assert caller not in self.open_requests
        self.replies.pop(caller, None)
        self.payloads.pop(caller, None)
        self.open_requests.add(caller)
        self._pass_on(caller, request, bytes(raw))
        self.turn()
        return caller

    def _pass_on(self, caller: Hashable, request: Request, raw: bytes) -> None:
        self.node.request(caller, request, raw, self.clock.now, self.who, self.origin)

    def answer(self, caller: Hashable, kind: type[_R]) -> _R:
        """The answer to `caller`, which must be of this type."""
        response = self.replies[caller].response
        assert isinstance(response, kind), response
        return response

    def ask(self, request: Request, kind: type[_R], raw: Buffer = b"") -> _R:
        """The answer to a request that is answered at once."""
        return self.answer(self.request(request, raw), kind)

    def refusal(self, request: Request, raw: Buffer = b"") -> RemoteError:
        """The error that a request gets at once."""
        response = self.replies[self.request(request, raw)].response
        assert isinstance(response, RemoteError), response
        return response

    def create(self, name: str, subject: str | None = None, **config: Any) -> Hashable:
        """Ask for a stream; on `<name>.>` unless told otherwise."""
        wanted = msgspec.convert({"name": name, "subject": subject or f"{name}.>", **config}, StreamConfig)
        return self.request(CreateStreamRequest(config=wanted))

    def delete(self, name: str) -> Hashable:
        """Ask for a stream's end."""
        return self.request(DeleteStreamRequest(name=name))

    def stream(self, name: str) -> StreamInfo:
        """A stream as the broker reports it."""
        caller = self.request(MetadataRequest(names=(name,)), caller=self._aside())
        (found,) = self.answer(caller, MetadataResponse).streams
        return found

    def streams(self) -> dict[str, StreamInfo]:
        """All streams, by name."""
        caller = self.request(MetadataRequest(), caller=self._aside())
        return {info.name: info for info in self.answer(caller, MetadataResponse).streams}

    def _aside(self) -> str:
        """A caller for what a test wants to know, beside the callers that it is about."""
        self._callers_aside += 1
        return f"aside{self._callers_aside}"

    def stream_id(self, name: str) -> StreamId:
        """Its id."""
        return self.stream(name).stream_id

    def fetch(self, name: str, offset: int = 0, **options: Any) -> Hashable:
        """Ask for what is stored from `offset` on."""
        return self.request(FetchRequest(stream_id=self.stream_id(name), offset=offset, **options))

    def append(self, name: str, *values: bytes, subject: str | None = None, partition: int = 0) -> Hashable:
        """Append a batch over the socket."""
        return self.request(
            AppendRequest(stream_id=self.stream_id(name), partition=PartitionId(partition)),
            batch_of([(subject or f"{name}.x", None, value, None) for value in values]),
        )

    def fill_partitions(self, name: str, count: int = 10) -> None:
        """Append so many empty messages to each partition of a stream that has a subject for each."""
        info = self.stream(name)
        for number in range(len(info.partitions)):
            self.append(name, *[b""] * count, subject=info.config.subject_of(number), partition=number)

    def read(self, name: str, partition: int = 0, *, damage: Row | None = None) -> list[Row]:
        """Everything that readers of a partition can see; `damage` ends it where it cannot be read."""
        info = self.stream(name)
        part = info.partitions[partition]
        rows: list[Row] = []
        if part.log_start is None or part.committed_end is None:
            return rows  # it has no log here
        offset = int(part.log_start)
        while offset < part.committed_end:
            request = FetchRequest(stream_id=info.stream_id, partition=part.partition, offset=Offset(offset))
            caller = self.request(request, caller=self._aside())
            if caller in self.open_requests:
                self.run_disk(len(self.disk) - 1)  # an index is looked into; all else waits on
            refusal = self.replies[caller].response
            if damage is not None and isinstance(refusal, RemoteError) and refusal.code == ErrorCode.CORRUPT_RANGE:
                return [*rows, damage]
            response = self.answer(caller, FetchResponse)
            rows += [row for row in rows_of(self.payloads.get(caller, b""), info.stream_id) if row.offset >= offset]
            assert response.end_offset > offset
            offset = int(response.end_offset)
        return rows

    def values(self, name: str, partition: int = 0) -> list[bytes | None]:
        """The values of everything that readers of a partition can see."""
        return [row.value for row in self.read(name, partition)]

    def acked(self) -> list[str]:
        """Reply subjects that got an ack that is no error, in order."""
        return [ack.reply for ack in self.acks if not ack.err_code]


def parse_acks(published: bytes) -> list[Ack]:
    """The messages in a run of PUB commands, read as nats-server reads them."""
    acks = []
    position = 0
    while position < len(published):
        match = _PUB.match(published, position)
        assert match is not None, published[position:]
        end = match.end() + int(match.group(2))
        assert published[end : end + 2] == b"\r\n"
        payload = published[match.end() : end]
        body = ack_body(payload) if payload.startswith(ACK_HEADER) else json.loads(payload or b"{}")
        acks.append(Ack(match.group(1).decode(), body))
        position = end + 2
    return acks


def nats_matches(pattern: str, subject: str) -> bool:
    """Whether nats-server delivers `subject` to a subscription on `pattern`: it knows nothing of reserved subjects."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for number, token in enumerate(wanted):
        if token == ">":
            return len(tokens) > number
        if number >= len(tokens) or token not in ("*", tokens[number]):
            return False
    return len(tokens) == len(wanted)


def _read(payload: bytes | bytearray | FileRange) -> bytes:
    if not isinstance(payload, FileRange):
        return bytes(payload)
    file = payload.vfs.open(payload.path, read_only=True)
    data = file.read_at(payload.position, payload.length)
    file.close()
    assert len(data) == payload.length
    return data


def rows_of(payload: bytes, stream_id: int) -> list[Row]:
    """The messages in the raw part of an answer, as any Arrow reader sees them."""
    with pa.ipc.open_stream(pa.BufferReader(schema.schema_message(stream_id, 0) + payload)) as reader:
        table = reader.read_all()
    names = ("offset", "subject", "key", "value", "headers")
    return [Row(*row) for row in zip(*(table.column(name).to_pylist() for name in names), strict=True)]


def batch_of(rows: list[tuple[str, bytes | None, bytes | None, bytes | None]]) -> bytearray:
    """A batch as a client sends it: (subject, key, value, headers)."""
    subjects, keys, values, headers = zip(*rows, strict=True)
    return encoded(Columns([one.encode() for one in subjects], keys, values, headers))
