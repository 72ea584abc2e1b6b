"""Deadlines and pending ISR proposals of one broker's led partitions.

Rules: one heap for all, no timer per partition. A partition with an entry gets no second one at the same time or later:
a partition with a thousand appends a second is planned once, and finds at its deadline whether there is anything to do.
A partition with nothing to do is in neither table.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import Generic, TypeVar

_T = TypeVar("_T")
_TRIM_FROM = 64  # heap entries; below that, stale ones cost nothing


class LeadershipTimers(Generic[_T]):
    """Deadlines and wishes; an item is known by its identity or its hash."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, _T]] = []
        self._planned: dict[_T, int] = {}
        self._wishes: dict[_T, None] = {}
        self._order = count()

    def plan(self, item: _T, at_us: int) -> None:
        """Have `due` return `item` at `at_us`, unless it does so earlier anyway."""
        planned_us = self._planned.get(item)
        if planned_us is None or at_us < planned_us:
            self._planned[item] = at_us
            heapq.heappush(self._heap, (at_us, next(self._order), item))

    def wish(self, item: _T) -> None:
        """Note that `item` has something to propose."""
        self._wishes[item] = None

    @property
    def has_wishes(self) -> bool:
        """True if `take_wishes` would return something."""
        return bool(self._wishes)

    def take_wishes(self, count_max: int) -> list[_T]:
        """Remove and return the items that have something to propose, oldest first."""
        if not self._wishes:  # as nearly always, and it is called in every step
            return []
        taken = [item for item, _ in zip(self._wishes, range(count_max), strict=False)]
        for item in taken:
            del self._wishes[item]
        return taken

    def due(self, now_us: int) -> list[_T]:
        """Remove and return the items whose deadline has come, earliest first."""
        out = []
        while self._heap and self._heap[0][0] <= now_us:
            at_us, _, item = heapq.heappop(self._heap)
            if self._planned.get(item) == at_us:
                del self._planned[item]
                out.append(item)
        return out

    @property
    def next_deadline_us(self) -> int | None:
        """The time at which `due` returns something; None if never."""
        while self._heap and self._planned.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def drop(self, item: _T) -> None:
        """Forget `item`, which has ended."""
        self._wishes.pop(item, None)
        self._planned.pop(item, None)
        if len(self._heap) > _TRIM_FROM and len(self._heap) > 4 * len(self._planned):
            self._heap = [entry for entry in self._heap if self._planned.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)
