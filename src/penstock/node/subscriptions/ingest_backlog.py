"""Backlog of NATS messages that wait for a free file slot, or for what has to be read from their log first.

Rules: a group of messages waits here if its log has no open file and no slot among the open files is free: a burst over
many streams is not a disk error. So it does while what it depends on is read, and so does what comes for a partition
that has messages waiting. Those of a partition are stored in the order of arrival, as soon as the disk has caught up
with another log, or the reading is over; those of other partitions do not wait for them. What waits counts as in
flight: beyond the broker's budget NATS is not read. All groups of one read share its bytes, which are counted once,
until the last of them is stored.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

from penstock.base import limits
from penstock.hot.message_group import MessageGroup

Store = Callable[[int, MessageGroup, int, bool], bool]
"""Called with subscription id, messages, the elapsed time of their arrival, and `must`.

It returns False if the messages have to wait; with `must` they do not.

It accepts and drops messages for a subscription that has ended.
"""


class _Read:
    """The groups of one read that wait."""

    __slots__ = ("groups", "size_bytes")

    def __init__(self, groups: int, size_bytes: int) -> None:
        self.groups = groups
        self.size_bytes = size_bytes


class IngestBacklog:
    """The backlog."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.may_go_on = False  # what the messages waited for has come
        # subscription, messages, elapsed time of their arrival, the read that brought them
        self._waiting: deque[tuple[int, MessageGroup, int, _Read]] = deque()
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
                waiting.append((sid, group))
        if waiting:
            read = _Read(len(waiting), len(waiting[0][1].data))
            self.size_bytes += read.size_bytes
            self._waiting += [(sid, group, arrived_us, read) for sid, group in waiting]
        return bool(waiting)

    def go_on(self, store: Store, *, must: bool = False) -> None:
        """Store what can be stored now; with `must` all of it, some of which may then be refused."""
        waits: set[int] = set()
        passed: list[tuple[int, MessageGroup, int, _Read]] = []
        try:
            while self._waiting and len(waits) < limits.INGEST_BACKLOG_PASSED_MAX:
                one = self._waiting.popleft()
                sid, group, arrived_us, read = one
                is_over = sid not in waits  # also if it raises: some of it may be stored, and must not be stored twice
                try:
                    is_over = is_over and store(sid, group, arrived_us, must)
                finally:
                    if is_over:
                        self._stored(sid, read)
                    else:
                        waits.add(sid)
                        passed.append(one)
        finally:
            self._waiting.extendleft(reversed(passed))

    def _stored(self, sid: int, read: _Read) -> None:
        read.groups -= 1
        if not read.groups:
            self.size_bytes -= read.size_bytes
        self._counts[sid] -= 1
        if not self._counts[sid]:
            del self._counts[sid]
