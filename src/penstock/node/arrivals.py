"""Messages from NATS that wait until their log can have a file open: a burst over many streams is no error of the disk.

Rules: a group whose log is at rest, and finds no place among the open files, waits here; so does what comes
for a partition of which something waits. They go on in the order in which they came, as soon as the disk has caught up
with another log. What waits counts as in flight: beyond the broker's budget NATS is not read. All groups of one read
share its bytes, which are counted once, until the last of them has gone on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

from penstock.hot.group import Group


class Arrivals:
    """What waits. `store(sid, group, must)` tells whether it took the messages; with `must` it does.

    It takes, and passes over, what comes for a subscription that has ended.
    """

    def __init__(self, store: Callable[[int, Group, bool], bool]) -> None:
        self.size_bytes = 0
        self._store = store
        self._waiting: deque[tuple[int, Group, int]] = (
            deque()
        )  # subscription, messages, bytes that are free once these go on
        self._counts: Counter[int] = Counter()  # groups that wait, by subscription

    def __len__(self) -> int:
        return len(self._waiting)

    def waits(self, sid: int) -> bool:
        """Whether messages of a subscription are here."""
        return sid in self._counts

    def add(self, groups: Iterable[tuple[int, Group]]) -> bool:
        """What one read delivered; whether some of it has to wait."""
        waiting = []
        for sid, group in groups:
            if sid in self._counts or not self._store(sid, group, False):
                self._counts[sid] += 1
                waiting.append((sid, group, 0))
        if waiting:
            sid, group, _ = waiting[-1]
            waiting[-1] = (sid, group, len(group.data))
            self.size_bytes += len(group.data)
            self._waiting += waiting
        return bool(waiting)

    def go_on(self, *, must: bool = False) -> None:
        """Store what has room now; with `must` all, which may then be refused."""
        while self._waiting:
            sid, group, size_bytes = self._waiting[0]
            is_over = True  # also when it raises: some of it may be stored, and must not be stored again
            try:
                is_over = self._store(sid, group, must)
            finally:
                if is_over:
                    self._waiting.popleft()
                    self.size_bytes -= size_bytes
                    self._counts[sid] -= 1
                    if not self._counts[sid]:
                        del self._counts[sid]
            if not is_over:
                return
