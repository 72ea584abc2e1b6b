"""How fast a log that catches up may come, beside the rate that all share which do.

Rules: what keeps pace with the publishers costs nothing. For each offset that its leader gets, a log that catches up
may take CATCH_UP_GAIN without a charge: so it is never left behind for ever, however much comes in, and the rate bounds
only what it takes beyond that. It counts in offsets, for a follower hears of its leader's ends and not of bytes; what
it is charged for are bytes, a part of those that came.
"""

from __future__ import annotations

from penstock.base import limits


class Pace:
    """Of one log in one leadership, while it is not in sync."""

    __slots__ = ("_came", "_count", "_free", "_leader_end")

    def __init__(self) -> None:
        self._leader_end: int | None = None  # as far as it is committed
        self._free = 0  # offsets that may be taken without a charge
        self._came = (0, 0)  # bytes that are on their way into the log, and where that ended
        self._count = 0  # offsets that came last

    def told(self, leader_end: int, log_end: int) -> None:
        """The leader has so much; this log ends at `log_end`."""
        if self._leader_end is not None and leader_end > self._leader_end:
            self._free += limits.CATCH_UP_GAIN * (leader_end - self._leader_end)
        self._leader_end = leader_end if self._leader_end is None else max(leader_end, self._leader_end)
        self._free = min(self._free, self._lag(log_end))

    def came(self, size_bytes: int, log_end: int) -> None:
        """So many bytes came for a log that ends at `log_end`; all of them were charged."""
        self._came = size_bytes, log_end

    @property
    def came_bytes(self) -> int:
        """How many are on their way into the log."""
        return self._came[0]

    def taken(self, log_end: int) -> int:
        """They are in the log, which ends at `log_end` now: how many of those bytes cost nothing."""
        (size_bytes, before), self._came = self._came, (0, 0)
        count = log_end - before
        if not size_bytes or count <= 0:
            return 0
        free = min(count, self._free)
        self._free -= free
        self._count = count
        return size_bytes * free // count

    def is_free(self, log_end: int) -> bool:
        """Whether what comes next costs next to nothing, most likely: then it need not wait for the rate.

        Who has all that is committed says so at once, or else it would be behind again before it could join.
        """
        if self._leader_end is None:
            return False
        lag = self._lag(log_end)
        return not lag or 0 < min(self._count, lag) <= self._free

    def _lag(self, log_end: int) -> int:
        return max(0, (self._leader_end or 0) - log_end)
