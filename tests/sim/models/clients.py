"""Model publishers and administrators: what they do at each operation of the plan. Consumers: see `reading`.

Rules: Every value is sent once, so that a value that is stored twice is detected. A message that was not acked may be
stored or not. A publisher that gets no answer in time continues with the next message, or sends the message again with
the same id. An ack is a promise however late it comes; the ack of a duplicate is a promise for the first message.

| slot | its stream, with three replicas if there are enough brokers       |
|------|-------------------------------------------------------------------|
| 0    | defaults, small segments                                          |
| 1    | durability `os`, and other ones for a while, which promise more   |
| 2    | retention removes old messages                                    |
| 3    | durability `fsync`; deleted and recreated on another subject,     |
|      | with as many replicas as the cluster has brokers                  |
| 4    | three partitions, chosen by the publisher; min_isr 1: commits     |
|      | even if only the leader is in sync                                |
| 5    | compacted: its messages have keys, see `sent`                     |
| 6    | several partitions; brokers or NATS choose the partition of a     |
|      | message: see `split`; the rule is drawn for each run              |

With more than three brokers the streams have read replicas (observers); those of slots 0 to 2 are added and removed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import msgspec

from penstock.base.config import Compression, Durability, Encryption, StreamConfig, SuspendDeletion
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId, StreamId
from penstock.batch import codec
from penstock.hot.message_group import MessageGroup
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendRequest,
    AppendResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    DeleteStreamRequest,
    MetadataRequest,
    MetadataResponse,
    Response,
    StatusRequest,
    TruncateRequest,
    TruncateResponse,
)
from penstock.testing.simulation.broker.broker import Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory, SentMessage
from tests.sim.checks.refusals import Refusals
from tests.sim.models.client_state import StreamGeneration, kind_of
from tests.sim.models.grouping import GroupModels
from tests.sim.models.looking_up import LastLookups
from tests.sim.models.optional_load import OptionalLoad
from tests.sim.models.producing import ProducerModels
from tests.sim.models.publishing import Publishing
from tests.sim.models.reading import Readers
from tests.sim.models.requests import SimClient
from tests.sim.models.sending import TRIES_MAX, Sender
from tests.sim.models.splitting import Splitting
from tests.sim.models.streams import PARTITIONS, grown, keyed
from tests.sim.models.subjects import SubjectModels
from tests.sim.plan.plan import Act, PlannedOperation

SLOTS = 7
SHARED_SLOT = 4  # subject without wildcards; several partitions, which consumer groups share
KEYED_SLOT = 5
SPLIT_SLOT = 6
LATER_SLOTS = frozenset({KEYED_SLOT, SPLIT_SLOT})  # created only if the plan uses them: older plans run as before
_RECREATED_SLOT = 3
_DURABILITIES = tuple(Durability)
_REPLICAS = 3
_OF_A_SUBJECT = 40  # consecutive messages, so that look-ups find them in older segments, too
_LOOK_UPS, _LOOK_UP_EVERY_US = 20, 15_000
_WINDOW_MS = 10**12  # longer than any clock change
_CONFIGS: tuple[dict[str, Any], ...] = (
    {"segment_bytes": 16_384},
    {"segment_bytes": 8_192, "durability": Durability.OS},
    {"segment_bytes": 4_096, "max_messages": 30},
    {"segment_bytes": 4_096, "durability": Durability.FSYNC, "replicas": None},
    {"segment_bytes": 8_192, "partitions": 3, "min_isr": 1},
    {
        "segment_bytes": 16_384,
        "compact": True,
        "compression": Compression.LZ4,
        "dedup_window_ms": 500,
        "tombstone_retention_ms": 3_000,
    },
    {"segment_bytes": 8_192, "partitions": PARTITIONS},
)


class Clients:
    """All clients of one run."""

    def __init__(
        self,
        around: Surroundings,
        checks: Checks,
        refusals: Refusals,
        programs: list[SimClient],
        random: Random,
        way: dict[str, Any],
        hidden: frozenset[int],
        guests: OptionalLoad,
    ) -> None:
        """`way`: one of `split.WAYS`. `hidden`: the slots whose streams are encrypted."""
        self._way = way
        self._hidden = hidden
        self._looks_up = guests.looks_up
        self.operations = 0
        self.generations: list[StreamGeneration | None] = [None] * SLOTS
        self._around = around
        self._replicas = min(_REPLICAS, len(around.brokers))
        self._spare = len(around.brokers) - self._replicas  # brokers that can observe
        self._checks = checks
        self._refusals = refusals
        self._programs = programs
        self._random = random
        self._made = [0] * SLOTS
        self._changing = [False] * SLOTS
        self.readers = Readers(around, checks, self.generations, self._program)
        self.groups = GroupModels(around, checks, self.generations, SHARED_SLOT, self._program, programs)
        self.publishing = Publishing(around, checks, self.generations, SHARED_SLOT, self._program)
        self._sender = Sender(around, checks, refusals)
        self._subjects = SubjectModels(around, self.generations, self._program)
        self._splitting = Splitting(around, checks, self._sender, self._subjects.prefix)
        self._producers = ProducerModels(around, checks, self._program)
        self._messages = self._keyed_messages = 0
        self._acts: dict[Act, Callable[[PlannedOperation], None]] = {
            Act.PUBLISH: self._publish,
            Act.LATEST: lambda operation: self._look_up_often(operation, _LOOK_UPS),
            Act.APPEND: self._append,
            Act.METADATA: self._metadata,
            Act.STATUS: self._status,
            Act.ALTER: self._alter,
            Act.DURABILITY: self._alter_durability,
            Act.REST: lambda _operation: around.count("rests"),
            Act.RECREATE: self._recreate,
            Act.TRUNCATE: self._truncate,
            Act.GROW: self._grow,
            Act.SUBJECTS: lambda operation: self._subjects.change(operation.slot, operation),
            **self.readers.acts,
            **LastLookups(around, checks, guests.brokers, self.generations, self._program).acts,
            **self.groups.acts,
            **self.publishing.acts,
        }
        guests.settle(refusals, self.groups, programs, self._program)
        self._acts |= guests.acts

    def do(self, operation: PlannedOperation) -> None:
        """Carry out one operation of the plan."""
        self.operations += 1
        self._acts[operation.act](operation)

    def _program(self) -> SimClient:
        return self._programs[int(self._random.random() * len(self._programs))]

    def _trace(self, what: str) -> None:
        self._around.trace.add("client", what)

    def _message(self, config: StreamConfig, partition: int, chance: int = 0, size_bytes: int = 0) -> SentMessage:
        """Make the next message for that partition."""
        if config.compact:
            self._keyed_messages += 1
            message = keyed(config, self._keyed_messages, chance, size_bytes)
        elif self._checks.of(config.subject, partition).split is not None:
            return self._splitting.message(config, partition, chance, size_bytes)
        else:
            self._messages += 1
            value = f"{config.subject}/{self._messages}/".encode().ljust(size_bytes, b".")
            subject = _subject(config, partition)
            if self._looks_up and config.partitions == 1 and config.subject.endswith(">"):
                subject += b"%d" % (self._messages // _OF_A_SUBJECT)
            message = SentMessage(subject, value, value)
        self._checks.sends(config, message)
        return message

    def _history(self, generation: StreamGeneration, partition: int = 0) -> PartitionHistory:
        return self._checks.of(generation.config.subject, partition)

    # Streams

    def create(self, slot: int) -> None:
        """Create a slot's next stream; retried until it is answered."""
        if self._changing[slot]:
            return
        self._made[slot] += 1
        subject = f"s{slot}.g{self._made[slot]}"
        subject += "" if slot == SHARED_SLOT else ".>"
        fields = {
            "name": f"s{slot}",
            "subject": subject,
            "replicas": self._replicas,
            "dedup_window_ms": _WINDOW_MS,
            "observers": self._spare,
            **_CONFIGS[slot],
            **(self._way if slot == SPLIT_SLOT else {}),
        }
        if slot in self._hidden:
            fields["encryption"] = Encryption.AES_256_GCM
            self._around.count("encrypted streams")
        config = msgspec.convert(fields, StreamConfig)
        if slot == SPLIT_SLOT:
            self._around.count(f"split by {config.partition_by}")
        self._checks.begin(config)
        self.generations[slot] = StreamGeneration(config, 0)
        self._changing[slot] = True
        self._ask_to_create(slot, config)

    def _ask_to_create(self, slot: int, config: StreamConfig) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            if isinstance(response, CreateStreamResponse):
                self._trace(f"created {config.subject} {response.stream.stream_id}")
                self._checks.created[response.stream.stream_id] = self._checks.of(config.subject, 0)
                self.generations[slot] = StreamGeneration(config, response.stream.stream_id)
                self._changing[slot] = False
                return
            if isinstance(response, RemoteError):
                self._trace(f"create {config.subject}: {response.code}")
                assert response.code not in {ErrorCode.INVALID_CONFIG, ErrorCode.BAD_REQUEST}, response
                if response.code == ErrorCode.STREAM_EXISTS:  # an alteration came in between; the stream is ours
                    self._look_up(slot, config)
                    return
            self._around.scheduler.after(500_000, lambda: self._ask_to_create(slot, config))

        request = CreateStreamRequest(config=config, timeout_ms=3_000)
        self._program().ask(request, done)

    def _look_up(self, slot: int, config: StreamConfig) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            if isinstance(response, MetadataResponse) and response.streams:
                (info,) = response.streams
                if info.subject == config.subject:
                    self.generations[slot] = StreamGeneration(config, info.stream_id)
                    self._changing[slot] = False
                    return
            self._around.scheduler.after(500_000, lambda: self._ask_to_create(slot, config))

        self._program().ask(MetadataRequest(names=(config.name,)), done)

    def _recreate(self, operation: PlannedOperation) -> None:
        slot = _RECREATED_SLOT
        generation = self.generations[slot]
        if generation is None or not generation.stream_id or self._changing[slot]:
            return
        self._changing[slot] = True
        for partition in range(generation.config.partitions):
            self._history(generation, partition).is_deleted = True
        self._ask_to_delete(slot, generation)

    def _ask_to_delete(self, slot: int, generation: StreamGeneration) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            gone = (ErrorCode.STREAM_NOT_FOUND, ErrorCode.STREAM_CHANGED)
            if response is None or (isinstance(response, RemoteError) and response.code not in gone):
                self._around.scheduler.after(500_000, lambda: self._ask_to_delete(slot, generation))
                return
            self._trace(f"deleted {generation.config.subject}")
            self._around.count("deleted streams")
            self._changing[slot] = False
            self.create(slot)

        stream_id = StreamId(generation.stream_id)
        self._program().ask(DeleteStreamRequest(name=generation.config.name, stream_id=stream_id), done)

    def _alter(self, operation: PlannedOperation) -> None:
        generation = self.generations[operation.slot]
        if generation is None:
            return
        changes: dict[str, Any] = {"segment_bytes": 4_096 * (1 + operation.number % 6)}
        if operation.slot < _RECREATED_SLOT:
            changes["suspend_deletion"] = tuple(SuspendDeletion)[operation.number // 24 % len(SuspendDeletion)]
        if self._spare and operation.slot < _RECREATED_SLOT:
            changes["observers"] = operation.number // 6 % (self._spare + 1)
        keep = operation.number // 72 % 2 == 0  # as a copy does
        request = AlterStreamRequest(name=generation.config.name, changes=changes, keep_suspended=keep)
        self._program().ask(request, lambda response, _raw: self._trace(f"altered: {kind_of(response)}"))

    def _alter_durability(self, operation: PlannedOperation) -> None:
        generation = self.generations[operation.slot]
        if generation is None:
            return
        durability = _DURABILITIES[operation.number % len(_DURABILITIES)]
        request = AlterStreamRequest(name=generation.config.name, changes={"durability": durability.value})

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"durability {durability}: {kind_of(response)}")
            if isinstance(response, AlterStreamResponse):
                self._around.count("alterations of durability")

        self._program().ask(request, done)

    def _grow(self, operation: PlannedOperation) -> None:
        """Add one or two partitions to a stream; retried until acknowledged."""
        generation = self.generations[operation.slot]
        if generation is None or not generation.stream_id or self._changing[operation.slot]:
            return
        config = grown(generation.config, 1 + operation.number % 2)
        self._checks.begin(config)
        self._changing[operation.slot] = True
        self._ask_to_grow(operation.slot, config)

    def _ask_to_grow(self, slot: int, config: StreamConfig) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"grown to {config.partitions}: {kind_of(response)}")
            if isinstance(response, AlterStreamResponse):
                self._around.count("growths")
                generation = self.generations[slot]
                assert generation is not None
                self.generations[slot] = StreamGeneration(config, generation.stream_id)
                self._changing[slot] = False
            else:
                self._around.scheduler.after(500_000, lambda: self._ask_to_grow(slot, config))

        changes: dict[str, Any] = {"partitions": config.partitions}
        if config.range_bounds:
            changes["range_bounds"] = config.range_bounds
        self._program().ask(AlterStreamRequest(name=config.name, changes=changes), done)

    def _truncate(self, operation: PlannedOperation) -> None:
        generation = self.generations[operation.slot]
        if generation is None or not generation.stream_id:
            return
        partition = operation.number % generation.config.partitions
        history = self._history(generation, partition)
        before = operation.number // 8 % (history.committed_end + 2)
        history.truncating = max(history.truncating, before)
        epoch = max(history.leaders, default=0)
        stream_id = StreamId(generation.stream_id)
        request = TruncateRequest(stream_id=stream_id, partition=PartitionId(partition), before=Offset(before))

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"truncated before {before}: {kind_of(response)}")
            if isinstance(response, TruncateResponse):
                self._around.count("beginnings given up")
                if not history.is_lost(before - 1, epoch):
                    self._checks.truncated(history, before)

        self._program().ask_leader(generation.stream_id, partition, request, done)

    def of(self, stream_id: int) -> StreamGeneration | None:
        """Return the current stream with that id; None if there is none."""
        return next((one for one in self.generations if one is not None and one.stream_id == stream_id), None)

    def allow_unclean_election(self, generation: StreamGeneration) -> None:
        """Allow an unclean leader election."""
        request = AlterStreamRequest(name=generation.config.name, changes={"allow_unclean_election": True})
        self._program().ask(request, lambda response, _raw: self._trace(f"unclean: {kind_of(response)}"))

    # Publishing

    def _publish(self, operation: PlannedOperation) -> None:
        generation = self.generations[operation.slot]
        if generation is not None and operation.slot == SPLIT_SLOT:
            self._splitting.publish(generation, operation)
            return
        for number in range(1 + operation.number % 5):
            size_bytes = 0 if (operation.number + number) % 7 else 700
            self.publish(operation.slot, operation.number // 5, size_bytes)

    def _look_up_often(self, operation: PlannedOperation, left: int) -> None:
        """Publish, and look up the end of the log at all that lead by their own account; a moment later again."""
        generation = self.generations[operation.slot]
        if generation is None or not generation.stream_id:
            return
        self.publish(operation.slot, 0, 0)
        self.readers.latest_of_all(generation, operation.number % generation.config.partitions)
        if left:
            again = partial(self._look_up_often, operation, left - 1)
            self._around.scheduler.after(_LOOK_UP_EVERY_US, again)

    def publish_split(self) -> None:
        """Publish one message to each partition of the split stream, without retries."""
        if (generation := self.generations[SPLIT_SLOT]) is not None:
            for partition in range(generation.config.partitions):
                self._splitting.send_once(generation.config, partition)

    def publish(self, slot: int, number: int, size_bytes: int = 0) -> None:
        """Publish one message to the partition that `number` selects, and record its ack.

        In streams without retention every other message has its value as its id. It is sent again if no ack comes, or
        immediately, as by a publisher that does not wait: a value that is stored twice is detected.
        """
        generation = self.generations[slot]
        if generation is None:
            return
        partition = number % generation.config.partitions
        if slot == SPLIT_SLOT:
            self._splitting.send_once(generation.config, partition, number)
            return
        histories = (history := self._history(generation, partition),)
        message = self._message(generation.config, partition, number, size_bytes)
        message = self._subjects.elsewhere(generation.config, message, self._messages)
        self._checks.told_subjects[message.name] = message.subject
        if self._messages % 2 or history.retains or generation.config.compact:
            self._sender.send(histories, message, 0)
            return
        headers = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % message.name.rstrip(b".")
        message = message._replace(headers=headers)
        self._sender.send(histories, message, TRIES_MAX)
        if self._messages % 4 == 0:
            self._sender.send(histories, message, 1)

    def _append(self, operation: PlannedOperation) -> None:
        generation = self.generations[operation.slot]
        if generation is None or not generation.stream_id:
            return
        partition = operation.number % generation.config.partitions
        history = self._history(generation, partition)
        count = 1 + operation.number % 3
        messages = [self._message(generation.config, partition, operation.number // 3) for _ in range(count)]
        names = [one.name for one in messages]
        group = MessageGroup.of(
            [one.subject for one in messages], [one.value for one in messages], keys=[one.key for one in messages]
        )
        data, _ = codec.encode(group, 0, count, base_offset=0, timestamp_us=0, leader_epoch=0)

        number = self._keyed_messages if generation.config.compact else self._messages
        if number % 3 and not history.retains:  # else retention may make the producer unknown
            self._producers.append(history, generation.stream_id, names, bytes(data))
            return

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"appended: {kind_of(response)}")
            if isinstance(response, RemoteError):
                self._refusals.append_refused(history, names, response)
            if isinstance(response, AppendResponse):
                self._around.count("appends")
                for offset, name in enumerate(names, response.base_offset):
                    self._checks.promised(history, offset, response.leader_epoch, name, fsynced=response.fsynced)

        request = AppendRequest(stream_id=StreamId(generation.stream_id), partition=PartitionId(partition))
        self._program().ask_leader(generation.stream_id, partition, request, done, bytes(data))

    # Administrators

    def _metadata(self, operation: PlannedOperation) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            names = [info.name for info in response.streams] if isinstance(response, MetadataResponse) else []
            self._trace(f"metadata: {kind_of(response)} {' '.join(names)}")

        self._program().ask(MetadataRequest(), done)

    def _status(self, operation: PlannedOperation) -> None:
        self._program().ask(StatusRequest(), lambda response, _raw: self._trace(f"status: {kind_of(response)}"))


def _subject(config: StreamConfig, partition: int) -> bytes:
    """Return the subject for messages to that partition."""
    subject = config.subject.replace(">", "x")
    return f"{subject}.{partition}".encode() if partition else subject.encode()
