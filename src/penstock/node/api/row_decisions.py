"""Limits by subject, rollups and interest in the partitions led here: which committed rows are hidden.

Rules: one decision at a time for each partition, about rows that are committed and not decided on yet; a publisher
waits for none. A disk thread finds the rows that are hidden, and the leader writes one mark, which hides them and says
up to where it has decided. Readers see the rows behind that once the mark is committed (`Partition.visible_end`). What
commits meanwhile is decided on together. A new leader goes on where the committed marks end; it finds in its log what
it needs to know of earlier rows. A decision that fails is tried again every second, and readers wait.
One begins DECISION_PAUSE_MS after the one before at the earliest, unless a request waits: each costs a synced mark.
While no reader here asks for more than is shown, it is DECISION_PAUSE_MS_MAX: lone messages share a decision.

    committed → read → marked → mark committed: shown
        ▲                              │
        └──────────────────────────────┘

With retention `interest` a row is hidden in the same decision that would show it, if no consumer wants its subject when
the decision begins (`StreamInterest`). So it is never shown, not for a moment. Who creates a consumer answers after its
filters are known here: rows that are committed later are kept for it. A leader that does not know the filters yet
decides on nothing. What the log held when the stream got this retention is not dropped (`Partition.wanted_end`).

A request that must see what was acked before it, such as one for the last message of a subject, waits here until that
is decided on.

A limit or rollups that are new to the stream are decided from its log start on, so what the log holds counts whenever
it came. The first decision on rollups hides the offsets, too, that this log lacks: below feature level 0.4 each
replica's cleaner applied rollups, and other replicas may still have those rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

from penstock.access.handshake import sharer_of
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.fair_shares import FairShares
from penstock.hot.subject_table import TableBudget
from penstock.messages import AppendResponse
from penstock.metadata.companions import is_marks, target_key
from penstock.node.api.internal_log import Rows
from penstock.node.api.stream_interest import StreamInterest
from penstock.node.context import Context
from penstock.node.partition.decisions import DecideRows, DecisionMemory
from penstock.node.partition.log_queries import QueryGivenUpError
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import as_remote_error
from penstock.node.replicas.hidden_rows import Decision
from penstock.node.replicas.replicas import Replicas
from penstock.node.security.access import Call
from penstock.node.step import Lane
from penstock.replication.leader import Leadership

_RETRY_US = 1_000_000
_PAUSE_US = limits.DECISION_PAUSE_MS * 1_000
_PAUSE_US_MAX = limits.DECISION_PAUSE_MS_MAX * 1_000
_WAIT_US = limits.DECISION_WAIT_MS * 1_000
_SOON = (ErrorCode.NOT_YET, ErrorCode.NOT_LEADER, ErrorCode.FENCED_EPOCH)  # not worth a notice


class AppendToCompanion(Protocol):
    """The type of `AppendApi.append_to_companion`."""

    def __call__(self, target: Partition, rows: Rows, done: Callable[[AppendResponse | RemoteError], None]) -> None: ...


class _Deciding:
    """State of one partition's decisions in one leadership."""

    __slots__ = (
        "begun_us", "is_queued", "leadership", "memory", "partition", "query", "retry_us", "waits_for_event",
    )  # fmt: skip

    def __init__(self, partition: Partition, leadership: Leadership) -> None:
        self.partition, self.leadership = partition, leadership
        self.memory: DecisionMemory | None = None
        self.query: DecideRows | None = None  # in a disk thread
        self.is_queued = False
        self.begun_us = 0  # when the last decision began
        self.retry_us: int | None = None
        self.waits_for_event = False  # what it lacks may be there before `retry_us`


def _resume_us(one: _Deciding) -> int:
    """Return when a pause ends, elapsed time."""
    return one.begun_us + (_PAUSE_US if one.partition.visible.is_awaited else _PAUSE_US_MAX)


class _Waiter(NamedTuple):
    caller: Hashable
    user: str  # the user whose share it takes
    partition: Partition
    end: int
    deadline_us: int
    done: Callable[[RemoteError | None], None]


