"""Disk work of a partition besides appends: fsync, rolling segments, retention, and closing the log.

Rules: an fsync is started as soon as a commit waits for it, and at most one is under way per partition; it serves all
appends before it (group commit). A partition is visited after an event, about once a second, and at its planned time:
an idle one costs nothing. Each turn of the event loop visits a bounded number. Results for a deleted stream change
nothing and raise no alarm. A log is closed only when no fsync of it is under way; at a stop, a log whose fsync hangs is
left as after a crash.

| visited after                         | for                                               |
|---------------------------------------|---------------------------------------------------|
| an append, a sync, another config     | unsynced data, size limits, retention             |
| retention, a removal                  | the next one, or another try                      |
| corruption that a reader has found    | a notice; the log is read-only from then on       |
| its `Log.due_us`                      | roll, age of messages, checkpoint, closing files  |
| a wall clock that was set back        | all of them: their due times have changed         |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count, islice

from penstock.base import limits
from penstock.base.config import Storage
from penstock.base.errors import OperationalError, PenstockError
from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.base.units import format_offsets
from penstock.commitlog import Flush, LogState, Removal, Retention
from penstock.node.context import Context
from penstock.node.maintenance.cleaning import Cleaners
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_events import PartitionEventKind, PartitionEvents
from penstock.node.step import Lane, PlainSync

_PLANS_MIN = 64
_FLUSH_US = limits.FLUSH_INTERVAL_MS * 1_000
_STALL_US = limits.FLUSH_STALL_MS * 1_000
_NAME_CHECK_US = limits.NAME_CHECK_INTERVAL_MS * 1_000
_RETRY_US = limits.MAINTENANCE_RETRY_MS * 1_000


class LogMaintenance:
    """The disk work of all partitions."""

    def __init__(self, context: Context, events: PartitionEvents) -> None:
        self._outbox = context.outbox
        self._events = events
        self._context = context
        self.cleaners = Cleaners(context, events, again=self.touch, idle=self._disposed)
        self._unsynced: deque[tuple[int, Partition]] = deque()  # when each is to be synced, soonest first
        self._syncs: dict[Partition, int] = {}  # fsyncs under way, and when each is overdue, soonest first
        self._stalled: set[Partition] = set()  # partitions with an overdue fsync
        self._touched: dict[Partition, None] = {}  # to be visited next, in this order
        # a heap of (time, key, number, partition); outdated plans stay in it
        self._planned: list[tuple[int, PartitionKey, int, Partition]] = []
        self._plans = count()  # a replica that was given up and is held again has two partitions with one key
        self._damaged: deque[PartitionKey] = deque()  # filled by threads that read
        self._plans_kept = 0  # number of plans when outdated ones were last removed
        self._ticked_us = 0
        self._failing: set[Partition] = set()  # partitions whose last visit could not do what was due

    def touch(self, partition: Partition) -> None:
        """Visit the partition with the next tick, because something has happened."""
        self._touched[partition] = None

    def damage_found(self, stream_id: int, partition: int) -> None:
        """Note corruption that a reader has found; callable from any thread."""
        self._damaged.append(PartitionKey(StreamId(stream_id), PartitionId(partition)))

    def note_progress(self, partition: Partition, committed_end: int) -> None:
        """Add the event COMMITTED and plan an fsync, after rows were appended or synced, or durability was lowered.

        `committed_end`: its earlier value.
        """
        self._touched[partition] = None
        if partition.committed_end != committed_end:
            self._events.add(PartitionEventKind.COMMITTED, partition)
        if partition.impediment:
            self._events.add(PartitionEventKind.IMPEDED, partition)
        log = partition.log
        if log.state is LogState.FENCED or (log.flushed_end != log.log_end and partition.waits_for_sync):
            self.flush(partition)
        elif partition.is_replicated or partition.following is not None:
            self._flush_soon(partition)
        elif log.has_rolled and partition.stream.config.storage is Storage.MEMORY:
            self.flush(partition)  # else retention could not free what came since the last visit

    def _flush_soon(self, partition: Partition) -> None:
        """Sync in the background: several replicas have the data, but one power loss could take it from all of them."""
        log = partition.log
        if partition.flush_us is None and log.flushed_end != log.log_end:
            partition.flush_us = self._context.now.elapsed_us + _FLUSH_US
            self._unsynced.append((partition.flush_us, partition))

    def flush_due(self, now_us: int) -> None:
        """Sync what has waited FLUSH_INTERVAL_MS; `now_us` is elapsed time."""
        while self._unsynced and self._unsynced[0][0] <= now_us:
            _, partition = self._unsynced.popleft()
            partition.flush_us = None
            if partition.when_idle is None:
                self.flush(partition)

    @property
    def stalled_count(self) -> int:
        """Number of logs with an fsync that does not return."""
        return len(self._stalled)

    @property
    def next_deadline_us(self) -> int | None:
        """Elapsed time at which `flush_due` must run."""
        return self._unsynced[0][0] if self._unsynced else None

    def flush(self, partition: Partition) -> None:
        """Start an fsync, unless one is under way; its end starts the next."""
        if partition.cutting is not None:
            return
        flush = partition.log.flush()
        if flush is None:
            if partition.log.state is LogState.FENCED and not partition.flushing:
                self._fenced(partition, partition.log.fence_reason)
            return
        partition.flushing = True
        self._syncs[partition] = self._context.now.elapsed_us + _STALL_US

        def done(error: Exception | None) -> None:
            partition.flushing = False
            self._synced(partition)
            flushed_end = partition.log.flushed_end
            if flush.has_looked:
                partition.owes_name_check = False
            if error is None:
                partition.log.flushed(flush)
            else:
                partition.log.flush_failed(flush, error if isinstance(error, OSError) else OSError(str(error)))
            if partition.when_idle is not None:
                partition.cutting = None  # the cut has not begun
                partition.when_idle()
            elif error is not None:
                self._fenced(partition, str(error))
                self._cut_now(partition)
            else:
                self._outbox.step.notes.append(partition.log.note_flushed)
                # Otherwise it may belong to a failed roll, which waits for the next visit.
                if partition.log.flushed_end != flushed_end or partition not in self._failing:
                    self._flushed(partition)
                self._cut_now(partition)

        self._outbox.work(
            Lane.WRITE, flush.run, done, partition.meters.sync_us, sync=self._plain_sync(partition, flush)
        )

    def _plain_sync(self, partition: Partition, flush: Flush) -> PlainSync | None:
        """Return what the kernel can do in place of a thread; None if there is more to do."""
        if (file := flush.only_file) is None or (descriptor := file.sync_fileno()) is None:
            return None
        now_us = self._context.now.elapsed_us
        partition.owes_name_check = now_us < partition.names_checked_us + _NAME_CHECK_US
        if partition.owes_name_check:
            return PlainSync(descriptor, None)
        partition.names_checked_us = now_us
        return PlainSync(descriptor, flush.check_names)

    def find_stalls(self, now_us: int) -> None:
        """Report overdue fsyncs. Call at least once per HEARTBEAT_MS, so that other brokers can take over."""
        while self._syncs:
            partition, due_us = next(iter(self._syncs.items()))
            if now_us < due_us:
                return
            del self._syncs[partition]
            if partition.when_idle is None:
                self._stall(partition)

    def _stall(self, partition: Partition) -> None:
        partition.stall = f"a sync of its log has not come back for {limits.FLUSH_STALL_MS // 1_000} s"
        if not self._stalled:  # all logs share one disk: one notice is enough
            self._outbox.notice(f"{partition.label}: {partition.stall}; until it does, others lead what they can")
        self._stalled.add(partition)
        self._events.add(PartitionEventKind.STALLED, partition)

    def _synced(self, partition: Partition) -> None:
        self._syncs.pop(partition, None)
        if partition in self._stalled:
            self._stalled.remove(partition)
            partition.stall = ""
            self._events.add(PartitionEventKind.RESUMED, partition)
            if not self._stalled:
                self._outbox.notice(f"{partition.label}: the sync that had not come back for long has ended")

    def _flushed(self, partition: Partition) -> None:
        if partition.leadership is not None:
            partition.leadership.flushed(partition.log.flushed_end)
        self._events.add(PartitionEventKind.FLUSHED, partition)
        self.advance_high_watermark(partition)
        self.truncate(partition)

    def advance_high_watermark(self, partition: Partition) -> None:
        """Answer requests that wait for the leadership's `committed_end`."""
        committed_end = partition.committed_end
        partition.advance_high_watermark(self._outbox.step)
        self.note_progress(partition, committed_end)

    def truncate(self, partition: Partition) -> None:
        """Raise a led log's start to the offset truncated on request, as far as the log is synced.

        If the disk refuses, the next visit tries again.
        """
        if _begins_too_early(partition):
            self.touch(partition)
            self._raise_start(partition, partition.log_start)

    def give_up(self, partition: Partition, start: int) -> bool:
        """Raise a led log's start to `start`; all before must be committed. Return False if the caller must retry."""
        log = partition.log
        if partition.when_idle is not None or log.state is not LogState.WRITABLE or log.flushed_end < start:
            return False
        self._raise_start(partition, start)
        self.touch(partition)
        return log.log_start >= start

    def _raise_start(self, partition: Partition, start: int) -> None:
        log = partition.log
        before = log.log_start
        try:
            log.raise_start(start)
        except OperationalError as error:
            partition.tell(f"cannot note where its log begins: {error}", self._outbox)
            return
        if log.log_start != before:
            self._events.add(PartitionEventKind.LOG_START_RAISED, partition)
        if log.log_start < start:
            self.flush(partition)

    def count(self, partition: Partition) -> None:
        """Have the messages counted for the limits of a led partition, if they are not; then visit it."""
        limit = partition.row_limit
        if limit is not None and not (limit.is_known or limit.is_reading or limit.failure):
            limit.waiting.append(partial(self.touch, partition))
            partition.read_gaps(self._outbox.step)

    def cut(self, partition: Partition, run: Callable[[], None]) -> None:
        """Call `run` once no fsync or removal is under way; none begins until `cut_done`."""
        assert partition.cutting is None
        partition.cutting = run
        self._cut_now(partition)

    def _cut_now(self, partition: Partition) -> None:
        if partition.cutting is not None and not (partition.flushing or partition.log.is_disposing):
            partition.cutting()

    def _disposed(self, partition: Partition) -> None:
        """Continue after the files that the cleaner left were removed."""
        if partition.when_idle is None:
            self._cut_now(partition)
        elif partition.cutting is not None and not partition.flushing:
            self.cut_done(partition)

    def cut_done(self, partition: Partition) -> None:
        """Allow fsyncs of the log again."""
        partition.cutting = None
        if partition.when_idle is not None:
            partition.when_idle()
        else:
            self.touch(partition)

    def _fenced(self, partition: Partition, reason: str) -> None:
        if partition.leadership is not None:
            partition.leadership.failed()
        text = f"cannot write the log of {partition.label} ({reason}); it stores nothing until a restart"
        partition.fail_pending(text, self._outbox.step)
        if not partition.fenced_told:
            partition.fenced_told = True
            self._outbox.notice(text)
            self._events.add(PartitionEventKind.FAILED, partition)

    def tick(self, partitions: Mapping[PartitionKey, Partition], now_us: int) -> bool:
        """Visit the partitions that are due, up to MAINTENANCE_VISITS_MAX. Return True if none is left."""
        if now_us < self._ticked_us:
            self._touched.update(dict.fromkeys(partitions.values()))
        self._ticked_us = now_us
        while self._damaged:
            if (damaged := partitions.get(self._damaged.popleft())) is not None:
                self.touch(damaged)
        self._take_due(now_us)
        for partition in list(islice(self._touched, limits.MAINTENANCE_VISITS_MAX)):
            del self._touched[partition]
            if partition.when_idle is None:
                self._visit(partition, now_us)
                self._plan(partition, now_us)
        return not self._touched

    def _take_due(self, now_us: int) -> None:
        while self._planned and self._planned[0][0] <= now_us:
            due_us, _, _, partition = heappop(self._planned)
            if due_us == partition.visit_us:
                partition.visit_us = None
                self.touch(partition)

    def _plan(self, partition: Partition, now_us: int) -> None:
        """Plan the next visit, unless an earlier one is planned. A failed action is not retried at once."""
        is_due = partition.cannot_lead or _begins_too_early(partition)
        due_us = now_us if is_due else partition.log.due_us(now_us)
        self._failing.discard(partition)
        if due_us is not None and due_us <= now_us:
            due_us = now_us + _RETRY_US
            self._failing.add(partition)
        if due_us is None or (partition.visit_us is not None and partition.visit_us <= due_us):
            return
        partition.visit_us = due_us
        heappush(self._planned, (due_us, partition.key, next(self._plans), partition))
        if len(self._planned) > 2 * self._plans_kept + _PLANS_MIN:
            self._forget_old_plans()

    def _forget_old_plans(self) -> None:
        kept = {partition: plan for plan in self._planned if (partition := plan[3]).visit_us == plan[0]}
        self._planned = [plan for partition, plan in kept.items() if partition.when_idle is None]
        heapify(self._planned)
        self._plans_kept = len(self._planned)

    def _visit(self, partition: Partition, now_us: int) -> None:
        """Roll segments, apply retention, sync; look whether the log's file was removed."""
        if partition.cutting is not None:
            return
        self.count(partition)
        if _begins_too_early(partition):
            self._raise_start(partition, partition.log_start)
        if partition.owes_name_check and not partition.flushing:  # no sync has followed the one that did not look
            partition.owes_name_check = False
            partition.log.check_name()
        try:
            retention = partition.log.tick(now_us, partition.removable_end)
        except (OSError, PenstockError) as error:
            partition.tell(f"cannot roll: {error}", self._outbox)
            return
        if retention is not None:
            self._retain(partition, retention)
        if len(partition.log.damage) != partition.damage_told:
            self._tell_damage(partition)
        if partition.cannot_lead:
            self.lead(partition)
        self.flush(partition)
        self.cleaners.enqueue(partition)

    def _retain(self, partition: Partition, retention: Retention) -> None:
        """Look up the new log start in a disk thread, then remove the segments below it."""

        def removed(removal: Removal, error: Exception | None) -> None:
            if error is None:
                partition.counters["retained_segments"] += len(removal.paths)
            if partition.when_idle is not None:
                return
            if error is None:
                partition.log.removed(removal)
                return
            partition.log.removal_failed(removal)
            self.touch(partition)
            partition.tell(f"cannot remove old segments: {error}", self._outbox)

        def looked_up(_error: Exception | None) -> None:
            self.touch(partition)
            if partition.when_idle is not None or partition.cutting is not None:
                partition.log.discard_retention(retention)
                return
            log_start = partition.log.log_start
            removal = partition.log.apply_retention(retention)
            if partition.log.log_start != log_start:
                self._events.add(PartitionEventKind.LOG_START_RAISED, partition)
            if removal is not None:
                self._outbox.work(Lane.WRITE, removal.run, lambda error: removed(removal, error))

        self._outbox.work(Lane.READ, retention.run, looked_up)

    def _tell_damage(self, partition: Partition) -> None:
        damage = partition.log.damage
        for one in damage[partition.damage_told :]:
            lost = format_offsets(one.base_offset, one.end_offset)
            self._outbox.notice(
                f"{partition.label} is read-only: {one.file} is damaged at byte {one.position}; "
                f"offsets that cannot be read: {lost}; {one.reason}"
            )
        if len(damage) != partition.damage_told:
            partition.damage_told = len(damage)
            self._events.add(PartitionEventKind.FAILED, partition)

    def opened(self, partition: Partition) -> None:
        """Report what recovery found, and sync what it left unsynced."""
        self.touch(partition)
        log = partition.log
        for note in log.notices:
            self._outbox.notice(f"{partition.label}: {note}")
        for cut in log.cuts:
            kept = "" if cut.kept_as is None else f", kept in {cut.kept_as}"
            self._outbox.notice(f"{partition.label}: cut {cut.length_bytes} torn bytes{kept}: {cut.reason}")
        self._tell_damage(partition)
        self.flush(partition)

    def lead(self, partition: Partition) -> None:
        """Begin the leadership in the log, just before its first message.

        On a full disk the log stays readable, and every tick tries again.
        """
        leadership = partition.leadership
        is_closed = partition.log.state is not LogState.WRITABLE or not partition.stream.may_grow
        if partition.leads or leadership is None or is_closed:
            return
        try:
            partition.log.start_epoch(leadership.leader_epoch)
        except OperationalError as error:
            partition.cannot_lead = f"the disk did not take the beginning of this leadership yet: {error}"
            partition.tell(f"stores nothing yet: {error}", self._outbox)
            partition.impediment = str(error)
            self._events.add(PartitionEventKind.IMPEDED, partition)
        else:
            partition.leads, partition.traffic = True, partition.meters.of(partition.key)
            partition.cannot_lead = partition.impediment = ""

    def discard(self, partition: Partition, remove: Callable[[], None]) -> None:
        """Call `remove` once no fsync of the deleted partition is under way."""
        partition.when_idle = remove
        self._failing.discard(partition)
        partition.log.leave()
        if not partition.flushing and partition.cutting is None:
            remove()

    def before_close(self, partition: Partition) -> None:
        """Have a disk thread do the sync of `close` in advance, one log after the other."""
        partition.log.hasten()
        self.flush(partition)

    def close(self, partition: Partition) -> None:
        """Sync, answer pending requests and close; blocks. A log whose fsync is still under way is left as it is."""
        self.cleaners.forget(partition)
        if partition.flushing or partition.cutting is not None:
            text = "the broker stopped while the disk did not answer"
            partition.fail_pending(text, self._outbox.step)
            return
        try:
            partition.log.close()
        except OperationalError as failure:
            self._outbox.notice(f"{partition.label}: {failure}")
            # It is written: reported as not stored, the client would append it again.
            text = f"the broker stopped and could not sync ({failure})"
            partition.fail_pending(text, self._outbox.step)
        if partition.leadership is not None:
            partition.leadership.flushed(partition.log.flushed_end)
        partition.advance_high_watermark(self._outbox.step)


def _begins_too_early(partition: Partition) -> bool:
    """True if a led log still has offsets that were truncated on request, or that a limit has pushed out."""
    if partition.leadership is None or (partition.truncated is None and not partition.limit_start):
        return False
    return partition.log_start > partition.log.log_start and partition.log.state is LogState.WRITABLE
