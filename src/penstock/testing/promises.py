"""Record what Penstock guarantees to the programs of a run, and check it: the simulator's checks, for any program.

Rules: each partition of each stream, by stream id, has its own history, also after the stream's deletion. A guarantee
begins with an ack on its way to a program, an answer to an append, or a message that was read. The brokers' states are
checked after every turn of a broker (`simulation/checks`); the guaranteed messages are read from the logs
once more at the end.

| if a stream …                             | this is not checked                                 |
|-------------------------------------------|-----------------------------------------------------|
| keeps its log in memory                   | anything: the log is lost with its broker           |
| was deleted                               | whether it still exists                             |
| has retention, or was truncated           | whether its beginning exists                        |
| has compaction, rollups or times to live  | whether a message exists; only that it is unchanged |
| got a message in an envelope              | the message's value                                 |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from penstock.base.config import Durability, Storage, StreamConfig
from penstock.base.errors import RemoteError
from penstock.live.row_set import NONE, RowSet
from penstock.messages import (
    AlterStreamRequest,
    AppendOnceRequest,
    AppendRequest,
    AppendResponse,
    DeleteStreamRequest,
    FetchRequest,
    FetchResponse,
    Request,
    Response,
    TruncateRequest,
)
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import SimBroker
from penstock.testing.simulation.checks.agreement import Agreement
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory
from penstock.testing.simulation.nats import PublishedMessage
from penstock.testing.simulation.rows import ReadRows
from penstock.testing.simulation.scheduler import Scheduler

_ANYWHERE = 1 << 62  # an offset beyond every log: everything may be deleted
_PUBLISHED_MAX = 100_000  # messages remembered for their acks: several streams may ack one
_ENVELOPE = b"\xb9\x0e\x43\xb4"
_TOMBSTONE = b"penstock-tombstone:"


class AckBody(msgspec.Struct):
    """The answer on a reply subject: an ack or an error."""

    stream: str
    seq: int
    error: dict[str, Any] | None = None
    partition: int = 0
    offset: int | None = None  # None: duplicate of a message in an older partition
    epoch: int = 0
    replicas: int = 0
    fsynced: bool = False
    duplicate: bool = False


ACK = msgspec.json.Decoder(AckBody)


class Promises:
    """The guarantees given during one run, and their checks."""

    def __init__(self, brokers: Mapping[int, SimBroker], scheduler: Scheduler) -> None:
        self.acks = 0
        self._brokers = brokers
        self.agreement = Agreement(brokers)
        self.checks = Checks(
            len(brokers),
            self.agreement.cut,
            lambda: scheduler.now_us,
            self.agreement.has_committed,
            self.agreement.agreed_end,
            key=lambda look: str(look.stream_id),
        )
        self._streams: dict[int, StreamConfig] = {}
        self._ids: dict[str, int] = {}  # the latest stream id by name
        self._applied: dict[int, int] = {}  # by broker: up to where its image was examined
        self._published: dict[bytes, PublishedMessage] = {}  # by reply subject

    @property
    def leader_changes(self) -> int:
        """Number of leader changes of all partitions so far."""
        epochs = (len(history.leaders) for history in self.checks.histories.values())
        return sum(count - 1 for count in epochs if count)

    # Brokers

    def acted(self, broker: SimBroker) -> None:
        """Check after each turn of a broker. ViolationError."""
        assert broker.node is not None
        standing = inspector.standing(broker.node)
        if self._applied.get(broker.broker_id) != standing.applied:
            self._applied[broker.broker_id] = standing.applied
            self._learn(broker)
        self.agreement.acted(broker, standing)
        for history, look in self.checks.acted(broker, standing):
            self.agreement.committed(history, broker, look)

    def started(self, broker: SimBroker) -> None:
        """Check a broker that starts. ViolationError."""
        self._learn(broker)
        self.checks.started(broker)
        self.agreement.started(broker)

    def ended(self, broker: SimBroker, by_power_loss: bool) -> None:
        """Record that a broker's process ended."""
        self.checks.ended(broker, by_power_loss=by_power_loss)

    def _learn(self, broker: SimBroker) -> None:
        assert broker.node is not None
        for state in inspector.streams(broker.node):
            if state.stream_id in self._streams:
                continue
            config = self._streams[state.stream_id] = state.config
            self._ids[config.name] = max(state.stream_id, self._ids.get(config.name, 0))
            for number in range(config.partitions):
                history = PartitionHistory(config, number, state.stream_id)
                if _may_begin_anywhere(config):
                    history.truncating = _ANYWHERE
                if config.storage is Storage.MEMORY:
                    history.is_damaged = history.is_given_up = True  # nothing is guaranteed
                self.checks.histories[str(state.stream_id), number] = history

    def is_needed(self, broker: SimBroker) -> bool:
        """True if the broker must not lose power: no other replica certainly has all acked but unsynced messages."""
        for history in self.checks.histories.values():
            if history.is_deleted or history.is_given_up or history.config.replicas == 1:
                continue
            if not set(history.isr) - history.unclean - {broker.broker_id}:
                return True
        return False

    # Programs

    def published(self, message: PublishedMessage) -> None:
        """Record a program's publish."""
        if message.reply:
            if len(self._published) >= _PUBLISHED_MAX:
                del self._published[next(iter(self._published))]
            self._published[message.reply] = message

    def answered(self, subject: bytes, body: bytes) -> None:
        """Check a broker's ack. ViolationError."""
        message = self._published.get(subject)
        if message is None:
            return
        try:
            ack = ACK.decode(body)
        except msgspec.DecodeError:
            return
        if ack.error is not None or ack.stream not in self._ids:
            return
        self.acks += 1
        if ack.duplicate or message.value.startswith(_ENVELOPE):
            return  # it was acked elsewhere, or the stored value is inside the envelope
        value = message.subject if _TOMBSTONE in message.headers.lower() else message.value
        self._promised(self._ids[ack.stream], ack.partition, ack.epoch, [(ack.seq - 1, value)], fsynced=ack.fsynced)

    def asked(self, request: Request, raw: bytes) -> Callable[[Response | RemoteError, bytes], None]:
        """Record a program's request; return the function to call with its answer, which may raise ViolationError."""
        match request:
            case DeleteStreamRequest(name=name, stream_id=stream_id):
                for history in self._of(stream_id or self._ids.get(name, 0)):
                    history.is_deleted = True
            case AlterStreamRequest(name=name):
                for history in self._of(self._ids.get(name, 0)):
                    history.truncating = _ANYWHERE
            case TruncateRequest(stream_id=stream_id):
                for history in self._of(stream_id):
                    history.truncating = _ANYWHERE
            case AppendRequest() | AppendOnceRequest():
                return lambda response, _: self._appended(request, raw, response)
            case FetchRequest(is_projected=False):
                return lambda response, payload: self._read(request, response, payload)
            case _:
                pass
        return lambda _response, _payload: None

    def _of(self, stream_id: int) -> Iterable[PartitionHistory]:
        return [one for one in self.checks.histories.values() if one.stream_id == stream_id]

    def _appended(
        self, request: AppendRequest | AppendOnceRequest, raw: bytes, response: Response | RemoteError
    ) -> None:
        if isinstance(response, AppendResponse):
            self.acks += 1
            rows = enumerate(ReadRows(raw).values, response.base_offset)
            epoch = response.leader_epoch
            self._promised(request.stream_id, request.partition, epoch, rows, fsynced=response.fsynced)

    def _read(self, request: FetchRequest, response: Response | RemoteError, payload: bytes) -> None:
        """Check a fetch: a program may rely on a message that it has read as on one that was acked."""
        history = self.checks.histories.get((str(request.stream_id), request.partition))
        if history is None or not isinstance(response, FetchResponse) or not payload:
            return
        rows = ReadRows(payload)
        durability = history.config.durability
        fsynced = durability is Durability.FSYNC or (durability is Durability.AUTO and len(self._brokers) == 1)
        for offset, value, epoch in zip(rows.offsets, rows.values, rows.epochs, strict=True):
            if request.offset <= offset < response.end_offset:
                self._promised(request.stream_id, request.partition, epoch, [(offset, value)], fsynced=fsynced)

    def _promised(
        self, stream_id: int, partition: int, epoch: int, rows: Iterable[tuple[int, bytes]], *, fsynced: bool
    ) -> None:
        history = self.checks.of(str(stream_id), partition)
        if history.is_deleted or history.is_given_up:
            return
        for offset, value in rows:
            name = _name(offset, value)
            self.checks.sent[name] = history.config.subject
            self.checks.promised(history, offset, epoch, name, fsynced=fsynced)

    # The end

    def audit(self) -> None:
        """Read the guaranteed messages from the leaders. ViolationError."""
        for history in self.checks.histories.values():
            if not (history.is_deleted or history.is_given_up or history.is_damaged):
                self._audit(history)

    def _audit(self, history: PartitionHistory) -> None:
        for broker in self._brokers.values():
            look = (
                None if broker.node is None else inspector.partition(broker.node, history.stream_id, history.partition)
            )
            if look is None or not look.is_leader or broker.node is None:
                continue
            with broker.disk.undisturbed():
                batches = list(inspector.raw_batches(broker.node, look, look.log_start, look.committed_end))
            there: dict[int, bytes] = {}
            for raw in batches:
                rows = ReadRows(raw)
                there.update(zip(rows.offsets, rows.values, strict=True))
            limited = inspector.limit(broker.node, history.stream_id, history.partition)
            self._compare(history, look, there, NONE if limited is None else limited.hidden)

    @staticmethod
    def _compare(
        history: PartitionHistory, look: inspector.PartitionLook, there: Mapping[int, bytes], hidden: RowSet
    ) -> None:
        config = history.config
        may_go = config.compact or config.allow_message_ttl or config.allow_rollup or config.is_consumed
        for offset, name in history.known.items():
            value = there.get(offset)
            is_gone = value is None or (not value and offset in hidden)  # erased in place, or with its batch
            if is_gone and (may_go or offset < look.log_start):
                continue
            if config.is_consumed and value == b"":  # erased: it only covers its offset
                continue
            if value is None or _name(offset, value) != name:
                text = f"{history.name()}: offset {offset} was acked as {name.partition(b':')[2]!r}"
                raise ViolationError(f"{text}, and is {value!r} there")


def _name(offset: int, value: bytes) -> bytes:
    """Return a name that distinguishes equal values by their offset."""
    return b"%d:%b" % (offset, value)


def _may_begin_anywhere(config: StreamConfig) -> bool:
    is_limited = (config.max_age_ms, config.max_messages, config.max_bytes) != (None, None, None)
    is_limited = is_limited or config.is_consumed
    return config.is_internal or is_limited or config.allow_rollup or config.allow_message_ttl or config.compact
