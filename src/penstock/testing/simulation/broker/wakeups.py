"""Limits how often a broker wakes itself: an idle broker that does not sleep would use up a core of a real machine."""

from __future__ import annotations

from penstock.testing.errors import ViolationError

HURRIED_MAX = 300  # in a second: one that cleans in small slices has up to 100, and one that spins 1,000
_SECOND_US = 1_000_000


class Wakes:
    """Counts a broker's wake-ups that are due immediately. A few are legitimate: they split work into steps."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._second = 0
        self._hurried = 0

    def planned(self, due_us: int, now_us: int) -> None:
        """Record that the broker is to be woken at `due_us`.

        Raises:
            ViolationError: The broker spins.
        """
        if due_us > now_us:
            return
        if now_us // _SECOND_US != self._second:
            self._second, self._hurried = now_us // _SECOND_US, 0
        self._hurried += 1
        if self._hurried > HURRIED_MAX:
            raise ViolationError(f"{self._name} wakes itself again and again with nothing to do")
