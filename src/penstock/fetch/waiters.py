"""The long poll: fetches that found too little wait here for the partition's committed end, or for their time.

Rules: a caller is one request and waits at most once; what is answered, expired or gone leaves no trace.
One deadline serves the driver: `next_deadline_us` is the earliest of all.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import count

from penstock.messages import FetchRequest


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """One parked fetch: who asked (opaque here), for what, and until when."""

    caller: Hashable
    request: FetchRequest
    partition: Hashable
    deadline_us: int


class Waiters:
    """All parked fetches of one broker."""

    def __init__(self) -> None:
        self._by_partition: dict[Hashable, dict[Waiter, None]] = {}
        self._by_caller: dict[Hashable, Waiter] = {}
        self._deadlines: list[tuple[int, int, Waiter]] = []
        self._order = count()

    def __len__(self) -> int:
        return len(self._by_caller)

    def park(self, waiter: Waiter) -> None:
        """Keep `waiter` until it is taken."""
        assert waiter.caller not in self._by_caller, waiter
        self._by_caller[waiter.caller] = waiter
        self._by_partition.setdefault(waiter.partition, {})[waiter] = None
        heapq.heappush(self._deadlines, (waiter.deadline_us, next(self._order), waiter))

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
        if not waiters:
            del self._by_partition[waiter.partition]
        if len(self._deadlines) > 64 and len(self._deadlines) > 4 * len(self):
            self._rebuild()

    def drop(self, callers: Iterable[Hashable]) -> None:
        """Forget all that these callers wait for: their connection has gone."""
        for caller in callers:
            if (waiter := self._by_caller.get(caller)) is not None:
                self.take(waiter)

    def expired(self, now_us: int) -> list[Waiter]:
        """Those whose time has come, earliest first; they are forgotten."""
        out = []
        while self._deadlines and self._deadlines[0][0] <= now_us:
            waiter = heapq.heappop(self._deadlines)[2]
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

    def _rebuild(self) -> None:
        self._deadlines = [entry for entry in self._deadlines if self._is_parked(entry[2])]
        heapq.heapify(self._deadlines)
