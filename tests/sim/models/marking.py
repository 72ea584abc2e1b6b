"""Model of a stream with companion logs: marks appended where its partitions are led, messages beside them, and reads.

| invariant                                                                       | checked at                       |
|---------------------------------------------------------------------------------|----------------------------------|
| an answered mark is synced by all ISR members, and every later leader has it    | see `checks`: a companion is a   |
| … it is in the log of each ISR member, at its offset, for ever                  | partition with promises, too     |
| companions are led by whoever leads their partitions, in the same epoch         | every event of a broker          |
| a replica that shows messages has all marks that it has ever had                | an answer to a fetch             |
| one that says how stale it is has all marks answered before that moment         | an answer to a fetch             |
| no deleted message is shown once that was answered, and no other one is hidden  | an answer to a fetch             |
| replicas that have folded as many marks hide, decide and erase the same         | every event of a broker          |
| … also those that have begun behind marks that were removed                     | every event of a broker          |
| a leader has all marks that were answered before its leadership                 | an answer to a fetch             |
| with a limit by subject a message is hidden only by so many shown later ones    | an answer; every event           |
| … and no more are shown, but of those that a reader saw before the limit was set| an answer; every event           |
| no message is decided on before it is committed                                 | every event of a broker          |
| the last message that a leader tells is not older than one acked before         | an answer to a get               |

Rules: the marks come from inside the leader's broker, as those of a client's request would. The companion logs are
added while messages are stored; the stream grows, and is deleted and created again; limits come, change and go. All
messages of a partition are on one subject. A damaged companion counts as a
damaged log of its partition: that replica can neither lead nor show anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from random import Random

import msgspec

from penstock.base.companion_kinds import CompanionKind
from penstock.base.config import Durability, StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId, PartitionKey, StreamId
from penstock.batch import codec
from penstock.hot.message_group import MessageGroup
from penstock.messages import (
    AlterStreamRequest,
    AppendRequest,
    AppendResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    DeleteStreamRequest,
    FetchRequest,
    FetchResponse,
    GetRequest,
    GetResponse,
    Response,
)
from penstock.metadata.companions import companion_of
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import SimBroker, Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory, SentMessage
from penstock.testing.simulation.rows import ReadRows
from tests.sim.models.client_state import StreamGeneration, kind_of
from tests.sim.models.requests import SimClient
from tests.sim.plan.plan import Act, PlannedOperation

NAME = "marked"
MARK_ACTS = 64  # shares of the acts in an operation's number: see `_act`
LIMIT_ACT = 60  # changes the limit
_PARTITIONS = 2
_PARTITIONS_MAX = 4
_GENERATIONS = 3
_AGAIN_US = 400_000
_BESIDE_US = (1, 20_000, 1_000_000, 2_500_000)  # after an ISR was proposed
_SKEW = 2_000  # clock error of a broker: less than one part in this many
_SLACK_US = 1_000
_ERASURE_CHECK_US = 250_000


class Marking:
    """The marked stream of one run. `program`: returns a client that may do everything."""

    def __init__(
        self,
        around: Surroundings,
        checks: Checks,
        brokers: Mapping[int, SimBroker],
        program: Callable[[], SimClient],
        random: Random,
    ) -> None:
        self.acts: dict[Act, Callable[[PlannedOperation], None]] = {Act.MARK: self._act}
        self.generations: list[StreamGeneration] = []
        self._around = around
        self._checks = checks
        self._brokers = brokers
        self._program = program
        self._random = random
        self._made = 0
        self._numbers = 0
        # partition → epoch and ISR of the proposal that marks were last appended beside
        self._proposed: dict[int, tuple[int, frozenset[int]]] = {}
        self._asked = _PARTITIONS  # partitions of the present stream, also those that are being added
        self._marks: StreamConfig | None = None  # config of the companion logs; None: they were not asked for
        self._answered: dict[int, list[tuple[int, int]]] = {}  # partition → (time, end) of answered marks
        # (subject, partition) → offset → when its deletion was answered, and by which leader epoch
        self._deleted: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
        # (subject, partition, end of the folded marks) → what they say
        self._hidden: dict[tuple[str, int, int], inspector.Folded] = {}
        # (broker, its run, stream id, partition) → the limit there, its time, and what readers may have seen before it
        self._limited: dict[tuple[int, int, int, int], tuple[int | None, int, int]] = {}
        self._looked: dict[tuple[int, int, int, int], inspector.LimitLook] = {}  # the last one of each
        self._applied: dict[tuple[int, int], int] = {}  # (broker, its run) → end of the metadata that it has applied
        self._limits_asked = 0  # changes of the present stream's limit
        # (stream id, partition, broker, its disk) → up to which mark it has told as erased
        self._erased: dict[tuple[int, int, int, int], int] = {}
        # … when to ask it next, and up to which mark it had them then
        self._erasure_us: dict[tuple[int, int, int, int], tuple[int, int]] = {}
        # (companion's subject, partition, broker, its disk) → the highest committed_end there
        self._had: dict[tuple[str, int, int, int], int] = {}

    def _trace(self, what: str) -> None:
        self._around.trace.add("marking", what)

    @property
    def _now_us(self) -> int:
        return self._around.scheduler.now_us

    # The stream

    def create(self) -> None:
        """Create the next stream; retried until it is answered."""
        self._made += 1
        fields = {
            "name": NAME,
            "subject": f"{NAME}.g{self._made}",
            "replicas": min(3, len(self._around.brokers)),
            "segment_bytes": 8_192,
            "partitions": _PARTITIONS,
        }
        config = msgspec.convert(fields, StreamConfig)
        self._marks, self._answered, self._asked = None, {}, _PARTITIONS
        self._limits_asked = 0
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

    def _recreate(self) -> None:
        generation = self.generations.pop()
        for number in range(self._asked):
            for history in self._pair(generation, number):
                history.is_deleted = True
        self._ask_to_delete(generation)

    def _ask_to_delete(self, generation: StreamGeneration) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            gone = (ErrorCode.STREAM_NOT_FOUND, ErrorCode.STREAM_CHANGED)
            if response is None or (isinstance(response, RemoteError) and response.code not in gone):
                self._around.scheduler.after(_AGAIN_US, lambda: self._ask_to_delete(generation))
                return
            self._around.count("deleted streams with marks")
            self.create()

        stream_id = StreamId(generation.stream_id)
        self._program().ask(DeleteStreamRequest(name=NAME, stream_id=stream_id), done)

    def _pair(self, generation: StreamGeneration, number: int) -> Iterator[PartitionHistory]:
        yield self._checks.of(generation.config.subject, number)
        if self._marks is not None and (self._marks.subject, number) in self._checks.histories:
            yield self._checks.of(self._marks.subject, number)

    def companion(self, history: PartitionHistory) -> PartitionHistory | None:
        """Return the companion of a partition of the present stream; None if it has none."""
        if not self.generations or self._marks is None or history.config.subject != self.generations[0].config.subject:
            return None
        return self._checks.histories.get((self._marks.subject, history.partition))

    def allow_unclean_election(self, stream_id: int) -> bool:
        """Allow an unclean leader election; return False if the id is another stream's."""
        if not self.generations or stream_id != self.generations[0].stream_id:
            return False
        (generation,) = self.generations
        for number in range(self._asked):
            for history in self._pair(generation, number):
                history.is_damaged = history.is_given_up = True
        request = AlterStreamRequest(name=NAME, changes={"allow_unclean_election": True})
        self._program().ask(request, lambda response, _raw: self._trace(f"unclean: {kind_of(response)}"))
        return True

    # Acts

    def _act(self, operation: PlannedOperation) -> None:
        if not self.generations:
            return
        (generation,) = self.generations
        chance = operation.number
        number = chance // MARK_ACTS % generation.config.partitions
        act = chance % MARK_ACTS
        if act < 18:
            self._append(generation, number)
        elif act < 44:
            self._mark(generation, number)
        elif act < 58:
            self._read(generation, number)
        elif act < 60:
            self._ask_last(generation, number)
        elif act == LIMIT_ACT:
            self._limit(generation)
        elif act == 61:
            self._grow(generation)
        elif act == 62:
            self._observe()
        elif chance // 256 % 8 == 0 and self._made < _GENERATIONS:
            self._recreate()

    def _name(self, config: StreamConfig, number: int) -> str:
        self._numbers += 1
        return f"{config.subject}/{number}/{self._numbers}"

    def _named(self, config: StreamConfig, number: int) -> bytes:
        name = self._name(config, number).encode()
        self._checks.sends(config, SentMessage(name, name, name))
        return name

    def _append(self, generation: StreamGeneration, number: int) -> None:
        config, history = generation.config, self._checks.of(generation.config.subject, number)
        names = [self._named(config, number) for _ in range(1 + int(self._random.random() * 4))]
        subject = config.subject_of(number)
        group = MessageGroup.of([subject.encode()] * len(names), names)
        data, _ = codec.encode(group, 0, len(names), base_offset=0, timestamp_us=0, leader_epoch=0)

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"appended: {kind_of(response)}")
            if isinstance(response, AppendResponse):
                for offset, name in enumerate(names, response.base_offset):
                    self._checks.promised(history, offset, response.leader_epoch, name, fsynced=response.fsynced)
                if history.lowest_limit is not None and generation in self.generations:
                    self._ask_last(generation, number)  # at once, before it is decided on

        request = AppendRequest(stream_id=StreamId(generation.stream_id), partition=PartitionId(number))
        self._program().ask_leader(generation.stream_id, number, request, done, bytes(data))

    def _mark(self, generation: StreamGeneration, number: int) -> None:
        """Append marks to the companion of a partition, where it is led; ask for companion logs if there are none."""
        for broker in self._brokers.values():
            look = None if broker.node is None else inspector.partition(broker.node, generation.stream_id, number)
            if look is not None and look.is_leader and broker.node is not None:
                state = next(one for one in inspector.streams(broker.node) if one.stream_id == look.stream_id)
                if not state.has_marks:
                    made = companion_of(msgspec.structs.replace(state, has_marks=True), CompanionKind.MARKS)
                    self._begin_marks(made.config)
                    broker.event(partial(inspector.add_companion, broker.node, look, self._added))
                elif len(state.partitions) > number and self._marks is not None:
                    history = self._checks.histories[self._marks.subject, number]
                    of = self._checks.of(generation.config.subject, number)
                    broker.event(partial(self._append_marks, broker, look, history, of))
                return

    def _begin_marks(self, config: StreamConfig) -> None:
        # Whatever the durability of its stream: an answered mark is on the disks of all that are in sync.
        self._marks = msgspec.structs.replace(config, partitions=self._asked, durability=Durability.FSYNC)
        self._checks.begin(self._marks)

    def _added(self, response: Response | RemoteError) -> None:
        self._trace(f"companion logs: {kind_of(response)}")
        self._around.count("added companion logs", not isinstance(response, RemoteError))

    def _append_marks(
        self, broker: SimBroker, look: inspector.PartitionLook, history: PartitionHistory, of: PartitionHistory
    ) -> None:
        """Delete some messages of the partition `of`; `history` is its companion's."""
        if broker.node is None:
            return
        if look.log_start >= look.committed_end:  # there is nothing to delete yet
            for generation in self.generations:
                self._append(generation, look.partition)
            return
        answered = self._answered.setdefault(look.partition, [])
        rows: list[tuple[bytes, bytes]] = []
        deleting: set[int] = set()

        def done(response: AppendResponse | RemoteError) -> None:
            self._trace(f"marked: {kind_of(response)}")
            if isinstance(response, AppendResponse):
                self._around.count("marks", len(rows))
                for offset, (_, value) in enumerate(rows, response.base_offset):
                    self._checks.promised(history, offset, response.leader_epoch, value, fsynced=response.fsynced)
                answered.append((self._now_us, int(response.end_offset)))
                for offset in deleting:
                    self._deleted.setdefault((of.config.subject, look.partition), {}).setdefault(
                        offset, (self._now_us, int(response.leader_epoch))
                    )

        try:
            for _ in range(1 + int(self._random.random() * 3)):
                span = look.committed_end - look.log_start
                chosen = {look.log_start + int(self._random.random() * span) for _ in range(3)}
                deleting |= chosen
                rows += inspector.marks(broker.node, look, sorted(chosen), self._name(history.config, look.partition))
            of.deleting |= deleting
            for _, value in rows:
                self._checks.sends(history.config, SentMessage(value, value, value))
            inspector.append_marks(broker.node, look, rows, done)
        except RemoteError as error:
            self._trace(f"not marked: {error.code}")

    def _grow(self, generation: StreamGeneration) -> None:
        count = generation.config.partitions + 1
        if count > _PARTITIONS_MAX:
            return
        grown = msgspec.structs.replace(generation.config, partitions=count)
        self._checks.begin(grown)
        self._asked = max(self._asked, count)
        first, *others = self._checks.all_of(self._checks.of(grown.subject, 0))
        for one in others:
            one.lowest_limit = first.lowest_limit
        if self._marks is not None:
            self._marks = msgspec.structs.replace(self._marks, partitions=count)
            self._checks.begin(self._marks)

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"grown to {count}: {kind_of(response)}")
            is_here = bool(self.generations) and self.generations[0].stream_id == generation.stream_id
            if is_here and response is not None and not isinstance(response, RemoteError):
                self.generations[0] = StreamGeneration(grown, generation.stream_id)

        stream_id = StreamId(generation.stream_id)
        self._program().ask(AlterStreamRequest(name=NAME, stream_id=stream_id, changes={"partitions": count}), done)

    def _observe(self) -> None:
        """Add or remove read replicas, in a cluster that has brokers to spare."""
        spare = len(self._brokers) - 3
        if spare > 0:
            count = int(self._random.random() * (spare + 1))
            request = AlterStreamRequest(name=NAME, changes={"observers": count})
            self._program().ask(request, lambda response, _raw: self._trace(f"observers: {kind_of(response)}"))

    def _read(self, generation: StreamGeneration, number: int) -> None:
        """Ask any replica for messages, and check that it has the marks that hide some of them."""
        ids = list(self._brokers)
        broker_id = ids[int(self._random.random() * len(ids))]
        broker, asked_us = self._brokers[broker_id], self._now_us
        run = broker.run

        def done(response: Response | RemoteError | None, raw: bytes) -> None:
            self._trace(f"read on {broker.name}: {kind_of(response)}")
            if isinstance(response, FetchResponse) and broker.run == run and broker.node is not None:
                self._around.count("reads of marked streams")
                self._shown(generation, number, broker, asked_us, response)
                self._check_rows(generation, number, broker, asked_us, response, raw)

        request = FetchRequest(
            stream_id=StreamId(generation.stream_id), partition=PartitionId(number), offset=Offset(0), wait_ms_max=0
        )
        self._program().ask(request, done, broker_id=broker_id)

    def _shown(
        self, generation: StreamGeneration, number: int, broker: SimBroker, asked_us: int, response: FetchResponse
    ) -> None:
        if self._marks is None or generation not in self.generations:
            return
        history = self._checks.of(self._marks.subject, number)
        if history.is_damaged or history.is_given_up or history.cuts or not history.stream_id:
            return
        assert broker.node is not None
        look = inspector.partition(broker.node, history.stream_id, number)
        has = 0 if look is None else look.committed_end
        had = self._had.get((history.config.subject, number, broker.broker_id, broker.disk.number), 0)
        if has < had and not broker.disk.is_older:  # a copy from before the marks knows nothing of them
            raise ViolationError(f"{history.name()}: {broker.name} shows messages with marks up to {has}; it had {had}")
        moments = []
        if response.behind_us is not None:
            moments.append(asked_us - response.behind_us - response.behind_us // _SKEW - _SLACK_US)
        if look is not None and look.is_leader and look.leader_epoch == response.leader_epoch:
            moments.append(history.led_us.get(look.leader_epoch, 0))  # when its leadership began
        answered = self._answered.get(number, [])
        wanted = max((end for at_us, end in answered if at_us <= max(moments, default=-1)), default=0)
        if has < wanted:
            text = f"{history.name()}: {broker.name} shows messages with marks up to {has}"
            raise ViolationError(
                f"{text}; {wanted} was answered before {max(moments)} us, up to which it has to know all"
            )

    def _check_rows(
        self,
        generation: StreamGeneration,
        number: int,
        broker: SimBroker,
        asked_us: int,
        response: FetchResponse,
        raw: bytes,
    ) -> None:
        """Check that no deleted message is shown, and that no other one is missing."""
        history = self._checks.of(generation.config.subject, number)
        of_marks = None if self._marks is None else self._checks.histories.get((self._marks.subject, number))
        if generation not in self.generations or any(
            one.is_damaged or one.is_given_up or one.cuts or one.was_damaged_on(0)
            for one in (history, of_marks)
            if one is not None
        ):
            return
        shown = set(ReadRows(raw).offsets)
        missing = set(range(response.base_offset, response.end_offset)) - shown - history.deleting
        if (lowest := history.lowest_limit) is not None:  # enough later ones, shown or deleted, hide a message
            missing = {one for one in missing if response.committed_end - one <= lowest}
            self._check_limit(history, broker, asked_us, response, shown)
        if missing:
            raise ViolationError(f"{history.name()}: {broker.name} hides {sorted(missing)}, which nobody has deleted")
        known_us = -1
        if response.behind_us is not None:
            known_us = asked_us - response.behind_us - response.behind_us // _SKEW - _SLACK_US
        deleted = self._deleted.get((history.config.subject, number), {})
        for offset in shown & deleted.keys():
            at_us, leader_epoch = deleted[offset]
            is_leaders = leader_epoch == response.leader_epoch and self._leads(broker, history, leader_epoch)
            if at_us <= known_us or (is_leaders and at_us <= asked_us):
                text = f"{history.name()}: {broker.name} shows {offset}, whose deletion was answered at {at_us} us"
                raise ViolationError(text)
        self._around.count("deleted messages that reads left out", len(history.deleting - shown))

    def _check_limit(
        self,
        history: PartitionHistory,
        broker: SimBroker,
        asked_us: int,
        response: FetchResponse,
        shown: set[int],
    ) -> None:
        key = broker.broker_id, broker.run, history.stream_id, history.partition
        limit, since_us, seen_end = self._limited.get(key, (None, 0, 0))
        is_all = response.end_offset == response.committed_end > seen_end
        if limit is None or since_us >= asked_us or not is_all:
            return
        self._around.count("reads of streams with a limit by subject")
        if len(shown) > limit:
            text = f"{history.name()}: {broker.name} shows {sorted(shown)} up to {response.committed_end}"
            raise ViolationError(f"{text}, and the limit of {limit} was set when readers saw {seen_end}")

    def _limit(self, generation: StreamGeneration) -> None:
        """Set another limit by subject, or none."""
        if self._marks is None:
            return
        limit = (1, 2, 3, 5, None)[int(self._random.random() * 5)]
        for number in range(self._asked):
            history = self._checks.of(generation.config.subject, number)
            if limit is not None:
                history.lowest_limit = min(limit, history.lowest_limit or limit)
        self._limits_asked += 1
        stream_id = StreamId(generation.stream_id)
        request = AlterStreamRequest(name=NAME, stream_id=stream_id, changes={"max_messages_per_subject": limit})
        self._program().ask(request, lambda response, _raw: self._trace(f"limit {limit}: {kind_of(response)}"))

    def _ask_last(self, generation: StreamGeneration, number: int) -> None:
        """Ask the leader for the last message, and check that it is not older than one that was acked before."""
        history = self._checks.of(generation.config.subject, number)
        end = history.promised_end

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"last: {kind_of(response)}")
            if generation not in self.generations or any(
                one.is_damaged or one.is_given_up or one.cuts or one.was_damaged_on(0)
                for one in self._pair(generation, number)
            ):
                return
            acked = max((one for one in history.known if one < end and one not in history.deleting), default=-1)
            if acked >= 0 and history.may_be_hidden(acked):
                return  # messages behind it have hidden it, and were deleted
            is_gone = isinstance(response, RemoteError) and response.code == ErrorCode.MESSAGE_NOT_FOUND
            if isinstance(response, GetResponse):
                self._around.count("last messages")
            if acked >= 0 and (is_gone or (isinstance(response, GetResponse) and response.offset < acked)):
                raise ViolationError(f"{history.name()}: {acked} was acked before, and the last message is {response}")

        subject = generation.config.subject_of(number)
        request = GetRequest(stream_id=StreamId(generation.stream_id), partition=PartitionId(number), subject=subject)
        self._program().ask_leader(generation.stream_id, number, request, done)

    @staticmethod
    def _leads(broker: SimBroker, history: PartitionHistory, leader_epoch: int) -> bool:
        assert broker.node is not None
        look = inspector.partition(broker.node, history.stream_id, history.partition)
        return look is not None and look.is_leader and look.leader_epoch == leader_epoch

    # Brokers

    def _check_hidden(self, broker: SimBroker, generation: StreamGeneration, number: int) -> None:
        """Check that all replicas that have folded as many marks hide, decide and erase the same."""
        assert broker.node is not None
        history = self._checks.of(generation.config.subject, number)
        if self._marks is None or history.is_damaged or history.is_given_up or history.cuts:
            return
        of_marks = self._checks.of(self._marks.subject, number)
        found = inspector.folded(broker.node, generation.stream_id, number)
        if found is None or of_marks.is_damaged or of_marks.cuts:
            return
        end, folded = found
        self._check_erased(broker, history, number, end)
        known = self._hidden.setdefault((history.config.subject, number, end), folded)
        if known != folded:
            text = f"{history.name()}: after {end} marks {broker.name} has {folded!r}, and others {known!r}"
            raise ViolationError(text)
        self._around.count("folds behind removed marks", of_marks.truncating > 0)

    def _catches_up(self, broker: SimBroker) -> bool:
        """True if a broker has applied several entries of metadata at once, which may be changes of a limit."""
        assert broker.node is not None
        place, applied = (broker.broker_id, broker.run), inspector.standing(broker.node).applied
        before = self._applied.get(place, applied)
        self._applied[place] = applied
        return applied > before + 1 and self._limits_asked > 1

    def _note_limit(self, broker: SimBroker, generation: StreamGeneration, number: int, *, catches_up: bool) -> None:
        """Note a changed limit of a replica, and check what it shows its readers."""
        assert broker.node is not None
        look = inspector.limit(broker.node, generation.stream_id, number)
        key = broker.broker_id, broker.run, generation.stream_id, number
        before = self._looked.get(key)
        if look is None or (before is not None and look[:4] == before[:4] and look.hidden is before.hidden):
            return
        self._looked[key] = look
        limit, since_us, seen_end = self._limited.get(key, (None, self._now_us, 0))
        seen_end = seen_before(limit, seen_end, look, catches_up=catches_up)
        self._limited[key] = look.limit, since_us if look.limit == limit else self._now_us, seen_end
        history = self._checks.of(generation.config.subject, number)
        if history.lowest_limit is None or any(
            one.is_damaged or one.is_given_up or one.cuts or one.was_damaged_on(0)
            for one in self._pair(generation, number)
        ):
            return
        if look.undecidable_end:
            text = f"{history.name()}: {broker.name} decides on messages up to {look.undecidable_end}"
            raise ViolationError(f"{text}, which are not committed")
        end = look.visible_end
        last = range(max(look.log_start, end - history.lowest_limit), end)
        if wrong := [one for one in last if one in look.hidden and one not in history.deleting]:
            raise ViolationError(f"{history.name()}: {broker.name} shows messages up to {end}, and hides {wrong}")
        if look.limit is not None and end > seen_end:
            self._around.count("decisions by a limit by subject")
            shown = end - look.log_start - look.hidden.count_in(look.log_start, end)
            if shown > look.limit:
                text = f"{history.name()}: {broker.name} shows {shown} messages up to {end}"
                raise ViolationError(f"{text}, and the limit of {look.limit} was set when readers saw {seen_end}")

    def _check_erased(self, broker: SimBroker, history: PartitionHistory, number: int, marks_end: int) -> None:
        """Check that nothing of what a broker tells as erased is in its segments: once for each end that it tells.

        At once after new marks, too: their rows may still be in the active segment.
        """
        assert broker.node is not None
        place = history.stream_id, number, broker.broker_id, broker.disk.number
        next_us, known_end = self._erasure_us.get(place, (0, 0))
        if self._now_us < next_us and marks_end == known_end:
            return
        self._erasure_us[place] = self._now_us + _ERASURE_CHECK_US, marks_end
        end = inspector.erased_end(broker.node, history.stream_id, number)
        if end <= self._erased.get(place, 0):
            return
        self._erased[place] = end
        if found := inspector.not_erased(broker.node, history.stream_id, number):
            raise ViolationError(f"{history.name()}: {broker.name} tells {found} as erased, and holds them")
        self._around.count("ends up to which deletions were erased", 1)

    def acted(self, broker: SimBroker) -> None:
        """Check a broker after each of its events."""
        if self._marks is None or broker.node is None:
            return
        if wrong := inspector.untied(broker.node):
            raise ViolationError(f"{broker.name}: {wrong}")
        catches_up = self._catches_up(broker)
        for number in range(self._asked):
            history = self._checks.of(self._marks.subject, number)
            look = inspector.partition(broker.node, history.stream_id, number) if history.stream_id else None
            if look is not None:
                key = self._marks.subject, number, broker.broker_id, broker.disk.number
                self._had[key] = max(self._had.get(key, 0), look.committed_end)
                if self.generations:
                    self._check_hidden(broker, self.generations[0], number)
                    self._note_limit(broker, self.generations[0], number, catches_up=catches_up)
                self._mark_beside_proposals(broker, number)

    def _mark_beside_proposals(self, broker: SimBroker, number: int) -> None:
        """Append marks while another ISR is proposed: whoever may be in it by then must have them."""
        if not self.generations or broker.node is None:
            return
        (generation,) = self.generations
        lead = inspector.lead(broker.node, PartitionKey(StreamId(generation.stream_id), PartitionId(number)))
        if lead is None or not lead.proposed or self._proposed.get(number) == (lead.leader_epoch, lead.proposed):
            return
        self._proposed[number] = lead.leader_epoch, lead.proposed
        self._around.count("marks beside a proposal")
        for after_us in _BESIDE_US:
            self._around.scheduler.after(after_us, partial(self._mark_again, generation, number))

    def _mark_again(self, generation: StreamGeneration, number: int) -> None:
        if generation in self.generations:
            self._mark(generation, number)

    # The end

    def waits_for(self, is_stuck: Callable[[PartitionHistory], bool]) -> Callable[[], str]:
        """Return a function that tells which partition takes no marks yet."""
        begun = {number: len(self._answered.get(number, [])) for number in range(_PARTITIONS_MAX)}

        def left() -> str:
            if not self.generations or self._marks is None:
                return ""
            (generation,) = self.generations
            waiting = []
            for number in range(generation.config.partitions):
                pair = list(self._pair(generation, number))
                if any(is_stuck(one) or one.is_damaged or one.damaged for one in pair):
                    continue
                if len(self._answered.get(number, [])) <= begun[number]:
                    self._mark(generation, number)
                    waiting.append(f"{NAME}/{number} takes no marks")
            return ", ".join(waiting)

        return left


def seen_before(limit: int | None, seen_end: int, look: inspector.LimitLook, *, catches_up: bool) -> int:
    """Return up to where readers of a replica may have seen messages without its limit.

    `limit`, `seen_end`: as of the look before. A replica that catches up with the metadata may have passed through a
    time without a limit since then, and shows what was committed in it, as replicas do that others have asked then.
    """
    is_stricter = look.limit is not None and (limit is None or look.limit < limit)
    return max(seen_end, look.visible_end) if is_stricter or catches_up else seen_end
