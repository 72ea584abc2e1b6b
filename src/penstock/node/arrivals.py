"""Messages from NATS that wait until their log can have a file open: a burst over many streams is no error of the disk.

Rules: a group whose log is at rest, and finds no place among the open files, waits here; so does what comes for a
stream of which something waits. They go on in the order in which they came, as soon as the disk has caught up with
another log. What waits counts as in flight: beyond the broker's budget NATS is not read. All groups of one read share
its bytes, which are counted once, until the last of them has gone on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

from penstock.hot.group import Group


class Arrivals:
    """What waits. `has_room` tells whether a stream's log can be written to, `store` takes what need not wait any more.

    A stream that is gone has room: `store` passes over what comes for it.
    """

    def __init__(self, *, has_room: Callable[[int], bool], store: Callable[[int, Group], None]) -> None:
        self.size_bytes = 0
        self._has_room = has_room
        self._store = store
        self._waiting: deque[tuple[int, Group, int]] = deque()  # stream, messages, bytes that are free once these go on
        self._counts: Counter[int] = Counter()  # groups that wait, by stream

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, groups: Iterable[tuple[int, Group]]) -> bool:
        """What one read delivered; whether some of it has to wait."""
        waiting = []
        for stream_id, group in groups:
            if stream_id in self._counts or not self._has_room(stream_id):
                self._counts[stream_id] += 1
                waiting.append((stream_id, group, 0))
            else:
                self._store(stream_id, group)
        if waiting:
            stream_id, group, _ = waiting[-1]
            waiting[-1] = (stream_id, group, len(group.data))
            self.size_bytes += len(group.data)
            self._waiting += waiting
        return bool(waiting)

    def go_on(self, *, must: bool = False) -> None:
        """Store what has room now; with `must` all, which may then be refused."""
        while self._waiting and (must or self._has_room(self._waiting[0][0])):
            stream_id, group, size_bytes = self._waiting.popleft()
            self.size_bytes -= size_bytes
            self._counts[stream_id] -= 1
            if not self._counts[stream_id]:
                del self._counts[stream_id]
            self._store(stream_id, group)
