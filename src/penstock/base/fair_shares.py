"""FairShares: how much of a bounded table each user may fill, so that no user fills all of it.

Rule (dynamic thresholds, Choudhury and Hahne 1998, for the shared memory of switches): a user may add entries as long
as it then holds no more than is still free, and one. One user alone so comes to half of the table, two to a third each,
n to 1/(n + 1) each. As much stays free, so that a further user always gets its first entries. Nobody has to set
anything, and a table that is nearly empty gives each user nearly half of it.

The user "" may fill the table: nobody has to log in, or a broker or an administrator asks.
"""

from __future__ import annotations

from collections.abc import Iterable


class FairShares:
    """Counts the entries of a table by user. Whoever changes the table calls `add` and `remove`."""

    __slots__ = ("_held", "used")

    def __init__(self, held: Iterable[tuple[str, int]] = ()) -> None:
        """`held`: users with entries that are there already."""
        self.used = 0
        self._held: dict[str, int] = {}
        for user, count in held:
            self.add(user, count)

    def held(self, user: str) -> int:
        """How many entries of the table are that user's."""
        return self._held.get(user, 0)

    def fits(self, user: str, count: int, capacity: int) -> bool:
        """Whether a user may add that many to a table with room for `capacity` entries."""
        free = capacity - self.used - count
        return free >= 0 and (not user or self.held(user) + count <= free + 1)

    def add(self, user: str, count: int = 1) -> None:
        """The user has so many more; of none there is no entry."""
        if count:
            self.used += count
            self._held[user] = self.held(user) + count

    def remove(self, user: str, count: int = 1) -> None:
        """The user has so many less."""
        self.used -= count
        left = self.held(user) - count
        assert left >= 0, (user, left)
        if left:
            self._held[user] = left
        else:
            self._held.pop(user, None)

    def refused(self, user: str, capacity: int) -> str:
        """Why `fits` said no, for the text of an error."""
        if not user or self.used >= capacity:
            return f"there are {self.used} already, and the limit is {capacity}"
        return (
            f"user {user.partition('/')[0]!r} has {self.held(user)} of {self.used}, and the limit is {capacity}: "
            f"no user gets more than what stays free for others"
        )
