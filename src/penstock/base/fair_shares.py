"""FairShares: limits how much of a bounded table each user may fill, so that no user fills all of it.

Rule (dynamic thresholds, Choudhury and Hahne 1998, for the shared memory of switches): a user may add entries as long
as it then holds at most one more than are still free. One user alone gets half of the table, two a third each, n 1/(n +
1) each. The same share stays free, so that another user always gets its first entries. Nothing needs to be configured,
and a nearly empty table gives each user nearly half of it.

The user "" may fill the table: authentication is off, or the caller is a broker or an administrator.
"""

from __future__ import annotations

from collections.abc import Iterable


class FairShares:
    """Counts the entries of a table by user. The owner of the table calls `add` and `remove`."""

    __slots__ = ("_held", "used")

    def __init__(self, held: Iterable[tuple[str, int]] = ()) -> None:
        """`held`: users with existing entries."""
        self.used = 0
        self._held: dict[str, int] = {}
        for user, count in held:
            self.add(user, count)

    def held(self, user: str) -> int:
        """Return how many entries belong to that user."""
        return self._held.get(user, 0)

    def fits(self, user: str, count: int, capacity: int) -> bool:
        """True if the user may add `count` entries to a table with room for `capacity` entries."""
        free = capacity - self.used - count
        return free >= 0 and (not user or self.held(user) + count <= free + 1)

    def add(self, user: str, count: int = 1) -> None:
        """Count `count` entries more for the user; zero creates no record."""
        if count:
            self.used += count
            self._held[user] = self.held(user) + count

    def remove(self, user: str, count: int = 1) -> None:
        """Count `count` entries less for the user."""
        self.used -= count
        left = self.held(user) - count
        assert left >= 0, (user, left)
        if left:
            self._held[user] = left
        else:
            self._held.pop(user, None)

    def refused(self, user: str, capacity: int) -> str:
        """Return why `fits` returned False, for an error text."""
        if not user or self.used >= capacity:
            return f"there are {self.used} already, and the limit is {capacity}"
        return (
            f"user {user.partition('/')[0]!r} has {self.held(user)} of {self.used}, and the limit is {capacity}: "
            f"no user gets more than what stays free for others"
        )
