"""Schedules of the partitions led here: messages that are sent to another subject of their stream at their time.

Rules: the leader sends. A disk thread finds what is due (`node.partition.due_schedules`), one round at a time for each
partition, and the leader appends what is sent, in one batch. A message that was sent names its schedule, and the
decision on it hides the schedule (`node.partition.decisions`): readers are shown one of the two, never both.

    committed, or due → read → messages appended → committed → decided on: schedules hidden, messages shown
          ▲                            │                               │
          └── nothing was due ─────────┘                               └─▶ the next round

**Exactly once.** A round begins once all that the log held after the last append, or when the leadership began, is
decided on. So a schedule whose message is in the log is hidden by then, and one whose message was lost is sent again:
no reader was shown that message. No other state is kept: not beside the log, nor over a change of the leader.

What comes on the subject of a schedule while a round reads (`Partition.newcomers`) takes the schedule's place, and
nothing is sent. A round waits for requests that may remove one of its schedules, and deletions wait until what is sent
is decided on, so one that says that it has removed a schedule has kept its message from being sent.

**Clocks.** A schedule is due by the wall clock of the leader of now, which is asked again after SCHEDULES_WAIT_MS_MAX
at the latest. If it steps on, what is due by then is sent round by round, each of a bounded size; if it steps back,
what is not sent yet is sent later, and nothing that was sent is sent again.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.ingest.schedules import ScheduleRules
from penstock.live.row_set import NONE
from penstock.messages import AppendResponse, Response
from penstock.node.api.append_api import AppendApi
from penstock.node.api.deletions import Deletions
from penstock.node.api.rounds import PartitionRounds, Rounds
from penstock.node.context import Context
from penstock.node.partition.due_schedules import DueMessage, FindDue, scheduled_batch
from penstock.node.partition.expiry_blocks import NextRowsBudget
from penstock.node.partition.log_queries import QueryGivenUpError
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import as_remote_error
from penstock.node.replicas.replicas import Replicas
from penstock.node.step import InternalCaller
from penstock.replication.leader import Leadership

_LEARN_US = limits.SCHEDULES_LEARN_MS * 1_000
_WAIT_US_MAX = limits.SCHEDULES_WAIT_MS_MAX * 1_000
_RETRY_US = limits.MAINTENANCE_RETRY_MS * 1_000
_SOON = (ErrorCode.NOT_YET, ErrorCode.NOT_LEADER, ErrorCode.FENCED_EPOCH)  # not worth a notice


class _Sending(PartitionRounds):
    """State of one partition's schedules in one leadership, by one set of rules."""

    __slots__ = ("rules", "sent_end", "void")

    def __init__(
        self, partition: Partition, leadership: Leadership, rules: ScheduleRules, budget: NextRowsBudget
    ) -> None:
        super().__init__(partition, leadership, budget, _LEARN_US)
        self.rules = rules
        self.void = NONE  # see `FindDue`
        self.sent_end = partition.log.log_end  # no message of a schedule is in the log from there on

    @property
    def decided_end(self) -> int:
        """End of the rows that may be schedules now."""
        return min(self.partition.committed_end, self.partition.decided_end)


