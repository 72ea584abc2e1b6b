"""Model of publishers of atomic batches, whose messages come one by one, beside messages without a batch.

| invariant                                                                    | checked at                        |
|------------------------------------------------------------------------------|-----------------------------------|
| a batch that is stored has all its messages, in order, one behind the other  | an ack; after the audit           |
| … and no replica ever shows a part of it                                     | every event of a broker           |
| a batch that lacks a message, or its commit, is not stored                   | after the audit                   |
| one whose publisher was refused is not stored                                | see `refusals`                    |
| an ack names the place of the last message, and the number of messages       | an ack                            |
| acked batches are kept as all acked messages are                             | see `checks`                      |
| after all failovers a batch is stored                                        | the end: see `waits_for`          |

Rules: each message is sent once. The publishers do not wait for each other, nor for the answers of a batch's first
messages, so batches are interleaved and come while leaders change. Some leave out a message; some never commit, or so
late that their batch is abandoned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.errors import RemoteError
from penstock.messages import AlterStreamRequest, CreateStreamRequest, CreateStreamResponse, Response
from penstock.testing.errors import ViolationError
from penstock.testing.promises import AckBody
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import SimBroker, Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory, SentMessage
from tests.sim.checks.refusals import Refusals
from tests.sim.models.client_state import StreamGeneration, kind_of
from tests.sim.models.requests import SimClient
from tests.sim.plan.plan import Act, PlannedOperation

NAME = "batched"
_AGAIN_US = 400_000
_SIZES = (1, 2, 3, 5, 12)
_LEAVES_OUT, _NEVER_COMMITS, _IS_LATE, _PLAIN = 0, 1, 2, 3  # of _WAYS
_WAYS = 12
_LATE_US = 11_000_000  # a broker has abandoned it by then
_PAUSE_US = (0, 0, 300, 20_000, 900_000)  # between two messages of a batch


class _Ack(AckBody):
    """An ack, which names the batch."""

    batch: str = ""
    count: int = 0


_ACK = msgspec.json.Decoder(_Ack)


@dataclass(slots=True)
class _Batch:
    """A batch of one publisher. `is_whole`: all its messages are sent, and the commit."""

    batch_id: str
    names: list[bytes]
    is_whole: bool


class Batching:
    """The stream with atomic batches of one run. `program`: returns a client that may do everything."""

    def __init__(
        self,
        around: Surroundings,
        checks: Checks,
        refusals: Refusals,
        brokers: Mapping[int, SimBroker],
        program: Callable[[], SimClient],
        random: Random,
    ) -> None:
        self.acts: dict[Act, Callable[[PlannedOperation], None]] = {Act.BATCH: self._act}
        self._around, self._checks, self._refusals = around, checks, refusals
        self._brokers, self._program, self._random = brokers, program, random
        self._config: StreamConfig
        self._history: PartitionHistory
        self._stream_id = 0
        self._batches: list[_Batch] = []
        self._numbers = self._acked = 0
        self._ends: dict[bytes, bool] = {}  # name of a message → it is the last one of its batch, or of none
        self._seen: dict[tuple[int, int], int] = {}  # (broker, its run) → the last end of what it shows

    def _trace(self, what: str) -> None:
        self._around.trace.add("batching", what)

    def _drawn(self, count: int) -> int:
        return int(self._random.random() * count)

    # The stream

    @property
    def generations(self) -> list[StreamGeneration]:
        """The stream, which the audit also reads."""
        return [StreamGeneration(self._config, self._stream_id)] if self._stream_id else []

    def create(self) -> None:
        """Create the stream; retried until it is answered."""
        fields = {
            "name": NAME,
            "subject": f"{NAME}.>",
            "replicas": min(3, len(self._brokers)),
            "segment_bytes": 8_192,
            "allow_atomic": True,
        }
        self._config = msgspec.convert(fields, StreamConfig)
        self._checks.begin(self._config)
        self._history = self._checks.of(self._config.subject, 0)
        self._ask_to_create()

    def _ask_to_create(self) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"create: {kind_of(response)}")
            if not isinstance(response, CreateStreamResponse):
                self._around.scheduler.after(_AGAIN_US, self._ask_to_create)
                return
            self._stream_id = int(response.stream.stream_id)
            self._checks.created[self._stream_id] = self._history

        self._program().ask(CreateStreamRequest(config=self._config, timeout_ms=3_000), done)

    def allow_unclean_election(self, stream_id: int) -> bool:
        """Allow an unclean leader election; return False if the id is another stream's."""
        if stream_id != self._stream_id:
            return False
        self._history.is_damaged = self._history.is_given_up = True
        request = AlterStreamRequest(name=NAME, changes={"allow_unclean_election": True})
        self._program().ask(request, lambda response, _raw: self._trace(f"unclean: {kind_of(response)}"))
        return True

    # Publishers

    def _act(self, _operation: PlannedOperation) -> None:
        if self._stream_id:
            self._publish(self._drawn(_WAYS))

    def _publish(self, way: int) -> None:
        """Send the messages of a batch, or one without a batch."""
        self._numbers += 1
        if way == _PLAIN:
            self._send(self._message(b"plain.%d" % self._numbers, "", is_last=True), None)
            return
        batch_id, size = f"b{self._numbers}", _SIZES[self._drawn(len(_SIZES))]
        names = [b"%b.%d" % (batch_id.encode(), number) for number in range(1, size + 1)]
        missing = self._drawn(size) if way == _LEAVES_OUT else -1
        batch = _Batch(batch_id, names, is_whole=way not in (_LEAVES_OUT, _NEVER_COMMITS))
        self._batches.append(batch)
        at_us = 0
        for number, name in enumerate(names, 1):
            is_last = number == size
            commits = is_last and way != _NEVER_COMMITS
            lines = f"Nats-Batch-Id: {batch_id}\r\nNats-Batch-Sequence: {number}\r\n"
            lines += "Nats-Batch-Commit: 1\r\n" if commits else ""
            message = self._message(name, lines, is_last=is_last)
            if number == missing + 1:
                continue
            at_us += _LATE_US if is_last and way == _IS_LATE else _PAUSE_US[self._drawn(len(_PAUSE_US))]
            self._around.scheduler.after(at_us + 1, self._sending(message, batch if commits else None))
        self._around.count("atomic batches")

    def _message(self, name: bytes, lines: str, *, is_last: bool) -> SentMessage:
        headers = f"NATS/1.0\r\n{lines}\r\n".encode() if lines else b""
        message = SentMessage(f"{NAME}.a".encode(), name, name, headers)
        self._checks.sends(self._config, message)
        self._ends[name] = is_last
        return message

    def _sending(self, message: SentMessage, commits: _Batch | None) -> Callable[[], None]:
        return lambda: self._send(message, commits)

    def _send(self, message: SentMessage, commits: _Batch | None) -> None:
        nats, reply = self._around.nats, b"_INBOX.batch.%b" % message.name
        is_answered = commits is not None or not message.headers

        def heard(body: bytes) -> None:
            nats.forget(reply)
            if is_answered:
                self._heard(reply, body, [message.name] if commits is None else commits.names)

        brokers = nats.publish(message.subject, message.value or b"", reply, heard, message.headers)
        if is_answered:
            self._refusals.published(reply, (self._history,), message.name, brokers)

    def _heard(self, reply: bytes, body: bytes, names: list[bytes]) -> None:
        ack = _ACK.decode(body) if body else None
        if ack is None or ack.error is not None:
            self._refusals.refused(reply, body)
            self._around.count("refused batches")
            return
        self._refusals.acked(reply)
        assert ack.offset is not None
        if ack.batch and ack.count != len(names):
            raise ViolationError(f"batch {ack.batch} of {len(names)} messages is acked with {ack.count}")
        for offset, name in enumerate(names, ack.offset - len(names) + 1):
            self._checks.promised(self._history, offset, ack.epoch, name, fsynced=ack.fsynced)
        self._acked += 1
        self._around.count("acked batches")

    # Checks

    def acted(self, broker: SimBroker) -> None:
        """Check after each event of a broker that it shows no part of a batch."""
        if broker.node is None or not self._stream_id or self._history.is_damaged:
            return
        key = broker.broker_id, broker.run
        end = inspector.shown_end(broker.node, self._stream_id, 0)
        if end == self._seen.get(key, 0):
            return
        self._seen[key] = end
        for name in inspector.values_at(broker.node, self._stream_id, 0, end - 1):
            if not self._ends.get(name, True):
                raise ViolationError(f"{broker.name} shows {NAME} up to {end}, behind {name!r}: a part of its batch")

    def check(self) -> None:
        """After the audit: check that each batch is stored as a whole, or not at all."""
        history = self._history
        for batch in self._batches:
            places = [history.places.get(name) for name in batch.names]
            there = [place for place in places if place is not None]
            if not there or history.is_damaged:
                continue
            if not batch.is_whole or len(there) < len(places):
                raise ViolationError(f"{history.name()}: of batch {batch.batch_id} there are only {places}")
            if there != list(range(there[0], there[0] + len(there))):
                raise ViolationError(f"{history.name()}: batch {batch.batch_id} lies apart: {places}")
            self._around.count("stored batches")

    def waits_for(self, is_stuck: Callable[[PartitionHistory], bool]) -> Callable[[], str]:
        """Return a function that tells if no batch was acked since."""
        begun = self._acked

        def left() -> str:
            history = self._history
            if self._acked > begun or is_stuck(history) or history.is_damaged or history.damaged:
                return ""
            if self._stream_id:
                self._publish(_WAYS)
            return f"{NAME} stores no batch"

        return left
