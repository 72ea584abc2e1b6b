"""Model members of a consumer group, and invariants of the group coordinators.

| invariant                                                                   | checked at                |
|-----------------------------------------------------------------------------|---------------------------|
| an offset query returns the committed offset at its time, or a later one    | an answer                 |
| no two members own a partition at once while their sessions last            | a member starts with it   |
| no committed offset goes back: a member that lost a partition is fenced     | a commit, an answer       |
| each partition is read by one member and its offsets are committed          | the end, after all faults |

Rules: A member starts at the committed offset, reads on, and commits as it reads; so the committed offset of a
partition only rises, across members. The offset of an unanswered commit may appear later and is then excused. A deposed
coordinator that does not know so yet may return older offsets. A permitted loss from the log ends all checks but the
last.

Beside the group with members there is one without, whose only consumer commits rising numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import LeaderEpoch, Offset, PartitionId, StreamId
from penstock.groups.rows import OFFSETS_STREAM, SUBJECT
from penstock.hot.keyhash import partition_of
from penstock.messages import (
    AlterStreamRequest,
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    GroupPartition,
    OffsetCommit,
    OffsetsStreamRequest,
    OffsetsStreamResponse,
    Response,
)
from penstock.node.partition.internal_streams import offsets_config
from penstock.testing.errors import ViolationError
from penstock.testing.simulation.broker.broker import Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory
from tests.sim.checks.refusals import DEPOSED_US_MAX
from tests.sim.models.client_state import StreamGeneration, kind_of
from tests.sim.models.requests import SimClient
from tests.sim.plan.plan import Act, PlannedOperation

MEMBERS = 3
_GROUP = "shared"
_ALONE = "alone"
_SESSION_MS = 1_500
_SESSION_US = _SESSION_MS * 990  # shorter than the coordinator's: its clock may run faster
_BEAT_US = _SESSION_MS * 1_000 // 8
_SOON_US = 50_000
_AGAIN_US = 500_000
_SILENT_US_MAX = 10_000_000

_GroupRequest = CommitOffsetsRequest | FetchOffsetsRequest | GroupHeartbeatRequest
_Done = Callable[[Response | RemoteError | None], None]


@dataclass(slots=True)
class _Place:
    """The known committed offset of a group in one partition."""

    committed: int = 0  # lower bound, from answers
    doubtful: set[int] = field(default_factory=set)  # unanswered commits, which may take effect later
    commits: int = 0  # answered commits


@dataclass(slots=True)
class _Member:
    """The state of one member. `era` rises when it joins under a new id."""

    number: int
    era: int = 0
    beat: int = 0
    leader_epoch: int = 0
    generation: int = 0
    heard_us: int = 0
    is_in: bool = False
    is_settled: bool = False
    silent_until_us: int = 0
    assigned: frozenset[int] = frozenset()
    positions: dict[int, int | None] = field(default_factory=dict)  # None: asking for the committed offset
    committing: set[int] = field(default_factory=set)

    @property
    def member_id(self) -> str:
        return f"m{self.number}-{self.era}"


class GroupModels:
    """All groups of one run. `generations`: the current stream of each slot; `program`: returns a client.

    With logins, a member always uses the same client of `programs`: the coordinator knows a member id only for the user
    that joined with it.
    """

    def __init__(
        self,
        around: Surroundings,
        checks: Checks,
        generations: list[StreamGeneration | None],
        slot: int,
        program: Callable[[], SimClient],
        programs: Sequence[SimClient],
    ) -> None:
        self.acts: dict[Act, Callable[[PlannedOperation], None]] = {
            Act.MEMBER: self._member,
            Act.COMMIT: self._commit_alone,
            Act.POSITION: self._ask_where,
        }
        self._around = around
        self._checks = checks
        self._generations = generations
        self._slot = slot
        self._program = program
        self._programs = programs
        self._members = [_Member(number) for number in range(MEMBERS)]
        self._places: dict[tuple[str, int], _Place] = {}
        self._stream_id = 0  # of `__offsets`, once a broker has returned it
        self._partitions = 0
        self._is_asked = False
        self._is_busy = False  # the group without members waits for an answer
        self._last = 0  # its last committed offset

    @property
    def offsets(self) -> tuple[int, int] | None:
        """Stream id and number of partitions of `__offsets`; None: not known yet."""
        return (self._stream_id, self._partitions) if self._stream_id else None

    def _trace(self, what: str) -> None:
        self._around.trace.add("group", what)

    def _is_held(self, group: str) -> bool:
        """True if the group's offsets log has suffered no permitted loss."""
        history = self._history(group)
        return not (history.cuts or history.may_lose or history.is_damaged or history.is_given_up)

    def _is_sure(self, group: str) -> bool:
        """True if no deposed coordinator can still believe that it leads."""
        history = self._history(group)
        changed_us = max(history.led_us.values(), default=0)
        return self._is_held(group) and self._around.scheduler.now_us - changed_us > DEPOSED_US_MAX

    def _history(self, group: str) -> PartitionHistory:
        return self._checks.of(SUBJECT.decode(), self._number(group))

    def _number(self, group: str) -> int:
        return partition_of(group.encode(), self._partitions)

    def _place(self, group: str, partition: int) -> _Place:
        return self._places.setdefault((group, partition), _Place())

    def _streams(self) -> tuple[StreamGeneration, StreamId] | None:
        """Return the stream that the groups read and the id of `__offsets`; None unless both exist."""
        generation = self._generations[self._slot]
        if generation is None or not generation.stream_id:
            return None
        if not self._is_asked:
            self._is_asked = True
            self._checks.begin(offsets_config())
            self._ask_for_offsets()
        return (generation, StreamId(self._stream_id)) if self._stream_id else None

    def _ask_for_offsets(self) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            if isinstance(response, OffsetsStreamResponse):
                self._stream_id = int(response.stream.stream_id)
                self._partitions = len(response.stream.partitions)
                self._trace(f"offsets are in {self._stream_id}")
                return
            self._around.scheduler.after(_AGAIN_US, self._ask_for_offsets)

        self._program().ask(OffsetsStreamRequest(timeout_ms=3_000), done)

    def _ask(self, group: str, request: _GroupRequest, done: _Done, member: _Member | None = None) -> None:
        program = self._program()
        if member is not None and self._around.rights is not None:
            program = self._programs[member.number % len(self._programs)]
        program.ask_leader(self._stream_id, self._number(group), request, lambda response, _raw: done(response))

    # Committed offsets

    def _told(self, group: str, response: FetchOffsetsResponse, committed: dict[int, int]) -> dict[int, int]:
        """Check an answer against `committed`, the known offsets at the time of the request, and return its offsets."""
        offsets = {int(one.partition): int(one.offset) for one in response.offsets}
        for partition, least in committed.items():
            place, offset = self._place(group, partition), offsets.get(partition, 0)
            if offset >= least:
                place.committed = max(place.committed, offset)  # only committed offsets are returned
                continue
            if self._is_sure(group) and offset not in place.doubtful:
                text = f"group {group!r} is said to be at {offset} in partition {partition}"
                raise ViolationError(f"{text}, and {least} was committed before that was asked")
            place.committed = min(place.committed, offset)
        return offsets

    def _committed(self, group: str) -> dict[int, int]:
        return {partition: place.committed for (name, partition), place in self._places.items() if name == group}

    def _fetch(self, group: str, generation: StreamGeneration, done: Callable[[dict[int, int] | None], None]) -> None:
        committed = self._committed(group)

        def answered(response: Response | RemoteError | None) -> None:
            self._trace(f"where is {group}: {kind_of(response)}")
            done(self._told(group, response, committed) if isinstance(response, FetchOffsetsResponse) else None)

        request = FetchOffsetsRequest(
            stream_id=StreamId(self._stream_id),
            partition=PartitionId(self._number(group)),
            group=group,
            of_stream_id=StreamId(generation.stream_id),
        )
        self._ask(group, request, answered)

    def _ask_where(self, operation: PlannedOperation) -> None:
        if (streams := self._streams()) is not None:
            self._fetch((_GROUP, _ALONE)[operation.number % 2], streams[0], lambda _: None)

    def _send_commit(
        self,
        group: str,
        generation: StreamGeneration,
        partition: int,
        offset: int,
        done: _Done,
        member: _Member | None = None,
    ) -> None:
        place = self._place(group, partition)
        before = place.committed
        log = self._checks.of(generation.config.subject, partition)
        is_there = offset <= log.committed_end

        def answered(response: Response | RemoteError | None) -> None:
            if isinstance(response, CommitOffsetsResponse):
                place.commits += 1
                if offset < before and self._is_held(group):
                    who = "nobody" if member is None else member.member_id
                    text = f"group {group!r}: {who} committed {offset} in partition {partition}"
                    raise ViolationError(f"{text}, and {before} was committed before it did")
                place.committed = max(place.committed, offset)
            elif isinstance(response, RemoteError) and response.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                place.commits += 1  # an expected answer
                if is_there and not (log.cuts or log.may_lose or log.is_damaged or log.is_given_up):
                    text = f"group {group!r}: {offset} in partition {partition} was committed, and is refused"
                    raise ViolationError(f"{text}: {response.message}")
            elif not (isinstance(response, RemoteError) and response.code in _NOT_DONE):
                place.doubtful.add(offset)
            done(response)

        request = CommitOffsetsRequest(
            stream_id=StreamId(self._stream_id),
            partition=PartitionId(self._number(group)),
            group=group,
            offsets=(
                OffsetCommit(
                    stream_id=StreamId(generation.stream_id), partition=PartitionId(partition), offset=Offset(offset)
                ),
            ),
            member_id=None if member is None else member.member_id,
            generation=0 if member is None else member.generation,
        )
        self._ask(group, request, answered, member)

    def _commit_alone(self, operation: PlannedOperation) -> None:
        streams = self._streams()
        if streams is None or self._is_busy:
            return
        self._is_busy = True
        self._last += 1

        def done(response: Response | RemoteError | None) -> None:
            self._trace(f"committed alone {self._last}: {kind_of(response)}")
            self._around.count("offsets committed", isinstance(response, CommitOffsetsResponse))
            self._is_busy = False

        self._send_commit(_ALONE, streams[0], 0, self._last, done)

    # Members

    def _member(self, operation: PlannedOperation) -> None:
        if self._streams() is None:
            return
        member, what = self._members[operation.number % MEMBERS], operation.number // MEMBERS
        if not member.is_in:
            self._join(member)
        elif what % 8 == 0:
            self._leave(member)
        elif what % 8 == 1:  # killed
            self._trace(f"{member.member_id} is killed")
            self._lose(member)
            member.is_in = False
        elif what % 8 <= 3:
            self._trace(f"{member.member_id} says nothing")
            lasts_us = what // 8 % _SILENT_US_MAX
            member.silent_until_us = self._around.scheduler.now_us + lasts_us

    def _join(self, member: _Member) -> None:
        member.is_in = True
        self._lose(member)
        self._beat(member, member.era)

    def _lose(self, member: _Member) -> None:
        """Drop its state and take a new member id."""
        member.era += 1
        member.beat = member.leader_epoch = member.generation = 0
        member.heard_us = self._around.scheduler.now_us
        member.assigned = frozenset()
        member.positions.clear()
        member.committing.clear()
        member.is_settled = False

    def _has_session(self, member: _Member) -> bool:
        return self._around.scheduler.now_us < member.heard_us + _SESSION_US

    def _request(
        self, member: _Member, generation: StreamGeneration, *, is_leaving: bool = False
    ) -> GroupHeartbeatRequest:
        member.beat += 1
        stream_id = StreamId(generation.stream_id)
        has = member.assigned.union(member.positions)  # the member may start with an assigned partition at any moment
        return GroupHeartbeatRequest(
            stream_id=StreamId(self._stream_id),
            partition=PartitionId(self._number(_GROUP)),
            group=_GROUP,
            member_id=member.member_id,
            number=member.beat,
            stream_ids=(stream_id,),
            owned=tuple(GroupPartition(stream_id, PartitionId(one)) for one in sorted(has)),
            session_ms=_SESSION_MS,
            leader_epoch=LeaderEpoch(member.leader_epoch),
            is_leaving=is_leaving,
        )

    def _leave(self, member: _Member) -> None:
        streams = self._streams()
        assert streams is not None
        self._trace(f"{member.member_id} leaves")
        member.positions.clear()
        self._ask(_GROUP, self._request(member, streams[0], is_leaving=True), lambda _: None, member)
        self._lose(member)
        member.is_in = False

    def _beat(self, member: _Member, era: int) -> None:
        """Send one heartbeat of a series; it times out after half a session."""
        streams = self._streams()
        if member.era != era or not member.is_in or streams is None:
            return
        scheduler = self._around.scheduler
        if scheduler.now_us < member.silent_until_us:
            scheduler.at(member.silent_until_us, lambda: self._beat(member, era))
            return
        if not self._has_session(member):
            self._lose(member)
            self._beat(member, member.era)
            return
        sent_us = scheduler.now_us

        def next_one(delay_us: int) -> None:
            late.cancel()
            scheduler.after(delay_us, lambda: self._beat(member, era))

        def answered(response: Response | RemoteError | None) -> None:
            if late.is_over or member.era != era:
                return
            if isinstance(response, GroupHeartbeatResponse):
                self._take(member, response, sent_us)
                next_one(_BEAT_US if member.is_settled else _SOON_US)
            elif isinstance(response, RemoteError) and response.code == ErrorCode.UNKNOWN_MEMBER:
                self._trace(f"{member.member_id} is none any more")
                late.cancel()
                self._lose(member)
                scheduler.after(_SOON_US, lambda: self._beat(member, member.era))
            else:
                next_one(_SOON_US)

        late = scheduler.after(_SESSION_MS * 500, lambda: self._beat(member, era))
        self._ask(_GROUP, self._request(member, streams[0]), answered, member)

    def _take(self, member: _Member, response: GroupHeartbeatResponse, sent_us: int) -> None:
        assigned = frozenset(int(one.partition) for one in response.assigned)
        if assigned != member.assigned:
            self._trace(f"{member.member_id} in {response.generation}: {sorted(assigned)}")
            self._around.count("partitions that changed hands", len(assigned - member.assigned))
        member.assigned, member.is_settled = assigned, response.is_settled
        member.generation, member.leader_epoch = int(response.generation), int(response.leader_epoch)
        member.heard_us = sent_us
        if not self._has_session(member):
            return  # a late answer: its assignment may be outdated
        for partition in sorted(set(member.positions) - assigned):
            del member.positions[partition]
        for partition in sorted(assigned.difference(member.positions)):
            self._begin(member, partition)

    def _begin(self, member: _Member, partition: int) -> None:
        streams = self._streams()
        assert streams is not None
        for other in self._members:
            if other is not member and partition in other.positions and self._has_session(other):
                text = f"partition {partition} is with {other.member_id} (generation {other.generation})"
                if self._is_held(_GROUP):
                    raise ViolationError(f"{text}, and with {member.member_id} (generation {member.generation})")
        member.positions[partition] = None
        era = member.era

        def done(offsets: dict[int, int] | None) -> None:
            if member.era != era or member.positions.get(partition, 0) is not None:
                return
            if offsets is None:
                del member.positions[partition]  # it asks again at the next assignment
                return
            member.positions[partition] = offsets.get(partition, 0)
            self._go_on(member, era, partition)

        self._fetch(_GROUP, streams[0], done)

    def _go_on(self, member: _Member, era: int, partition: int) -> None:
        """Read on and commit. A silent member does so too, until it learns that it has lost its partitions."""
        streams = self._streams()
        position = member.positions.get(partition)
        if member.era != era or position is None or partition in member.committing or streams is None:
            return
        member.committing.add(partition)
        end = max(position, self._checks.of(streams[0].config.subject, partition).committed_end)
        # Each member advances at its own speed, so that a commit of a former owner is detected.
        position = min(end, position + (1 << member.number))

        def done(response: Response | RemoteError | None) -> None:
            if member.era != era:
                return
            member.committing.discard(partition)
            if isinstance(response, CommitOffsetsResponse):
                self._around.count("offsets committed")
            elif isinstance(response, RemoteError) and response.code in _FENCED:
                self._trace(f"{member.member_id} commits nothing: {response.code}")
                self._around.count("fenced commits")
                member.positions.pop(partition, None)
                return
            if partition in member.positions:
                if response is not None and not isinstance(response, RemoteError):
                    member.positions[partition] = position
                self._around.scheduler.after(_AGAIN_US, lambda: self._go_on(member, era, partition))

        self._send_commit(_GROUP, streams[0], partition, position, done, member)

    # The end

    def go_on(self) -> None:
        """The planned operations are over: all members join again and heartbeat."""
        if not self._stream_id:
            return
        for member in self._members:
            if member.silent_until_us > self._around.scheduler.now_us:
                member.silent_until_us = 0
                self._beat(member, member.era)
            elif not member.is_in:
                self._join(member)

    def allow_unclean_election(self) -> None:
        """Allow an unclean leader election of `__offsets`."""
        for partition in range(self._partitions):
            history = self._checks.of(SUBJECT.decode(), partition)
            history.is_damaged = history.is_given_up = True
        request = AlterStreamRequest(name=OFFSETS_STREAM, changes={"allow_unclean_election": True})
        self._program().ask(request, lambda response, _raw: self._trace(f"unclean: {kind_of(response)}"))

    def waits_for(self, is_stuck: Callable[[PartitionHistory], bool]) -> Callable[[], str]:
        """Return a function that names what is still wrong with the group; it returns an empty text when nothing is."""
        if not self._stream_id:
            return lambda: ""
        generation = self._generations[self._slot]
        assert generation is not None
        partitions = range(generation.config.partitions)
        before = {partition: self._place(_GROUP, partition).commits for partition in partitions}

        def left() -> str:
            if is_stuck(self._history(_GROUP)):
                return ""
            for partition, commits in before.items():
                readers = [one.member_id for one in self._members if one.is_in and partition in one.positions]
                if len(readers) != 1:
                    return f"partition {partition} of the group is read by {readers}"
                if self._place(_GROUP, partition).commits == commits:
                    return f"nothing is committed of partition {partition} by {readers[0]}"
            return ""

        return left


_FENCED = frozenset({ErrorCode.UNKNOWN_MEMBER, ErrorCode.FENCED_GENERATION})
_NOT_DONE = _FENCED | {ErrorCode.NOT_LEADER, ErrorCode.NOT_YET, ErrorCode.GROUP_IN_USE, ErrorCode.STREAM_NOT_FOUND}
