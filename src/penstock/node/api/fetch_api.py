"""Fetches: answered at once, when enough is committed, or at their deadline (long poll).

Rules: a parked fetch is checked again only when so many bytes more are shown that it can have enough, when its user or
the rules of every user have changed (within a second), or at its deadline. Index entries that are not in memory are
read in a disk thread: a cold or lost index blocks no other request. An answer is decided on what was committed at its
lookup.

    request → lookup → enough, or an error, or the deadline → answered
                ▲  └──▶ parked until the log has grown enough
                └─────────────┘

Very many fetches may wait for the same message: a few are answered at once, the others in the next turns of the event
loop, so that acks and other brokers do not wait for them.

A fetch with a projection waits in the same way, for as many bytes to read; it then goes through a queue of its own
(`QueryExecutor`), where few run at once, before it is answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from penstock.access import User
from penstock.access.handshake import sharer_of
from penstock.access.users import EVERYBODY
from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, PenstockError, RemoteError
from penstock.base.ids import LeaderEpoch, Offset, PartitionKey
from penstock.base.subjects import subject_mistake
from penstock.commitlog import LogView, Masked, Slice
from penstock.messages import FetchRequest, FetchResponse
from penstock.metadata.feature_levels import SUBJECT_INDEX
from penstock.metadata.persistent_map import PersistentMap
from penstock.node.api.parked_fetches import ParkedFetch, ParkedFetches
from penstock.node.api.projections import Project
from penstock.node.context import Context
from penstock.node.partition.divergence import check_agreement
from penstock.node.partition.partition import Partition
from penstock.node.partition.query_executor import QueryExecutor
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.replicas.replicas import Replicas
from penstock.node.security.access import Call
from penstock.node.step import FileRange, Lane


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """One read of the log for a fetch, with what readers may be shown at that moment.

    `is_final`: the answer is whatever it finds.
    """

    call: Call
    partition: Partition
    request: FetchRequest
    deadline_us: int
    is_final: bool
    visible_end: int
    visible_bytes: int
    as_of_us: int | None  # all that was committed by then is below `visible_end`
    view: LogView | None  # None if there is nothing to read


class FetchApi:
    """All unanswered fetches of one broker."""

    def __init__(self, context: Context, replicas: Replicas) -> None:
        self._context = context
        self._replicas = replicas
        self._outbox = context.outbox
        self._waiters = ParkedFetches()
        self._users = context.image.users  # whose permissions the parked fetches had
        self._is_guarded = context.image.is_guarded
        self._to_authorize: deque[ParkedFetch] = deque()  # parked fetches of users who lost something: a few each turn
        # Partitions with further fetches that can have enough: answered in the next turns.
        self._unanswered: dict[PartitionKey, None] = {}
        self._stopping: RemoteError | None = None
        self._reads: dict[Hashable, _Read] = {}  # in a disk thread or waiting for one
        self._executor = QueryExecutor(
            context.outbox, running_max=limits.PROJECTIONS_RUNNING_MAX, waiting_max=limits.PROJECTIONS_WAITING_MAX
        )

    def ask(self, find: PartitionLookup, call: Call, request: FetchRequest) -> None:
        """Handle the request on any local replica. RemoteError as from `fetch` and `PartitionLookup.held`."""
        self.fetch(call, find.held(request.stream_id, request.partition), request)

    def fetch(self, call: Call, partition: Partition, request: FetchRequest) -> None:
        """Answer the caller, now or later. RemoteError offset_out_of_range, log_truncated, bad_request, overloaded."""
        _check_wanted(request)
        check_agreement(partition, request.offset, request.leader_epoch)
        self._check_staleness(partition, request)
        wait_us = min(request.wait_ms_max, limits.FETCH_WAIT_MS_MAX) * 1_000
        deadline_us = call.now.elapsed_us + wait_us
        self._try_answer(call.without_raw(), partition, request, deadline_us, is_final=wait_us == 0)

    def grown(self, partition: Partition) -> None:
        """Try again the fetches that can have enough now that more is shown."""
        ready = self._waiters.ready(partition.key, partition.visible_bytes)
        if len(ready) == limits.FETCHES_WOKEN_MAX:
            self._unanswered[partition.key] = None
        for waiter in ready:
            self._try_again(waiter, partition, is_final=False)

    def tick(self, now: Now, partitions: Mapping[PartitionKey, Partition]) -> None:
        """Answer the fetches at their deadline, a few of those that had to wait for their turn, and those that are not
        permitted any more.
        """
        if (users := self._context.image.users) is not self._users:
            self._users_changed(users)
        self._authorize_some()
        unanswered, self._unanswered = self._unanswered, {}
        for key in unanswered:
            if (partition := partitions.get(key)) is not None:
                self.grown(partition)
        for waiter in self._waiters.expired(now.elapsed_us):
            self._try_again(waiter, partitions[waiter.partition], is_final=True)

    @property
    def has_next_turn(self) -> bool:
        """True if `tick` is to go on at once with what one turn has not done."""
        return bool(self._unanswered or self._to_authorize)

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` has something to do."""
        return 0 if self.has_next_turn else self._waiters.next_deadline_us

    def callers_disconnected(self, callers: Iterable[Hashable]) -> None:
        """Drop the fetches of callers that have disconnected."""
        callers = list(callers)
        self._waiters.drop(callers)
        for caller in callers:
            self._reads.pop(caller, None)
        self._executor.callers_disconnected(callers)

    def refuse(self, key: PartitionKey, error: RemoteError) -> None:
        """Answer all that wait for a partition that is closed here."""
        for waiter in self._waiters.waiting(key):
            self._waiters.take(waiter)
            self._outbox.reply(waiter.caller, error)
        self._end([read for read in self._reads.values() if read.partition.key == key], error)

    def give_up(self, error: RemoteError) -> None:
        """Answer all projections, present and future, with an error: the broker is about to stop."""
        self._stopping = error
        self._end([read for read in self._reads.values() if read.request.is_projected], error)

    def _end(self, reads: list[_Read], error: RemoteError) -> None:
        for read in reads:
            del self._reads[read.call.caller]
            self._outbox.reply(read.call.caller, error)
        self._executor.callers_disconnected([read.call.caller for read in reads])

    def _users_changed(self, users: PersistentMap[str, User]) -> None:
        before, self._users = self._users, users
        was_guarded, self._is_guarded = self._is_guarded, self._context.image.is_guarded
        is_general = was_guarded != self._is_guarded or _has_lost(before.get(EVERYBODY), users.get(EVERYBODY))
        lost: dict[str, bool] = {}
        for waiter in self._waiters:
            name = sharer_of(waiter.call.auth.who)
            if name not in lost:
                lost[name] = is_general or _has_lost(before.get(name), users.get(name))
            if lost[name]:
                self._to_authorize.append(waiter)

    def _authorize_some(self) -> None:
        for _ in range(min(len(self._to_authorize), limits.FETCHES_WOKEN_MAX)):
            waiter = self._to_authorize.popleft()
            if not self._waiters.has(waiter):
                continue
            try:
                waiter.call.authorize()
            except RemoteError as error:
                self._waiters.take(waiter)
                self._outbox.reply(waiter.caller, error)

    def _try_again(self, waiter: ParkedFetch, partition: Partition, *, is_final: bool) -> None:
        try:
            # Permissions may have changed and the log may have been truncated meanwhile.
            waiter.call.authorize()
            self._replicas.companions.check_readable(partition)
            check_agreement(partition, waiter.request.offset, waiter.request.leader_epoch)
            self._check_staleness(partition, waiter.request)
            self._try_answer(waiter.call, partition, waiter.request, waiter.deadline_us, is_final=is_final)
        except RemoteError as error:
            self._outbox.reply(waiter.caller, error)

    def _try_answer(
        self, call: Call, partition: Partition, request: FetchRequest, deadline_us: int, *, is_final: bool
    ) -> None:
        """Answer what the log has, or park the fetch if that is not enough yet."""
        if not partition.log_start <= request.offset <= partition.log.log_end:
            raise _out_of_range(partition, request.offset)
        end, size_bytes = partition.visible_end, partition.visible_bytes
        view = partition.live_view() if request.offset < end else None
        as_of_us = self._replicas.as_of_us(partition)
        read = _Read(call, partition, request, deadline_us, is_final, end, size_bytes, as_of_us, view)
        if view is None:
            self._found(read, None)
            return
        bytes_max = min(request.bytes_max, limits.FETCH_BYTES_MAX)
        if view.in_memory(request.offset):
            try:
                found = view.slice(request.offset, end=end, bytes_max=bytes_max)
            except (OSError, PenstockError) as error:
                raise partition.read_error(error) from None
            if found is None or request.is_projected or view.shows_all(found):
                self._found(read, found)
                return
        look = view.slice if request.is_projected else view.readable
        result: list[Slice | Masked | None] = []

        def done(error: Exception | None) -> None:
            if self._is_to_answer(read, error):
                self._found(read, result[0])

        self._reads[call.caller] = read
        self._outbox.work(
            Lane.READ,
            lambda: result.append(look(request.offset, end=end, bytes_max=bytes_max)),
            done,
            user=sharer_of(call.auth.who),
        )

    def _found(self, read: _Read, found: Slice | Masked | None) -> None:
        request = read.request
        wanted_bytes = max(1, min(request.bytes_min, request.bytes_max, limits.FETCH_BYTES_MAX))
        missing_bytes = wanted_bytes - (0 if found is None else found.length)
        # A slice that ends before what is shown is as long as it can be.
        is_cut = found is not None and found.end_offset < read.visible_end
        is_all = found is not None and request.end is not None and found.end_offset >= request.end
        read.partition.visible.is_awaited |= missing_bytes > 0 and not is_cut and not is_all
        # So does a reader of hidden rows: it is told where to go on.
        if missing_bytes <= 0 or is_cut or is_all or read.is_final or isinstance(found, Masked):
            if found is not None and request.is_projected:
                self._project(read)
            else:
                self._answer(read, found)
            return
        wanted_bytes = read.visible_bytes + missing_bytes
        self._waiters.park(ParkedFetch(read.call, request, read.deadline_us, wanted_bytes))
        if read.partition.visible_bytes > read.visible_bytes:
            self.grown(read.partition)  # more is shown by now

    def _is_to_answer(self, read: _Read, error: Exception | None, looked_bytes: int = 0) -> bool:
        """Take in the end of a read in a disk thread. False: the caller has disconnected, or gets an error now."""
        caller, partition, offset = read.call.caller, read.partition, read.request.offset
        if self._reads.get(caller) is not read:
            return False  # disconnected or answered
        del self._reads[caller]
        try:
            if offset < partition.log_start:
                # Retention was faster: the segment found may be removed before it can be opened.
                raise _out_of_range(partition, offset)
            if error is not None:
                raise partition.read_error(error)
            read.call.authorize()
        except RemoteError as refusal:
            self._outbox.reply(caller, refusal, looked_bytes=looked_bytes)
            return False
        return True

    def _behind_us(self, as_of_us: int | None) -> int | None:
        return None if as_of_us is None else max(0, self._context.now.elapsed_us - as_of_us)

    def _check_staleness(self, partition: Partition, request: FetchRequest) -> None:
        """Raise RemoteError too_stale. Not for a leader: no replica knows more."""
        if request.max_staleness_ms is None or (partition.leadership is not None and not partition.is_mute):
            return
        behind_us = self._behind_us(self._replicas.as_of_us(partition))
        if behind_us is None or behind_us > request.max_staleness_ms * 1_000:
            lacks = "its staleness is unknown" if behind_us is None else f"it may be {behind_us / 1e6:.3f} s behind"
            text = f"this replica of {partition.label} has had no answer from its leader lately, and {lacks}"
            raise RemoteError(ErrorCode.TOO_STALE, f"{text}; ask its leader, or another one", behind_us=behind_us)

    def _project(self, read: _Read) -> None:
        caller, partition, request = read.call.caller, read.partition, read.request
        assert read.view is not None
        is_indexed = self._context.image.has_feature(SUBJECT_INDEX)
        query = Project(read.view, partition.vfs, read.visible_end, request, is_indexed=is_indexed)

        def done(error: Exception | None) -> None:
            if self._is_to_answer(read, error, query.looked_bytes):
                partition.meters.sent(partition.key, query.end_offset - request.offset, len(query.raw))
                response = self._response_to_projected(read, query)
                self._outbox.reply(caller, response, query.raw or None, looked_bytes=query.looked_bytes)

        try:
            if self._stopping is not None:
                raise self._stopping
            self._reads[caller] = read
            self._executor.ask(caller, query, done, read.call.auth.who)
        except RemoteError as error:
            self._reads.pop(caller, None)
            self._outbox.reply(caller, error)

    def _response_to_projected(self, read: _Read, query: Project) -> FetchResponse:
        return FetchResponse(
            log_start=Offset(read.partition.log_start),
            committed_end=Offset(read.visible_end),
            base_offset=read.request.offset,
            end_offset=Offset(query.end_offset),
            format_version=self._context.settings.format_version,
            leader_epoch=read.partition.leader_epoch,
            raw_crc=query.raw_crc,
            last_epoch=None if query.last_epoch is None else LeaderEpoch(query.last_epoch),
            behind_us=self._behind_us(read.as_of_us),
        )

    def _answer(self, read: _Read, found: Slice | Masked | None) -> None:
        partition = read.partition
        extent: FileRange | bytes | None = None
        base_offset = end_offset = int(read.request.offset)
        if isinstance(found, Masked):
            extent = found.data or None
        elif found is not None:
            extent = FileRange(partition.vfs, found.path, found.position, found.length, partition.log.damage_found)
        if found is not None:
            base_offset, end_offset = found.base_offset, found.end_offset
            partition.meters.sent(partition.key, end_offset - base_offset, found.length)
        response = FetchResponse(
            log_start=Offset(partition.log_start),
            committed_end=Offset(read.visible_end),
            base_offset=Offset(base_offset),
            end_offset=Offset(end_offset),
            format_version=self._context.settings.format_version,
            leader_epoch=partition.leader_epoch,
            behind_us=self._behind_us(read.as_of_us),
        )
        self._outbox.reply(read.call.caller, response, extent)


