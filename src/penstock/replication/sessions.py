"""Leader side of replica fetches: a session per follower's broker, and the news for it.

Rules: a session belongs to one follower's broker; one fetch of it waits (long poll), and a second one makes the first
answered at once. A named position gets one answer: batches, a divergence, a new start, or an error. Events only mark
news: nothing scans all partitions, and all news of one step goes out in one answer. Partitions in sync go first; those
that catch up have a share of their own. Within each line, a partition that got batches goes to the end. Data that is
not in memory is read by a disk thread and delays nothing else. Observers' (read replicas') brokers are treated alike.

| news                            | waits                   | how often                     |
|---------------------------------|-------------------------|-------------------------------|
| batches, divergence,            | not at all              | once, until it is named again |
| `replica_start`, error          |                         |                               |
| `committed_end`, `log_start`    | REPLICA_NEWS_DELAY_MS,  | when it has moved             |
|                                 | for data to travel with |                               |
| nothing                         | `wait_ms_max`           |                               |

A fetch with a stale incarnation, an unknown session, or an epoch that is not the leader's never counts for the
high watermark (`committed_end`); nor does one that diverges.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import NamedTuple, Protocol

from penstock.base import limits
from penstock.base.clock import earliest
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionKey
from penstock.messages import (
    Divergence,
    FetchPosition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
    ReplicaNews,
    ReplicaProgressRequest,
)
from penstock.replication import rules
from penstock.replication.leader import Leadership


class FoundBatches(Protocol):
    """Consecutive whole batches."""

    @property
    def length(self) -> int:
        """The size in bytes."""


class BatchLookup(NamedTuple):
    """A read for a disk thread; `Sessions.found` takes the result."""

    broker_id: BrokerId
    key: PartitionKey
    leader_epoch: LeaderEpoch
    offset: int
    bytes_max: int
    verifies: bool = False  # also verify the batches: the follower has refused them


class FollowerPosition:
    """A follower's position in one partition, and what it has been told of it."""

    __slots__ = ("diverging", "error", "found", "is_owed", "is_refused", "leader_epoch", "log_end", "lookup",
                 "replica_start", "told_committed_end", "told_settled", "told_start")  # fmt: skip

    def __init__(self, leader_epoch: LeaderEpoch, log_end: int) -> None:
        self.leader_epoch = leader_epoch
        self.log_end = log_end
        self.is_owed = True  # an answer is owed since it was named
        self.is_refused = False  # it was sent the batches from its end on, and names the same end again
        self.lookup: BatchLookup | None = None  # a disk thread is reading
        self.error = ""
        self.diverging: rules.EpochEnd | None = None
        self.replica_start = 0  # where it has to start over
        self.found: FoundBatches | None = None  # by a disk thread
        self.told_committed_end = 0
        self.told_start = 0
        self.told_settled = False

    @property
    def agrees(self) -> bool:
        """True if the position agrees with the leader's log."""
        return not self.error and self.diverging is None and not self.replica_start

    def is_behind(self, leadership: Leadership, *, is_settled: bool) -> bool:
        """True if an end or a start has moved since it was told, or if it was told before that all was settled."""
        if leadership.committed_end > self.told_committed_end or leadership.log_start > self.told_start:
            return True
        return is_settled != self.told_settled and leadership.marks is not None

    def refused(self, error: RemoteError) -> None:
        """Record that no batches follow its end; the error may name another start."""
        replica_start = error.details.get("replica_start")
        if isinstance(replica_start, int) and replica_start > self.log_end:
            self.replica_start = replica_start
        else:
            self.error = error.code

    def refusal(self, key: PartitionKey, leadership: Leadership | None) -> ReplicaNews:
        """Return the answer for a position that does not agree."""
        # An error carries the follower's own epoch, so that the follower can match it.
        if self.error or leadership is None:
            return ReplicaNews(*key, self.leader_epoch, error=self.error or ErrorCode.NOT_LEADER)
        if self.diverging is None:
            return ReplicaNews(*key, self.leader_epoch, replica_start=Offset(self.replica_start))
        diverging = Divergence(LeaderEpoch(self.diverging.leader_epoch), Offset(self.diverging.end_offset))
        return ReplicaNews(*key, self.leader_epoch, log_start=Offset(leadership.log_start), diverging=diverging)


