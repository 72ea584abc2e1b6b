"""Turns: a fair queue of work by user, so that one user's backlog delays no other user.

Rule (start-time fair queuing, Goyal, Vin and Cheng 1996): the next turn goes to the waiting user with the least work
done; among several, to the one that has waited longest. A turn costs TURN_BYTES when it is taken, plus the bytes read
for it once they are known (`charge`). A returning user gets no credit for the time it was idle. The items of one user
are first in, first out; with one user it is a plain queue. Work done for a user counts until as much was done for
others, even if the user never has more than one item waiting.

The number of waiting items is shared among the users, too (`FairShares`): `fits` tells whether one more is allowed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from penstock.base import limits
from penstock.base.fair_shares import FairShares

T = TypeVar("T")


class Turns(Generic[T]):
    """Waiting items, by user."""

    __slots__ = ("_count", "_now", "_shares", "_spent", "_waiting")

    def __init__(self, shares: FairShares | None = None) -> None:
        """`shares`: shared by several queues with a common limit."""
        self._waiting: dict[str, deque[T]] = {}  # by user; the user of the latest turn is last
        self._spent: dict[str, int] = {}  # of users who wait, or are ahead of the start of the latest turn
        self._shares = FairShares() if shares is None else shares
        self._count = 0
        self._now = 0  # work done for the user of the latest turn when that turn began

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        """Iterate over all waiting items, user by user."""
        for line in self._waiting.values():
            yield from line

    def fits(self, user: str, capacity: int) -> bool:
        """True if the user may queue one more item within `capacity`."""
        return self._shares.fits(user, 1, capacity)

    def put(self, user: str, item: T) -> None:
        """Queue an item."""
        line = self._waiting.get(user)
        if line is None:
            line = self._waiting[user] = deque()
            self._spent[user] = max(self._now, self._spent.get(user, 0))
        line.append(item)
        self._count += 1
        self._shares.add(user)

    def take(self) -> T:
        """Remove and return the item whose turn it is. The queue must not be empty."""
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
        """Add bytes read to the work done for the user."""
        if nbytes:
            self._spent[user] = max(self._now, self._spent.get(user, 0)) + nbytes

    def drop(self, is_gone: Callable[[T], bool]) -> None:
        """Remove items that are obsolete."""
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
        """Drop users who do not wait and whose work done is no more than at the start of the latest turn.

        Users with more are kept; otherwise a user who always returns at once would always get the next turn.
        """
        for user in [one for one, spent in self._spent.items() if spent <= self._now and one not in self._waiting]:
            del self._spent[user]
        if not self._spent:
            self._now = 0
