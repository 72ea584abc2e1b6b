"""Budget of all logs of one broker that are not in sync: bytes a second, and bytes that are not synced.

Rules: without the second bound a disk that is slower than the network would fill the page cache until the kernel blocks
every writer, also the event loop. A log returns its share of the bound with a sync, and with the end of its catching
up: joining, a cut, another leader, a log that accepts nothing.
"""

from __future__ import annotations

from collections import deque

from penstock.base import limits
from penstock.base.ids import PartitionKey
from penstock.replication.rate import ByteRate


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
