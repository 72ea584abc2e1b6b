"""One partition replica on this broker: its log, and the broker's role for it (leader, follower, or neither).

Rules: one owner, no locks. A leader appends rows and acks them once they are below the high watermark
(`committed_end`), which its leadership advances (`penstock.replication.leader`). Readers see the same end on every
replica. `log_start ≤ committed_end ≤ log_end`, and `committed_end` never goes back. With a limit by subject readers see
`visible_end`: behind it, it is not decided yet which earlier messages the committed ones hide. Messages over the
in-flight budget are refused, not queued, so memory is bounded however slow the disk is. When the disk refuses one
batch, the rest of its group is refused too: checks against the end of the log, and a publisher's message order, hold
for all or for none.

| the broker is | takes              | `committed_end` is                     | when the role ends                |
|---------------|--------------------|----------------------------------------|-----------------------------------|
| its leader    | messages, appends  | the leadership's                       | publishers get no ack, no error   |
| a follower    | its leader's bytes | the leader's, as far as it has the log |                                   |
| neither       | nothing            | the last known one                     |                                   |
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.config import Durability, Intake, Retain, SchemaCheck, Storage
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.ids import PartitionKey, StreamId
from penstock.base.subjects import DOMAIN_SUBJECT_PREFIXES
from penstock.batch import codec
from penstock.batch.header import MAY_HOLD_IDS, MAY_ROLL_UP
from penstock.commitlog import Log, LogState, LogView, ShortageError, StorageFullError
from penstock.hot.message_group import MessageGroup
from penstock.hot.subject_table import SubjectTable
from penstock.ingest import acks
from penstock.ingest.ack_waiters import AckDetails, AckWaiters, BatchWaiter, DuplicateWaiters, again, waiters
from penstock.ingest.admission import (
    ANY_ROOM,
    OTHER_STREAM,
    REFUSED,
    Admission,
    AdmissionRules,
    Room,
    admit,
    marks_of,
    refuse_all,
)
from penstock.ingest.atomic_batches import MARK, ReadyBatch, is_of_batch, pieces
from penstock.ingest.dedup import Dedup
from penstock.ingest.last_sequences import LastSequences
from penstock.ingest.producers import ProducerBatch, Producers
from penstock.ingest.published import PublishedRuns
from penstock.ingest.value_check import SCHEMAS_UNKNOWN, VERSION_UNDECIDED, KnownSchemas, ValueCheck
from penstock.live.row_set import RowSet
from penstock.messages.streams import CONSUMER_CONTROL
from penstock.metadata.image import StreamState
from penstock.node.partition.atomic_ingest import AtomicIngest
from penstock.node.partition.counters import PartitionCounters
from penstock.node.partition.dedup import forget_purged, is_outdated, read_ids
from penstock.node.partition.in_flight import InFlight, InFlightBudget, PendingBatch
from penstock.node.partition.key_migration_state import KeyMigrationState
from penstock.node.partition.last_sequences import Counted, search
from penstock.node.partition.partition_errors import (
    CODES,
    FENCED,
    NOT_LEADER,
    OVER_BUDGET,
    READ_ONLY,
    STORE_FAILED,
    TOO_FEW_REPLICAS,
    as_remote_error,
    outcome_unknown_text,
    partition_label,
)
from penstock.node.partition.row_limit import UNCOUNTED, ReadGaps, RowLimit
from penstock.node.partition.visible_rows import AppliedMarks, VisibleRows
from penstock.node.step import DiskWork, Lane, NatsAnswers, Outbox, Step
from penstock.replication.follower import Following
from penstock.replication.leader import CommitStatus, Leadership, terms_of
from penstock.vfs import Vfs

Waiters = AckWaiters | BatchWaiter

_MARKS_UNKNOWN = "the new leader does not know yet which messages are deleted"
_WRITTEN = CommitStatus(1, fsynced=False)
_NO_MESSAGES: list[tuple[bytes, bytes]] = []
_NOTHING: Mapping[str, int] = MappingProxyType({})
NO_ROLLUP = -1  # no rollup message (one that purges everything before it) is waiting to be applied
UNKNOWN_ROLLUP = -2  # the log may hold such a message


class Shown(NamedTuple):
    """The part of a log that readers are shown. `taken`: how often the cleaner has taken rows that were not hidden."""

    hidden: RowSet | None
    log_start: int
    end: int
    taken: int


class Partition:
    """One partition replica. An idle one is small: counters, waiters and caches are created on first use."""

    __slots__ = (
        "_followed", "_marked", "_recovered_end", "_rules", "ack_domain", "batches", "budget", "cannot_lead", "closed",
        "committed_bytes", "committed_end", "counters", "cutting", "damage_told", "dedup", "domain_prefix", "dropped",
        "drops_unwanted", "fenced_told", "flush_us", "flushing", "following", "fresh_us", "image_index", "impediment",
        "in_flight", "is_mute", "key", "keys", "lags_leader", "lasts", "leader_epoch", "leadership", "leads",
        "led_epoch", "limit_start", "listened_us", "log", "markers_end", "marks_failure", "mending", "mending_fails",
        "meters", "misaddressed", "names_checked_us", "newcomers", "owes_name_check", "producers", "published",
        "refusal", "rolled_up_end", "rollup_at", "row_limit", "sid", "stall", "stream", "subscribed", "taken", "terms",
        "traffic", "trouble", "truncated", "undelivered_told", "unheard", "unheard_told_us", "unmarked", "values",
        "vfs", "visible", "visit_us", "wanted_end", "when_idle",
    )  # fmt: skip

    def __init__(self, stream: StreamState, key: PartitionKey, log: Log, vfs: Vfs, budget: InFlightBudget) -> None:
        self.key = key
        self.log = log
        self.leadership: Leadership | None = None  # this broker leads
        self.following: Following | None = None  # this broker follows
        self.dedup: Dedup | None = None  # of this leadership; None until a message with a message id arrives
        # of this leadership; None until a message states an expected last sequence
        self.lasts: LastSequences | None = None
        self.batches: AtomicIngest | None = None  # of this leadership; None until a message of a batch arrives
        # last messages of the subjects that got some since a round of expiry, or of schedules, began
        self.newcomers: tuple[SubjectTable, ...] = ()
        self.keys: KeyMigrationState | None = (
            None  # of this leadership; None unless keys have moved to other partitions
        )
        self.producers: Producers | None = None  # of this leadership; None until a producer appends
        self.published: PublishedRuns | None = None  # of this leadership; None until a staged run is published
        self.row_limit: RowLimit | None = None  # of this leadership; None if the stream has no limit for it
        self.limit_start = 0  # offset below which a leader's limit has pushed all messages out
        self.values: KnownSchemas | None = None  # of a stream that checks values; None until they are known here
        self._marked: tuple[MessageGroup, ValueCheck, bytes | None] | None = None  # the last group that was checked
        self.is_mute = False  # it leads, but the metadata leader may have elected another leader by now
        self.leads = False  # the log has this leadership's epoch entry, which is written before the first message
        self.traffic: PartitionCounters  # set when `leads` becomes True
        self.cannot_lead = ""  # why the leadership could not begin
        self.impediment = ""  # why the last disk write failed; empty if it did not
        self.mending = ""  # while the log is corrupt: what the repair waits for, or why it failed
        self.mending_fails = False  # the last repair failed; it is tried again
        self.closed = ""  # why the log, closed for a repair, could not be opened again; meanwhile `cutting` stays set
        self.stall = ""  # set while an fsync has not returned for long: the reason, and since when
        self.flushing = False  # a flush of the log is under way
        self.names_checked_us = 0  # elapsed time of the last look whether the log's file was removed
        self.owes_name_check = False  # the last sync did without that look
        self.flush_us: int | None = None  # elapsed time of the next planned flush
        self.cutting: Callable[[], None] | None = None  # action to run once no flush is under way
        # set when the stream is deleted: called once no flush is under way
        self.when_idle: Callable[[], None] | None = None
        self.visit_us: int | None = None  # wall-clock time of the next upkeep visit
        self.lags_leader = False  # while no leader is followed: the last one had committed more than is here
        self.fresh_us: int | None = None  # while no leader is followed: all that was committed by then is shown here
        # last notice to the operator; of corruption, the number of ranges reported
        self.trouble, self.fenced_told, self.damage_told = "", False, 0
        self.visible = VisibleRows()
        self.taken = 0  # how often the cleaner has taken rows that were not hidden
        self.marks_failure = ""  # why a leader that does not know what is hidden will not learn it soon
        self.unmarked = ""  # why what a survey has found to go is not hidden yet
        self.vfs = vfs
        self.in_flight = InFlight(budget)
        self.committed_bytes = 0  # committed since the start of the broker; only grows
        self._recovered_end = log.log_end
        self.domain_prefix = self.ack_domain = ""  # see `subjects`, and the setting of this name
        self.sid, self.subscribed = 0, False  # id of its NATS subscription; 0 if there is none
        self.refusal = ""  # why NATS refused the subscription
        # Wall-clock time until which a leader was subscribed, as far as this broker knows.
        self.listened_us = max(stream.created_us, log.last_timestamp_us)
        self.led_epoch = 0  # last leader epoch in which this broker led, also in earlier runs; 0 if none
        self.rollup_at = NO_ROLLUP  # offset of this leadership's last rollup message of all
        self.rolled_up_end = 0  # a leader's log has no rollup from there on
        self.drops_unwanted = False  # a committed row that no consumer wants is never shown
        self.wanted_end = 0  # rows before it stay, wanted or not, where no leader has decided on interest yet
        self.markers_end = 0  # this leadership has written no delete marker from there on
        self.dropped: Mapping[str, int] = _NOTHING  # number of dropped messages by reason
        # kinds of refusals reported since the stream's config changed
        self.undelivered_told: frozenset[bytes] = frozenset()
        self.misaddressed = _NO_MESSAGES
        # refusals without a reply since the last notice; when the next may be logged
        self.unheard, self.unheard_told_us = 0, 0
        self.budget, self.meters, self.counters = budget, budget.meters, budget.counters
        self._rules: AdmissionRules
        # end and size of fetched batches that are not committed yet
        self._followed: deque[tuple[int, int]] | None = None
        self.committed_end = 0
        self.image_index = 0  # the metadata command since which readers are shown rows by the present rules
        self.stream = stream
        self.reconfigure(stream, 0)
        self.committed_end = self._recovered_committed_end()

    @property
    def subjects(self) -> tuple[str, ...]:
        """NATS subjects of its messages.

        Clients of a JetStream domain publish values of a key-value bucket, and pieces of an object, behind the prefix
        of the domain's API.
        """
        subjects = self.stream.config.subjects_of(self.key.partition)
        if not self.domain_prefix:
            return subjects
        mapped = (f"{self.domain_prefix}{one}" for one in subjects if one.startswith(DOMAIN_SUBJECT_PREFIXES))
        return (*subjects, *mapped)

    @property
    def queue(self) -> str | None:
        """NATS queue group of the subscription; None if there is none."""
        return self.stream.queue

    @property
    def channel(self) -> StreamId | None:
        """Key of the subscription that partitions share: the stream, if each leader receives the whole stream."""
        return self.key.stream_id if self.stream.config.split.is_by_leaders else None

    @property
    def label(self) -> str:
        """Name for log lines and error texts."""
        return partition_label(self.stream, self.key.partition)

    @property
    def is_writable(self) -> bool:
        """True if new messages are stored now."""
        may_lead = self.stream.takes and self.leadership is not None and not self.cannot_lead and not self.is_mute
        return may_lead and self.log.state is LogState.WRITABLE

    @property
    def is_deaf(self) -> bool:
        """True if the partition must not be subscribed."""
        return self.stream.intake is Intake.PAUSED or self.stream.config.is_internal

    @property
    def reads_log(self) -> bool:
        """True if messages wait until message ids, last sequences or the gaps are read from the log."""
        if self.row_limit is not None and self.row_limit.is_reading and not self.row_limit.is_known:
            return True
        reads_ids = self.dedup is not None and self.dedup.is_reading
        return reads_ids or (self.lasts is not None and self.lasts.is_searching)

    @property
    def is_impeded(self) -> bool:
        """True if the log takes no appends now."""
        return bool(self.impediment or self.stall) or self.log.state in (LogState.READ_ONLY, LogState.FENCED)

    @property
    def archived_end(self) -> int:
        """Offset below which all archives have this log; 0 if there is none, or if one has not reported."""
        found = self.stream.archived_at(self.key.partition)
        epoch_end = self.log.epoch_end
        return min((min(one.end_offset, epoch_end(one.leader_epoch).start_offset) for one in found), default=0)

    @property
    def removable_end(self) -> int:
        """Offset below which retention may delete."""
        if self.stream.config.retain is Retain.LIMITS:
            return self.committed_end
        return min(self.committed_end, self.archived_end)

    @property
    def waits_for_sync(self) -> bool:
        """True if a commit waits for this broker's fsync."""
        if self.leadership is not None:
            return self.leadership.waits_for_own_disk
        return self.following is not None and self.tells_flushes and not self.following.is_observer

    @property
    def tells_flushes(self) -> bool:
        """True if commits may wait for the fsync of followers: a leader of 0.3 waits for it also in memory."""
        return self.stream.config.durability is Durability.FSYNC

    @property
    def is_replicated(self) -> bool:
        """True if several brokers may lead the partition."""
        return len(self.stream.partitions[self.key.partition].replicas) > 1

    @property
    def is_copied(self) -> bool:
        """True if several brokers hold the partition, read replicas (observers) included."""
        return len(self.stream.partitions[self.key.partition].holders) > 1

    @property
    def may_pass(self) -> bool:
        """True if another in-sync replica could lead."""
        return len(self.stream.partitions[self.key.partition].isr) > 1

    def _recovered_committed_end(self) -> int:
        """Return the high watermark to use before a leader is known."""
        if self.is_copied:
            return self.log.committed_end
        return self.log.log_end if self.terms.durability is Durability.OS else self.log.flushed_end

    def reconfigure(self, stream: StreamState, image_index: int) -> None:
        """Apply the stream's state in the metadata image, which ends with that command."""
        seen_end = self.visible_end
        before = self.stream.has_marks, self.needs_decisions
        if stream.decides_rollups and not self.stream.decides_rollups:
            self.rolled_up_end = self.log.log_end  # what the log holds counts from now on, whenever it came
        self.stream = stream
        self.leader_epoch = stream.partitions[self.key.partition].leader_epoch
        self.truncated = stream.truncated_at(self.key.partition)
        rules = AdmissionRules.of(stream.config, self.key.partition)
        if self.lasts is not None and rules.subject_max != self._rules.subject_max:
            self.lasts = None
        self._rules = rules
        if not rules.allows_batches:
            self._drop_batches()
        self.undelivered_told = frozenset()
        if self.dedup is not None and is_outdated(self.dedup, rules, stream, self.key.partition):
            self.dedup = None
        if self.dedup is not None:
            self.dedup.forget_below(self.truncated_end)
            forget_purged(self.dedup, stream)
        config = stream.config
        needs_decisions = config.subject_limit is not None or stream.decides_rollups or config.drops_unwanted
        needs_decisions = needs_decisions and stream.intake is not Intake.SEALED
        needs_decisions = needs_decisions and not config.is_deletion_suspended
        drops_unwanted = needs_decisions and config.drops_unwanted
        if drops_unwanted and not self.drops_unwanted:
            self.wanted_end = self.log.log_end
        self.drops_unwanted = drops_unwanted
        if self.needs_decisions and not needs_decisions:
            self.committed_bytes = max(self.committed_bytes, self.visible_bytes)  # polls wait for a value beyond it
        self.visible.configure(seen_end, self.committed_bytes, needs_decisions=needs_decisions)
        self._visible_grown(seen_end)
        assert config.min_isr is not None
        is_in_memory = config.storage is Storage.MEMORY
        self.terms = terms_of(
            config.durability, config.min_isr, is_in_memory=is_in_memory, companions=stream.companions
        )
        if before != (stream.has_marks, needs_decisions):
            self.image_index = image_index
        if self.leadership is not None:
            self.leadership.image_index = self.image_index
            self.leadership.reconfigured(self.terms)
            self._limit_rows()

    def tell(self, trouble: str, outbox: Outbox) -> None:
        """Log a notice, unless it repeats the last one: callers may find the same trouble every second."""
        if trouble != self.trouble:
            self.trouble = trouble
            outbox.notice(f"{self.label}: {trouble}")

    # Log start

    @property
    def truncated_end(self) -> int:
        """End of the offsets in this log that were truncated on request; 0 if none.

        Counts only what was written by then: after an unclean election other messages may have those offsets.
        Everything before this end was committed.
        """
        if (truncated := self.truncated) is None:
            return 0
        return min(truncated.before, self.log.epoch_end(truncated.leader_epoch).start_offset)

    @property
    def log_start(self) -> int:
        """Log start offset for readers. The log's own may follow later, once its disk has everything before it."""
        start = self.log.log_start
        if self.limit_start > start:
            start = max(start, min(self.limit_start, self.committed_end))
        if self.truncated is None or start >= self.truncated.before:
            return start
        return max(start, min(self.truncated_end, self.committed_end))

    @property
    def decided_end(self) -> int:
        """End of the rows on which a leader has decided, by a limit by subject: what they hide is hidden here.

        Also by a wider limit than the stream has now: all is decided anew, but no subject may lose its last message.
        What is below the log start needs no decision: no mark may ever say that there was one.
        """
        applied = self.visible.applied
        return max(self.log_start, min(applied.decided_end, self.log.marked_end(applied.leader_epoch)))

    @property
    def needs_decisions(self) -> bool:
        """True if readers are shown only what a leader has decided on: by a limit by subject, by rollups."""
        return self.visible.needs_decisions

    @property
    def is_sealed_decided(self) -> bool:
        """True if a leader has decided on all rows of sealed segments, or none needs a decision."""
        return not self.needs_decisions or self.decided_end >= self.log.sealed_end

    @property
    def decided_limit(self) -> int:
        """Limit by subject by which `decided_end` was decided; 0: by none."""
        return self.visible.applied.limit

    @property
    def visible_end(self) -> int:
        """End of what readers are shown; it never goes back, unless the log is cut."""
        return self.visible.end(self.committed_end, self.decided_end) if self.needs_decisions else self.committed_end

    @property
    def lasts_end(self) -> int:
        """End of the committed rows that tell the last message of each subject: a leader's, also before it has decided
        what they hide. A limit hides only earlier ones of their subjects, a rollup others, interest the last one.
        """
        leadership, end = self.leadership, self.visible_end
        if leadership is None or self.drops_unwanted or end < max(self.rolled_up_end, leadership.epoch_start):
            return end
        return self.committed_end

    @property
    def shown(self) -> Shown:
        return Shown(self.log.hidden, self.log_start, self.visible_end, self.taken)

    def messages_from(self, offset: int) -> int:
        """Return the number of messages that readers are shown from an offset on, by what is in memory.

        That is the number of offsets that are not hidden. Only what an earlier version has compacted, and gaps of rows
        that came with their offsets, count as messages, too: `LiveCounts` reads the log for them.
        """
        start, end, hidden = max(self.log_start, offset), self.visible_end, self.log.hidden
        if start >= end:
            return 0
        return end - start - (0 if hidden is None else hidden.count_in(start, end))

    @property
    def visible_bytes(self) -> int:
        """Bytes that readers were shown since the start of the broker, about; only grows."""
        return self.visible.bytes_of(self.committed_bytes)

    def shown_as_of(self, as_of_us: int) -> int | None:
        """Return until when all that was committed is shown; `as_of_us`: until when the logs here have it."""
        return self.visible.as_of(as_of_us, self.committed_end, self.visible_end)

    def hide(self, marks: AppliedMarks, *, keeps_lasts: bool = False) -> None:
        """Show the rows that these marks hide to no reader from now on.

        `keeps_lasts`: no last row of a subject is new among them.
        """
        before, end = self.log.hidden, self.visible_end
        self.log.hide(marks.hidden, marks.secure, marks.leader_epoch)
        if self.log.hidden is not before and not keeps_lasts:
            self.lasts = None  # the last message of a subject may be hidden now: they are read again
        self.visible.apply(marks, end)
        if self.needs_decisions:
            self._visible_grown(end)
            self._push_out()

    def _visible_grown(self, before: int) -> None:
        if self.needs_decisions:
            self.visible.grown(before, self.visible_end, self.committed_end, self.committed_bytes)

    @property
    def knows_hidden(self) -> bool:
        """True unless a leader has not yet applied all marks of earlier ones: then a row that seems live may not be."""
        if not self.stream.has_marks or self.leadership is None:
            return True
        marks = self.leadership.marks
        return marks is not None and marks.knows_latest and self.visible.shown_marks >= marks.epoch_start

    @property
    def lags_marks(self) -> bool:
        """True if a follower has not yet committed what the leader had committed when it made the last mark here."""
        end, epoch = self.visible.applied.log_end, self.visible.applied.leader_epoch  # what it had more may be lost
        if self.leadership is not None or self.committed_end >= end:
            return False
        return self.committed_end < min(end, self.marked_end(epoch))

    def marked_end(self, epoch: int) -> int:
        """End of the rows that marks of a leader epoch name and that are not lost, as far as it is known here."""
        end = self.log.marked_end(epoch)
        # A log without a message of the present epoch does not say what was lost.
        if self.leadership is not None and self.leadership.leader_epoch > epoch:
            end = min(end, self.leadership.epoch_start)
        elif self.following is not None and self.following.leader_epoch > epoch:
            end = min(end, self.following.lost_from)
        return end

    def live_view(self) -> LogView:
        """Return the log as readers may see it now: without hidden rows. RemoteError unsupported_version if this broker
        cannot tell which rows are hidden.
        """
        if refusal := self.visible.applied.refusal:
            raise RemoteError(ErrorCode.UNSUPPORTED_VERSION, f"{self.label} is not shown here: {refusal}")
        return self.view().hiding(self.log.hidden)

    def view(self) -> LogView:
        """Return the rows that are stored now, hidden ones included, from the readers' log start on.

        For replicas, and for what a leader knows of its log: message ids, producers, published runs, rollups. The last
        sequences of subjects are those of messages that are shown.
        """
        view, start = self.log.view(), self.log_start
        return view if start == view.log_start else view.starting_at(start)

    # Roles

    def lead(self, leadership: Leadership) -> None:
        """Become the leader."""
        self.following, self._followed = None, None
        self.lags_leader = False
        self.leadership = leadership
        leadership.image_index = self.image_index
        self.rollup_at = UNKNOWN_ROLLUP if self.stream.config.allow_rollup else NO_ROLLUP
        self.rolled_up_end = self.log.log_end if self.stream.decides_rollups else 0
        self.wanted_end = self.log.log_end if self.drops_unwanted else 0
        self.markers_end = 0
        self._limit_rows()
        self.leads, self._recovered_end = False, self.log.log_end
        if leadership.committed_end > self.committed_end:
            self._commit(leadership.committed_end)
        self.log.note_committed(self.committed_end)  # the checkpoint may hold an older one

    def resign(self, step: Step) -> None:
        """Give up the leadership. Pending messages were not committed in its time, so publishers get no answer."""
        self.leadership = self.keys = None
        self.rollup_at, self.leads = NO_ROLLUP, False
        self._limit_rows()
        self.dedup = self.lasts = self.producers = self.published = None
        self.newcomers = ()
        text = f"{self.label} is led by another broker now: what was appended may or may not be stored"
        # Not `not_leader`: the client would take it as "not stored" and append again.
        self.abandon(RemoteError(ErrorCode.FENCED_EPOCH, text), step)

    def _drop_batches(self) -> None:
        if self.batches is not None:
            self.batches.drop()
            self.batches = None

    def follow(self, following: Following) -> None:
        """Become a follower."""
        self.following = following
        self._recovered_end = self.log.log_end

    def append_fetched(self, data: memoryview) -> None:
        """Append batches fetched from the leader. Raise what `Log.append_fetched` raises."""
        appended = self.log.append_fetched(data)
        self.impediment = ""
        self.counters["replicated_bytes"] += appended.size_bytes
        if self._followed is None:
            self._followed = deque()
        self._followed.append((appended.log_end, appended.size_bytes))

    def follow_committed(self, end: int) -> None:
        """Advance the high watermark to `end`: the leader has committed everything before it, and this log has it."""
        self._commit(end)
        while self._followed and self._followed[0][0] <= end:
            self.committed_bytes += self._followed.popleft()[1]
        if not self._followed:
            self._followed = None

    def follow_cut(self) -> None:
        """Lower `committed_end` to at most the new log end, after a truncation to match the leader's log."""
        self._followed = None
        self._recovered_end = self.log.log_end
        assert self.following is not None
        self.committed_end = int(self.following.committed_end)
        self.visible.cut(self.committed_end)
        self.limit_start = min(self.limit_start, self.committed_end)

    def reopened(self, log: Log) -> None:
        """Take the log that was opened again after a repair, successful or not. The partition has no role yet."""
        self.log, self._followed, self._recovered_end = log, None, log.log_end
        self.damage_told, self.impediment = 0, ""
        self.closed = self.mending = ""
        self.mending_fails = False
        self.committed_end = max(log.log_start, min(self.committed_end, log.log_end))
        self.visible.cut(self.committed_end)
        applied = self.visible.applied
        log.hide(applied.hidden, applied.secure, applied.leader_epoch)

    @property
    def is_being_repaired(self) -> bool:
        """True if the log is corrupt, an in-sync replica has what it lacks, and no repair has failed so far."""
        if not self.log.damage or self.log.state is not LogState.READ_ONLY or self.mending_fails:
            return False
        state = self.stream.partitions[self.key.partition]
        return len(state.isr) > 1 or (self.leadership is None and state.leader is not None)

    def read_error(self, error: Exception) -> RemoteError:
        """Return the client's error for a failed read; a range that is being repaired says so in its details."""
        told = as_remote_error(error)
        if told.code == ErrorCode.CORRUPT_RANGE and self.is_being_repaired:
            told.details["repairing"] = True
        return told

    # Limits in messages and bytes

    def _limit_rows(self) -> None:
        """Begin, change or end what a leader knows for the limits of its stream."""
        limit, config = self.row_limit, self.stream.config
        if self.leadership is None or not RowLimit.applies(config) or self.stream.intake is Intake.SEALED:
            self.row_limit = None
        elif limit is None:
            self.row_limit = RowLimit(config)
        else:
            limit.configure(config)
            self._push_out()

    def read_gaps(self, step: Step) -> None:
        """Have the gaps of the log read for a limit, if they are not known, or the cleaner has made more."""
        limit = self.row_limit
        if limit is None or limit.is_reading or (limit.is_known and not limit.is_outdated):
            return
        limit.is_reading, limit.is_outdated, limit.failure = True, False, ""
        work = ReadGaps(self.view())

        def done(error: Exception | None) -> None:
            limit.is_reading = False
            if error is not None:
                limit.failure = f"the messages in the log cannot be counted: {as_remote_error(error)}"
            elif limit.needs_gaps:
                limit.known(work.found)
            if self.row_limit is limit:
                self._push_out()
            limit.go_on()

        step.disk.append(DiskWork(Lane.READ, work.run, done))

    def rows_taken(self, step: Step) -> None:
        """Note that the cleaner has taken rows that were not hidden.

        Have the gaps read that it has made; until they are known, the number of messages is too high.
        """
        self.taken += 1
        limit = self.row_limit
        if limit is not None and limit.refuses_new and limit.is_cleaned:
            limit.is_outdated = True
            self.read_gaps(step)

    def _push_out(self) -> None:
        """Raise the log start for readers, so that no more than the limit of committed messages is shown."""
        limit = self.row_limit
        if limit is None or limit.refuses_new or not limit.is_known:
            return
        # What is not decided on may yet hide others, in whose place more would stay.
        start = limit.start_of_newest(self.log_start, self.visible_end, self.log.hidden)
        self.limit_start = max(self.limit_start, min(start, self.removable_end))

    @property
    def pushed_out(self) -> tuple[int, int] | None:
        """Offsets that a limit has pushed out, but which the log still has; None if there are none."""
        begin, end = self.log.log_start, min(self.limit_start, self.committed_end)
        return (begin, end) if begin < end else None

    @property
    def refuses_new(self) -> bool:
        """True if a message that would exceed a limit is refused."""
        return self.stream.config.refuses_new

    @property
    def _counted_from(self) -> int:
        """Offset from which on messages of a subject count: a rollup of all may not be applied yet."""
        return max(self.log_start, self.rollup_at)

    def keep_lasts(self) -> LastSequences:
        """Return the last offsets of subjects that are known; of a new table, all that come from now on."""
        if self.lasts is None:
            counts = self._rules.subject_max > 1
            begin = self._counted_from if counts else 0
            self.lasts = LastSequences(self.log.log_end, self.budget.tables, counts=counts, counted_from=begin)
        return self.lasts

    def keep_rows(self, batch: codec.Buffer) -> None:
        """Keep the rows of a batch that was written, in the place of earlier ones that are in memory for gets."""
        if self.lasts is not None and self.lasts.kept is not None:
            self.lasts.kept.store(self.key, self.lasts.identity, batch, codec.LAYOUT)

    def note_newcomers(self) -> SubjectTable:
        """Return a table that gets the last messages of the subjects of what comes from now on, until it is forgotten.

        It is not in `newcomers` any more once that is not known.
        """
        table = SubjectTable(limits.NEWCOMERS_MAX, self.log.log_end)
        self.newcomers += (table,)
        return table

    def forget_newcomers(self, table: SubjectTable) -> None:
        """Note no more what comes."""
        self.newcomers = tuple(one for one in self.newcomers if one is not table)

    def _forget_lasts_before(self) -> None:
        """Forget counts that began elsewhere than messages count from now."""
        lasts = self.lasts
        if lasts is not None and lasts.table.counts and lasts.counted_from != self._counted_from:
            self.lasts = None

    def _search(self, lasts: LastSequences, subjects: Sequence[bytes], uncounted: Sequence[bytes], step: Step) -> bool:
        """Have subjects looked up; see `search`."""
        begin, most = lasts.counted_from, self._rules.subject_max
        # A subject of which a narrower limit has hidden some may have fewer than `most` others.
        is_wide = self.decided_limit >= most and not self.visible.applied.hides_others
        hides_oldest = self.stream.config.subject_limit is not None and is_wide
        view, is_indexed = self.view().hiding(self.log.hidden), self.log.config.indexes_subjects
        counted = Counted(uncounted, begin, most, hides_oldest)
        return search(lasts, subjects, counted, view, step, is_indexed=is_indexed)

    def _awaits_rollups(self, lasts: LastSequences) -> bool:
        """True if rollups below a table are not applied yet, so that what they replace would be counted."""
        awaits = self.needs_decisions and self.visible_end < min(lasts.table.known_from, self.rolled_up_end)
        self.visible.is_awaited |= awaits
        return awaits

    def _may_grow(self, limit: RowLimit) -> bool:
        """True if there may be room once it is decided what the last messages replace."""
        if not self.needs_decisions:
            return False
        is_rolled_up = self.visible_end < self.rolled_up_end
        may_grow = is_rolled_up or limit.may_grow(self.log, self.log_start, self.visible_end)
        self.visible.is_awaited |= may_grow
        return may_grow

    def _may_be_full(self, message: bytearray, count: int) -> bool:
        """True if subjects tell whether a batch is stored: they refuse it, or make room for it."""
        if self._rules.refuses_subjects:
            return True
        limit = self.row_limit
        if not self._rules.subject_max or limit is None or not limit.is_known:
            return False
        return limit.exceeded(self.log, self.log_start, count, len(message)) == "messages"

    def looks_up_subjects(self, message: bytearray, step: Step) -> bool:
        """True if the messages on the subjects of a client's batch are being looked up.

        `lasts.waiting` is called then. False: `full_error` tells.
        """
        if not self._rules.subject_max or self.leadership is None or not self.knows_hidden:
            return False
        if not self._may_be_full(message, codec.read_header(message).count):
            return False
        self._forget_lasts_before()
        lasts = self.keep_lasts()
        if lasts.is_searching:
            return True
        _, unknown = self._at_limit(lasts, message)
        if not unknown or lasts.failure or self._awaits_rollups(lasts):
            return False
        if self._rules.subject_max == 1:
            return not self._search(lasts, unknown, (), step)
        return not self._search(lasts, (), unknown, step)

    def _at_limit(self, lasts: LastSequences, message: bytearray) -> tuple[int, list[bytes]]:
        return lasts.at_limit(message, self.log.log_end, self._counted_from, self._rules.subject_max)

    def _replaces(self, message: bytearray, step: Step) -> int | RemoteError:
        """Return how many messages of a batch come to subjects that have as many as they may."""
        if not self.knows_hidden:
            return self._marks_error()
        if self.looks_up_subjects(message, step):
            text = f"nothing was stored: {self.label} looks up the last messages of the subjects"
            return RemoteError(ErrorCode.NOT_YET, f"{text}; ask again in a moment")
        lasts = self.lasts
        assert lasts is not None
        reached, unknown = self._at_limit(lasts, message)
        if unknown:
            if not lasts.failure:
                text = f"nothing was stored: {self.label} decides which messages the latest ones replace"
                return RemoteError(ErrorCode.NOT_YET, f"{text}; ask again in a moment")
            why = lasts.failure
            self.lasts = None  # the next one has them read again
            return RemoteError(ErrorCode.STORAGE_FAILED, f"nothing was stored: {why}")
        return reached

    def _marks_error(self) -> RemoteError:
        """Return the error for what depends on marks that are not known."""
        if self.marks_failure:
            return RemoteError(ErrorCode.STORAGE_FAILED, f"nothing was stored: {self.marks_failure}")
        return RemoteError(ErrorCode.NOT_YET, f"nothing was stored: {_MARKS_UNKNOWN}; ask again in a moment")

    def _full_subject_error(self, message: bytearray, step: Step) -> RemoteError | None:
        """Return the error for a batch if one of its subjects has as many messages as it may."""
        reached = self._replaces(message, step)
        if isinstance(reached, RemoteError) or not reached:
            return reached or None
        most = self._rules.subject_max
        text = f"nothing was stored: maximum {acks.PER_SUBJECT} exceeded: {self.label} refuses more than {most} of a"
        return RemoteError(ErrorCode.STREAM_FULL, f"{text} subject (discard_new_per_subject); delete one")

    def full_error(
        self, message: bytearray, count: int, step: Step, *, are_rollups: bool = False
    ) -> RemoteError | None:
        """Return the error for a batch of rows that would exceed a limit; None if it may be stored.

        `are_rollups`: each row takes the place of what there is on its subject.
        """
        refused = self._full_subject_error(message, step) if self._rules.refuses_subjects and not are_rollups else None
        if refused is not None:
            return refused
        limit, size_bytes = self.row_limit, len(message)
        if limit is None or not limit.refuses_new:
            return None
        if limit.failure:
            why, limit.failure = limit.failure, ""  # the next visit has them read again
            return RemoteError(ErrorCode.STORAGE_FAILED, f"nothing was stored: {why}")
        if not limit.is_known:
            return RemoteError(ErrorCode.NOT_YET, f"nothing was stored: {UNCOUNTED}; ask again in a moment")
        exceeded = limit.exceeded(self.log, self.log_start, count, size_bytes)
        if exceeded == "messages" and self._rules.subject_max:
            replaced = self._replaces(message, step)
            if isinstance(replaced, RemoteError):
                return replaced
            if replaced:
                exceeded = limit.exceeded(self.log, self.log_start, count - replaced, size_bytes)
        if exceeded is None:
            return None
        if exceeded == "messages" and self._may_grow(limit):
            text = f"nothing was stored: {self.label} decides which messages the latest ones replace"
            return RemoteError(ErrorCode.NOT_YET, f"{text}; ask again in a moment")
        if not self.knows_hidden:
            return self._marks_error()
        text = f"nothing was stored: maximum {exceeded} exceeded; {self.label} refuses what is beyond its limits"
        return RemoteError(ErrorCode.STREAM_FULL, f"{text} (discard: new); purge it, or alter max_{exceeded}")

    # Messages

    def ingest(self, group: MessageGroup, now: Now, step: Step, *, arrived_us: int, must: bool = False) -> bool:
        """Store messages from NATS or refuse them. Return False, unless `must`, if the log has to be read first, or
        schemas have to be known. `arrived_us`: elapsed time of their arrival.
        """
        if self.takes_batches and is_of_batch(group, skips_reserved=self._rules.skips_reserved):
            self.batches = self.batches or AtomicIngest(self, self.budget.batches)
            return self.batches.ingest(group, now, step, arrived_us=arrived_us, must=must)
        admission = self._admit(group, now, step, arrived_us, must=must)
        if admission is None:
            return False
        self._marked = None
        self._tell_refused(admission, step)
        if admission.misfits:
            self.counters["misfits"] += admission.misfits
        if admission.mistyped:
            self.counters["schema_refused"] += admission.mistyped
        if admission.unheard:
            self._tell_unheard(admission, now, step)
        rows, base_offset = admission.rows, self.log.log_end
        refusal: acks.AckError | None = None
        start, count = 0, len(rows)
        while start < count:
            end = rows.batch_end(start, limits.BATCH_ROWS_MAX, limits.BATCH_ROWS_BYTES_MAX)
            early, late = (waiters(rows, start, end, is_early=is_early) for is_early in (True, False))
            if refusal is None:
                refusal = self._write(rows, start, end, admission.flags, now, step, early, late)
            if refusal is not None:
                self._count_dropped({STORE_FAILED: end - start})
                for one in (late, early):
                    self._refuse(one, refusal, step)
            start = end
        self._note_stored(admission, base_offset, refusal)
        if admission.duplicates:
            self._answer_again(admission, refusal, now, step)
        if self.in_flight:
            self.advance_high_watermark(step)
        return True

    def ingest_batch(
        self,
        ready: ReadyBatch,
        early: BatchWaiter | None,
        late: BatchWaiter | None,
        now: Now,
        step: Step,
        *,
        arrived_us: int,
        must: bool,
    ) -> bool:
        """Store all messages of an atomic batch, as one batch of the log, or none. Return False as `ingest`."""
        group = ready.group
        admission = self._admit(group, now, step, arrived_us, must=must, is_batch=True)
        if admission is None:
            return False
        self._marked = None
        if admission.refusal:
            self._count_dropped({REFUSED: group.count})
            if (waiter := early or late) is not None:
                self._deny(waiter.answer(admission.refusal), step)
            return True
        if admission.misfits:
            self.counters["misfits"] += admission.misfits
        base_offset = self.log.log_end
        refusal = self._write(admission.rows, 0, group.count, admission.flags, now, step, early, late)
        if refusal is not None:
            self._count_dropped({STORE_FAILED: group.count})
            self._refuse(early or late, refusal, step)
        self._note_stored(admission, base_offset, refusal)
        if self.in_flight:
            self.advance_high_watermark(step)
        return True

    def _note_stored(self, admission: Admission, base_offset: int, refusal: acks.AckError | None) -> None:
        """Note what a leader knows of its log: rows were written from an offset on, perhaps not all of them."""
        rows, flags = admission.rows, admission.flags
        if flags & MAY_ROLL_UP:
            self.rolled_up_end = self.log.log_end
        if admission.rollup_row >= 0:
            self.rollup_at = UNKNOWN_ROLLUP if refusal is not None else base_offset + admission.rollup_row
        if refusal is not None and self.dedup is not None:
            self.dedup.cut(self.log.log_end)
        for table in self.newcomers:
            table.note(rows, 0, self.log.log_end - base_offset, base_offset)
            table.written()
        if self.lasts is not None:
            self.lasts.stored(rows, base_offset, self.log.log_end)
            if refusal is not None and self.lasts.table.counts:
                self.lasts = None  # it has counted from rollups on that are not written
            elif admission.lasts_since_rollup is not None:
                self.lasts = LastSequences.since_rollup(admission.lasts_since_rollup, self.rollup_at)

    def refuse_of_batch(self, reply: bytes | None, error: acks.AckError, step: Step) -> None:
        """Refuse one message of an atomic batch, before the batch is complete."""
        self._count_dropped({REFUSED: 1})
        if reply is not None:
            self._deny(acks.error_ack(self._rules.name, reply, error), step)

    def pass_over(self, subject: bytes, reply: bytes | None) -> None:
        """Leave a message of an atomic batch to the stream that it names."""
        self._count_dropped({OTHER_STREAM: 1})
        if reply is not None:
            self.misaddressed = [*self.misaddressed, (subject, reply)]

    @property
    def rules(self) -> AdmissionRules:
        """The stream's config, as admission needs it."""
        return self._rules

    @property
    def takes_batches(self) -> bool:
        """True if messages from NATS may be of atomic batches."""
        return self._rules.allows_batches

    def pieces(self, group: MessageGroup) -> Iterable[MessageGroup]:
        """Return the messages of a group in order, those of atomic batches apart from the others."""
        return pieces(group, skips_reserved=self._rules.skips_reserved) if MARK in group.data else (group,)

    def _admit(
        self, group: MessageGroup, now: Now, step: Step, arrived_us: int, *, must: bool, is_batch: bool = False
    ) -> Admission | None:
        """Admit or refuse the messages of `group`; return None if they must wait until message ids or last offsets are
        read from the log, or schemas known. With `must` they do not wait: they are refused.
        """
        rules = self._rules
        if (closed := self.unavailable_reason()) is not None:
            return refuse_all(group, rules, *closed)
        if self.lacks_schemas and not must:
            return None
        if (unchecked := self._why_unchecked()) is not None:
            return refuse_all(group, rules, acks.unavailable(unchecked), OVER_BUDGET)
        values, marks = self.value_check, None
        if values is not None and rules.refuses_misfits:
            marks = self._marks(group, values)
            if marks is not None and values.names_unknown(marks):
                if not must and self.awaits_schemas(arrived_us, now):
                    return None
                if self.values is None or not self.values.decides(arrived_us):
                    marks = values.undecided(marks)
        room, limit = ANY_ROOM, self.row_limit
        if limit is not None:
            if limit.failure:
                error, limit.failure = acks.store_failed(limit.failure), ""  # the next message has them read again
                return refuse_all(group, rules, error, STORE_FAILED)
            self.read_gaps(step)
            if not limit.is_known:
                return refuse_all(group, rules, acks.unavailable(UNCOUNTED), OVER_BUDGET) if must else None
            if limit.refuses_new:
                if self._awaits_marks(arrived_us, now, must=must):
                    return None
                room = limit.room(self.log, self.log_start, group.count)
                if not must and self._awaits_room(group, room, arrived_us, now):
                    return None
        self._forget_lasts_before()
        dedup, lasts = self.dedup, self.lasts
        now_us = self.timestamp_us(now)
        ids = None if dedup is None else dedup.ids(now_us)
        log_start = 0 if lasts is None else self.log_start
        is_added = self.keys is not None and self.key.partition >= self.stream.counts[0]
        admission = admit(
            group, rules, log_start=log_start, log_end=self.log.log_end, ids=ids, lasts=lasts, is_added=is_added,
            values=values, mistyped=marks, room=room, counted_from=self._counted_from, is_batch=is_batch,
        )  # fmt: skip
        if admission.needs_lasts and lasts is None:
            if self._awaits_marks(arrived_us, now, must=must):
                return None
            if not self.knows_hidden:
                return self._refuse_without_marks(group)
            self.keep_lasts()
            return self._admit(group, now, step, arrived_us, must=must, is_batch=is_batch)
        if not (admission.needs_ids or admission.needs_lasts):
            if values is not None:
                self.counters["schema_checked"] += group.count
            if (tracer := self.meters.tracer) is not None:
                tracer.coming(self, admission.rows, now.elapsed_us)
            return admission
        if admission.needs_ids and dedup is not None and dedup.failure:
            self.dedup = None  # the next message has them read again
            return refuse_all(group, rules, acks.store_failed(dedup.failure), STORE_FAILED)
        if (admission.unknown or admission.uncounted) and not must:
            assert lasts is not None
            if admission.uncounted and self._awaits_rollups(lasts) and _is_recent(arrived_us, now):
                return None
            is_known = self._search(lasts, admission.unknown, admission.uncounted, step)
            if is_known and not admission.needs_ids:
                return self._admit(group, now, step, arrived_us, must=must, is_batch=is_batch)
        if must:
            return refuse_all(group, rules, acks.unavailable("what the message depends on is being read"), OVER_BUDGET)
        if admission.needs_ids and self.dedup is None:
            self.dedup = read_ids(self.stream, self.key.partition, self.view(), rules, now_us, step)
        return None

    def _awaits_room(self, group: MessageGroup, room: Room, arrived_us: int, now: Now) -> bool:
        """True if messages wait until a limit by subject is applied to those before them: that may make room."""
        has_room = room.rows < 0 or group.count <= room.rows
        if has_room and (room.size_bytes < 0 or len(group.data) + limits.ROW_BYTES * group.count <= room.size_bytes):
            return False
        assert self.row_limit is not None
        return _is_recent(arrived_us, now) and self._may_grow(self.row_limit)

    def _refuse_without_marks(self, group: MessageGroup) -> Admission:
        """Refuse a group with messages that depend on marks which are not known."""
        if self.marks_failure:
            return refuse_all(group, self._rules, acks.store_failed(self.marks_failure), STORE_FAILED)
        return refuse_all(group, self._rules, acks.unavailable(_MARKS_UNKNOWN), OVER_BUDGET)

    def _awaits_marks(self, arrived_us: int, now: Now, *, must: bool) -> bool:
        """True if what arrived then shall wait: a new leader does not know yet which messages are deleted."""
        if must or self.knows_hidden or self.marks_failure:
            return False
        return now.elapsed_us - arrived_us < limits.MARKS_WAIT_MS * 1_000

    def _marks(self, group: MessageGroup, values: ValueCheck) -> bytes | None:
        """Return the marks of a group, which is checked once by one check, however often it is tried."""
        if self._marked is None or self._marked[0] is not group or self._marked[1] is not values:
            self._marked = group, values, marks_of(group, values)
        return self._marked[2]

    def awaits_schemas(self, arrived_us: int, now: Now) -> bool:
        """True if what arrived then, and names an unknown version, shall wait for a newer list of the versions."""
        return self.values is not None and self.values.awaits_list(arrived_us, now.elapsed_us)

    @property
    def lacks_schemas(self) -> bool:
        """True if values must be checked, and it is not known here by which schemas."""
        return self.values is None and self.stream.config.schema_check is SchemaCheck.REFUSE

    @property
    def wants_schemas(self) -> bool:
        """True if a message waits for a newer list of versions."""
        return self.values is not None and self.values.is_wanted

    def check_after(self, arrived_us: int, now: Now) -> ValueCheck | None:
        """Return the check of rows that arrived then, of which one names an unknown version; None: not known yet.

        RemoteError not_yet: it cannot be found out whether the version is registered.
        """
        if self.awaits_schemas(arrived_us, now):
            return None
        check = self.refusing_check()
        if check is None or self.values is None or not self.values.decides(arrived_us):
            raise RemoteError(ErrorCode.NOT_YET, f"nothing was stored: {VERSION_UNDECIDED}; ask again in a moment")
        return check

    def refusing_check(self) -> ValueCheck | None:
        """Return the check of rows that a client appends; None: their values are not refused. RemoteError not_yet."""
        if self.stream.config.schema_check is not SchemaCheck.REFUSE:
            return None
        if (why := self._why_unchecked()) is not None:
            raise RemoteError(ErrorCode.NOT_YET, f"nothing was stored: {why}; ask again in a moment")
        return self.value_check

    def _why_unchecked(self) -> str | None:
        """Return why values that must be checked cannot be; None if they can, or need not be."""
        if self.stream.config.schema_check is not SchemaCheck.REFUSE:
            return None
        return SCHEMAS_UNKNOWN if self.values is None else self.values.failure or None

    @property
    def value_check(self) -> ValueCheck | None:
        """The check of values before they are stored; None: they are not checked."""
        if self.values is None or not self.stream.config.checks_schemas:
            return None
        return self.values.check

    def unavailable_reason(self) -> tuple[acks.AckError, str] | None:
        """Return the error for publishers and the reason to count; None if the partition takes messages."""
        if not self.stream.takes:
            reason = str(self.stream.intake)
            return acks.not_taken(self.stream.name, reason.replace("_", " ")), reason
        return self._why_unable()

    def append_at_refusal(self) -> RemoteError | None:
        """Return the error for an append with its own offsets and timestamps; None if it can be taken."""
        if self.stream.intake is not Intake.PAUSED:
            text = f"nothing was stored: stream {self.stream.name!r} is {self.stream.intake}, not paused: offsets"
            return RemoteError(ErrorCode.BAD_REQUEST, f"{text} can be given only while no other client can append")
        if (unable := self._why_unable()) is None:
            return None
        error, reason = unable
        return RemoteError(CODES[reason], error.description)

    def _why_unable(self) -> tuple[acks.AckError, str] | None:
        """Return why nothing can be stored, whatever the stream's intake."""
        if self.log.state is not LogState.WRITABLE:
            reason = FENCED if self.log.state is LogState.FENCED else READ_ONLY
            return acks.store_failed(f"the stream is {reason}; see its status"), reason
        if self.leadership is None:
            return acks.unavailable("this broker does not lead the stream now"), NOT_LEADER
        if not self.leadership.accepts:
            few = acks.not_enough_replicas(len(self.leadership.isr), self.leadership.min_isr)
            return few, TOO_FEW_REPLICAS
        if not self.leads:
            return acks.store_failed(self.cannot_lead), STORE_FAILED
        if self.in_flight.size_bytes > self.budget.partition_bytes_max:
            return acks.unavailable("too much waits for the disk"), OVER_BUDGET
        return None

    def timestamp_us(self, now: Now) -> int:
        """Return the timestamp for a batch written now: it never goes back."""
        timestamp_us = max(now.wall_us, self.log.last_timestamp_us)
        return timestamp_us if self.dedup is None else self.dedup.at(timestamp_us)

    def _answer_again(self, admission: Admission, refusal: acks.AckError | None, now: Now, step: Step) -> None:
        """Ack duplicates with the offset of the original, once that is committed."""
        found, group, written, leadership = admission.duplicates, admission.of, self.log.log_end, self.leadership
        assert group is not None
        assert leadership is not None
        if refusal is not None:  # a duplicate of a message in the same read is refused if the original was
            self._refuse(again(group, found, written, limits.OFFSET_MAX), refusal, step)
            self._count_dropped({STORE_FAILED: sum(one.number >= written for one in found)})
        self.counters["duplicates"] += sum(one.number < written for one in found)
        now_us = self.timestamp_us(now)
        if (those := again(group, found, 0, leadership.committed_end)) is not None:
            self._ack(those, 0, now_us, step, leadership.commit_status(those.last + 1), now.elapsed_us)
        if (those := again(group, found, leadership.committed_end, written)) is not None:
            # Wait for the last one, not only the first: so pending entries stay in offset order.
            self.in_flight.add(PendingBatch(written, written, 0, now_us, those, None, arrived_us=now.elapsed_us))

    def turn_away(self, group: MessageGroup, error: acks.AckError, reason: str, step: Step) -> None:
        """Refuse messages that belong to another partition, or come too early."""
        self._tell_refused(refuse_all(group, self._rules, error, reason), step)

    def _tell_refused(self, admission: Admission, step: Step) -> None:
        if admission.elsewhere:
            self.counters["duplicates"] += admission.elsewhere
        if admission.dropped:
            self._count_dropped(admission.dropped)
        if admission.undelivered:
            self._tell_undelivered(admission.undelivered, step)
        if admission.errors:
            step.publish.append(NatsAnswers(self.sid, b"".join(admission.errors)))
        if admission.denials:
            self._deny(admission.denials, step)
        self.misaddressed = admission.misaddressed

    def take_misaddressed(self) -> list[tuple[bytes, bytes]]:
        """Return subject and reply of the last messages that named another stream, and forget them."""
        found, self.misaddressed = self.misaddressed, _NO_MESSAGES
        return found

    def refuse_misaddressed(self, replies: Iterable[bytes], step: Step) -> None:
        """Refuse messages that no other stream stores."""
        for reply in replies:
            refusal = acks.error_ack(self._rules.name, reply, acks.wrong_stream())
            step.publish.append(NatsAnswers(self.sid, refusal))

    def _tell_undelivered(self, found: Mapping[bytes, str], step: Step) -> None:
        """Log, once per kind, messages that are not stored and that a JetStream consumer will deliver again."""
        for kind, text in found.items():
            if kind not in self.undelivered_told and len(self.undelivered_told) < limits.UNDELIVERED_KINDS_TOLD_MAX:
                self.undelivered_told |= {kind}
                said = "what a JetStream consumer delivers is not stored, and is delivered again"
                step.notices.append(f"{self.label}: {said}: {text}")

    def _tell_unheard(self, admission: Admission, now: Now, step: Step) -> None:
        """Log that messages without a reply subject were refused; rate limited to one notice per
        SILENT_REFUSAL_LOG_MS.
        """
        self.unheard += admission.unheard
        if now.elapsed_us < self.unheard_told_us:
            return
        text = f"refused {self.unheard} messages that asked for no ack, so their publishers got no error; the last one"
        step.notices.append(f"{self.label}: {text} {admission.unheard_why}")
        self.unheard, self.unheard_told_us = 0, now.elapsed_us + limits.SILENT_REFUSAL_LOG_MS * 1_000

    def _deny(self, commands: bytes, step: Step) -> None:
        """Send refusals. With several replicas they wait until no replica can have stored the message."""
        answers = NatsAnswers(self.sid, commands)
        if self.is_replicated:
            self.budget.refusals.add(self, answers)
        else:
            step.publish.append(answers)

    def _count_dropped(self, dropped: Mapping[str, int]) -> None:
        self.dropped = Counter(self.dropped) + Counter(dropped)
        self.counters["dropped"] += sum(dropped.values()) - dropped.get(CONSUMER_CONTROL, 0)

    def _refuse(self, refused: Waiters | DuplicateWaiters | None, error: acks.AckError, step: Step) -> None:
        if refused is None:
            return
        commands = refused.refusal_commands(self._rules, error)
        if error.reason == ErrorCode.OUTCOME_UNKNOWN:
            step.publish.append(NatsAnswers(self.sid, commands))
        else:
            self._deny(commands, step)

    def _write(
        self,
        rows: MessageGroup,
        start: int,
        end: int,
        flags: int,
        now: Now,
        step: Step,
        early: Waiters | None,
        late: Waiters | None,
    ) -> acks.AckError | None:
        """Write rows as one batch of the log; return why they are not there. `early`, `late`: who waits for them."""
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
        self.keep_rows(data)
        end_offset, size_bytes = header.end_offset, len(data)
        self.traffic.stored(end - start, size_bytes)
        self._ack(early, base_offset, timestamp_us, step, _WRITTEN, now.elapsed_us)
        leadership = self.leadership
        assert leadership is not None
        leadership.appended(end_offset, now.elapsed_us)
        if self.in_flight or leadership.committed_end < end_offset:
            pending = PendingBatch(base_offset, end_offset, size_bytes, timestamp_us, late, None, None, now.elapsed_us)
            self.in_flight.add(pending)
        else:  # a write is all that the durability requires
            self._commit(end_offset)
            self.committed_bytes += size_bytes
            self._ack(late, base_offset, timestamp_us, step, leadership.commit_status(end_offset), now.elapsed_us)
        return None

    def _ack(
        self,
        acked: Waiters | DuplicateWaiters | None,
        base: int,
        timestamp_us: int,
        step: Step,
        so: CommitStatus,
        arrived_us: int,
    ) -> None:
        if acked is not None:
            got = AckDetails(self.key.partition, self.leader_epoch, so.replicas, so.fsynced, self.ack_domain)
            commands, count = acked.ack_commands(self._rules, base, timestamp_us, got), acked.acks_count
            step.publish.append(NatsAnswers(self.sid, commands, count, arrived_us))
            self.meters.acks_made += count

    def append_again(self, caller: Hashable, place: ProducerBatch, step: Step) -> None:
        """Answer a repeated append of an idempotent producer with the place of the original, once that is committed."""
        pending = PendingBatch(
            place.base_offset, place.end_offset, 0, place.timestamp_us, None, caller, is_duplicate=True
        )
        assert self.leadership is not None
        if place.end_offset <= self.committed_end:
            self._answer(pending, self.leadership, step)
        else:  # behind all pending entries: so they stay in offset order
            self.in_flight.add(pending)

    def note_refusal(self, error: OperationalError) -> None:
        """Count a failed append and remember its reason."""
        if isinstance(error, StorageFullError):
            self.counters["disk_full"] += 1
        if not isinstance(error, ShortageError):
            self.impediment = str(error)

    def advance_high_watermark(self, step: Step) -> bool:
        """Advance `committed_end` to the leadership's and answer pending requests. Return True if it did."""
        leadership = self.leadership
        if leadership is None or leadership.committed_end <= self.committed_end:
            return False
        end = leadership.committed_end
        self._commit(end)
        for pending in self.in_flight.take(end):
            self.committed_bytes += pending.size_bytes
            self._answer(pending, leadership, step)
        return True

    def require_high_watermark(self) -> None:
        """Raise RemoteError not_yet unless this replica knows the latest high watermark that was ever reported."""
        leadership = self.leadership
        if not self.is_replicated and (leadership is not None or not self.is_copied):
            return
        if leadership is None or self.is_mute:
            text = f"this replica of {self.label} knows commits up to offset {self.committed_end} only"
            raise RemoteError(ErrorCode.NOT_YET, f"{text}; ask its leader, or again in a moment")
        if not leadership.knows_latest:
            text = f"the new leader of {self.label} does not know yet what is committed; ask again in a moment"
            raise RemoteError(ErrorCode.NOT_YET, text)

    def _commit(self, end: int) -> None:
        if self.committed_end < self._recovered_end:
            self.committed_bytes += self.log.size_bytes  # the recovered log, as an upper bound
        self.committed_end = end
        self.log.note_committed(end)
        if self.row_limit is not None:
            self._push_out()

    def _answer(self, pending: PendingBatch, leadership: Leadership, step: Step) -> None:
        standing = leadership.commit_status(pending.end_offset)
        self._ack(pending.waiters, pending.base_offset, pending.timestamp_us, step, standing, pending.arrived_us)
        if pending.caller is not None:
            step.reply(pending.caller, pending.response(self.leader_epoch, fsynced=standing.fsynced))

    def fail_pending(self, reason: str, step: Step) -> None:
        """Fail all pending requests: what is written cannot become durable, and may or may not survive a restart."""
        error = acks.outcome_unknown(reason)
        for pending in self.in_flight.take():
            self._refuse(pending.waiters, error, step)
            if pending.caller is not None:
                step.reply(pending.caller, outcome_unknown_text(reason))

    def abandon(self, error: RemoteError, step: Step) -> None:
        """Drop all pending requests without a commit: publishers get no ack and no error, callers get `error`."""
        self._drop_batches()
        for pending in self.in_flight.take():
            if pending.caller is not None:
                step.reply(pending.caller, error)


def _is_recent(arrived_us: int, now: Now) -> bool:
    """True if what arrived then may wait until decisions are made on what came before it."""
    return now.elapsed_us - arrived_us < limits.ROOM_WAIT_MS * 1_000
