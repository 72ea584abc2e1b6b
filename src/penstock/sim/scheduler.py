"""Virtual time: what happens when, and what each broker's clocks say of it.

Rules: nothing here knows real time. Of two events at the same moment the one that was planned first comes first. A
broker sees only its own clocks: they run too fast or too slow by a little, and its calendar is set now and then.

    true time     0 ───────────────────────────▶  events are planned in it
    elapsed       begins at a start of the broker, runs at its own rate, never goes back
    calendar      elapsed, and an offset that is set forward and back
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from penstock.base.clock import Now

Call = Callable[[], None]
START_US = 1_700_000_000_000_000  # what calendars begin with
_CALL = 2


class Timer(list[Any]):
    """One planned event: its time, its number among all that were planned, what is called; as such it is compared.

    It is its own entry of the heap, as there are so many of them. What is called is None once it was.
    """

    __slots__ = ()

    def cancel(self) -> None:
        """It does not happen. Twice is fine."""
        self[_CALL] = None

    def take(self) -> Call:
        """What was to be called; it is not, now."""
        call: Call = self[_CALL]
        self[_CALL] = None
        return call

    @property
    def is_over(self) -> bool:
        """Whether it has happened, or never will."""
        return self[_CALL] is None


class Scheduler:
    """The heap of what is to come."""

    def __init__(self) -> None:
        self.now_us = 0
        self.events = 0  # so far
        self._heap: list[Timer] = []
        self._planned = 0

    def at(self, at_us: int, call: Call) -> Timer:
        """Have `call` called at a moment, or now if that has passed."""
        self._planned += 1
        timer = Timer((at_us if at_us > self.now_us else self.now_us, self._planned, call))
        heappush(self._heap, timer)
        return timer

    def after(self, delay_us: int, call: Call) -> Timer:
        """Have `call` called so much later."""
        return self.at(self.now_us + delay_us, call)

    def run_until(self, end_us: int, is_over: Callable[[], bool] | None = None) -> None:
        """Let time pass until `end_us`, or until `is_over`."""
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
    """The clocks of one broker's machine. `rate_ppm`: how many microseconds too many pass in a second."""

    def __init__(self, scheduler: Scheduler, rate_ppm: int = 0, offset_us: int = 0) -> None:
        self._scheduler = scheduler
        self._rate_ppm = rate_ppm
        self._offset_us = START_US + offset_us
        self.steps = 0  # how often the calendar was set

    def now(self) -> Now:
        """What both clocks say."""
        true_us = self._scheduler.now_us
        elapsed_us = true_us + true_us * self._rate_ppm // 1_000_000  # as `elapsed_us`, without a call
        return Now(elapsed_us + self._offset_us, elapsed_us)

    def elapsed_us(self) -> int:
        """What the one that never goes back says."""
        true_us = self._scheduler.now_us
        return true_us + true_us * self._rate_ppm // 1_000_000

    def true_us(self, elapsed_us: int) -> int:
        """When, in true time, `elapsed_us` will have been reached."""
        true_us = elapsed_us * 1_000_000 // (1_000_000 + self._rate_ppm)
        while true_us + true_us * self._rate_ppm // 1_000_000 < elapsed_us:
            true_us += 1
        return true_us

    def step(self, by_us: int) -> None:
        """Somebody sets the calendar."""
        self._offset_us += by_us
        self.steps += 1
