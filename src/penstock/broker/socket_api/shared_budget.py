"""Budget shared by all connections of a broker: bytes of memory, or open files.

Rules: each amount taken is given back exactly once. A request that does not fit is queued, small and large ones
separately: large ones together take at most three quarters, so that a few slow ones never lock out the small ones.

A user's holding may not exceed what is still free after it (except its first amount; like `FairShares`, in bytes), so
that the connections of one user leave room for others. A request queued because of its user's share delays no other
user; one queued because of the total is overtaken by none. The user "" has no share limit.
"""

from __future__ import annotations

from collections.abc import Callable


class BudgetWaiter:
    """A queued request; `granted` is called once, after `amount` has been taken for it."""

    __slots__ = ("amount", "granted", "user")

    def __init__(self, amount: int, granted: Callable[[], None], user: str) -> None:
        self.amount = amount
        self.granted = granted
        self.user = user


class SharedBudget:
    """A budget of `total`; amounts above `small_max` count as large."""

    def __init__(self, total: int, small_max: int | None = None) -> None:
        self.used = 0
        self.total = total
        self._small_max = total if small_max is None else small_max
        self._lines: dict[bool, dict[BudgetWaiter, None]] = {False: {}, True: {}}  # key: True for large amounts
        self._held: dict[str, int] = {}  # by user, except ""

    @property
    def is_full(self) -> bool:
        """True if not even a small amount is left."""
        return self.used >= self.total

    def take(self, amount: int, user: str = "") -> bool:
        """Take the amount if it is free and no earlier queued request of this size class would be delayed by that."""
        line = self._lines[amount > self._small_max]
        if not self._fits(amount, user) or any(self._is_due(one, user) for one in line):
            return False
        self._take(amount, user)
        return True

    def _is_due(self, waiting: BudgetWaiter, user: str) -> bool:
        return waiting.user == user or self._is_within_share(waiting.amount, waiting.user)

    def take_anyway(self, amount: int, user: str = "") -> None:
        """Take the amount even beyond the budget: for small amounts that cannot be refused any more."""
        self._take(amount, user)

    def _take(self, amount: int, user: str) -> None:
        self.used += amount
        if user:
            self._held[user] = self._held.get(user, 0) + amount

    def wait(self, amount: int, granted: Callable[[], None], user: str = "") -> BudgetWaiter:
        """Queue a request. `granted` must not give back at once."""
        waiting = BudgetWaiter(amount, granted, user)
        self._lines[amount > self._small_max][waiting] = None
        return waiting

    def leave(self, waiting: BudgetWaiter) -> None:
        """Leave the queue; only before the grant."""
        del self._lines[waiting.amount > self._small_max][waiting]
        self._grant()

    def give(self, amount: int, user: str = "") -> None:
        """Give back what the same user has taken."""
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
            passed: set[str] = set()  # users whose first request waits for their own share
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
    """A shared budget on behalf of one user."""

    __slots__ = ("_shared", "_user")

    def __init__(self, shared: SharedBudget, user: str = "") -> None:
        self._shared = shared
        self._user = user

    @property
    def is_full(self) -> bool:
        return self._shared.is_full

    def of(self, user: str) -> UsersBudget:
        """Return the same budget on behalf of another user."""
        return UsersBudget(self._shared, user)

    def take(self, amount: int) -> bool:
        return self._shared.take(amount, self._user)

    def take_anyway(self, amount: int) -> None:
        self._shared.take_anyway(amount, self._user)

    def wait(self, amount: int, granted: Callable[[], None]) -> BudgetWaiter:
        return self._shared.wait(amount, granted, self._user)

    def leave(self, waiting: BudgetWaiter) -> None:
        self._shared.leave(waiting)

    def give(self, amount: int) -> None:
        self._shared.give(amount, self._user)