Line = OrderedDict[PartitionKey, None]


class FetchSession:
    """The fetch session of one follower's broker."""

    __slots__ = ("broker_id", "bytes_max", "caller", "catching_up", "deadline_us", "ends", "heard_us", "impeded",
                 "in_sync", "incarnation", "number", "positions", "refused")  # fmt: skip

    def __init__(self, broker_id: BrokerId, incarnation: Incarnation, number: int) -> None:
        self.broker_id = broker_id
        self.incarnation = incarnation
        self.number = number
        self.positions: dict[PartitionKey, FollowerPosition] = {}
        self.impeded: set[PartitionKey] = set()  # partitions whose logs accept nothing, named or not
        self.refused: Line = OrderedDict()  # positions that do not agree; answered first
        self.in_sync: Line = OrderedDict()  # positions with news, in order
        self.catching_up: Line = OrderedDict()
        self.ends: dict[PartitionKey, int] = {}  # only ends moved; since when
        self.caller: Hashable | None = None  # of the waiting fetch
        self.bytes_max = 0
        self.deadline_us = 0
        self.heard_us = 0  # when the waiting fetch arrived

    def forget(self, key: PartitionKey) -> None:
        """Forget the partition's position."""
        self.positions.pop(key, None)
        self.refused.pop(key, None)
        self.in_sync.pop(key, None)
        self.catching_up.pop(key, None)
        self.ends.pop(key, None)

    def refuse(self, key: PartitionKey, error: ErrorCode) -> None:
        """Refuse a named position once, also if no answer is owed: silence would mean that there is no news."""
        position = self.positions.get(key)
        if position is None or position.error:
            return
        self.forget(key)
        position.error = error
        self.positions[key] = position
        self.refused[key] = None

    @property
    def ready_us(self) -> int:
        """The time at which the waiting fetch is to be answered."""
        if self.refused or self.in_sync or self.catching_up:
            return 0
        if self.ends:
            return min(next(iter(self.ends.values())) + limits.REPLICA_NEWS_DELAY_MS * 1_000, self.deadline_us)
        return self.deadline_us


class LedLog(rules.EpochLineage, Protocol):
    """The log of a leader, as this module uses it."""

    def find(self, offset: int, bytes_max: int) -> FoundBatches | None:
        """Return batches from `offset` on, also uncommitted ones, at least one; None: a disk thread must read.

        Raise RemoteError (offset_out_of_range, whose detail `replica_start` is where a replica may begin instead, and
        others).
        """


class FetchAnswer(NamedTuple):
    """The answer to a fetch, and the pieces of its raw part, in this order."""

    caller: Hashable
    response: ReplicaFetchResponse
    found: tuple[FoundBatches, ...]


