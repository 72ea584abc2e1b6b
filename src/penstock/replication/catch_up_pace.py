"""Rate limit of one log that catches up, beside the rate that all such logs share.

Rules: keeping pace with the publishers costs nothing. For each offset that its leader gets, a log that catches up may
take CATCH_UP_GAIN without a charge: so no log is left behind for ever under any load, and the shared rate bounds only
what it takes beyond that. The allowance counts offsets, because a follower learns its leader's ends and not bytes; the
charge is in bytes, in proportion to those received.
"""

from __future__ import annotations

from penstock.base import limits


class CatchUpPace:
    """The allowance of one log in one leadership, while it is not in sync."""

    __slots__ = ("_came", "_count", "_free", "_leader_end")

    def __init__(self) -> None:
        self._leader_end: int | None = None  # the leader's committed end
        self._free = 0  # offsets that may be taken without a charge
        self._came = (0, 0)  # bytes received and not yet in the log, and the log end before them
        self._count = 0  # offsets of the last append

    def leader_end_reported(self, leader_end: int, log_end: int) -> None:
        """Record the leader's committed end; this log ends at `log_end`."""
        if self._leader_end is not None and leader_end > self._leader_end:
            self._free += limits.CATCH_UP_GAIN * (leader_end - self._leader_end)
        self._leader_end = leader_end if self._leader_end is None else max(leader_end, self._leader_end)
        self._free = min(self._free, self._lag(log_end))

    def came(self, size_bytes: int, log_end: int) -> None:
        """Record bytes received for a log that ends at `log_end`; all of them were charged."""
        self._came = size_bytes, log_end

    @property
    def came_bytes(self) -> int:
        """Bytes received and not yet in the log."""
        return self._came[0]

    def taken(self, log_end: int) -> int:
        """Record that they are in the log, which now ends at `log_end`; return how many of those bytes cost nothing."""
        (size_bytes, before), self._came = self._came, (0, 0)
        count = log_end - before
        if not size_bytes or count <= 0:
            return 0
        free = min(count, self._free)
        self._free -= free
        self._count = count
        return size_bytes * free // count

    def is_free(self, log_end: int) -> bool:
        """True if the next answer will probably cost next to nothing, so it need not wait for the rate.

        A log that has everything committed is named at once, or it would be behind again before it could join.
        """
        if self._leader_end is None:
            return False
        lag = self._lag(log_end)
        return not lag or 0 < min(self._count, lag) <= self._free

    def _lag(self, log_end: int) -> int:
        return max(0, (self._leader_end or 0) - log_end)
