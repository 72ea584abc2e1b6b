"""The cleaner of one broker: sealed segments with many small batches, or messages to go, are written anew.

Rules: one segment at a time, whatever the number of partitions, in slices of a few megabytes, and no faster than the
rate: it works for later readers, and must not be felt by anybody now. It begins when a partition was visited that has
something to clean, so one that does not grow costs nothing. What took the place of another segment is read at once;
the old file stays for CLEANED_KEEP_MS, for answers that are about to open it. A partition whose disk takes nothing, or
whose log is being cut, waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from penstock.base import limits
from penstock.base.clock import Now, earliest
from penstock.commitlog import Cleaning, Survey
from penstock.node.partition import Partition
from penstock.node.step import Lane, Outbox

_KEEP_US = limits.CLEANED_KEEP_MS * 1_000
_RETRY_US = limits.UPKEEP_RETRY_MS * 1_000


class Cleaners:
    """`again` is called when a partition is to be visited once more, `idle` when none of its files is removed any more.

    `bytes_per_s` is of what is read and what is written, together; 0: nothing is cleaned.
    """

    def __init__(
        self,
        outbox: Outbox,
        clock: Callable[[], Now],
        bytes_per_s: int,
        *,
        again: Callable[[Partition], None],
        idle: Callable[[Partition], None],
    ) -> None:
        self._outbox = outbox
        self._clock = clock
        self._bytes_per_s = bytes_per_s
        self._again = again
        self._idle = idle
        self._waiting: dict[Partition, None] = {}  # in the order in which they came
        self._under_way: tuple[Partition, Cleaning | Survey] | None = None
        self._is_running = False  # a disk thread is at it
        self._free_us = 0  # when the rate lets it go on
        self._stale: deque[tuple[int, Partition]] = deque()  # whose old files go, and when

    def look(self, partition: Partition) -> None:
        """Something has happened to it: it may have a segment to clean."""
        now = self._clock()
        if self._bytes_per_s and partition.log.wants_cleaning(now.wall_us):
            self._waiting[partition] = None
            self._go_on(now.elapsed_us)

    @property
    def next_deadline_us(self) -> int | None:
        """When `tick` has something to do."""
        has_work = not self._is_running and (self._waiting or self._under_way)
        return earliest(self._free_us if has_work else None, self._stale[0][0] if self._stale else None)

    def tick(self, now_us: int) -> None:
        """Go on, if it is time for that; `now_us` is elapsed time."""
        while self._stale and self._stale[0][0] <= now_us:
            self._dispose(self._stale.popleft()[1], now_us)
        self._go_on(now_us)

    def forget(self, partition: Partition) -> None:
        """Its log is about to be closed."""
        self._waiting.pop(partition, None)
        if self._under_way is not None and self._under_way[0] is partition and not self._is_running:
            self._under_way[1].close()
            self._under_way = None

    def _go_on(self, now_us: int) -> None:
        if self._is_running or now_us < self._free_us:
            return
        while self._under_way is None and self._waiting:
            partition = next(iter(self._waiting))
            del self._waiting[partition]
            if partition.when_idle is not None or partition.cutting is not None or partition.impediment:
                continue  # it is visited again, if it goes on
            if (begun := partition.log.clean(self._clock().wall_us)) is not None:
                self._under_way = partition, begun
        if self._under_way is None:
            return
        partition, cleaning = self._under_way

        def done(error: Exception | None) -> None:
            now_us = self._clock().elapsed_us
            self._is_running = False
            self._free_us = now_us + cleaning.moved_bytes * 1_000_000 // self._bytes_per_s
            if partition.when_idle is not None:
                cleaning.close()
                self._under_way = None
            elif error is not None or cleaning.is_done:
                self._under_way = None
                self._done(partition, cleaning, error)
            self._go_on(now_us)

        self._is_running = True
        self._outbox.work(Lane.QUERY, cleaning.run, done)

    def _done(self, partition: Partition, cleaning: Cleaning | Survey, error: Exception | None) -> None:
        size_bytes = partition.log.size_bytes
        try:
            has_replaced = partition.log.cleaned(cleaning, self._clock().wall_us)
        except OSError as failure:
            error, has_replaced = failure, False
        if error is not None and not isinstance(error, FileNotFoundError):  # retention may have removed it meanwhile
            partition.tell(f"cannot write a segment anew: {error}", self._outbox)
        if has_replaced:
            partition.counters["cleaned_segments"] += 1
            if isinstance(cleaning, Cleaning) and cleaning.is_compaction and partition.lasts is not None:
                partition.lasts.is_compacted = True
            partition.counters["cleaned_bytes"] += size_bytes - partition.log.size_bytes
        if isinstance(cleaning, Cleaning) and cleaning.replacement is not None:
            self._stale.append((self._clock().elapsed_us + _KEEP_US, partition))
        self._again(partition)
        self.look(partition)
        if partition.lasts is not None and partition.lasts.is_compacted and not self._is_to_clean(partition):
            partition.lasts = None  # once a pass is over, and not for each segment: the log is read again for them

    def _is_to_clean(self, partition: Partition) -> bool:
        is_under_way = self._under_way is not None and self._under_way[0] is partition
        return is_under_way or partition in self._waiting

    def _dispose(self, partition: Partition, now_us: int) -> None:
        if partition.when_idle is not None:
            return
        if partition.cutting is not None or partition.log.is_disposing:  # names may be used again, when it was cut
            self._stale.append((now_us + _RETRY_US, partition))
            return
        young = sum(one is partition for _, one in self._stale)  # of what was left since
        if (disposal := partition.log.dispose(young)) is None:
            return

        def done(error: Exception | None) -> None:
            partition.log.disposed()
            if error is not None:
                partition.tell(f"cannot remove what was written anew; the next start does: {error}", self._outbox)
            self._idle(partition)

        self._outbox.work(Lane.WRITE, disposal.run, done)
