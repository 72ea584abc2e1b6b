"""Backlog of NATS messages that wait for a free file slot: a burst over many streams is not a disk error.

Rules: a group of messages waits here if its log has no open file and no slot among the open files is free; so does what
comes for a partition that has messages waiting. They are stored in the order of arrival, as soon as the disk has caught
up with another log. What waits counts as in flight: beyond the broker's budget NATS is not read. All groups of one read
share its bytes, which are counted once, until the last of them is stored.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

from penstock.hot.message_group import MessageGroup

Store = Callable[[int, MessageGroup, int, bool], bool]
"""Called with subscription id, messages, the elapsed time of their arrival, and `must`.

It returns False if the messages have to wait; with `must` they do not.

It accepts and drops messages for a subscription that has ended.
"""


class IngestBacklog:
    """The backlog."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.may_go_on = False  # what the messages waited for has come
        # subscription, messages, elapsed time of their arrival, bytes released once these are stored
        self._waiting: deque[tuple[int, MessageGroup, int, int]] = deque()
        self._counts: Counter[int] = Counter()  # waiting groups, by subscription

    def __len__(self) -> int:
        return len(self._waiting)

    def waits(self, sid: int) -> bool:
        """True if messages of the subscription are waiting."""
        return sid in self._counts

    def add(self, groups: Iterable[tuple[int, MessageGroup]], store: Store, arrived_us: int) -> bool:
        """Store what one read delivered at that elapsed time; return True if some of it has to wait."""
        waiting = []
        for sid, group in groups:
            if sid in self._counts or not store(sid, group, arrived_us, False):
                self._counts[sid] += 1
                waiting.append((sid, group, arrived_us, 0))
        if waiting:
            sid, group, _, _ = waiting[-1]
            waiting[-1] = (sid, group, arrived_us, len(group.data))
            self.size_bytes += len(group.data)
            self._waiting += waiting
        return bool(waiting)

    def go_on(self, store: Store, *, must: bool = False) -> None:
        """Store what can be stored now; with `must` all of it, some of which may then be refused."""
        while self._waiting:
            sid, group, arrived_us, size_bytes = self._waiting[0]
            is_over = True  # also if it raises: some of it may be stored, and must not be stored twice
            try:
                is_over = store(sid, group, arrived_us, must)
            finally:
                if is_over:
                    self._waiting.popleft()
                    self.size_bytes -= size_bytes
                    self._counts[sid] -= 1
                    if not self._counts[sid]:
                        del self._counts[sid]
            if not is_over:
                return
