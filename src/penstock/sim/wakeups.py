"""How often a broker wakes itself: one with nothing to do that does not sleep burns a core of a real machine."""

from __future__ import annotations

from penstock.sim.violation import ViolationError

HURRIED_MAX = 50  # in a second; a sound broker has 10 at most
_SECOND_US = 1_000_000


class Wakes:
    """Those of one broker that were due as soon as it had acted. A few are its way to do more in a step of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._second = 0
        self._hurried = 0

    def planned(self, due_us: int, now_us: int) -> None:
        """The broker is to be woken then.

        Raises:
            ViolationError: it spins.
        """
        if due_us > now_us:
            return
        if now_us // _SECOND_US != self._second:
            self._second, self._hurried = now_us // _SECOND_US, 0
        self._hurried += 1
        if self._hurried > HURRIED_MAX:
            raise ViolationError(f"{self._name} wakes itself again and again with nothing to do")
