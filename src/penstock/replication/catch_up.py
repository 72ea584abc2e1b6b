"""Rate limit of logs that catch up: a budget that they share on one broker, and an allowance of each log beside it.

Rules: the budget bounds bytes a second, and bytes that are not synced. Without the second bound a disk that is slower
than the network would fill the page cache until the kernel blocks every writer, also the event loop. A log returns its
share of that bound with a sync, and with the end of its catching up: joining, a cut, another leader, a log that accepts
nothing.

Keeping pace with the publishers costs nothing. For each offset that its leader gets, a log that catches up may take
CATCH_UP_GAIN without a charge: so no log is left behind for ever under any load, and the budget bounds only what it
takes beyond that. The allowance counts offsets, because a follower learns its leader's ends and not bytes; the charge
is in bytes, in proportion to those received.
"""

from __future__ import annotations

from collections import deque

from penstock.base import limits
from penstock.base.ids import PartitionKey

_SAVED_S = 0.25


class ByteRate:
    """Token bucket of bytes. Times are elapsed microseconds.

    A caller may overdraw once, so a piece larger than a second's worth still gets through; nothing is taken while there
    is a debt. At rest it saves up a quarter of a second's worth, no more.
    """

    def __init__(self, bytes_per_s: int) -> None:
        assert bytes_per_s > 0, bytes_per_s
        self.bytes_per_s = bytes_per_s
        self._saved_bytes = bytes_per_s * _SAVED_S
        self._at_us = 0

    def take(self, size_bytes: int, now_us: int) -> None:
        """Charge received bytes."""
        self._pass(now_us)
        self._saved_bytes -= size_bytes

    def give(self, size_bytes: int) -> None:
        """Refund bytes that cost nothing."""
        self._saved_bytes += size_bytes  # at most what was taken; `_pass` bounds it anyway

    def free_us(self, now_us: int) -> int:
        """The time from which more may be taken; at most `now_us`: at once."""
        self._pass(now_us)
        if self._saved_bytes >= 0:
            return now_us
        return now_us + int(-self._saved_bytes * 1_000_000 / self.bytes_per_s) + 1

    def _pass(self, now_us: int) -> None:
        passed_us = max(0, now_us - self._at_us)
        self._at_us = max(now_us, self._at_us)
        self._saved_bytes = min(
            self.bytes_per_s * _SAVED_S, self._saved_bytes + self.bytes_per_s * passed_us / 1_000_000
        )


class CatchUpBudget:
    """One budget, shared by all fetchers of a broker. Times are elapsed microseconds."""

    def __init__(self, bytes_per_s: int, unsynced_bytes_max: int = limits.CATCH_UP_UNSYNCED_BYTES_MAX) -> None:
        self._rate = ByteRate(bytes_per_s)
        self._unsynced_bytes_max = unsynced_bytes_max
        self._unsynced_bytes = 0
        self._written: dict[PartitionKey, deque[tuple[int, int]]] = {}  # the end and the size of each piece

    def take(self, size_bytes: int, now_us: int) -> None:
        """Charge received bytes."""
        self._rate.take(size_bytes, now_us)

    def give(self, size_bytes: int) -> None:
        """Refund bytes that cost nothing."""
        self._rate.give(size_bytes)

    def written(self, key: PartitionKey, log_end: int, size_bytes: int) -> None:
        """Record bytes appended to that log, which ends at `log_end` now, and not synced yet."""
        if size_bytes:
            self._written.setdefault(key, deque()).append((log_end, size_bytes))
            self._unsynced_bytes += size_bytes

    def synced(self, key: PartitionKey, flushed_end: int) -> None:
        """Record that the log is on its disk up to `flushed_end`."""
        if (pieces := self._written.get(key)) is None:
            return
        while pieces and pieces[0][0] <= flushed_end:
            self._unsynced_bytes -= pieces.popleft()[1]
        if not pieces:
            del self._written[key]

    def forget(self, key: PartitionKey) -> None:
        """Release the log's share: it no longer catches up, or was cut."""
        self._unsynced_bytes -= sum(size_bytes for _, size_bytes in self._written.pop(key, ()))

    def free_us(self, now_us: int) -> int | None:
        """The time from which more may be taken; at most `now_us`: at once; None: only after a sync."""
        return None if self._unsynced_bytes >= self._unsynced_bytes_max else self._rate.free_us(now_us)


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
