"""Log cleaner of one broker: rewrites sealed segments that have many small batches or removable messages.

Rules: one segment is rewritten at a time, whatever the number of partitions, in slices of a few megabytes and no faster
than the rate limit: cleaning helps later readers and must not slow down present ones. A survey, with which a pass of
compaction begins, reads a whole log, so it takes turns with the segments of other partitions. It holds many keys in
memory, so only one runs at a time and other partitions wait for it. Work begins when a visited partition has something
to clean, so a partition that does not grow costs nothing. A rewritten segment is read at once; the old file stays for
CLEANED_KEEP_MS, because answers may be about to open it. A partition whose disk is full, or whose log is being
truncated, waits. Partitions with rows that are to be erased at once come first, and their old files go after
ERASED_KEEP_MS.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from penstock.base import limits
from penstock.base.clock import earliest, growing
from penstock.commitlog import CleanerTask, Cleaning, ExpirySurvey, SubjectIndexing, Survey
from penstock.node.context import Context
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_events import PartitionEventKind, PartitionEvents
from penstock.node.step import Lane

_KEEP_US = limits.CLEANED_KEEP_MS * 1_000
_ERASED_KEEP_US = limits.ERASED_KEEP_MS * 1_000
_KEEP_US_MAX = limits.REMOVAL_RETRY_MS_MAX * 1_000
_RETRY_US = limits.MAINTENANCE_RETRY_MS * 1_000


class _Task(NamedTuple):
    partition: Partition
    work: CleanerTask


class Cleaners:
    """Schedules cleaning. `again` is called when a partition is to be visited once more, `idle` when no disposal of its
    files is running any more.

    The setting `cleaner_bytes_per_s` limits what is read and written together; 0 switches cleaning off, but for rows
    that are to be erased at once.
    """

    def __init__(
        self,
        context: Context,
        events: PartitionEvents,
        *,
        again: Callable[[Partition], None],
        idle: Callable[[Partition], None],
    ) -> None:
        self._outbox = context.outbox
        self._context = context
        self._events = events
        self._may_tidy = context.settings.cleaner_bytes_per_s > 0
        self._bytes_per_s = context.settings.cleaner_bytes_per_s or limits.CLEANING_BYTES_PER_S_DEFAULT
        self._again = again
        self._idle = idle
        self._urgent: dict[Partition, None] = {}  # with rows to be erased at once, in the order of arrival
        self._waiting: dict[Partition, None] = {}  # in the order of arrival
        self._waiting_to_survey: dict[Partition, None] = {}  # until another partition's survey ends
        self._under_way: deque[_Task] = deque()  # one segment and one survey at most; the next to run comes first
        self._running: _Task | None = None  # in a disk thread now
        self._free_us = 0  # when the rate limit allows the next slice
        self._stale: deque[tuple[int, Partition]] = deque()  # when old files are due for removal, and whose
        self._erased: dict[Partition, int] = {}  # when all old files of a partition are due, as some had secure rows
        self._not_removed: dict[Partition, int] = {}  # failed removals in a row

    def enqueue(self, partition: Partition) -> None:
        """Queue a partition that may have a segment to clean."""
        now, log = self._context.now, partition.log
        if log.owes_sweep:
            self._erased.setdefault(partition, now.elapsed_us + _ERASED_KEEP_US)
        if log.wants_erasure(now.wall_us):
            self._urgent[partition] = None
        elif self._may_tidy and log.wants_cleaning(now.wall_us):
            self._waiting[partition] = None
        else:
            return
        self._go_on(now.elapsed_us)

    @property
    def next_deadline_us(self) -> int | None:
        """When `tick` has something to do."""
        has_work = self._running is None and (self._urgent or self._waiting or self._under_way)
        stale_us = self._stale[0][0] if self._stale else None
        return earliest(self._free_us if has_work else None, stale_us, *self._erased.values())

    def tick(self, now_us: int) -> None:
        """Remove old files that are due and run the next slice; `now_us` is elapsed time."""
        while self._stale and self._stale[0][0] <= now_us:
            self._dispose(self._stale.popleft()[1], now_us)
        for partition in [one for one, due_us in self._erased.items() if due_us <= now_us]:
            del self._erased[partition]
            self._dispose(partition, now_us, is_erasure=True)
        self._go_on(now_us)

    def forget(self, partition: Partition) -> None:
        """Drop the work of a partition whose log is about to be closed."""
        self._drop(partition)
        self._erased.pop(partition, None)
        self._not_removed.pop(partition, None)
        for task in [one for one in self._under_way if one.partition is partition and one is not self._running]:
            task.work.close()
            self._end(task)

    def gives_way(self, partition: Partition) -> bool:
        """Cancel the work on a partition whose log is to be repaired; return True if nothing runs there any more."""
        self._drop(partition)
        for task in [one for one in self._under_way if one.partition is partition]:
            task.work.is_void = True
            if task is not self._running:
                task.work.close()
                self._end(task)
                partition.log.cleaned(task.work, self._context.now.wall_us)
        return not (partition.log.is_cleaned or partition.log.is_disposing)

    def _drop(self, partition: Partition) -> None:
        for place in (self._urgent, self._waiting, self._waiting_to_survey):
            place.pop(partition, None)

    def _go_on(self, now_us: int) -> None:
        if self._running is not None or now_us < self._free_us:
            return
        while (self._urgent or self._waiting) and not self._is_any(Cleaning, ExpirySurvey, SubjectIndexing):
            self._begin(next(iter(self._urgent or self._waiting)))
        if not self._under_way:
            return
        task = self._running = self._under_way[0]
        partition, work = task

        def done(error: Exception | None) -> None:
            now_us = self._context.now.elapsed_us
            self._running = None
            self._free_us = now_us + work.moved_bytes * 1_000_000 // self._bytes_per_s
            if partition.when_idle is not None:
                work.close()
                self._end(task)
            elif error is not None or work.is_done:
                self._end(task)
                self._done(partition, work, error)
            else:
                self._under_way.rotate(-1)
            self._go_on(now_us)

        self._outbox.work(Lane.QUERY, work.run, done)

    def _is_any(self, *kinds: type[CleanerTask]) -> bool:
        return any(isinstance(task.work, kinds) for task in self._under_way)

    def _begin(self, partition: Partition) -> None:
        self._urgent.pop(partition, None)
        self._waiting.pop(partition, None)
        if partition.when_idle is not None or partition.cutting is not None or partition.impediment:
            return  # it is visited again if it goes on
        now_us = self._context.now.wall_us
        is_surveying = self._is_any(Survey)
        # What a row hides is decided before a survey may take the row itself.
        knows_hidden = partition.knows_hidden and partition.is_sealed_decided
        begun = partition.log.clean(
            now_us, may_survey=not is_surveying, may_tidy=self._may_tidy, knows_hidden=knows_hidden
        )
        if begun is not None:
            self._under_way.append(_Task(partition, begun))
        elif is_surveying and self._may_tidy and partition.log.wants_cleaning(now_us):
            self._waiting_to_survey[partition] = None
        self._settle(partition)

    def _end(self, task: _Task) -> None:
        self._under_way.remove(task)
        if isinstance(task.work, Survey):
            self._waiting |= self._waiting_to_survey
            self._waiting_to_survey.clear()

    def _done(self, partition: Partition, cleaning: CleanerTask, error: Exception | None) -> None:
        size_bytes = partition.log.size_bytes
        try:
            has_replaced = partition.log.cleaned(cleaning, self._context.now.wall_us)
        except OSError as failure:
            error, has_replaced = failure, False
        if partition.log.found is not None and isinstance(cleaning, Survey | ExpirySurvey):
            self._events.add(PartitionEventKind.SURVEYED, partition)
        if error is not None and not isinstance(error, FileNotFoundError):  # retention may have removed the segment
            doing = "index the subjects of" if isinstance(cleaning, SubjectIndexing) else "rewrite"
            partition.tell(f"cannot {doing} a segment: {error}", self._outbox)
        if has_replaced:
            partition.counters["cleaned_segments"] += 1
            if isinstance(cleaning, Cleaning) and cleaning.takes_rows and partition.lasts is not None:
                partition.lasts.is_compacted = True
            if isinstance(cleaning, Cleaning) and cleaning.takes_rows:
                partition.rows_taken(self._outbox.step)
            partition.counters["cleaned_bytes"] += size_bytes - partition.log.size_bytes
        if isinstance(cleaning, Cleaning) and (cleaning.replacement is not None or cleaning.is_left):
            self._stale.append((self._context.now.elapsed_us + _KEEP_US, partition))
        self._again(partition)
        self.enqueue(partition)
        self._settle(partition)

    def _settle(self, partition: Partition) -> None:
        """Have the last offsets read again, once after a pass of compaction and not for each of its segments."""
        is_to_clean = partition in self._waiting or any(task.partition is partition for task in self._under_way)
        if partition.lasts is not None and partition.lasts.is_compacted and not is_to_clean:
            partition.lasts = None

    def _dispose(self, partition: Partition, now_us: int, *, is_erasure: bool = False) -> None:
        if partition.when_idle is not None:
            return
        if partition.cutting is not None or partition.log.is_disposing:  # after a truncation file names may be reused
            if is_erasure:
                self._erased[partition] = now_us + _RETRY_US
            else:
                self._stale.append((now_us + _RETRY_US, partition))
            return
        # without those whose disposals are scheduled later
        young = 0 if is_erasure else sum(one is partition for _, one in self._stale)
        if (disposal := partition.log.dispose(young)) is None:
            return

        def done(error: Exception | None) -> None:
            partition.log.disposed(has_failed=error is not None)
            if error is None:
                self._not_removed.pop(partition, None)
            elif partition.when_idle is None:
                failures = self._not_removed[partition] = self._not_removed.get(partition, 0) + 1
                self._stale.append(
                    (self._context.now.elapsed_us + growing(_KEEP_US, failures, _KEEP_US_MAX), partition)
                )
                partition.tell(f"cannot remove a segment that was rewritten; it is tried again: {error}", self._outbox)
            self._idle(partition)
            if partition.when_idle is None:
                self.enqueue(partition)

        self._outbox.work(Lane.WRITE, disposal.run, done)
