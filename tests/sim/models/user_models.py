"""Model users with few permissions: each sends permitted and forbidden requests on two streams.

Rules: Every value, every segment size and every committed offset is sent once, so that a denied request that took
effect is detected. `rights` checks the brokers' answers. A user does not know its permissions: it sends requests and
gets answers. At the end one user has all permissions again, and its appends must be acked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId, StreamId
from penstock.batch import codec
from penstock.hot.keyhash import partition_of
from penstock.hot.message_group import MessageGroup
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendRequest,
    AppendResponse,
    CommitOffsetsRequest,
    CreateStreamRequest,
    CreateStreamResponse,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    FetchRequest,
    FetchResponse,
    OffsetCommit,
    Request,
    Response,
    TruncateRequest,
)
from penstock.testing.errors import ViolationError
from penstock.testing.simulation.broker.broker import Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory, SentMessage
from tests.sim.checks.refusals import Refusals
from tests.sim.checks.rights import DENIALS, Rights
from tests.sim.models.client_state import StreamGeneration, kind_of
from tests.sim.models.grouping import GroupModels
from tests.sim.models.requests import Done, SimClient
from tests.sim.plan.plan import Act, PlannedOperation

NAMES = ("t0", "t1")
SUBJECTS = ("a", "b")  # suffixes of the stream's name: rules may allow one of them
_AGAIN_US = 500_000
_TRIES = 3
_SEGMENT_BYTES = 4_096  # each requested alteration adds one
_WAITS_MS = (0, 50, 1_500, 4_000)
_DENIED = DENIALS | {ErrorCode.STREAM_CHANGED}


class Tenants:
    """All users of one run. `users`: their clients; `program`: returns a client that may do everything."""

    def __init__(
        self,
        around: Surroundings,
        checks: Checks,
        refusals: Refusals,
        users: list[SimClient],
        groups: GroupModels,
        program: Callable[[], SimClient],
    ) -> None:
        self.acts: dict[Act, Callable[[PlannedOperation], None]] = {Act.ASK: self._ask}
        self.generations: list[StreamGeneration] = []
        self._around = around
        self._checks = checks
        self._refusals = refusals
        self._users = users
        self._groups = groups
        self._program = program
        self._sent = 0
        self._altered = 0
        self._committed = 0
        self._forbidden: set[tuple[str, int]] = set()  # (group, offset) of denied commits

    def _trace(self, what: str) -> None:
        self._around.trace.add("tenant", what)

    # Streams

    def create(self) -> None:
        """Create the streams; retried until they are answered."""
        for name in NAMES:
            fields: dict[str, Any] = {"name": name, "subject": f"{name}.>", "segment_bytes": _SEGMENT_BYTES}
            fields["replicas"] = min(3, len(self._around.brokers))
            config = msgspec.convert(fields, StreamConfig)
            self._checks.begin(config)
            self._ask_to_create(config)

    def _ask_to_create(self, config: StreamConfig) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            if not isinstance(response, CreateStreamResponse):
                self._around.scheduler.after(_AGAIN_US, lambda: self._ask_to_create(config))
                return
            stream_id, history = int(response.stream.stream_id), self._checks.of(config.subject, 0)
            self._trace(f"created {config.name} {stream_id}")
            self._checks.created[stream_id] = history
            self.generations.append(StreamGeneration(config, stream_id))
            assert isinstance(self._around.rights, Rights)
            self._around.rights.names[stream_id] = config.name
            self._around.rights.histories[stream_id] = history

        self._program().ask(CreateStreamRequest(config=config, timeout_ms=3_000), done)

    def allow_unclean_election(self, stream_id: int) -> bool:
        """Allow an unclean leader election; return False if the id is another stream's."""
        found = next((one for one in self.generations if one.stream_id == stream_id), None)
        if found is None:
            return False
        history = self._checks.of(found.config.subject, 0)
        history.is_damaged = history.is_given_up = True
        request = AlterStreamRequest(name=found.config.name, changes={"allow_unclean_election": True})
        self._program().ask(request, lambda response, _raw: self._trace(f"unclean: {kind_of(response)}"))
        return True

    # Requests

    def _ask(self, operation: PlannedOperation) -> None:
        chance = operation.number
        if not self.generations:
            return
        generation = self.generations[chance % len(self.generations)]
        chance //= len(NAMES)
        user = self._users[chance % len(self._users)]
        chance //= len(self._users)
        history = self._checks.of(generation.config.subject, 0)
        appends, reads = (self._append,) * 3, (self._fetch,) * 2
        acts = (*appends, *reads, self._alter, self._commit, self._cut)
        acts[chance % len(acts)](user, generation, history, chance // len(acts))

    def _append(self, user: SimClient, generation: StreamGeneration, history: PartitionHistory, chance: int) -> None:
        subjects = [f"{generation.config.name}.{one}" for one in SUBJECTS]
        rows = [(subjects[0],), (subjects[1],), (subjects[0], subjects[0]), (subjects[0], subjects[1])][chance % 4]
        self.append(user, generation, history, rows)

    def append(
        self,
        user: SimClient,
        generation: StreamGeneration,
        history: PartitionHistory,
        rows: tuple[str, ...],
        acked: Callable[[], None] = lambda: None,
    ) -> None:
        """Append a batch with one row for each subject."""
        messages = []
        for subject in rows:
            self._sent += 1
            value = f"{subject}/{user.name}/{self._sent}/".encode().ljust(self._sent % 5 * 100, b".")
            messages.append(SentMessage(subject.encode(), value, value))
            self._checks.sends(generation.config, messages[-1])
        names = [one.name for one in messages]
        group = MessageGroup.of(
            [one.subject for one in messages], [one.value for one in messages], keys=[None] * len(rows)
        )
        data = bytes(codec.encode(group, 0, len(rows), base_offset=0, timestamp_us=0, leader_epoch=0)[0])

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"{user.name} appends to {generation.config.name}: {kind_of(response)}")
            if isinstance(response, RemoteError):
                self._refusals.append_refused(history, names, response)
            if isinstance(response, AppendResponse):
                self._around.count("appends of users")
                for offset, name in enumerate(names, response.base_offset):
                    self._checks.promised(history, offset, response.leader_epoch, name, fsynced=response.fsynced)
                acked()

        request = AppendRequest(stream_id=StreamId(generation.stream_id))
        self._ask_leader(user, generation.stream_id, 0, request, done, data)

    def _fetch(self, user: SimClient, generation: StreamGeneration, history: PartitionHistory, chance: int) -> None:
        offset = history.promised_end - chance % 3 if history.promised_end > 2 else 0
        offset = max(offset, history.truncating)
        wait_ms = _WAITS_MS[chance // 3 % len(_WAITS_MS)]

        def done(response: Response | RemoteError | None, raw: bytes) -> None:
            self._trace(f"{user.name} reads {generation.config.name}: {kind_of(response)}")
            if isinstance(response, FetchResponse) and response.end_offset > offset:
                self._checks.read(history, offset, int(response.end_offset), raw)

        request = FetchRequest(stream_id=StreamId(generation.stream_id), offset=Offset(offset), wait_ms_max=wait_ms)
        self._ask_leader(user, generation.stream_id, 0, request, done)

    def _alter(self, user: SimClient, generation: StreamGeneration, history: PartitionHistory, chance: int) -> None:
        self._altered += 1
        changes: dict[str, Any] = {"segment_bytes": _SEGMENT_BYTES + self._altered}
        request = AlterStreamRequest(name=generation.config.name, changes=changes)
        told = self._told(user, request)

        def done(response: Response | RemoteError | None, raw: bytes) -> None:
            told(response, raw)
            if isinstance(response, AlterStreamResponse):
                assert isinstance(self._around.rights, Rights)
                self._around.rights.altered[request.name, changes["segment_bytes"]] = user.name

        user.ask(request, done)

    def _cut(self, user: SimClient, generation: StreamGeneration, history: PartitionHistory, chance: int) -> None:
        before = chance % (history.committed_end + 1)
        request = TruncateRequest(
            stream_id=StreamId(generation.stream_id), partition=PartitionId(0), before=Offset(before)
        )
        self._ask_leader(user, generation.stream_id, 0, request, self._told(user, request))

    def _ask_leader(
        self,
        user: SimClient,
        stream_id: int,
        partition: int,
        request: Request,
        done: Done,
        raw: bytes = b"",
        tries: int = _TRIES,
    ) -> None:
        """Send the request again after `not_leader`."""

        def heard(response: Response | RemoteError | None, payload: bytes) -> None:
            if tries > 1 and isinstance(response, RemoteError) and response.code == ErrorCode.NOT_LEADER:
                self._ask_leader(user, stream_id, partition, request, done, raw, tries - 1)
            else:
                done(response, payload)

        user.ask_leader(stream_id, partition, request, heard, raw)

    def _told(self, user: SimClient, request: Request) -> Done:
        return lambda response, _raw: self._trace(f"{user.name}: {type(request).__name__}: {kind_of(response)}")

    # Committed offsets

    def _commit(self, user: SimClient, generation: StreamGeneration, history: PartitionHistory, chance: int) -> None:
        offsets = self._groups.offsets
        if offsets is None:
            return
        stream_id, partitions = offsets
        group = f"of-{user.name}"
        number = partition_of(group.encode(), partitions)
        if self._committed >= history.committed_end:
            return  # beyond the end
        self._committed += 1
        offset = self._committed
        one = OffsetCommit(stream_id=StreamId(generation.stream_id), partition=PartitionId(0), offset=Offset(offset))
        place = StreamId(stream_id), PartitionId(number)

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"{user.name} commits: {kind_of(response)}")
            if isinstance(response, RemoteError) and response.code in _DENIED:
                self._forbidden.add((group, offset))
                where = FetchOffsetsRequest(
                    stream_id=place[0],
                    partition=place[1],
                    group=group,
                    of_stream_id=StreamId(generation.stream_id),
                )
                self._program().ask_leader(stream_id, number, where, told)

        def told(response: Response | RemoteError | None, _raw: bytes) -> None:
            if not isinstance(response, FetchOffsetsResponse):
                return
            for found in response.offsets:
                if (group, int(found.offset)) in self._forbidden:
                    raise ViolationError(f"group {group!r} is at {found.offset}, and that commit was refused")
            self._around.count("groups that did not move")

        request = CommitOffsetsRequest(stream_id=place[0], partition=place[1], group=group, offsets=(one,))
        self._ask_leader(user, stream_id, number, request, done)

    # The end

    def waits_for(self, user: SimClient, is_stuck: Callable[[PartitionHistory], bool]) -> Callable[[], str]:
        """Return a function that names the streams to which the user's appends are not acked yet; "" when all are."""
        left = set(NAMES)
        turn = 0

        def waits() -> str:
            nonlocal turn
            turn += 1
            for generation in self.generations:
                name, history = generation.config.name, self._checks.of(generation.config.subject, 0)
                if is_stuck(history):
                    left.discard(name)
                elif name in left and turn % 8 == 1:
                    self.append(user, generation, history, (f"{name}.{SUBJECTS[0]}",), partial(left.discard, name))
            return f"{user.name} cannot append to {', '.join(sorted(left))}" if left else ""

        return waits