class Schedules:
    """Schedules of all partitions of one broker."""

    def __init__(self, context: Context, replicas: Replicas, storing: AppendApi, deletions: Deletions) -> None:
        self._context, self._outbox = context, context.outbox
        self._companions, self._truncations = replicas.companions, replicas.truncations
        self._storing, self._deletions = storing, deletions
        self._rounds: Rounds[_Sending] = Rounds(context, limits.SCHEDULES_RUNNING_MAX, self._begin)

    # When

    def check(self, partition: Partition) -> None:
        """Plan a round after messages were committed or shown, or the config or the leader has changed."""
        one, leadership = self._rounds.get(partition), partition.leadership
        if leadership is None or self._rounds.is_stopped or not self._applies(partition):
            self.forget(partition)
            return
        rules = ScheduleRules.of(partition.stream.config)
        if one is None or one.leadership is not leadership or one.rules != rules:
            self.forget(partition)
            one = _Sending(partition, leadership, rules, self._rounds.budget)
            self._rounds.add(one)
        self._rounds.plan_to_learn(one)

    def _applies(self, partition: Partition) -> bool:
        """True if schedules are sent: what is sent must be decided on, which a suspended deletion prevents."""
        return partition.stream.config.allows_schedules and partition.needs_decisions and partition.when_idle is None

    def forget(self, partition: Partition) -> None:
        """Drop what is known of a partition that is no longer led here, or is gone."""
        self._rounds.forget(partition)

    def stop(self) -> None:
        """Begin no more rounds because the broker stops. May be called twice."""
        self._rounds.stop()

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` must run."""
        return self._rounds.next_deadline_us

    def tick(self, now_us: int) -> None:
        """Begin the rounds that are due; `now_us` is elapsed time."""
        self._rounds.tick(now_us)

    # A round

    def _begin(self, one: _Sending) -> None:
        partition, now = one.partition, self._context.now
        if not self._applies(partition):
            self.forget(partition)
            return
        one.begun_us, end = now.elapsed_us, one.decided_end
        next_us = one.blocks.next_us
        if end < one.sent_end or (one.blocks.known_end >= end and (next_us is None or next_us > now.wall_us)):
            self._end(one)
            return
        try:
            partition.require_high_watermark()
            self._companions.check_readable(partition)
            if not partition.knows_hidden:
                raise RemoteError(ErrorCode.NOT_YET, "what is hidden is not known yet")
            view = partition.live_view()
        except RemoteError as error:
            self._retry(one, error)
            return
        one.newcomers = partition.note_newcomers()
        query = FindDue(view, one.blocks, end, now.wall_us, one.rules, one.void)

        def heard(error: Exception | None) -> None:
            if error is not None:
                self._retry(one, error)
            else:
                self._send(one, query)

        self._rounds.read(one, query, heard)

    def _send(self, one: _Sending, query: FindDue) -> None:
        partition, newcomers = one.partition, one.newcomers_since(query.log_end)
        if newcomers is None:
            self._retry(one, None)  # what has come since the round began is not known
            return
        one.void = query.void
        if query.unsent:
            partition.tell(query.unsent, self._outbox)
        find, hidden, log_start = newcomers.find, partition.log.hidden or NONE, partition.log_start

        def is_still_due(message: DueMessage) -> bool:
            name, offset = message.scheduler, message.offset
            return find(name, 0, len(name)) < 0 and offset >= log_start and offset not in hidden

        due = [message for message in query.due if is_still_due(message)]
        if not due:
            self._settle(one, query)
        elif self._may_be_purged(partition, due):
            self._retry(one, None)
        else:
            self._append(one, query, due)

    def _may_be_purged(self, partition: Partition, due: list[DueMessage]) -> bool:
        """True if a pending request may remove one of these schedules, which is not to be sent then."""
        lasts = {message.scheduler: message.offset for message in due}
        return due[0].offset < self._truncations.pending_end(partition) or self._deletions.may_hide(partition, lasts)

    def _append(self, one: _Sending, query: FindDue, due: list[DueMessage]) -> None:
        partition, batch = one.partition, query.batch
        if batch is None or len(due) < len(query.due):
            batch = scheduled_batch(due)

        def heard(response: Response | RemoteError) -> None:
            if not self._rounds.is_current(one):
                return
            if isinstance(response, AppendResponse):
                self._settle(one, query)
            else:
                self._retry(one, response if isinstance(response, RemoteError) else None)

        self._storing.append_to(partition, InternalCaller(heard), batch.data, batch.asked)
        one.sent_end = partition.markers_end = partition.log.log_end

    def _settle(self, one: _Sending, query: FindDue) -> None:
        query.settle()
        self._end(one, is_cut=query.is_cut)

    def _end(self, one: _Sending, *, is_cut: bool = False) -> None:
        """Plan the next round; once what was sent is decided on, `check` does."""
        one.over()
        now, next_us = self._context.now, one.blocks.next_us
        if one.decided_end < one.sent_end:
            return
        dues_us = [now.elapsed_us] if is_cut else []
        if one.blocks.known_end < one.decided_end:
            dues_us.append(one.begun_us + _LEARN_US)
        if next_us is not None:
            wait_us = min(max(0, next_us - now.wall_us), _WAIT_US_MAX)
            dues_us.append(max(now.elapsed_us + wait_us, one.begun_us + _LEARN_US))
        if dues_us:
            self._rounds.plan(one, min(dues_us))

    def _retry(self, one: _Sending, error: Exception | None) -> None:
        """Begin another round in a moment: nothing of this one is lost but the reading."""
        one.over()
        self._rounds.plan(one, self._context.now.elapsed_us + (_LEARN_US if error is None else _RETRY_US))
        if error is None or isinstance(error, QueryGivenUpError):
            return
        told = as_remote_error(error)
        if told.code not in _SOON:
            text = f"scheduled messages are not sent for now: {told.message}"
            one.partition.tell(text, self._outbox)
