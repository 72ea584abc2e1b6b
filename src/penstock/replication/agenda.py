"""What the led partitions of one broker have to do at some time, and which of them want another ISR.

Rules: one heap for all, no timer per partition. A partition that has an entry gets no second one at the same time or
later: who appends a thousand times a second is planned once, and finds out when its time comes that there is nothing
to do. One with nothing to do is in neither table.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import Generic, TypeVar

_T = TypeVar("_T")
_TRIM_FROM = 64  # entries; below that the dead ones cost nothing


class Agenda(Generic[_T]):
    """Deadlines and wishes; an item is known by its identity or its hash."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, _T]] = []
        self._planned: dict[_T, int] = {}
        self._wishes: dict[_T, None] = {}
        self._order = count()

    def plan(self, item: _T, at_us: int) -> None:
        """Give `item` in `due` at `at_us`, unless it comes before that anyway."""
        planned_us = self._planned.get(item)
        if planned_us is None or at_us < planned_us:
            self._planned[item] = at_us
            heapq.heappush(self._heap, (at_us, next(self._order), item))

    def wish(self, item: _T) -> None:
        """`item` has something to propose."""
        self._wishes[item] = None

    @property
    def has_wishes(self) -> bool:
        """Whether `take_wishes` has something to give."""
        return bool(self._wishes)

    def take_wishes(self, count_max: int) -> list[_T]:
        """Who has something to propose, first come first; they are forgotten."""
        if not self._wishes:  # as nearly always, and it is asked with every step
            return []
        taken = [item for item, _ in zip(self._wishes, range(count_max), strict=False)]
        for item in taken:
            del self._wishes[item]
        return taken

    def due(self, now_us: int) -> list[_T]:
        """Whose time has come, earliest first; they are forgotten."""
        out = []
        while self._heap and self._heap[0][0] <= now_us:
            at_us, _, item = heapq.heappop(self._heap)
            if self._planned.get(item) == at_us:
                del self._planned[item]
                out.append(item)
        return out

    @property
    def next_deadline_us(self) -> int | None:
        """When `due` has something to give."""
        while self._heap and self._planned.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def drop(self, item: _T) -> None:
        """Forget `item`: it is gone."""
        self._wishes.pop(item, None)
        self._planned.pop(item, None)
        if len(self._heap) > _TRIM_FROM and len(self._heap) > 4 * len(self._planned):
            self._heap = [entry for entry in self._heap if self._planned.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)
