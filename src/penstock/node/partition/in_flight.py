"""Batches that partitions have written and not yet answered."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import msgspec

from penstock.base import limits
from penstock.base.ids import LeaderEpoch, Offset, TimestampUs
from penstock.hot.subject_table import TableBudget
from penstock.ingest.ack_waiters import AckWaiters, BatchWaiter, DuplicateWaiters
from penstock.messages import AppendOnceResponse, AppendResponse
from penstock.node.partition.atomic_clock import AtomicClock
from penstock.node.partition.counters import NodeCounters
from penstock.node.partition.deferred_refusals import DeferredRefusals


@dataclass(slots=True)
class PendingBatch:
    """Rows that are written and not yet committed, with the publishers that wait, or that sent some of them again."""

    base_offset: int
    end_offset: int
    size_bytes: int
    timestamp_us: int
    waiters: AckWaiters | BatchWaiter | DuplicateWaiters | None  # publishers in NATS
    caller: Hashable | None  # of an append over the socket
    is_duplicate: bool | None = None  # of an idempotent append: the rows were there already
    arrived_us: int = 0  # elapsed

    def response(self, leader_epoch: LeaderEpoch, *, fsynced: bool) -> AppendResponse:
        """Return the answer for `caller` once the rows are committed."""
        answer = AppendResponse(
            base_offset=Offset(self.base_offset),
            end_offset=Offset(self.end_offset),
            timestamp_us=TimestampUs(self.timestamp_us),
            leader_epoch=leader_epoch,
            fsynced=fsynced,
        )
        if self.is_duplicate is None:
            return answer
        return AppendOnceResponse(**msgspec.structs.asdict(answer), duplicate=self.is_duplicate)

    @property
    def held_bytes(self) -> int:
        """Bytes that count against the budget."""
        return self.size_bytes + (0 if self.waiters is None else self.waiters.size_bytes)


@dataclass(slots=True)
class InFlightBudget:
    """In-flight bytes of all partitions of a broker, the limit for one partition, and their shared counters."""

    partition_bytes_max: int
    used_bytes: int = 0
    meters: NodeCounters = field(default_factory=NodeCounters)
    tables: TableBudget = field(default_factory=lambda: TableBudget(limits.SUBJECT_TABLE_SLOTS_MAX))
    batches: AtomicClock = field(default_factory=AtomicClock)  # atomic batches that are not committed yet
    refusals: DeferredRefusals = field(
        default_factory=DeferredRefusals
    )  # refusals that wait for a confirmed leadership

    @property
    def counters(self) -> Counter[str]:
        """Counters of rare events."""
        return self.meters.counters


class InFlight:
    """In-flight rows of one partition, in offset order. An empty one is small."""

    __slots__ = ("_budget", "_pending", "size_bytes")

    def __init__(self, budget: InFlightBudget) -> None:
        self.size_bytes = 0
        self._budget = budget
        self._pending: deque[PendingBatch] | None = None

    def __bool__(self) -> bool:
        return self._pending is not None

    def add(self, pending: PendingBatch) -> None:
        """Add rows that were written, after all that wait already."""
        if self._pending is None:
            self._pending = deque()
        self._pending.append(pending)
        self._count(pending.held_bytes)

    def take(self, end: int = limits.OFFSET_MAX) -> Iterator[PendingBatch]:
        """Remove and yield the rows that end at or before `end`, to be answered now."""
        while self._pending and self._pending[0].end_offset <= end:
            pending = self._pending.popleft()
            self._count(-pending.held_bytes)
            yield pending
        if not self._pending:
            self._pending = None

    @property
    def oldest_us(self) -> int | None:
        """Elapsed time at which the oldest waiting rows came; None if none wait."""
        return (self._pending[0].arrived_us or None) if self._pending else None

    def _count(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self._budget.used_bytes += size_bytes
