"""A bounded number of slots, acquired and released by threads in FIFO order.

Rules: no thread overtakes a waiting one. Waiting threads are admitted when `low` slots or fewer are in use, and then as
many as fit, because switching threads costs more than publishing. A thread that times out checks once more and takes a
free slot even above `low`. An interrupt leaves neither a queue entry nor a slot behind.
"""

from __future__ import annotations

import threading
from collections import deque


class Slots:
    """A fair semaphore with a low-water mark."""

    def __init__(self, slots_max: int, low: int) -> None:
        assert 0 <= low < slots_max
        self._max = slots_max
        self._low = low
        self._taken = 0
        self._line: deque[threading.Event] = deque()  # an event that is set owns its slot
        self._lock = threading.Lock()

    def take(self, timeout_s: float) -> bool:
        """Acquire a slot, waiting up to `timeout_s`; return False if none was free."""
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
        """Release a slot."""
        with self._lock:
            self._taken -= 1
            if self._line:
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
