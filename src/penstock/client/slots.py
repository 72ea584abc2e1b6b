"""A bounded number of slots, taken and given back by threads, in the order in which they came.

Rules: nobody passes while somebody stands in line. The line moves once `low` slots or fewer are taken, and then for as
many as fit: to change threads costs more than to publish. Who gives up looks once more: a slot that is free is taken,
also above `low`. An interrupt leaves neither a place in the line nor a slot behind.
"""

from __future__ import annotations

import threading
from collections import deque


class Slots:
    """See the module."""

    def __init__(self, slots_max: int, low: int) -> None:
        assert 0 <= low < slots_max
        self._max = slots_max
        self._low = low
        self._taken = 0
        self._line: deque[threading.Event] = deque()  # set: its slot is taken for it
        self._lock = threading.Lock()

    def take(self, timeout_s: float) -> bool:
        """Take one, waiting up to `timeout_s`; False if there was none."""
        with self._lock:
            if self._taken < self._max and not self._line:
                self._taken += 1
                return True
            place = threading.Event()
            self._line.append(place)
        try:
            place.wait(timeout_s)
        except BaseException:
            self._leave(place)
            raise
        with self._lock:
            if place.is_set():
                return True
            self._line.remove(place)
            if self._taken < self._max:
                self._taken += 1
                return True
            return False

    def give_back(self) -> None:
        """One is free again."""
        with self._lock:
            self._taken -= 1
            self._admit()

    def _leave(self, place: threading.Event) -> None:
        with self._lock:
            if place.is_set():
                self._taken -= 1
                self._admit()
            else:
                self._line.remove(place)

    def _admit(self) -> None:
        if self._taken > self._low:
            return
        while self._line and self._taken < self._max:
            self._taken += 1
            self._line.popleft().set()
