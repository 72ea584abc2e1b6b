"""A budget that all connections of a broker share: bytes of memory, or open files.

Rules: what is taken is given back exactly once. Who finds too little left waits in line, small and large apart: large
ones together take at most three quarters, so that a few of them, however slow, never lock out the small ones.
"""

from __future__ import annotations

from collections.abc import Callable


class Waiting:
    """A place in the line; `granted` is called once, when `amount` has been taken for it."""

    __slots__ = ("amount", "granted")

    def __init__(self, amount: int, granted: Callable[[], None]) -> None:
        self.amount = amount
        self.granted = granted


class SharedBudget:
    """`total` of something; what is over `small_max` counts as large."""

    def __init__(self, total: int, small_max: int | None = None) -> None:
        self.used = 0
        self.total = total
        self._small_max = total if small_max is None else small_max
        self._lines: dict[bool, dict[Waiting, None]] = {False: {}, True: {}}  # by whether they are large

    @property
    def is_full(self) -> bool:
        """Whether not even something small is left."""
        return self.used >= self.total

    def take(self, amount: int) -> bool:
        """Take it if it is there and nobody of that size waits for it already."""
        if self._lines[amount > self._small_max] or not self._fits(amount):
            return False
        self.used += amount
        return True

    def take_anyway(self, amount: int) -> None:
        """Take it even if it is not there: for what cannot be refused any more, and is small."""
        self.used += amount

    def wait(self, amount: int, granted: Callable[[], None]) -> Waiting:
        """Stand in line. `granted` must not give back at once."""
        waiting = Waiting(amount, granted)
        self._lines[amount > self._small_max][waiting] = None
        return waiting

    def leave(self, waiting: Waiting) -> None:
        """Wait no more; only before it was granted."""
        del self._lines[waiting.amount > self._small_max][waiting]
        self._grant()

    def give(self, amount: int) -> None:
        """Give back what was taken."""
        self.used -= amount
        assert self.used >= 0
        self._grant()

    def _fits(self, amount: int) -> bool:
        if amount > self._small_max:
            return self.used + amount <= self.total * 3 // 4
        return self.used + amount <= self.total and not self.is_full

    def _grant(self) -> None:
        for line in self._lines.values():
            while line and self._fits((first := next(iter(line))).amount):
                del line[first]
                self.used += first.amount
                first.granted()
