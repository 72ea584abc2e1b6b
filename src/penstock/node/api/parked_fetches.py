"""Long polls: fetches that found too little data wait here until their partition has grown enough, or they time out.

Rules: a caller is one request and waits at most once; answered, expired and disconnected ones leave no trace. The
driver needs one deadline: `next_deadline_us` is the earliest. There are no spurious wake-ups: growth is the number of
bytes that a partition has committed so far, and each fetch waits for its own number. At most FETCHES_WOKEN_MAX are
returned at once: the caller comes back for more, and other work has its turn meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count

from penstock.base import limits
from penstock.base.ids import PartitionKey
from penstock.messages import FetchRequest
from penstock.node.security.access import Call


@dataclass(frozen=True, slots=True, eq=False)
class ParkedFetch:
    """One waiting fetch: its call and request, its deadline, and the committed bytes it waits for."""

    call: Call
    request: FetchRequest
    deadline_us: int
    wanted_bytes: int  # a value of the partition's count of committed bytes

    @property
    def caller(self) -> Hashable:
        """The caller, who is answered once."""
        return self.call.caller

    @property
    def partition(self) -> PartitionKey:
        """The partition that the request names."""
        return PartitionKey(self.request.stream_id, self.request.partition)


_Heap = list[tuple[int, int, ParkedFetch]]


class ParkedFetches:
    """All parked fetches of one broker."""

    def __init__(self) -> None:
        self._by_partition: dict[PartitionKey, dict[ParkedFetch, None]] = {}
        self._by_caller: dict[Hashable, ParkedFetch] = {}
        self._deadlines: _Heap = []
        self._wanted: dict[PartitionKey, _Heap] = {}
        self._order = count()

    def __len__(self) -> int:
        return len(self._by_caller)

    def __iter__(self) -> Iterator[ParkedFetch]:
        return iter(list(self._by_caller.values()))

    def park(self, waiter: ParkedFetch) -> None:
        assert waiter.caller not in self._by_caller, waiter
        self._by_caller[waiter.caller] = waiter
        self._by_partition.setdefault(waiter.partition, {})[waiter] = None
        number = next(self._order)
        heapq.heappush(self._deadlines, (waiter.deadline_us, number, waiter))
        heapq.heappush(self._wanted.setdefault(waiter.partition, []), (waiter.wanted_bytes, number, waiter))

    def waiting(self, partition: PartitionKey) -> list[ParkedFetch]:
        """Return the fetches that wait for this partition, first come first."""
        return list(self._by_partition.get(partition, ()))

    def take(self, waiter: ParkedFetch) -> None:
        """Remove `waiter`: it has its answer."""
        if not self.has(waiter):
            return
        del self._by_caller[waiter.caller]
        waiters = self._by_partition[waiter.partition]
        del waiters[waiter]
        self._trim(self._deadlines, len(self))
        if waiters:
            self._trim(self._wanted[waiter.partition], len(waiters))
        else:
            del self._by_partition[waiter.partition], self._wanted[waiter.partition]

    def drop(self, callers: Iterable[Hashable]) -> None:
        """Remove the fetches of disconnected callers."""
        for caller in callers:
            if (waiter := self._by_caller.get(caller)) is not None:
                self.take(waiter)

    def expired(self, now_us: int) -> list[ParkedFetch]:
        """Remove and return fetches past their deadline, earliest first, at most FETCHES_WOKEN_MAX."""
        return self._pop(self._deadlines, now_us)

    def ready(self, partition: PartitionKey, committed_bytes: int) -> list[ParkedFetch]:
        """Remove and return fetches that wait for at most `committed_bytes`, at most FETCHES_WOKEN_MAX."""
        return self._pop(self._wanted.get(partition, []), committed_bytes)

    def _pop(self, heap: _Heap, reached: int) -> list[ParkedFetch]:
        out: list[ParkedFetch] = []
        while heap and heap[0][0] <= reached and len(out) < limits.FETCHES_WOKEN_MAX:
            waiter = heapq.heappop(heap)[2]
            if self.has(waiter):
                self.take(waiter)
                out.append(waiter)
        return out

    @property
    def next_deadline_us(self) -> int | None:
        """Time at which `expired` must be called; None if no fetch waits."""
        while self._deadlines and not self.has(self._deadlines[0][2]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def has(self, waiter: ParkedFetch) -> bool:
        """True if `waiter` is parked."""
        return self._by_caller.get(waiter.caller) is waiter

    def _trim(self, heap: _Heap, live: int) -> None:
        if len(heap) > 64 and len(heap) > 4 * live:
            heap[:] = [entry for entry in heap if self.has(entry[2])]
            heapq.heapify(heap)
