"""Virtual time: the event queue, and the clocks of each broker.

Rules: Nothing here reads real time. Two events at the same moment happen in the order in which they were scheduled. A
broker sees only its own clocks: they run slightly fast or slow, and its wall clock is set now and then.

    true time     0 ───────────────────────────▶  the time in which events are scheduled
    elapsed       begins at a start of the broker, runs at its own rate, never goes back
    wall clock    elapsed plus an offset that is set forward and back
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from penstock.base.clock import Now

Call = Callable[[], None]
START_US = 1_700_000_000_000_000  # initial time of the wall clocks
_CALL = 2


class Timer(list[Any]):
    """One scheduled event: time, sequence number, callback. Timers compare by these.

    The timer is its own heap entry, because there are so many. The callback is None after it was called.
    """

    __slots__ = ()

    def cancel(self) -> None:
        """Cancel the event; cancelling twice is harmless."""
        self[_CALL] = None

    def take(self) -> Call:
        """Cancel the event and return its callback."""
        call: Call = self[_CALL]
        self[_CALL] = None
        return call

    @property
    def is_over(self) -> bool:
        """True if the event has happened or was cancelled."""
        return self[_CALL] is None


class Scheduler:
    """The heap of scheduled events."""

    def __init__(self) -> None:
        self.now_us = 0
        self.events = 0  # events so far
        self._heap: list[Timer] = []
        self._planned = 0

    def at(self, at_us: int, call: Call) -> Timer:
        """Schedule `call` at a time, or now if that has passed."""
        self._planned += 1
        timer = Timer((at_us if at_us > self.now_us else self.now_us, self._planned, call))
        heappush(self._heap, timer)
        return timer

    def after(self, delay_us: int, call: Call) -> Timer:
        return self.at(self.now_us + delay_us, call)

    def run_until(self, end_us: int, is_over: Callable[[], bool] | None = None) -> None:
        """Advance time to `end_us`, or until `is_over`."""
        heap = self._heap
        while heap and heap[0][0] <= end_us:
            timer = heappop(heap)
            at_us, _, call = timer
            if call is None:
                continue
            timer[_CALL] = None
            self.now_us = at_us
            self.events += 1
            call()
            if is_over is not None and is_over():
                return
        self.now_us = max(self.now_us, end_us)


class Clock:
    """The clocks of one broker's machine. `rate_ppm`: microseconds that they gain in a second."""

    def __init__(self, scheduler: Scheduler, rate_ppm: int = 0, offset_us: int = 0) -> None:
        self._scheduler = scheduler
        self._rate_ppm = rate_ppm
        self._offset_us = START_US + offset_us
        self.steps = 0  # number of times the wall clock was set

    def now(self) -> Now:
        """Read both clocks."""
        true_us = self._scheduler.now_us
        elapsed_us = true_us + true_us * self._rate_ppm // 1_000_000  # inlines `elapsed_us`, to save a call
        return Now(elapsed_us + self._offset_us, elapsed_us)

    def elapsed_us(self) -> int:
        """Read the monotonic clock."""
        true_us = self._scheduler.now_us
        return true_us + true_us * self._rate_ppm // 1_000_000

    def true_us(self, elapsed_us: int) -> int:
        """Return the true time at which the monotonic clock reaches `elapsed_us`."""
        true_us = elapsed_us * 1_000_000 // (1_000_000 + self._rate_ppm)
        while true_us + true_us * self._rate_ppm // 1_000_000 < elapsed_us:
            true_us += 1
        return true_us

    def step(self, by_us: int) -> None:
        """Set the wall clock forward or back."""
        self._offset_us += by_us
        self.steps += 1
