"""The scrubber of one broker: reads and verifies all its logs, one after the other.

Rules: one partition at a time, in slices, rate limited; the first pass begins SCRUB_FIRST_MS after the start at the
latest, later ones once per interval, if the one before is over. Each pass begins at another place, derived from the
process name, which is random: so a broker that is restarted often still covers all its logs, and replicas do not read
the same range at the same time. Corruption is handled as for any reader: the log becomes read-only, another broker
leads, and it is repaired (see `repairs`). Indexes, checkpoint and lineage are verified, too, and rewritten at once if
wrong. A disk with one corrupt place probably has others: a repaired log is scrubbed before anything else.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple

from penstock.base import limits
from penstock.base.ids import PartitionKey
from penstock.commitlog import LogState, Scrub
from penstock.hot.crc import crc32c
from penstock.node.context import Context
from penstock.node.partition.partition import Partition
from penstock.node.step import Lane


class _Part(NamedTuple):
    """A part of a partition to read, as fractions of its offset range."""

    key: PartitionKey
    begin: float
    end: float


class Scrubber:
    """`bytes_per_s` 0 turns scrubbing off. `process` is the name of this process run."""

    def __init__(
        self,
        context: Context,
        partitions: Mapping[PartitionKey, Partition],
        counters: Counter[str],
    ) -> None:
        self._outbox = context.outbox
        self._partitions = partitions
        self._context = context
        self._process = context.settings.process
        self._drawn = 0
        self._counters = counters
        self._bytes_per_s = context.settings.scrub_bytes_per_s
        self._interval_us = context.settings.scrub_interval_ms * 1_000
        self._left: deque[_Part] = deque()  # rest of the pass under way
        self._scrub: tuple[Partition, Scrub] | None = None
        self._is_running = False  # a disk thread is at work
        self._begun_us = self._free_us = 0
        self._next_us: int | None = None  # when the next pass begins

    def start(self) -> None:
        """Plan the first pass, once the logs are open."""
        if self._bytes_per_s:
            first_us = min(limits.SCRUB_FIRST_MS * 1_000, self._interval_us)
            self._next_us = self._context.now.elapsed_us + int(self._chance() * first_us)

    def soon(self, key: PartitionKey) -> None:
        """Scrub a repaired partition next, outside of any pass."""
        if self._bytes_per_s:
            self._left.appendleft(_Part(key, 0.0, 1.0))

    def _chance(self) -> float:
        """Return a pseudo-random number in [0, 1)."""
        self._drawn += 1
        return crc32c(f"{self._process} {self._drawn}".encode()) / 2**32

    @property
    def next_deadline_us(self) -> int | None:
        """Elapsed time at which `tick` must run; None if never."""
        if self._is_running:
            return None
        return self._free_us if self._left or self._scrub is not None else self._next_us

    def tick(self, now_us: int) -> None:
        """Begin or continue a pass if it is time; `now_us` is elapsed time."""
        if self._is_running:
            return
        if not self._left and self._scrub is None and self._next_us is not None and now_us >= self._next_us:
            self._begin_pass(now_us)
        if now_us >= self._free_us and (self._left or self._scrub is not None):
            self._go_on()

    def _begin_pass(self, now_us: int) -> None:
        self._begun_us, self._next_us = now_us, None
        keys = sorted(self._partitions)
        if not keys:
            self._next_us = now_us + self._interval_us
            return
        first, share = int(self._chance() * len(keys)), self._chance()
        self._left.append(_Part(keys[first], share, 1.0))
        self._left.extend(_Part(key, 0.0, 1.0) for key in (*keys[first + 1 :], *keys[:first]))
        self._left.append(_Part(keys[first], 0.0, share))

    def _end_pass(self) -> None:
        if self._next_us is not None:
            return  # no pass: `soon` has requested this
        self._counters["scrub_passes"] += 1
        self._next_us = max(self._begun_us + self._interval_us, self._context.now.elapsed_us)

    def _go_on(self) -> None:
        scrub = self._scrub or self._next()
        if scrub is None:
            self._end_pass()
            return
        self._scrub = scrub
        partition, work = scrub
        self._is_running = True
        read_bytes = work.read_bytes

        def done(error: Exception | None) -> None:
            self._is_running = False
            pause_us = max(work.moved_bytes * 1_000_000 // self._bytes_per_s, limits.SCRUB_PAUSE_MS * 1_000)
            self._free_us = self._context.now.elapsed_us + pause_us
            self._counters["scrubbed_bytes"] += work.read_bytes - read_bytes
            if partition.when_idle is not None and not work.is_done:
                work.close()
            if work.is_done:
                self._scrub = None
                self._ended(partition, work, error)

        self._outbox.work(Lane.QUERY, work.run, done)

    def _next(self) -> tuple[Partition, Scrub] | None:
        """Return the next work; None if the pass is over."""
        while self._left:
            part = self._left.popleft()
            partition = self._partitions.get(part.key)
            if partition is None or partition.when_idle is not None or partition.log.state is not LogState.WRITABLE:
                continue  # a corrupt log is scrubbed after its repair
            log = partition.log
            start, end = log.log_start, log.flushed_end
            begin, stop = (start + int(share * (end - start)) for share in (part.begin, part.end))
            if stop == end or begin < stop:
                sides = log.side_files() if stop == end else None
                return partition, Scrub(log.view(), begin, stop, log.damage_found, sides)
        return None

    def _ended(self, partition: Partition, work: Scrub, error: Exception | None) -> None:
        if error is not None:
            partition.tell(f"cannot be checked for damage: {error}", self._outbox)
        wrong = [*work.wrong_indexes]
        if error is None and work.side_files is not None and partition.when_idle is None:
            wrong += partition.log.repair_side_files(work.side_files)
        for file, first in {one.file: one for one in reversed(wrong)}.items():
            text = f"{file} was wrong at byte {first.position}: expected {first.expected}, found {first.found}"
            self._outbox.notice(f"{text}; it is written anew")
            self._counters["scrubbed_damage"] += 1
        if work.damaged:
            self._counters["scrubbed_damage"] += work.damaged
        if not self._left:
            self._end_pass()
