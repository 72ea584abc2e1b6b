"""Message ids of one leadership (deduplication window): being read from the log, known, or unavailable; see
`node.partition.dedup`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType

from penstock.hot.message_ids import MessageIds, RemoteMessageIds

Found = list[tuple[int, bytes]]
"""Rows and ids of a batch, as in `hot.rows.HeaderRequests`."""

_NOBODY: Mapping[int, int] = MappingProxyType({})


class Dedup:
    """The deduplication window of one partition.

    `failure`: why the ids could not be read; empty if they are known or still being read.
    `donors`: partitions whose ids must be known as well, each up to an offset; derived from `marks`.
    """

    __slots__ = (
        "_elsewhere", "_ids", "_late", "_late_count", "_now_us", "_own", "_start", "_starts", "donors", "failure",
        "ids_max", "marks", "window_us",
    )  # fmt: skip

    def __init__(
        self,
        window_us: int,
        ids_max: int,
        now_us: int,
        marks: tuple[object, ...] = (),
        donors: Mapping[int, int] = _NOBODY,
    ) -> None:
        """`now_us` is no earlier than the last timestamp of the log."""
        self.window_us = window_us
        self.ids_max = ids_max
        self.marks = marks
        self.donors = donors
        self.failure = ""
        self._now_us = now_us
        self._own: MessageIds | None = None  # own ids, until those of the donors are known
        self._elsewhere: RemoteMessageIds | None = None  # ids of the donors, until the own ones are known
        self._ids: MessageIds | None = None
        self._late: deque[tuple[Found, int, int]] = deque()  # ids of batches appended while reading
        self._late_count = 0
        self._start = 0  # messages below it were truncated while reading
        self._starts: dict[int, int] = {}  # the same for donors

    @property
    def is_reading(self) -> bool:
        """True if the ids are not known yet."""
        return self._ids is None and not self.failure

    @property
    def since_us(self) -> int:
        """Start of the window."""
        return self._now_us - self.window_us

    @property
    def count(self) -> int:
        """Number of known ids."""
        return 0 if self._ids is None else len(self._ids)

    @property
    def forgotten(self) -> int:
        """Number of ids that were evicted before the end of their window, since they were read."""
        return 0 if self._ids is None else self._ids.forgotten

    def known(self, ids: MessageIds) -> None:
        """Take the ids read from the partition's own log."""
        self._own = ids
        self._settle()

    def known_elsewhere(self, elsewhere: RemoteMessageIds) -> None:
        """Take the ids read from the donors."""
        self._elsewhere = elsewhere
        self._settle()

    def _settle(self) -> None:
        ids = self._own
        if ids is None or (self.donors and self._elsewhere is None):
            return
        for found, base_offset, timestamp_us in self._late:
            ids.note(found, base_offset, timestamp_us)
        self._late.clear()
        ids.forget_below(self._start)
        if self._elsewhere is not None:
            for partition, start in self._starts.items():
                self._elsewhere.forget_below(partition, start)
            ids.know(self._elsewhere)
        self._ids, self._own, self._elsewhere = ids, None, None

    def at(self, timestamp_us: int) -> int:
        """Return the timestamp for a message appended at `timestamp_us`, never decreasing: all evicted ids
        are older.
        """
        self._now_us = max(self._now_us, timestamp_us)
        return self._now_us

    def ids(self, now_us: int) -> MessageIds | None:
        """Return the ids of the window that ends at `now_us`, or None if they are not known."""
        assert now_us == self._now_us, (now_us, self._now_us)
        if self._ids is not None:
            self._ids.expire(self.since_us)
        return self._ids

    def written(self, timestamp_us: int, end: int) -> None:
        """Record that the looked-up messages below `end` were written."""
        if self._ids is not None:
            self._ids.stamp(timestamp_us, end)

    def forget_below(self, start: int) -> None:
        """Forget ids below `start`, where an operator has truncated the log: a message with such an id is new."""
        self._start = max(self._start, start)
        if self._ids is not None:
            self._ids.forget_below(start)

    def forget_elsewhere(self, donor: int, start: int) -> None:
        """Forget a donor's ids below `start`. Its answer may have been older than its truncation."""
        if donor in self.donors and self._starts.get(donor, 0) < start:
            self._starts[donor] = start
            if self._ids is not None:
                self._ids.forget_elsewhere(donor, start)

    def cut(self, end: int) -> None:
        """Forget looked-up ids from `end` on, which were not written."""
        if self._ids is not None:
            self._ids.cut(end)

    def appended(self, found: Found, base_offset: int, timestamp_us: int) -> None:
        """Record the ids of a batch that was appended over the socket; it is always stored whole."""
        if self._ids is not None:
            self._ids.note(found, base_offset, timestamp_us)
        elif found and not self.failure:
            self._late.append((found, base_offset, timestamp_us))
            self._late_count += len(found)
            while self._late_count - len(self._late[0][0]) >= self.ids_max:  # as many newer ones as are kept
                self._late_count -= len(self._late.popleft()[0])
