"""Which readers have their turn next, and when one is looked at because of the time."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import count

from penstock.jetstream.readers.reader import Place, Reader

DUE_MAX = 64
"""Readers looked at because of the time, in one turn of the event loop: with a heartbeat each, some 50 µs."""
_NEVER_US = 2**63 - 1


class Schedule:
    """Queue of the readers that can go on, and the times of all."""

    def __init__(self) -> None:
        self._ready: deque[Reader] = deque()
        self._wakes: list[tuple[int, int, Reader]] = []
        self._numbers = count()
        self.is_late = False  # more readers were due than one turn looks at

    def __len__(self) -> int:
        """Number of entries in the queue."""
        return len(self._ready)

    def ready(self, reader: Reader) -> None:
        """Have a reader served."""
        if reader.place not in (Place.READY, Place.GONE):
            reader.place = Place.READY
            self._ready.append(reader)

    def take(self) -> Reader | None:
        """Remove the first one of the queue; None: it does not wait for its turn any more."""
        reader = self._ready.popleft()
        return reader if reader.place is Place.READY else None

    def wake(self, reader: Reader, at_us: int) -> None:
        """Look at a reader at that time."""
        if at_us < reader.wake_us and at_us < _NEVER_US:
            reader.wake_us = at_us
            heapq.heappush(self._wakes, (at_us, next(self._numbers), reader))

    def sleep(self, reader: Reader, until_us: int) -> None:
        """Have a reader served at that time."""
        reader.is_asleep = True
        self.wake(reader, until_us)

    def take_due(self, now_us: int) -> Iterator[Reader]:
        """Remove and yield the readers whose time has come; `is_late`: some are left."""
        left = DUE_MAX
        while left and self._wakes and self._wakes[0][0] <= now_us:
            at_us, _, reader = heapq.heappop(self._wakes)
            if reader.place is not Place.GONE and at_us >= reader.wake_us:
                reader.wake_us = _NEVER_US
                left -= 1
                yield reader
        self.is_late = not left

    @property
    def next_us(self) -> int | None:
        """When `take_due` has something."""
        return self._wakes[0][0] if self._wakes else None