class Sessions:
    """All fetch sessions of one leading broker. Times are elapsed microseconds."""

    def __init__(self) -> None:
        self._led: dict[PartitionKey, tuple[Leadership, LedLog]] = {}
        self._sessions: dict[BrokerId, FetchSession] = {}
        self._lookups: list[BatchLookup] = []
        self._answers: list[FetchAnswer] = []

    # Led partitions

    def lead(self, leadership: Leadership, log: LedLog) -> None:
        """Answer for this partition from now on, or for another epoch of it."""
        self.resign(leadership.key)
        self._led[leadership.key] = leadership, log
        if leadership.target is not None:  # what followers show of it is not settled before they know this log, too
            for session, _ in self._followers(leadership.target):
                session.ends.setdefault(leadership.target.key, 0)
        for session in self._sessions.values():
            if leadership.key in session.impeded:
                leadership.impeded(session.broker_id, session.incarnation)

    def leads(self, key: PartitionKey) -> bool:
        """True if this broker answers for the partition."""
        return key in self._led

    def resign(self, key: PartitionKey) -> None:
        """Stop answering for the partition; waiting followers get FENCED_EPOCH."""
        if self._led.pop(key, None) is None:
            return
        for session in self._sessions.values():
            session.refuse(key, ErrorCode.FENCED_EPOCH)

    def image(self, leadership: Leadership) -> None:
        """Refuse brokers that no longer hold the partition and may not know it."""
        for session in self._sessions.values():
            if session.broker_id not in leadership.holders:
                session.refuse(leadership.key, ErrorCode.UNKNOWN_EPOCH)

    def appended(self, leadership: Leadership) -> None:
        """Its log has grown: followers that asked for it have news."""
        for session, position in self._followers(leadership):
            if position.is_owed and position.agrees and position.lookup is None:
                self._enqueue(session, leadership)

    def ends_moved(self, leadership: Leadership, now_us: int) -> None:
        """Its `committed_end` or its `log_start` has moved."""
        for session, position in self._followers(leadership):
            if position.agrees:
                session.ends.setdefault(leadership.key, now_us)

    def _followers(self, leadership: Leadership) -> Iterable[tuple[FetchSession, FollowerPosition]]:
        for broker_id in leadership.holders:
            session = self._sessions.get(broker_id)
            if session is not None and (position := session.positions.get(leadership.key)) is not None:
                yield session, position

    def _enqueue(self, session: FetchSession, leadership: Leadership) -> None:
        line = session.in_sync if session.broker_id in leadership.isr else session.catching_up
        line[leadership.key] = None

    # Requests of followers

    def fetch(
        self, caller: Hashable, request: ReplicaFetchRequest, incarnation: Incarnation | None, now_us: int
    ) -> list[Leadership]:
        """Handle a fetch of a follower's broker; return the leaderships whose `committed_end` moved.

        `incarnation` is the image's for the broker. The answer comes from `answers`. Raise RemoteError
        (stale_incarnation, unknown_epoch if the image is behind, unknown_session, too_large).
        """
        session = self._session(request, incarnation)
        if session.caller is not None:
            self._answer(session, now_us)
        if (
            len(session.positions) + len(request.changed)
            > limits.REPLICA_SESSION_LOGS_MAX + limits.REPLICA_POSITIONS_MAX
        ):
            text = f"a session names at most {limits.REPLICA_SESSION_LOGS_MAX} logs"
            raise RemoteError(ErrorCode.TOO_LARGE, text)
        for name in request.forgotten:
            session.forget(PartitionKey(name.stream_id, name.partition))
            session.impeded.discard(PartitionKey(name.stream_id, name.partition))
        if request.impeded or session.impeded:
            self._note_impeded(session, request)
        advanced = [
            leadership
            for position in request.changed
            if (leadership := self._named(session, position, now_us)) is not None
        ]
        session.caller, session.heard_us = caller, now_us
        session.bytes_max = min(max(request.bytes_max, limits.REPLICA_SHARE_BYTES_MIN), limits.REPLICA_FETCH_BYTES)
        session.deadline_us = now_us + min(request.wait_ms_max, limits.FETCH_WAIT_MS_MAX) * 1_000
        for leadership in advanced:
            self.ends_moved(leadership, now_us)
        return advanced

    def progress(
        self, request: ReplicaProgressRequest, incarnation: Incarnation | None, now_us: int
    ) -> list[Leadership]:
        """Record flushed ends; return the leaderships whose `committed_end` moved. Raise RemoteError as `fetch`."""
        _check_incarnation(request.incarnation, incarnation)
        session = self._sessions.get(request.broker_id)
        if session is None or session.number != request.session or session.incarnation != request.incarnation:
            raise _unknown_session()
        advanced = []
        for told in request.flushed:
            key = PartitionKey(told.stream_id, told.partition)
            position, led = session.positions.get(key), self._led.get(key)
            if position is None or led is None or not position.agrees or led[0].leader_epoch != told.leader_epoch:
                continue
            if led[0].progressed(request.broker_id, request.incarnation, told.flushed_end, now_us):
                advanced.append(led[0])
                self.ends_moved(led[0], now_us)
        return advanced

    def _session(self, request: ReplicaFetchRequest, incarnation: Incarnation | None) -> FetchSession:
        _check_incarnation(request.incarnation, incarnation)
        session = self._sessions.get(request.broker_id)
        if session is not None and session.incarnation == request.incarnation and request.session < session.number:
            raise _unknown_session()  # late, from a closed connection
        if request.is_first:
            if session is not None and session.caller is not None:
                self._answers.append(FetchAnswer(session.caller, ReplicaFetchResponse(), ()))
            session = FetchSession(request.broker_id, request.incarnation, request.session)
            self._sessions[request.broker_id] = session
        elif session is None or session.number != request.session or session.incarnation != request.incarnation:
            raise _unknown_session()
        return session

    def _named(self, session: FetchSession, named: FetchPosition, now_us: int) -> Leadership | None:
        """Take in one position; return its leadership if `committed_end` moved."""
        key = PartitionKey(named.stream_id, named.partition)
        before = session.positions.get(key)
        session.forget(key)
        position = session.positions[key] = FollowerPosition(named.leader_epoch, named.log_end)
        led = self._led.get(key)
        position.error = _refusal(led, named, session.broker_id)
        if position.error:
            session.refused[key] = None
            return None
        assert led is not None
        leadership, log = led
        position.diverging = rules.divergence(
            named.last_epoch, named.log_end, log, leadership.log_start, leadership.log_end
        )
        if position.diverging is not None:
            session.refused[key] = None
            return None
        # otherwise it was told nothing of this leadership
        if before is not None and before.leader_epoch == named.leader_epoch:
            position.is_refused = before.log_end == named.log_end and before.agrees and not before.is_owed
            if named.log_end:  # a follower without news takes an empty log for all that there is: see `freshness`
                position.told_committed_end, position.told_start = before.told_committed_end, before.told_start
                position.told_settled = before.told_settled
        advanced = leadership.fetched(
            session.broker_id,
            session.incarnation,
            named.log_end,
            named.flushed_end,
            now_us,
            is_impeded=key in session.impeded,
        )
        if named.log_end < leadership.log_end:
            self._enqueue(session, leadership)
        self._note_ends(session, leadership, position, now_us)
        if leadership.target is not None and (target := session.positions.get(leadership.target.key)) is not None:
            self._note_ends(session, leadership.target, target, now_us)
        return leadership if advanced else None

    def _note_impeded(self, session: FetchSession, request: ReplicaFetchRequest) -> None:
        session.impeded.difference_update(PartitionKey(named.stream_id, named.partition) for named in request.changed)
        for name in request.impeded:
            key = PartitionKey(name.stream_id, name.partition)
            session.impeded.add(key)
            if (led := self._led.get(key)) is not None:
                led[0].impeded(session.broker_id, session.incarnation)

    def _note_ends(
        self, session: FetchSession, leadership: Leadership, position: FollowerPosition, now_us: int
    ) -> None:
        is_settled = _is_settled(session, leadership)
        if position.is_behind(leadership, is_settled=is_settled) and position.agrees:
            session.ends.setdefault(leadership.key, now_us)

    # Answers

    @property
    def next_deadline_us(self) -> int | None:
        """The time at which `answers` returns something if no event comes first; None if never."""
        first_us = None
        for session in self._sessions.values():
            if session.caller is not None:
                first_us = earliest(first_us, session.ready_us)
        return first_us

    @property
    def has_news(self) -> bool:
        """True if a waiting fetch is answered within REPLICA_NEWS_DELAY_MS."""
        return any(session.ends and session.caller is not None for session in self._sessions.values())

    def answer_all_now(self, now_us: int) -> None:
        """Have all waiting fetches answered in this step, with news or not."""
        for session in self._sessions.values():
            session.deadline_us = min(session.deadline_us, now_us)

    def answers(self, now_us: int) -> list[FetchAnswer]:
        """Return the answers to send now. Call it at the end of each step."""
        for session in self._sessions.values():
            if session.caller is not None and session.ready_us <= now_us:
                is_due = now_us >= session.deadline_us
                self._answer(session, now_us, only_with_news=not is_due)
        if not self._answers:  # as with most steps
            return []
        answers, self._answers = self._answers, []
        return answers

    def lookups(self) -> list[BatchLookup]:
        """Return the reads that disk threads are to do."""
        if not self._lookups:
            return []
        lookups, self._lookups = self._lookups, []
        return lookups

    def found(self, lookup: BatchLookup, found: FoundBatches | RemoteError) -> None:
        """Take the result of a disk thread's read."""
        session, led = self._sessions.get(lookup.broker_id), self._led.get(lookup.key)
        position = None if session is None else session.positions.get(lookup.key)
        if session is None or led is None or position is None or position.lookup is not lookup:
            return  # named again meanwhile, or another leadership has begun
        position.lookup = None
        if isinstance(found, RemoteError):
            position.refused(found)
            session.refused[lookup.key] = None
        else:
            position.found = found
            self._enqueue(session, led[0])

    def callers_disconnected(self, callers: Iterable[Hashable]) -> None:
        """These callers disconnected; the sessions stay until new ones begin."""
        left = set(callers)
        for session in self._sessions.values():
            if session.caller in left:
                session.caller = None

    def ended(self, broker_id: BrokerId) -> list[tuple[Hashable, RemoteError]]:
        """End the session of a broker that was fenced or registered anew; return its waiting caller and the error."""
        session = self._sessions.pop(broker_id, None)
        if session is None or session.caller is None:
            return []
        text = f"broker {broker_id} is not registered as incarnation {session.incarnation} any more"
        return [(session.caller, RemoteError(ErrorCode.STALE_INCARNATION, text))]

    def _answer(self, session: FetchSession, now_us: int, *, only_with_news: bool = False) -> None:
        """Answer the waiting fetch; with `only_with_news` not if there turns out to be no news."""
        news: list[ReplicaNews] = []
        found: list[FoundBatches] = []
        left_bytes = session.bytes_max
        kept_bytes = min(limits.REPLICA_CATCH_UP_BYTES, left_bytes // 4) if session.catching_up else 0
        left_bytes = kept_bytes + max(0, self._fill(session, session.in_sync, left_bytes - kept_bytes, news, found))
        if found:  # partitions in sync are not to wait long behind a backlog
            left_bytes = min(left_bytes, limits.REPLICA_CATCH_UP_BYTES)
        self._fill(session, session.catching_up, left_bytes, news, found)
        self._fill_refused(session, news)
        self._fill_ends(session, news)
        if not news and only_with_news and session.deadline_us > now_us:
            return
        response = ReplicaFetchResponse(
            partitions=tuple(news),
            held_us=max(0, now_us - session.heard_us),
            is_all=not (session.refused or session.ends),
        )
        self._answers.append(FetchAnswer(session.caller, response, tuple(found)))
        session.caller = None

    def _fill_refused(self, session: FetchSession, news: list[ReplicaNews]) -> None:
        while session.refused and len(news) < limits.REPLICA_POSITIONS_MAX:
            key, _ = session.refused.popitem(last=False)
            position, led = session.positions[key], self._led.get(key)
            news.append(position.refusal(key, None if led is None else led[0]))
            position.is_owed = False
            session.ends.pop(key, None)

    def _fill(
        self, session: FetchSession, line: Line, left_bytes: int, news: list[ReplicaNews], found: list[FoundBatches]
    ) -> int:
        """Take pieces from the front of `line` while they fit, and at least one; return the bytes left."""
        first = len(found)
        while line and left_bytes > 0 and len(found) < limits.REPLICA_RANGES_MAX:
            key, _ = line.popitem(last=False)
            position, led = session.positions[key], self._led.get(key)
            assert led is not None, key
            leadership, log = led
            if position.log_end >= leadership.log_end or not position.is_owed:
                continue
            share_bytes = max(left_bytes // (len(line) + 1), min(left_bytes, limits.REPLICA_SHARE_BYTES_MIN))
            batches = self._look_up(session, key, position, log, share_bytes)
            if batches is None:
                continue
            if isinstance(batches, RemoteError):
                position.refused(batches)
                session.refused[key] = None
                continue
            if len(found) > first and batches.length > left_bytes:
                line[key] = None
                line.move_to_end(key, last=False)  # first in the next answer
                break
            left_bytes -= batches.length
            found.append(batches)
            news.append(self._news(session, leadership, position, batches.length))
            position.is_owed, position.found = False, None
        return left_bytes

    def _look_up(
        self, session: FetchSession, key: PartitionKey, position: FollowerPosition, log: LedLog, bytes_max: int
    ) -> FoundBatches | RemoteError | None:
        if position.found is not None:
            return position.found
        if position.lookup is not None:
            return None
        try:
            batches = None if position.is_refused else log.find(position.log_end, bytes_max)
        except RemoteError as error:
            return error
        if batches is None:
            position.lookup = BatchLookup(
                session.broker_id, key, position.leader_epoch, position.log_end, bytes_max, position.is_refused
            )
            self._lookups.append(position.lookup)
        return batches

    def _fill_ends(self, session: FetchSession, news: list[ReplicaNews]) -> None:
        while session.ends and len(news) < limits.REPLICA_POSITIONS_MAX:
            key = next(iter(session.ends))
            del session.ends[key]
            position, led = session.positions[key], self._led.get(key)
            if led is None or not position.agrees:
                continue
            if position.is_behind(led[0], is_settled=_is_settled(session, led[0])):
                news.append(self._news(session, led[0], position, 0))

    def _news(
        self, session: FetchSession, leadership: Leadership, position: FollowerPosition, size_bytes: int
    ) -> ReplicaNews:
        session.ends.pop(leadership.key, None)
        position.told_committed_end, position.told_start = leadership.committed_end, leadership.log_start
        position.told_settled = is_settled = _is_settled(session, leadership)
        return ReplicaNews(
            *leadership.key,
            leadership.leader_epoch,
            Offset(leadership.committed_end),
            Offset(leadership.log_start),
            size_bytes,
            is_settled=is_settled,
            image_index=leadership.image_index,
        )


def _is_settled(session: FetchSession, leadership: Leadership) -> bool:
    """True if a follower that shows all that it is told shows all that was committed, rows hidden by marks left out."""
    if not leadership.knows_latest or leadership.lacks_marks:
        return False
    if (marks := leadership.marks) is None:
        return True
    position = session.positions.get(marks.key)
    return position is not None and position.agrees


def _refusal(led: tuple[Leadership, LedLog] | None, named: FetchPosition, broker_id: BrokerId) -> str:
    """Return the error code for a position that cannot be answered; empty if it can."""
    if led is None:
        return ErrorCode.NOT_LEADER
    if named.leader_epoch < led[0].leader_epoch:
        return ErrorCode.FENCED_EPOCH
    if named.leader_epoch > led[0].leader_epoch or broker_id not in led[0].holders:
        return ErrorCode.UNKNOWN_EPOCH  # this broker's image is behind
    return ""


def _check_incarnation(asked: Incarnation, known: Incarnation | None) -> None:
    # A broker not live here may have registered since; the metadata tells it if it was fenced.
    if known is None or asked > known:
        raise RemoteError(ErrorCode.UNKNOWN_EPOCH, f"incarnation {asked} is not known here yet", incarnation=asked)
    if asked < known:
        raise RemoteError(
            ErrorCode.STALE_INCARNATION, f"incarnation {asked} is over; register again", incarnation=asked
        )


def _unknown_session() -> RemoteError:
    return RemoteError(ErrorCode.UNKNOWN_SESSION, "unknown fetch session; begin a new one")