class RowDecisions:
    """All decisions of one broker, and what waits for them."""

    def __init__(
        self, context: Context, replicas: Replicas, interest: StreamInterest, *, write: AppendToCompanion
    ) -> None:
        self._context, self._outbox = context, context.outbox
        self._partitions = replicas.partitions
        self._hidden, self._companions = replicas.hidden_rows, replicas.companions
        self._interest = interest
        self._write = write
        self._deciding: dict[Partition, _Deciding] = {}
        self._busy: set[_Deciding] = set()  # from the begin of the query until the mark is applied
        self._queue: deque[_Deciding] = deque()  # due, while DECISIONS_RUNNING_MAX others run
        self._running = 0
        self._budget = TableBudget(limits.SUBJECT_TABLE_SLOTS_MAX)
        self._paused: dict[_Deciding, None] = {}  # see `_resume_us`
        self._waiters: dict[Hashable, _Waiter] = {}
        self._shares = FairShares()  # shares of them
        self._is_stopped = False

    # Decisions

    def check(self, partition: Partition) -> None:
        """Begin to decide on rows that were committed; `partition` may be a companion log that is led now."""
        if is_marks(partition.key.stream_id):
            target = self._partitions.get(target_key(partition.key))
            if target is None or not target.needs_decisions:
                return
            partition = target
        leadership = partition.leadership
        if leadership is None or not partition.needs_decisions or partition.when_idle is not None or self._is_stopped:
            self._forget(partition)
            return
        one = self._deciding.get(partition)
        if one is None or one.leadership is not leadership:
            self._forget(partition)
            one = self._deciding[partition] = _Deciding(partition, leadership)
        if one.waits_for_event:
            one.waits_for_event, one.retry_us = False, None
        if not (one in self._busy or one.is_queued or one in self._paused or one.retry_us is not None):
            one.is_queued = True
            self._queue.append(one)
            self._run_more()

    def _forget(self, partition: Partition) -> None:
        one = self._deciding.pop(partition, None)
        if one is not None:
            self._paused.pop(one, None)
            if one.query is not None:
                one.query.give_up()

    def _run_more(self) -> None:
        while self._queue and self._running < limits.DECISIONS_RUNNING_MAX:
            one = self._queue.popleft()
            one.is_queued = False
            if self._is_current(one):
                self._decide(one)

    def _is_current(self, one: _Deciding) -> bool:
        """True if this state is still that of the partition's leadership."""
        partition = one.partition
        is_led = partition.leadership is one.leadership and partition.when_idle is None
        return is_led and self._deciding.get(partition) is one

    def _decide(self, one: _Deciding) -> None:
        partition = one.partition
        limit, rollups = partition.stream.config.subject_limit or 0, partition.stream.decides_rollups
        try:
            partition.require_high_watermark()
            self._companions.check_readable(partition)
            self._companions.led(partition)
            view = partition.live_view()
            wanted = self._interest.wanted(partition) if partition.drops_unwanted else None
        except RemoteError as error:
            self._retry(one, error)
            return
        begin = max(self._hidden.decided(partition, limit, rollups=rollups), partition.log_start)
        knows_interest = wanted is None or self._hidden.has_interest(partition)
        if begin >= partition.committed_end and knows_interest:
            return
        memory, taken = one.memory, partition.taken
        if memory is None or not memory.is_of(limit, begin, taken):
            memory = one.memory = DecisionMemory(limit, begin, taken, self._budget)
        skips = not partition.is_replicated
        end = max(begin, partition.committed_end)
        hides_gaps = rollups and not self._hidden.has_rollups(partition)
        query = one.query = DecideRows(
            view,
            end,
            memory,
            has_others=self._hidden.has_others(partition),
            skips_damage=skips,
            rollups=hides_gaps or (rollups and begin < partition.rolled_up_end),  # else there are none
            hides_gaps=hides_gaps,
            ends_schedules=partition.stream.config.allows_schedules,
            wanted=wanted,
            wanted_end=0 if knows_interest else partition.wanted_end,
        )
        # With others at work, few run at a time, so that what comes meanwhile is decided on together.
        is_alone = not self._busy
        self._busy.add(one)
        one.begun_us, partition.visible.is_awaited = self._context.now.elapsed_us, False

        def decided(error: Exception | None) -> None:
            one.query = None
            if error is None and self._is_current(one):
                found = query.hidden, query.pieces
                because = query.is_rollup, wanted is not None, query.is_unwanted
                self._mark(one, query, Decision(query.decided_end, *found, limit, rollups, *because))
            else:
                self._retry(one, error)

        def done(error: Exception | None) -> None:
            self._running -= 1
            decided(error)
            self._run_more()

        if is_alone and query.run_if_cached():
            decided(None)
        else:
            self._running += 1
            self._outbox.work(Lane.READ, query.run, done)

    def _mark(self, one: _Deciding, query: DecideRows, decision: Decision) -> None:
        partition = one.partition
        try:
            rows = self._hidden.decision(partition, decision, self._context.now)
            self._write(partition, rows, partial(self._marked, one, is_cut=query.is_cut))
        except RemoteError as error:
            self._retry(one, error)

    def _marked(self, one: _Deciding, answer: AppendResponse | RemoteError, *, is_cut: bool) -> None:
        if isinstance(answer, RemoteError):
            self._retry(one, answer)
            return
        self._busy.discard(one)
        if one.memory is not None:
            one.memory.forget(limits.DECISION_MEMORY_ROWS_MAX // len(self._deciding or (one,)))
        if not self._is_current(one):
            return
        is_asked = any(waiter.partition is one.partition for waiter in self._waiters.values())
        if _resume_us(one) > self._context.now.elapsed_us and not (is_cut or is_asked):
            self._paused[one] = None
        self.check(one.partition)

    def _retry(self, one: _Deciding, error: Exception | None) -> None:
        """Have the next tick try again, from the committed marks on."""
        self._busy.discard(one)
        one.memory = None
        if not self._is_current(one):
            self.check(one.partition)  # it may be led anew, and have waited for the end of this
            return
        one.retry_us = self._context.now.elapsed_us + _RETRY_US
        if error is not None and not isinstance(error, QueryGivenUpError):
            told = as_remote_error(error)
            one.waits_for_event = told.code in _SOON
            if not one.waits_for_event:
                text = "a limit by subject, rollups or interest cannot be applied, so readers lack the latest messages"
                one.partition.tell(f"{text}: {told.message}", self._outbox)

    def shown(self, partition: Partition) -> None:
        """Go on with the requests that have waited for what readers are shown now."""
        for waiter in [one for one in self._waiters.values() if one.partition is partition]:
            if partition.visible_end >= waiter.end:
                self._take(waiter.caller)
                waiter.done(None)
        self.check(partition)

    # Requests

    def when_decided(
        self, call: Call, partition: Partition, done: Callable[[RemoteError | None], None], end: int = 0
    ) -> None:
        """Call `done` once all that is committed now, and all below `end`, is shown, or with the reason why it is not.

        At once on a replica that does not lead. Raise RemoteError overloaded.
        """
        end = max(end, partition.committed_end)
        if partition.leadership is None or partition.visible_end >= end:
            done(None)
            return
        user = sharer_of(call.auth.who)
        if not self._shares.fits(user, 1, limits.DECISION_WAITERS_MAX):
            raise RemoteError(ErrorCode.OVERLOADED, "too many requests wait for decisions on messages; ask again")
        deadline_us = self._context.now.elapsed_us + _WAIT_US
        self._shares.add(user)
        self._waiters[call.caller] = _Waiter(call.caller, user, partition, end, deadline_us, done)
        one = self._deciding.get(partition)
        if one is not None and one in self._paused:
            del self._paused[one]
            self.check(partition)

    def callers_disconnected(self, callers: Iterable[Hashable]) -> None:
        """Forget the requests of disconnected callers."""
        for caller in callers:
            self._take(caller)

    def _take(self, caller: Hashable) -> None:
        if (waiter := self._waiters.pop(caller, None)) is not None:
            self._shares.remove(waiter.user)

    def ended(self, partition: Partition, error: RemoteError) -> None:
        """Fail what waits for a partition that is no longer led here, or gone."""
        self._forget(partition)
        self._fail([one for one in self._waiters.values() if one.partition is partition], error)

    def stop(self, error: RemoteError) -> None:
        """Fail all requests because the broker stops. May be called twice."""
        self._is_stopped = True
        for partition in list(self._deciding):
            self._forget(partition)
        self._fail(list(self._waiters.values()), error)

    def _fail(self, waiters: Iterable[_Waiter], error: RemoteError) -> None:
        for waiter in waiters:
            self._take(waiter.caller)
            waiter.done(error)

    def resume(self, now_us: int) -> None:
        """Begin the decisions whose pause is over; `now_us` is elapsed time."""
        for one in [one for one in self._paused if _resume_us(one) <= now_us]:
            del self._paused[one]
            self.check(one.partition)

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `resume` must run."""
        return min(map(_resume_us, self._paused), default=None)

    def tick(self, now_us: int) -> None:
        """Try again what has failed, and fail what has waited for too long; `now_us` is elapsed time."""
        for one in [one for one in self._deciding.values() if one.retry_us is not None and one.retry_us <= now_us]:
            one.retry_us = None
            self.check(one.partition)
        for waiter in [one for one in self._waiters.values() if one.deadline_us <= now_us]:
            label = waiter.partition.label
            text = (
                f"what was committed in {label} before is not decided on yet (a limit by subject, rollups or interest)"
            )
            self._fail([waiter], RemoteError(ErrorCode.NOT_YET, f"{text}; ask again in a moment"))
