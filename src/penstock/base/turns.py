"""Turns: work that waits its turn, user by user, so that one user's queue holds up nobody else's.

Rule (start-time fair queuing, Goyal, Vin and Cheng 1996): the next turn is that of the user for whom least was done of
those who wait; of several, of the one who has waited longest. A turn costs TURN_BYTES when it is taken, and what was
read for it on top of that when it is known (`charge`). A user who comes back does not get what it has not used before.
What one user has waiting is done in the order in which it came. With one user, or none, it is a plain queue. What was
done for a user counts until as much was done for others, also where it waits with one thing at a time.

How much may wait is shared among the users, too (`FairShares`): `fits` says whether one more of a user does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from penstock.base import limits
from penstock.base.fair_shares import FairShares

T = TypeVar("T")


class Turns(Generic[T]):
    """What waits, by user."""

    __slots__ = ("_count", "_now", "_shares", "_spent", "_waiting")

    def __init__(self, shares: FairShares | None = None) -> None:
        """`shares`: of several queues whose room is one."""
        self._waiting: dict[str, deque[T]] = {}  # by user; who had a turn last comes last
        self._spent: dict[str, int] = {}  # of those who wait, or for whom more was done than when the last turn began
        self._shares = FairShares() if shares is None else shares
        self._count = 0
        self._now = 0  # what had been done for the user of the last turn when that began

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        """All that waits, user by user."""
        for line in self._waiting.values():
            yield from line

    def fits(self, user: str, capacity: int) -> bool:
        """Whether one more of that user may wait, where `capacity` may."""
        return self._shares.fits(user, 1, capacity)

    def put(self, user: str, item: T) -> None:
        """It waits for its turn."""
        line = self._waiting.get(user)
        if line is None:
            line = self._waiting[user] = deque()
            self._spent[user] = max(self._now, self._spent.get(user, 0))
        line.append(item)
        self._count += 1
        self._shares.add(user)

    def take(self) -> T:
        """Whose turn it is. There is one."""
        user = min(self._waiting, key=self._spent.__getitem__) if len(self._waiting) > 1 else next(iter(self._waiting))
        self._now = self._spent[user]
        self._spent[user] += limits.TURN_BYTES
        line = self._waiting.pop(user)
        item = line.popleft()
        self._count -= 1
        self._shares.remove(user)
        if line:
            self._waiting[user] = line
        else:
            self._forget()
        return item

    def charge(self, user: str, nbytes: int) -> None:
        """For a turn of that user so many bytes were read."""
        if nbytes:
            self._spent[user] = max(self._now, self._spent.get(user, 0)) + nbytes

    def drop(self, is_gone: Callable[[T], bool]) -> None:
        """What is gone waits no more."""
        for user, line in list(self._waiting.items()):
            left = deque(item for item in line if not is_gone(item))
            if len(left) == len(line):
                continue
            self._count -= len(line) - len(left)
            self._shares.remove(user, len(line) - len(left))
            if left:
                self._waiting[user] = left
            else:
                del self._waiting[user]
        self._forget()

    def _forget(self) -> None:
        """Users who do not wait, and who would begin where the last turn began if they came back now.

        Not those with more: who always comes back at once would have its turn again before all others, for ever.
        """
        for user in [one for one, spent in self._spent.items() if spent <= self._now and one not in self._waiting]:
            del self._spent[user]
        if not self._spent:
            self._now = 0
