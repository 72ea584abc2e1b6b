"""Retention of staged rows: rows of published batches are removed soon, long before their stream's age limit.

Rules: rows staged for a batch of a query are needed until that batch is completely published. The leader of the
partition that holds them reads both logs: the headers of staged batches name their batch, and the headers of runs in
its own replica of the target show each query's progress (`ingest.published`). Only committed runs count. Whole segments
are checked, oldest first, and never the active one. A segment that is no longer needed stays for `keep_ms` more, for
attempts that read a plan in it meanwhile; then the log start moves behind it. Rows that do not name their batch are
left to the limits on age and bytes.

| rows staged for                                     | status                                                 |
|-----------------------------------------------------|--------------------------------------------------------|
| a batch that the query has published completely     | not needed: a repeated request is answered as duplicate|
| a batch before the last one of the query            | not needed: it is never published again                |
| a batch of which some pieces are published          | needed: its plan says what comes next                  |
| a batch after the last one of the query             | needed                                                 |
| a query without a run in the target                 | needed                                                 |
| an unknown batch                                    | needed                                                 |

The state is in memory only. If the logs are truncated, corrupt or led by another broker, rows stay longer.

Staged rows are copies of what is published, so a secure deletion in the target waits for those that were staged before
it (`copies`). Their segments are rolled at once on each replica, and go as all others do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.base import limits
from penstock.base.clock import earliest
from penstock.base.ids import PartitionKey
from penstock.base.staged import staged_name
from penstock.batch.header import ENDS_RUN, NO_RUN, OF_RUN, BatchHeader
from penstock.commitlog import LogView
from penstock.commitlog.segment.segment import Segment
from penstock.node.context import Context
from penstock.node.maintenance.log_maintenance import LogMaintenance
from penstock.node.partition.internal_streams import target_of
from penstock.node.partition.log_queries import QueryGivenUpError
from penstock.node.partition.partition import Partition
from penstock.node.step import Lane
from penstock.replication.leader import Leadership

_CLOCKS_APART_US = limits.STAGED_CLOCKS_APART_MS * 1_000
_LOOKS_PER_KEEP = 4  # checks per `keep_ms` of a segment that is still needed


class Blocker(NamedTuple):
    """Staged rows that are still needed, as of `read_end` in the target."""

    offset: int
    query_id: bytes  # NO_RUN: they name no batch
    batch_id: int
    since_us: int  # nothing of the batch was published earlier
    read_end: int  # end of the target that was read


class FindPublished:
    """Finds out whether any row of a staged segment is still needed, in a disk thread."""

    def __init__(
        self, staged: LogView, begin: int, end: int, target: LogView, committed_end: int, blocker: Blocker | None
    ) -> None:
        """`begin` to `end`: committed staged offsets; `committed_end`: of the target; `blocker`: found before."""
        self.blocker = blocker  # after `run`: None if no row is needed
        self.is_wanted = True
        self.end = end
        self._begin = begin
        self._staged = staged
        self._target = target
        self._committed_end = committed_end

    def run(self) -> None:
        """Raise RemoteError, OSError or QueryGivenUpError: the result is unknown and `blocker` unchanged."""
        if (blocker := self.blocker) is not None and blocker.query_id != NO_RUN:
            needed = self._needed({blocker.query_id: blocker.batch_id}, blocker.since_us, blocker.read_end)
            if needed is not None:
                self.blocker = blocker._replace(read_end=self._committed_end)
                return
        self.blocker = self._find()

    def _find(self) -> Blocker | None:
        batches: dict[bytes, int] = {}  # last batch of each query
        offsets: dict[bytes, int] = {}
        since_us: int | None = None
        # read whole, which verifies them: a header alone has no checksum
        for header, _ in self._staged.batches(self._begin, self.end):
            self._check_wanted()
            since_us = header.min_timestamp_us if since_us is None else since_us
            query_id, batch_id = header.run_id, header.producer_sequence
            if query_id == NO_RUN:
                return Blocker(header.base_offset, NO_RUN, 0, since_us, 0)
            batches[query_id] = max(batch_id, batches.get(query_id, batch_id))
            offsets.setdefault(query_id, header.base_offset)
        if since_us is None:
            return None
        query = self._needed(batches, since_us, 0)
        if query is None:
            return None
        return Blocker(offsets[query], query, batches[query], since_us, self._committed_end)

    def _needed(self, batches: Mapping[bytes, int], since_us: int, begin: int) -> bytes | None:
        """Return a query that has not completed its batch in the target from `begin` on; None if all have."""
        view, end, left = self._target, self._committed_end, dict(batches)
        start = max(begin, view.offset_at(since_us - _CLOCKS_APART_US, end=view.log_end))

        def wants(header: BatchHeader) -> bool:
            self._check_wanted()
            return bool(header.flags & OF_RUN) and header.run_id in left and header.end_offset <= end

        if start < end:
            for header, _ in view.batches(start, end, reverse=True, wants=wants):
                batch_id = left.pop(header.run_id)
                is_complete = header.producer_sequence == batch_id and header.flags & ENDS_RUN
                if header.producer_sequence <= batch_id and not is_complete:
                    return header.run_id
                if not left:
                    return None
        return next(iter(left), None)

    def _check_wanted(self) -> None:
        if not self.is_wanted:
            raise QueryGivenUpError


@dataclass(slots=True, eq=False)
class _Watched:
    """The state of a partition with staged rows."""

    partition: Partition
    leadership: Leadership
    due_us: int  # elapsed time of the next check
    passed_end: int = 0  # no row before it is needed
    blocker: Blocker | None = None  # why it is not further
    work: FindPublished | None = None  # under way
    going: deque[tuple[int, int]] = field(default_factory=deque)  # ends of segments to remove, and when: rising

    @property
    def deadline_us(self) -> int | None:
        """Elapsed time of the next action; None while a disk thread works."""
        return earliest(None if self.work else self.due_us, self.going[0][1] if self.going else None)


class StagedRetention:
    """The staged rows of all partitions led here."""

    def __init__(self, context: Context, partitions: Mapping[PartitionKey, Partition], upkeep: LogMaintenance) -> None:
        self._outbox = context.outbox
        self._partitions = partitions
        self._context = context
        self._upkeep = upkeep
        self._keep_us = context.settings.staged_keep_ms * 1_000
        self._watched: dict[PartitionKey, _Watched] = {}

    def copies(self, target: PartitionKey) -> Partition | None:
        """Return the partition here that holds rows staged for a partition; None if there is none.

        KeyError: this broker is to hold it, and it is not open.
        """
        image = self._context.image
        stream_id = image.names.get(staged_name(target.stream_id))
        if stream_id is None or target.partition >= len(image.streams[stream_id].partitions):
            return None
        if self._context.settings.broker_id not in image.partition(stream_id, target.partition).holders:
            return None
        return self._partitions[PartitionKey(stream_id, target.partition)]

    def hasten(self, partition: Partition, end: int) -> None:
        """Have what is staged before offset `end` removed as soon as it may go: not only once it is a segment."""
        partition.log.roll_end = max(partition.log.roll_end, end)
        self._upkeep.touch(partition)
        self.watch(partition)

    def watch(self, partition: Partition) -> None:
        """Watch the partition once it has more than a segment; called when a leadership begins or more is committed."""
        config, leadership, log = partition.stream.config, partition.leadership, partition.log
        is_small = log.size_bytes < config.segment_bytes and log.segment_count < 2
        if not config.is_internal or leadership is None or is_small:
            return
        watched = self._watched.get(partition.key)
        if watched is not None and watched.leadership is leadership:
            return
        if target_of(partition.stream) is not None:
            self.ended(partition)
            self._watched[partition.key] = _Watched(partition, leadership, self._context.now.elapsed_us)

    def ended(self, partition: Partition) -> None:
        """Stop watching a partition no longer led here."""
        watched = self._watched.pop(partition.key, None)
        if watched is not None and watched.work is not None:
            watched.work.is_wanted = False

    def stop(self) -> None:
        """Cancel all work because the broker stops."""
        for watched in list(self._watched.values()):
            self.ended(watched.partition)

    def tick(self, now_us: int) -> None:
        """Do what is due; `now_us` is elapsed time."""
        if self._watched:
            for watched in list(self._watched.values()):
                deadline_us = watched.deadline_us
                if deadline_us is not None and deadline_us <= now_us:
                    self._go_on(watched, now_us)

    @property
    def next_deadline_us(self) -> int | None:
        """Elapsed time at which `tick` must run; None if never."""
        return earliest(*(one.deadline_us for one in self._watched.values())) if self._watched else None

    def _go_on(self, watched: _Watched, now_us: int) -> None:
        partition = watched.partition
        if partition.leadership is not watched.leadership:
            self.ended(partition)
            return
        again_us = now_us + self._keep_us // _LOOKS_PER_KEEP
        start = 0
        while watched.going and watched.going[0][1] <= now_us:
            start, _ = watched.going.popleft()
        if start > partition.log_start and not self._upkeep.give_up(partition, start):
            watched.going.appendleft((start, again_us))
        if watched.work is None and watched.due_us <= now_us:
            watched.due_us = again_us
            self._look_further(watched)

    def _look_further(self, watched: _Watched) -> None:
        """Have the next segment checked. Stop watching if there is none, nothing waits, and the log is small."""
        partition = watched.partition
        key, view = partition.key, partition.view()
        begin = max(watched.passed_end, view.log_start)
        segment = _closed_segment(view, begin)
        if segment is None:
            if not watched.going and partition.log.size_bytes < partition.stream.config.segment_bytes:
                self.ended(partition)
            return
        blocker = watched.blocker
        if blocker is not None and blocker.offset < begin:
            blocker = watched.blocker = None  # retention has removed it
        if blocker is not None and blocker.query_id == NO_RUN:
            return
        target_id = target_of(partition.stream)
        target = None if target_id is None else self._partitions.get(PartitionKey(target_id, key.partition))
        if target is None or segment.end_offset > partition.committed_end:
            return
        target_view = target.view()
        committed_end = min(target.committed_end, target_view.log_end)
        work = FindPublished(view, begin, segment.end_offset, target_view, committed_end, blocker)
        watched.work = work

        def done(error: Exception | None) -> None:
            watched.work = None
            if self._watched.get(key) is not watched:
                return
            watched.blocker = work.blocker
            if error is None and work.blocker is None:
                watched.passed_end = work.end
                watched.going.append((work.end, self._context.now.elapsed_us + self._keep_us))
                self._look_further(watched)

        self._outbox.work(Lane.QUERY, work.run, done)


def _closed_segment(view: LogView, offset: int) -> Segment | None:
    """Return the segment with that offset, unless it is the active one."""
    return next((one for one in view.segments[:-1] if one.base_offset <= offset < one.end_offset), None)
