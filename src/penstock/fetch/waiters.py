"""The long poll: fetches that found too little wait here until their partition has grown enough, or for their time.

Rules: a caller is one request and waits at most once; what is answered, expired or gone leaves no trace.
One deadline serves the driver: `next_deadline_us` is the earliest of all. Nobody is woken in vain: growth is counted in
the bytes that a partition has committed so far, and each waits for a number of its own. At most FETCHES_WOKEN_MAX are
given at once: whoever answers them comes back for more, and others have their turn meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import count

from penstock.base import limits
from penstock.messages import FetchRequest


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """One parked fetch: who asked (opaque here), for what, until when, and how much must be committed by then."""

    caller: Hashable
    request: FetchRequest
    partition: Hashable
    deadline_us: int
    wanted_bytes: int  # on the partition's count of committed bytes
    who: Hashable = None  # asks; opaque here


_Heap = list[tuple[int, int, Waiter]]


class Waiters:
    """All parked fetches of one broker."""

    def __init__(self) -> None:
        self._by_partition: dict[Hashable, dict[Waiter, None]] = {}
        self._by_caller: dict[Hashable, Waiter] = {}
        self._deadlines: _Heap = []
        self._wanted: dict[Hashable, _Heap] = {}
        self._order = count()

    def __len__(self) -> int:
        return len(self._by_caller)

    def park(self, waiter: Waiter) -> None:
        """Keep `waiter` until it is taken."""
        assert waiter.caller not in self._by_caller, waiter
        self._by_caller[waiter.caller] = waiter
        self._by_partition.setdefault(waiter.partition, {})[waiter] = None
        number = next(self._order)
        heapq.heappush(self._deadlines, (waiter.deadline_us, number, waiter))
        heapq.heappush(self._wanted.setdefault(waiter.partition, []), (waiter.wanted_bytes, number, waiter))

    def waiting(self, partition: Hashable) -> list[Waiter]:
        """Who waits for this partition, first come first."""
        return list(self._by_partition.get(partition, ()))

    def take(self, waiter: Waiter) -> None:
        """Forget `waiter`: it has its answer."""
        if not self._is_parked(waiter):
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
        """Forget all that these callers wait for: their connection has gone."""
        for caller in callers:
            if (waiter := self._by_caller.get(caller)) is not None:
                self.take(waiter)

    def expired(self, now_us: int) -> list[Waiter]:
        """Those whose time has come, earliest first, as many as are given at once; they are forgotten."""
        return self._pop(self._deadlines, now_us)

    def ready(self, partition: Hashable, committed_bytes: int) -> list[Waiter]:
        """Those who may have enough now that the partition has committed so much, as many as are given at once; they
        are forgotten.
        """
        return self._pop(self._wanted.get(partition, []), committed_bytes)

    def _pop(self, heap: _Heap, reached: int) -> list[Waiter]:
        out: list[Waiter] = []
        while heap and heap[0][0] <= reached and len(out) < limits.FETCHES_WOKEN_MAX:
            waiter = heapq.heappop(heap)[2]
            if self._is_parked(waiter):
                self.take(waiter)
                out.append(waiter)
        return out

    @property
    def next_deadline_us(self) -> int | None:
        """When `expired` has something to give, at the latest."""
        while self._deadlines and not self._is_parked(self._deadlines[0][2]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _is_parked(self, waiter: Waiter) -> bool:
        return self._by_caller.get(waiter.caller) is waiter

    def _trim(self, heap: _Heap, live: int) -> None:
        if len(heap) > 64 and len(heap) > 4 * live:
            heap[:] = [entry for entry in heap if self._is_parked(entry[2])]
            heapq.heapify(heap)
