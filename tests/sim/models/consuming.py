"""Model of a stream with logs of consumers: rows appended where its partitions are led, messages beside them.

| invariant                                                                       | checked at                       |
|---------------------------------------------------------------------------------|----------------------------------|
| an answered row is in the log of each ISR member, and every later leader has it | see `checks`: such a log is a    |
| … and with fsync on their disks                                                 | partition with promises, too     |
| it is led by whoever leads its partition, in the same epoch                     | every event of a broker          |
| a leadership that has ended appends nothing                                     | an append                        |
| what a leadership is served is all committed                                    | when its rows are taken          |
| … and has each key's last answered value, or a later one                        | when its rows are taken          |

Rules: the rows come from inside the leader's broker, as those of the gateway do. What a broker was given by an earlier
leadership of the same run is tried again. Each value is unique; no key is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random

import msgspec

from penstock.base.companion_kinds import CompanionKind
from penstock.base.config import Durability, StreamConfig
from penstock.base.errors import RemoteError
from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.batch import codec
from penstock.hot.message_group import MessageGroup
from penstock.messages import (
    AlterStreamRequest,
    AppendRequest,
    AppendResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    Response,
)
from penstock.metadata.companions import companion_of, consumers_key
from penstock.node.consumers.consumer_logs import KnownConsumers
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import SimBroker, Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory, SentMessage
from tests.sim.models.client_state import StreamGeneration, kind_of
from tests.sim.models.requests import SimClient
from tests.sim.plan.plan import Act, PlannedOperation

NAME = "consumed"
_PARTITIONS = 2
_KEYS = 5
_AGAIN_US = 400_000


class Consuming:
    """The stream of one run. `program`: returns a client that may do everything."""

    def __init__(
        self,
        around: Surroundings,
        checks: Checks,
        brokers: Mapping[int, SimBroker],
        program: Callable[[], SimClient],
        random: Random,
    ) -> None:
        self.acts: dict[Act, Callable[[PlannedOperation], None]] = {Act.CONSUME: self._act}
        self.generations: list[StreamGeneration] = []
        self._around = around
        self._checks = checks
        self._brokers = brokers
        self._program = program
        self._random = random
        self._numbers = 0
        self._consumers: StreamConfig | None = None  # config of the logs; None: they were not asked for
        # (broker, its run, partition) → what it was given, the newest last
        self._logs: dict[tuple[int, int, int], list[KnownConsumers]] = {}
        self._places: dict[bytes, int] = {}  # value → the offset at which it was appended last
        self._answered: dict[tuple[int, bytes], int] = {}  # (partition, key) → offset of the last answered value
        self._answers: dict[int, int] = {}  # partition → number of answered batches

    def _trace(self, what: str) -> None:
        self._around.trace.add("consuming", what)

    # The stream

    def create(self) -> None:
        """Create the stream; retried until it is answered."""
        durability = (Durability.AUTO, Durability.AUTO, Durability.FSYNC)[int(self._random.random() * 3)]
        fields = {
            "name": NAME,
            "subject": f"{NAME}.g1",
            "replicas": min(3, len(self._around.brokers)),
            "segment_bytes": 8_192,
            "partitions": _PARTITIONS,
            "durability": durability,
        }
        config = msgspec.convert(fields, StreamConfig)
        self._checks.begin(config)
        self._ask_to_create(config)

    def _ask_to_create(self, config: StreamConfig) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"create {config.subject}: {kind_of(response)}")
            if not isinstance(response, CreateStreamResponse):
                self._around.scheduler.after(_AGAIN_US, lambda: self._ask_to_create(config))
                return
            stream_id = int(response.stream.stream_id)
            self._checks.created[stream_id] = self._checks.of(config.subject, 0)
            self.generations.append(StreamGeneration(config, stream_id))

        self._program().ask(CreateStreamRequest(config=config, timeout_ms=3_000), done)

    def allow_unclean_election(self, stream_id: int) -> bool:
        """Allow an unclean leader election; return False if the id is another stream's."""
        if not self.generations or stream_id != self.generations[0].stream_id:
            return False
        for number in range(_PARTITIONS):
            for history in self._pair(number):
                history.is_damaged = history.is_given_up = True
        request = AlterStreamRequest(name=NAME, changes={"allow_unclean_election": True})
        self._program().ask(request, lambda response, _raw: self._trace(f"unclean: {kind_of(response)}"))
        return True

    def _pair(self, number: int) -> list[PartitionHistory]:
        history = self._checks.of(self.generations[0].config.subject, number)
        return [history] if history.consumers is None else [history, history.consumers]

    # Acts

    def _act(self, operation: PlannedOperation) -> None:
        if not self.generations:
            return
        number = operation.number // 16 % _PARTITIONS
        if operation.number % 16 < 3:
            self._append(number)
        else:
            self._store(number)

    def _append(self, number: int) -> None:
        (generation,) = self.generations
        config, history = generation.config, self._checks.of(generation.config.subject, number)
        self._numbers += 1
        name = f"{config.subject}/{number}/{self._numbers}".encode()
        self._checks.sends(config, SentMessage(name, name, name))
        group = MessageGroup.of([config.subject_of(number).encode()], [name])
        data, _ = codec.encode(group, 0, 1, base_offset=0, timestamp_us=0, leader_epoch=0)

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"appended: {kind_of(response)}")
            if isinstance(response, AppendResponse):
                offset, epoch = int(response.base_offset), response.leader_epoch
                self._checks.promised(history, offset, epoch, name, fsynced=response.fsynced)

        request = AppendRequest(stream_id=StreamId(generation.stream_id), partition=PartitionId(number))
        self._program().ask_leader(generation.stream_id, number, request, done, bytes(data))

    def _store(self, number: int) -> None:
        """Append rows of consumers wherever the partition seems to be led, or was led before."""
        (generation,) = self.generations
        for broker in self._brokers.values():
            if broker.node is None:
                continue
            look = inspector.partition(broker.node, generation.stream_id, number)
            if look is not None and look.is_leader:
                state = next(one for one in inspector.streams(broker.node) if one.stream_id == look.stream_id)
                if state.has_consumers:
                    broker.event(partial(self._append_rows, broker, number))
                else:
                    made = companion_of(msgspec.structs.replace(state, has_consumers=True), CompanionKind.CONSUMERS)
                    self._begin(made.config)
                    broker.event(partial(broker.node.add_consumer_log, StreamId(look.stream_id), self._added))
            elif self._logs.get((broker.broker_id, broker.run, number)):
                broker.event(partial(self._append_late, broker, number))

    def _begin(self, config: StreamConfig) -> None:
        if self._consumers is not None:
            return
        self._consumers = config
        self._checks.begin(config)
        for number in range(_PARTITIONS):
            history = self._checks.of(self.generations[0].config.subject, number)
            history.consumers = self._checks.of(config.subject, number)

    def _added(self, error: RemoteError | None) -> None:
        self._trace(f"logs of consumers: {error and error.code}")
        self._around.count("added logs of consumers", error is None)

    def _key(self, number: int) -> PartitionKey:
        return consumers_key(PartitionKey(StreamId(self.generations[0].stream_id), PartitionId(number)))

    def _append_late(self, broker: SimBroker, number: int) -> None:
        """Append by what an earlier leadership was given."""
        if broker.node is not None and (logs := self._logs.get((broker.broker_id, broker.run, number))):
            self._append_by(broker, number, logs[int(self._random.random() * len(logs))])

    def _append_rows(self, broker: SimBroker, number: int) -> None:
        """Append by what the present leadership is given; sometimes by what an earlier one was."""
        if broker.node is None:
            return
        logs = self._logs.setdefault((broker.broker_id, broker.run, number), [])
        try:
            log = broker.node.consumer_log(StreamId(self.generations[0].stream_id), PartitionId(number))
        except RemoteError as error:
            self._trace(f"not known: {error.code}")
            return
        if not logs or logs[-1] is not log:
            self._take(broker, number, log)
            logs.append(log)
        if len(logs) > 1 and self._random.random() < 0.3:
            log = logs[int(self._random.random() * (len(logs) - 1))]
        self._append_by(broker, number, log)

    def _take(self, broker: SimBroker, number: int, log: KnownConsumers) -> None:
        """Take what a leadership has found, and check it."""
        assert broker.node is not None
        assert self._consumers is not None
        history = self._checks.of(self._consumers.subject, number)
        rows = log.take_rows()
        look = inspector.partition(broker.node, self._key(number).stream_id, number)
        self._around.count("logs of consumers taken over", bool(rows))
        if look is None or history.is_damaged or history.is_given_up or history.cuts or history.was_damaged_on(0):
            return
        places = {key: self._places[value] for key, value in rows.items()}
        if uncommitted := [key for key, place in places.items() if place >= look.committed_end]:
            text = f"{history.name()}: {broker.name} is served {uncommitted}, and has committed {look.committed_end}"
            raise ViolationError(text)
        for (of, key), offset in self._answered.items():
            if of == number and places.get(key, -1) < offset:
                text = f"{history.name()}: {broker.name} has {key!r} of {places.get(key)}, and {offset} was answered"
                raise ViolationError(text)

    def _append_by(self, broker: SimBroker, number: int, log: KnownConsumers) -> None:
        assert broker.node is not None
        assert self._consumers is not None
        config, history = self._consumers, self._checks.of(self._consumers.subject, number)
        rows: list[tuple[bytes, bytes | None]] = []
        values: list[bytes] = []
        for _ in range(1 + int(self._random.random() * 4)):
            self._numbers += 1
            key = b"%d" % int(self._random.random() * _KEYS)
            value = f"{config.subject}/{number}/{self._numbers}".encode() + b" " * int(self._random.random() * 400)
            self._checks.sends(config, SentMessage(value, value, value, key=key))
            rows.append((key, value))
            values.append(value)
        before = inspector.partition(broker.node, self._key(number).stream_id, number)
        base_offset = 0 if before is None else before.log_end
        is_fsynced = config.durability is Durability.FSYNC or len(self._around.brokers) == 1

        def done(error: RemoteError | None) -> None:
            self._trace(f"rows of {log.leader_epoch}: {error and error.code}")
            self._around.count("rows of consumers", 0 if error is not None else len(rows))
            if error is not None:
                self._around.count("refused rows of consumers")
                return
            self._answers[number] = self._answers.get(number, 0) + 1
            epoch = log.leader_epoch
            for offset, ((key, _), value) in enumerate(zip(rows, values, strict=True), base_offset):
                self._checks.promised(history, offset, epoch, value, fsynced=is_fsynced)
                if not history.is_lost(offset, epoch):
                    self._answered[number, key] = max(offset, self._answered.get((number, key), 0))

        for offset, value in enumerate(values, base_offset):
            self._places[value] = offset
        log.append(rows, done)
        after = inspector.partition(broker.node, self._key(number).stream_id, number)
        has_grown = after is not None and after.log_end > base_offset
        if has_grown and after is not None and not (after.is_leader and after.leader_epoch == log.leader_epoch):
            text = f"{history.name()}: {broker.name} appends rows of epoch {log.leader_epoch}, which has ended"
            raise ViolationError(f"{text}: {after}")

    # Brokers

    def acted(self, broker: SimBroker) -> None:
        """Check a broker after each of its events."""
        if self._consumers is None or broker.node is None:
            return
        if wrong := inspector.untied(broker.node):
            raise ViolationError(f"{broker.name}: {wrong}")

    # The end

    def waits_for(self, is_stuck: Callable[[PartitionHistory], bool]) -> Callable[[], str]:
        """Return a function that tells which partition takes no rows of consumers yet."""
        begun = dict(self._answers)

        def left() -> str:
            waiting = []
            for number in range(_PARTITIONS if self.generations and self._consumers is not None else 0):
                if any(is_stuck(one) or one.is_damaged or one.damaged for one in self._pair(number)):
                    continue
                if self._answers.get(number, 0) <= begun.get(number, 0):
                    self._store(number)
                    waiting.append(f"{NAME}/{number} takes no rows of consumers")
            return ", ".join(waiting)

        return left