def _has_lost(before: User | None, after: User | None) -> bool:
    """True if a rule or a credential that the user had has gone; also if it is another user of that name."""
    if before is after or before is None:
        return False
    if after is None or after.made_index != before.made_index:
        return True
    return not ({*before.rules} <= {*after.rules} and {*before.credentials} <= {*after.credentials})


def _check_wanted(request: FetchRequest) -> None:
    """Raise RemoteError bad_request if the requested columns, end or subjects are invalid."""
    mistake = None
    if request.columns is not None and len(set(request.columns)) < len(request.columns):
        mistake = f"a column is listed twice: {', '.join(request.columns)}"
    elif request.end is not None and request.end <= request.offset:
        mistake = f"the end {request.end} is not beyond the offset {request.offset}"
    for subject in request.subjects or ():
        mistake = mistake or subject_mistake(subject, wildcards=True)
    if mistake is not None:
        raise RemoteError(ErrorCode.BAD_REQUEST, f"fetch: {mistake}")


def _out_of_range(partition: Partition, offset: int) -> RemoteError:
    start, end = partition.log_start, partition.visible_end
    holds = f"offsets {start} to {end - 1}" if end > start else f"nothing; its next offset is {end}"
    text = f"offset {offset} is out of range: {partition.label} holds {holds}"
    return RemoteError(ErrorCode.OFFSET_OUT_OF_RANGE, text, log_start=start, committed_end=end)
