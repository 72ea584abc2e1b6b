"""A budget that all connections of a broker share: bytes of memory, or open files.

Rules: what is taken is given back exactly once. Who finds too little left waits in line, small and large apart: large
ones together take at most three quarters, so that a few of them, however slow, never lock out the small ones.

A user may have no more than is still free once it has it, but for the first that it takes (as `FairShares`, in bytes):
connections of one user, however many, leave others their part. Who waits because its user has its share holds up nobody
else; behind who waits for the others' sake nobody is taken first. The user "" may have all.
"""

from __future__ import annotations

from collections.abc import Callable


class Waiting:
    """A place in the line; `granted` is called once, when `amount` has been taken for it."""

    __slots__ = ("amount", "granted", "user")

    def __init__(self, amount: int, granted: Callable[[], None], user: str) -> None:
        self.amount = amount
        self.granted = granted
        self.user = user


class SharedBudget:
    """`total` of something; what is over `small_max` counts as large."""

    def __init__(self, total: int, small_max: int | None = None) -> None:
        self.used = 0
        self.total = total
        self._small_max = total if small_max is None else small_max
        self._lines: dict[bool, dict[Waiting, None]] = {False: {}, True: {}}  # by whether they are large
        self._held: dict[str, int] = {}  # by user, but ""

    @property
    def is_full(self) -> bool:
        """Whether not even something small is left."""
        return self.used >= self.total

    def take(self, amount: int, user: str = "") -> bool:
        """Take it if it is there, and nobody of that size waits for it already whom it would hold up."""
        line = self._lines[amount > self._small_max]
        if not self._fits(amount, user) or any(self._is_due(one, user) for one in line):
            return False
        self._take(amount, user)
        return True

    def _is_due(self, waiting: Waiting, user: str) -> bool:
        return waiting.user == user or self._is_within_share(waiting.amount, waiting.user)

    def take_anyway(self, amount: int, user: str = "") -> None:
        """Take it even if it is not there: for what cannot be refused any more, and is small."""
        self._take(amount, user)

    def _take(self, amount: int, user: str) -> None:
        self.used += amount
        if user:
            self._held[user] = self._held.get(user, 0) + amount

    def wait(self, amount: int, granted: Callable[[], None], user: str = "") -> Waiting:
        """Stand in line. `granted` must not give back at once."""
        waiting = Waiting(amount, granted, user)
        self._lines[amount > self._small_max][waiting] = None
        return waiting

    def leave(self, waiting: Waiting) -> None:
        """Wait no more; only before it was granted."""
        del self._lines[waiting.amount > self._small_max][waiting]
        self._grant()

    def give(self, amount: int, user: str = "") -> None:
        """Give back what was taken, for the same user."""
        self.used -= amount
        assert self.used >= 0
        if user:
            left = self._held.get(user, 0) - amount
            assert left >= 0, user
            if left:
                self._held[user] = left
            else:
                self._held.pop(user, None)
        self._grant()

    def _fits(self, amount: int, user: str) -> bool:
        if not self._is_within_share(amount, user):
            return False
        if amount > self._small_max:
            return self.used + amount <= self.total * 3 // 4
        return self.used + amount <= self.total and not self.is_full

    def _is_within_share(self, amount: int, user: str) -> bool:
        held = self._held.get(user, 0)
        return not held or held + amount <= self.total - self.used - amount

    def _grant(self) -> None:
        for line in self._lines.values():
            passed: set[str] = set()  # users whose first has to wait for their own
            for first in list(line):
                if first.user in passed:
                    continue
                if self._fits(first.amount, first.user):
                    del line[first]
                    self._take(first.amount, first.user)
                    first.granted()
                elif self._is_within_share(first.amount, first.user):
                    break
                else:
                    passed.add(first.user)


class UsersBudget:
    """The same, for one user."""

    __slots__ = ("_shared", "_user")

    def __init__(self, shared: SharedBudget, user: str = "") -> None:
        self._shared = shared
        self._user = user

    @property
    def is_full(self) -> bool:
        """As of all."""
        return self._shared.is_full

    def of(self, user: str) -> UsersBudget:
        """For another user."""
        return UsersBudget(self._shared, user)

    def take(self, amount: int) -> bool:
        """As `SharedBudget.take`."""
        return self._shared.take(amount, self._user)

    def take_anyway(self, amount: int) -> None:
        """As `SharedBudget.take_anyway`."""
        self._shared.take_anyway(amount, self._user)

    def wait(self, amount: int, granted: Callable[[], None]) -> Waiting:
        """As `SharedBudget.wait`."""
        return self._shared.wait(amount, granted, self._user)

    def leave(self, waiting: Waiting) -> None:
        """As `SharedBudget.leave`."""
        self._shared.leave(waiting)

    def give(self, amount: int) -> None:
        """As `SharedBudget.give`."""
        self._shared.give(amount, self._user)
