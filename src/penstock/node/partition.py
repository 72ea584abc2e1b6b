"""One partition on this broker: a log, and what the broker is to it now, its leader, a follower, or neither.

Rules: one owner, no locks. A leader takes rows, and acks them once they are below `committed_end`, which its leadership
moves (`penstock.replication.leader`); readers see the same end, on whichever replica. `log_start ≤ committed_end ≤
log_end`, and `committed_end` never goes back. Messages over the budget are refused, not queued: memory is bounded
whatever the disk does. When the disk refuses one batch, the rest of its group is refused too: what was checked against
the end of the log, and the order of a publisher's messages, hold for all or for none.

| the broker is | takes              | `committed_end` is                     | at the end of it                  |
|---------------|--------------------|----------------------------------------|-----------------------------------|
| its leader    | messages, appends  | the leadership's                       | publishers hear nothing           |
| a follower    | its leader's bytes | the leader's, as far as it has the log |                                   |
| neither       | nothing            | what was known last                    |                                   |
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.config import Durability, Intake
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.ids import PartitionKey, StreamId
from penstock.batch import codec
from penstock.batch.header import MAY_HOLD_IDS
from penstock.commitlog import Log, LogState, LogView, ShortageError, StorageFullError
from penstock.hot.group import Group
from penstock.ingest import acks
from penstock.ingest.admission import Admission, Rules, refuse_all
from penstock.ingest.dedup import Dedup
from penstock.ingest.last_sequences import LastSequences, Reading
from penstock.ingest.producers import Place, Producers
from penstock.ingest.published import PublishedRuns
from penstock.ingest.waiters import Again, Got, Waiters, again, waiters
from penstock.messages.streams import CONSUMER_CONTROL
from penstock.metadata.image import StreamState
from penstock.node.admitting import admitted
from penstock.node.dedup import forget_purged, is_outdated
from penstock.node.in_flight import Budget, InFlight, Pending
from penstock.node.keys import Keys
from penstock.node.meters import Traffic
from penstock.node.step import Answers, Outbox, Step
from penstock.node.wording import STORE_FAILED, in_doubt, label
from penstock.replication.follower import Following
from penstock.replication.leader import Leadership, Standing, terms_of
from penstock.vfs import Vfs

_WRITTEN = Standing(1, fsynced=False)
_NOTHING: Mapping[str, int] = MappingProxyType({})
NO_ROLLUP = -1  # no message is there that all before it are to go for, and that was not seen to yet
UNKNOWN_ROLLUP = -2  # there may be one in the log


class Partition:
    """One partition here. An idle one is small: what it counts and what waits is made when needed."""

    __slots__ = (
        "_followed", "_recovered_end", "_rules", "budget", "cannot_lead", "closed", "committed_bytes", "committed_end",
        "counters", "cutting", "damage_told", "dedup", "dropped", "fenced_told", "flush_us", "flushing", "following",
        "fresh_us", "impediment", "in_flight", "is_mute", "key", "keys", "lasts", "leader_epoch", "leadership",
        "leads", "led_epoch", "listened_us", "log", "mending", "meters", "producers", "published", "refusal",
        "rollup_at", "sid", "stall", "stream", "subscribed", "terms", "traffic", "trouble", "truncated",
        "undelivered_told", "unheard", "unheard_told_us", "vfs", "visit_us", "when_idle",
    )  # fmt: skip

    def __init__(self, stream: StreamState, key: PartitionKey, log: Log, vfs: Vfs, budget: Budget) -> None:
        self.key = key
        self.log = log
        self.leadership: Leadership | None = None  # this broker leads
        self.following: Following | None = None  # this broker follows
        self.dedup: Dedup | None = None  # of this leadership, once somebody sends message ids
        self.lasts: LastSequences | None = None  # of this leadership, once somebody expects one of a subject
        self.keys: Keys | None = None  # of this leadership, where keys have moved
        self.producers: Producers | None = None  # of this leadership, once one of them appends
        self.published: PublishedRuns | None = None  # of this leadership, once a run is to be published
        self.is_mute = False  # it leads, and the metadata leader may have another one lead by now
        self.leads = False  # the log has the beginning of this leadership: from the first message on
        self.traffic: Traffic  # once it leads in that sense
        self.cannot_lead = ""  # why it could not begin
        self.impediment = ""  # why the disk took nothing when it was asked last
        self.mending = ""  # while the log is damaged: what it waits for, or why it could not be mended
        self.closed = ""  # why the log, which was closed to be mended, could not be opened again; `cutting` lasts
        self.stall = ""  # a sync has not come back for long, and since when; until it does
        self.flushing = False  # a flush of the log is under way
        self.flush_us: int | None = None  # when the next one is planned
        self.cutting: Callable[[], None] | None = None  # what is to be done once no flush is under way
        self.when_idle: Callable[[], None] | None = None  # the stream is gone; to be called when no flush is under way
        self.visit_us: int | None = None  # when the next visit of its upkeep is planned, by the calendar
        self.fresh_us: int | None = None  # up to when all that was committed is shown, while nobody is followed
        self.trouble, self.fenced_told, self.damage_told = "", False, 0  # what the operator was told; of damage, ranges
        self.vfs = vfs
        self.in_flight = InFlight(budget)
        self.committed_bytes = 0  # so far, since the start: only grows
        self._recovered_end = log.log_end
        self.sid, self.subscribed = 0, False  # of its subscription; 0: there is none
        self.refusal = ""  # why NATS does not let the broker subscribe
        # By the calendar: until then somebody listened, as far as this broker knows.
        self.listened_us = max(stream.created_us, log.last_timestamp_us)
        self.led_epoch = 0  # the last leader epoch in which this broker led it, or did before it was started; 0: none
        self.rollup_at = NO_ROLLUP  # where the last message of this leadership is for which all before it are to go
        self.dropped: Mapping[str, int] = _NOTHING  # how many messages, by reason
        self.undelivered_told: frozenset[bytes] = frozenset()  # kinds of refusals, since the stream's config changed
        self.unheard, self.unheard_told_us = 0, 0  # refused without an answer since the log told so; when it may again
        self.budget, self.meters, self.counters = budget, budget.meters, budget.counters
        self._followed: deque[tuple[int, int]] | None = None  # end and size of what a leader sent, not yet committed
        self.reconfigure(stream)
        self.committed_end = self._recovered_committed_end()

    @property
    def subject(self) -> str:
        """Where it listens."""
        return self.stream.config.subject_of(self.key.partition)

    @property
    def queue(self) -> str | None:
        """In which queue group of NATS it listens."""
        return self.stream.queue

    @property
    def channel(self) -> StreamId | None:
        """What those have in common who part one subscription between them: the stream, where each hears all of it."""
        return self.key.stream_id if self.stream.config.split.is_by_leaders else None

    @property
    def label(self) -> str:
        """What it is called in texts for people."""
        return label(self.stream, self.key.partition)

    @property
    def is_writable(self) -> bool:
        """Whether messages are stored now."""
        may_lead = self.stream.takes and self.leadership is not None and not self.cannot_lead and not self.is_mute
        return may_lead and self.log.state is LogState.WRITABLE

    @property
    def is_deaf(self) -> bool:
        """Whether nobody is to listen for it."""
        return self.stream.intake is Intake.PAUSED or self.stream.config.is_internal

    @property
    def reads_log(self) -> bool:
        """Whether messages wait until something in the log is known."""
        reads_ids = self.dedup is not None and self.dedup.is_reading
        return reads_ids or (self.lasts is not None and self.lasts.reading is Reading.END)

    @property
    def is_impeded(self) -> bool:
        """Whether the log takes nothing now."""
        return bool(self.impediment or self.stall) or self.log.state in (LogState.READ_ONLY, LogState.FENCED)

    @property
    def waits_for_sync(self) -> bool:
        """Whether somebody waits for the disk of this broker."""
        if self.leadership is not None:
            return self.leadership.waits_for_own_disk
        return self.following is not None and self.tells_flushes and not self.following.is_observer

    @property
    def tells_flushes(self) -> bool:
        """Whether commits wait for the disks of followers."""
        return self.terms.durability is Durability.FSYNC

    @property
    def is_replicated(self) -> bool:
        """Whether several brokers may lead it."""
        return len(self.stream.partitions[self.key.partition].replicas) > 1

    @property
    def is_copied(self) -> bool:
        """Whether several brokers have it, for readers at least."""
        return len(self.stream.partitions[self.key.partition].holders) > 1

    @property
    def may_pass(self) -> bool:
        """Whether there is another one in sync, who could lead it."""
        return len(self.stream.partitions[self.key.partition].isr) > 1

    def _recovered_committed_end(self) -> int:
        """What may be read before anybody leads."""
        if self.is_copied:
            return self.log.committed_end
        return self.log.log_end if self.terms.durability is Durability.OS else self.log.flushed_end

    def reconfigure(self, stream: StreamState) -> None:
        """Take over what the image says of the stream now."""
        self.stream = stream
        self.leader_epoch = stream.partitions[self.key.partition].leader_epoch
        self.truncated = stream.truncated_at(self.key.partition)
        self._rules = rules = Rules.of(stream.config, self.key.partition)
        self.undelivered_told = frozenset()
        if self.dedup is not None and is_outdated(self.dedup, rules, stream, self.key.partition):
            self.dedup = None
        if self.dedup is not None:
            self.dedup.forget_below(self.truncated_end)
            forget_purged(self.dedup, stream)
        assert stream.config.min_isr is not None
        self.terms = terms_of(stream.config.durability, stream.config.min_isr)
        if self.leadership is not None:
            self.leadership.reconfigured(self.terms)

    def tell(self, trouble: str, outbox: Outbox) -> None:
        """Tell the operator, unless that was the last thing that he was told: it may be found once a second."""
        if trouble != self.trouble:
            self.trouble = trouble
            outbox.notice(f"{self.label}: {trouble}")

    # Where it begins

    @property
    def truncated_end(self) -> int:
        """Up to where the cluster has given up, by request, what this log has; 0: nothing.

        Only of what was written by then: after an unclean election others may stand at those offsets. All before it
        was committed.
        """
        if (truncated := self.truncated) is None:
            return 0
        return min(truncated.before, self.log.epoch_end(truncated.leader_epoch).start_offset)

    @property
    def log_start(self) -> int:
        """Where it begins for readers: the log may follow a moment later, once its disk has all before."""
        start = self.log.log_start
        if self.truncated is None or start >= self.truncated.before:
            return start
        return max(start, min(self.truncated_end, self.committed_end))

    def view(self) -> LogView:
        """The log as readers may see it now."""
        view, start = self.log.view(), self.log_start
        return view if start == view.log_start else view.starting_at(start)

    # Its place among the replicas

    def lead(self, leadership: Leadership) -> None:
        """This broker leads from now on."""
        self.following, self._followed = None, None
        self.leadership = leadership
        self.rollup_at = UNKNOWN_ROLLUP if self.stream.config.allow_rollup else NO_ROLLUP
        self.leads, self._recovered_end = False, self.log.log_end
        if leadership.committed_end > self.committed_end:
            self._commit(leadership.committed_end)
        self.log.note_committed(self.committed_end)  # the checkpoint may know of less

    def resign(self, step: Step) -> None:
        """It leads no more. What waits was not committed in its time: publishers are not told what they cannot know."""
        self.leadership = self.keys = None
        self.rollup_at, self.leads = NO_ROLLUP, False
        self.dedup = self.lasts = self.producers = self.published = None
        text = f"{self.label} is led by another broker now: what was appended may or may not be stored"
        # Not `not_leader`: that would say that nothing was stored, and it would be appended again.
        self.abandon(RemoteError(ErrorCode.FENCED_EPOCH, text), step)

    def follow(self, following: Following) -> None:
        """Another broker leads, and this one holds a replica."""
        self.following = following
        self._recovered_end = self.log.log_end

    def append_fetched(self, data: memoryview) -> None:
        """Take what the leader sent. Errors as `Log.append_fetched`."""
        appended = self.log.append_fetched(data)
        self.impediment = ""
        self.counters["replicated_bytes"] += appended.size_bytes
        if self._followed is None:
            self._followed = deque()
        self._followed.append((appended.log_end, appended.size_bytes))

    def follow_committed(self, end: int) -> None:
        """The leader says that all before `end` is committed, and it is here."""
        self._commit(end)
        while self._followed and self._followed[0][0] <= end:
            self.committed_bytes += self._followed.popleft()[1]
        if not self._followed:
            self._followed = None

    def follow_cut(self) -> None:
        """The log was cut to agree with the leader's: what it shows ends there, too, at the latest."""
        self._followed = None
        self._recovered_end = self.log.log_end
        assert self.following is not None
        self.committed_end = int(self.following.committed_end)

    def reopened(self, log: Log) -> None:
        """Its log was opened anew, mended or not; nobody leads or follows with it yet."""
        self.log, self._followed, self._recovered_end = log, None, log.log_end
        self.damage_told, self.impediment = 0, ""
        self.closed = self.mending = ""
        self.committed_end = max(log.log_start, min(self.committed_end, log.log_end))

    # Messages

    def ingest(self, group: Group, now: Now, step: Step, *, must: bool = False) -> bool:
        """Store what NATS delivered, or say why not; False, unless it `must`: something is read from the log first."""
        admission = admitted(self, self._rules, self.budget, group, now, step, must=must)
        if admission is None:
            return False
        self._tell_refused(admission, step)
        if admission.unheard:
            self._tell_unheard(admission, now, step)
        rows = admission.rows
        base_offset = self.log.log_end
        refusal: acks.AckError | None = None
        start, count, flags = 0, len(rows), admission.flags
        while start < count:
            end = rows.batch_end(start, limits.BATCH_ROWS_MAX, limits.BATCH_ROWS_BYTES_MAX)
            if refusal is None:
                refusal = self._write(rows, start, end, flags, now, step)
            if refusal is not None:
                self._count_dropped({STORE_FAILED: end - start})
                for is_early in (False, True):
                    self._refuse(waiters(rows, start, end, is_early=is_early), refusal, step)
            start = end
        if admission.rollup_row >= 0:
            self.rollup_at = UNKNOWN_ROLLUP if refusal is not None else base_offset + admission.rollup_row
        if refusal is not None and self.dedup is not None:
            self.dedup.cut(self.log.log_end)
        if self.lasts is not None:
            self.lasts.stored(rows, base_offset, self.log.log_end)
        if admission.duplicates:
            self._answer_again(admission, refusal, now, step)
        if self.in_flight:
            self.advance(step)
        return True

    def timestamp_us(self, now: Now) -> int:
        """Of what is written now: it never goes back."""
        timestamp_us = max(now.wall_us, self.log.last_timestamp_us)
        return timestamp_us if self.dedup is None else self.dedup.at(timestamp_us)

    def _answer_again(self, admission: Admission, refusal: acks.AckError | None, now: Now, step: Step) -> None:
        """Tell who sent what is there already where it is, as soon as that is committed."""
        found, group, written, leadership = admission.duplicates, admission.of, self.log.log_end, self.leadership
        assert group is not None
        assert leadership is not None
        if refusal is not None:  # of what this read brought twice, both may be refused
            self._refuse(again(group, found, written, limits.OFFSET_MAX), refusal, step)
            self._count_dropped({STORE_FAILED: sum(one.number >= written for one in found)})
        self.counters["duplicates"] += sum(one.number < written for one in found)
        now_us = self.timestamp_us(now)
        if (those := again(group, found, 0, leadership.committed_end)) is not None:
            self._ack(those, 0, now_us, step, leadership.standing(those.last + 1), now.elapsed_us)
        if (those := again(group, found, leadership.committed_end, written)) is not None:
            # What is behind the first is waited for as well: so all that waits stays in order.
            self.in_flight.add(Pending(written, written, 0, now_us, those, None, arrived_us=now.elapsed_us))

    def turn_away(self, group: Group, error: acks.AckError, reason: str, step: Step) -> None:
        """Refuse what is not its own, or not yet."""
        self._tell_refused(refuse_all(group, self._rules, error, reason), step)

    def _tell_refused(self, admission: Admission, step: Step) -> None:
        if admission.elsewhere:
            self.counters["duplicates"] += admission.elsewhere
        if admission.dropped:
            self._count_dropped(admission.dropped)
        if admission.undelivered:
            self._tell_undelivered(admission.undelivered, step)
        if admission.errors:
            step.publish.append(Answers(self.sid, b"".join(admission.errors)))
        if admission.denials:
            self._deny(admission.denials, step)

    def _tell_undelivered(self, found: Mapping[bytes, str], step: Step) -> None:
        """Tell the operator, once of each kind, what a JetStream consumer delivers again: it hears nothing."""
        for kind, text in found.items():
            if kind not in self.undelivered_told and len(self.undelivered_told) < limits.UNDELIVERED_KINDS_TOLD_MAX:
                self.undelivered_told |= {kind}
                said = "what a JetStream consumer delivers is not stored, and is delivered again"
                step.notices.append(f"{self.label}: {said}: {text}")

    def _tell_unheard(self, admission: Admission, now: Now, step: Step) -> None:
        """Have the log say that messages were refused and no publisher hears of it; not too often."""
        self.unheard += admission.unheard
        if now.elapsed_us < self.unheard_told_us:
            return
        text = f"refused {self.unheard} messages that asked for no ack, so no publisher heard of it; the last one"
        step.notices.append(f"{self.label}: {text} {admission.unheard_why}")
        self.unheard, self.unheard_told_us = 0, now.elapsed_us + limits.UNHEARD_TOLD_MS * 1_000

    def _deny(self, commands: bytes, step: Step) -> None:
        """Tell publishers that their messages are not stored; where others may lead, once none of them can have it."""
        answers = Answers(self.sid, commands)
        if self.is_replicated:
            self.budget.refusals.add(self, answers)
        else:
            step.publish.append(answers)

    def _count_dropped(self, dropped: Mapping[str, int]) -> None:
        self.dropped = Counter(self.dropped) + Counter(dropped)
        self.counters["dropped"] += sum(dropped.values()) - dropped.get(CONSUMER_CONTROL, 0)

    def _refuse(self, refused: Waiters | Again | None, error: acks.AckError, step: Step) -> None:
        if refused is None:
            return
        commands = refused.refusal_commands(self._rules, error)
        if error.reason == ErrorCode.OUTCOME_UNKNOWN:
            step.publish.append(Answers(self.sid, commands))
        else:
            self._deny(commands, step)

    def _write(self, rows: Group, start: int, end: int, flags: int, now: Now, step: Step) -> acks.AckError | None:
        base_offset, timestamp_us = self.log.log_end, self.timestamp_us(now)
        leader_epoch = self.leader_epoch
        data, header = codec.encode(
            rows, start, end, base_offset=base_offset, timestamp_us=timestamp_us, leader_epoch=leader_epoch, flags=flags
        )
        try:
            self.log.append(data, header)
        except ShortageError as error:
            return acks.unavailable(str(error))
        except OperationalError as error:
            self.note_refusal(error)
            is_cut_back = self.log.state is not LogState.FENCED
            return acks.store_failed(str(error)) if is_cut_back else acks.outcome_unknown(str(error))
        self.impediment = ""
        if flags & MAY_HOLD_IDS and self.dedup is not None:
            self.dedup.written(timestamp_us, header.end_offset)
        end_offset, size_bytes = header.end_offset, len(data)
        self.traffic.stored(end - start, size_bytes)
        self._ack(waiters(rows, start, end, is_early=True), base_offset, timestamp_us, step, _WRITTEN, now.elapsed_us)
        late = waiters(rows, start, end, is_early=False)
        leadership = self.leadership
        assert leadership is not None
        leadership.appended(end_offset, now.elapsed_us)
        if self.in_flight or leadership.committed_end < end_offset:
            pending = Pending(base_offset, end_offset, size_bytes, timestamp_us, late, None, None, now.elapsed_us)
            self.in_flight.add(pending)
        else:  # written is all that was promised
            self._commit(end_offset)
            self.committed_bytes += size_bytes
            self._ack(late, base_offset, timestamp_us, step, leadership.standing(end_offset), now.elapsed_us)
        return None

    def _ack(
        self, acked: Waiters | Again | None, base: int, timestamp_us: int, step: Step, so: Standing, arrived_us: int
    ) -> None:
        if acked is not None:
            got = Got(self.key.partition, self.leader_epoch, so.replicas, so.fsynced)
            commands, count = acked.ack_commands(self._rules, base, timestamp_us, got), acked.acks_count
            step.publish.append(Answers(self.sid, commands, count, arrived_us))
            self.meters.acks_made += count

    def append_again(self, caller: Hashable, place: Place, step: Step) -> None:
        """What is to be appended is there: `caller` hears where, once that is committed."""
        pending = Pending(place.base_offset, place.end_offset, 0, place.timestamp_us, None, caller, is_duplicate=True)
        assert self.leadership is not None
        if place.end_offset <= self.committed_end:
            self._answer(pending, self.leadership, step)
        else:  # behind all that waits already: so it stays in order
            self.in_flight.add(pending)

    def note_refusal(self, error: OperationalError) -> None:
        """The log has not taken a batch."""
        if isinstance(error, StorageFullError):
            self.counters["disk_full"] += 1
        if not isinstance(error, ShortageError):
            self.impediment = str(error)

    def advance(self, step: Step) -> bool:
        """Take over how far the leadership has committed, and answer who waited; whether it moved."""
        leadership = self.leadership
        if leadership is None or leadership.committed_end <= self.committed_end:
            return False
        end = leadership.committed_end
        self._commit(end)
        for pending in self.in_flight.take(end):
            self.committed_bytes += pending.size_bytes
            self._answer(pending, leadership, step)
        return True

    def _commit(self, end: int) -> None:
        if self.committed_end < self._recovered_end:
            self.committed_bytes += self.log.size_bytes  # what was there before: no less than that part of it
        self.committed_end = end
        self.log.note_committed(end)

    def _answer(self, pending: Pending, leadership: Leadership, step: Step) -> None:
        standing = leadership.standing(pending.end_offset)
        self._ack(pending.waiters, pending.base_offset, pending.timestamp_us, step, standing, pending.arrived_us)
        if pending.caller is not None:
            step.answer(pending.caller, pending.response(self.leader_epoch, fsynced=standing.fsynced))

    def fail_pending(self, reason: str, step: Step) -> None:
        """What is written can no longer be made durable: tell who waits. It may or may not be there after a restart."""
        error = acks.outcome_unknown(reason)
        for pending in self.in_flight.take():
            self._refuse(pending.waiters, error, step)
            if pending.caller is not None:
                step.answer(pending.caller, in_doubt(reason))

    def abandon(self, error: RemoteError, step: Step) -> None:
        """Nobody commits it here any more: publishers hear nothing (they were never acked), callers get `error`."""
        for pending in self.in_flight.take():
            if pending.caller is not None:
                step.answer(pending.caller, error)
