"""What all logs of one broker that are not in sync may take: so many bytes a second, and so many that are not synced.

Rules: without the second bound a disk that is slower than the network would be told of it by the kernel, which lets
nobody write any more, the event loop least of all. What a log holds against the bound it gives back with a sync, and
with whatever ends its catching up: joining, a cut, another leader, a log that takes nothing.
"""

from __future__ import annotations

from collections import deque

from penstock.base import limits
from penstock.base.ids import PartitionKey
from penstock.replication.rate import ByteRate


class CatchUp:
    """One budget, shared by all fetchers of a broker. Times are elapsed microseconds."""

    def __init__(self, bytes_per_s: int, unsynced_bytes_max: int = limits.CATCH_UP_UNSYNCED_BYTES_MAX) -> None:
        self._rate = ByteRate(bytes_per_s)
        self._unsynced_bytes_max = unsynced_bytes_max
        self._unsynced_bytes = 0
        self._written: dict[PartitionKey, deque[tuple[int, int]]] = {}  # where each piece ends, and its bytes

    def take(self, size_bytes: int, now_us: int) -> None:
        """These bytes have come."""
        self._rate.take(size_bytes, now_us)

    def give(self, size_bytes: int) -> None:
        """So many of those cost nothing."""
        self._rate.give(size_bytes)

    def written(self, key: PartitionKey, log_end: int, size_bytes: int) -> None:
        """They are in that log, which ends at `log_end` now, and not on its disk yet."""
        if size_bytes:
            self._written.setdefault(key, deque()).append((log_end, size_bytes))
            self._unsynced_bytes += size_bytes

    def synced(self, key: PartitionKey, flushed_end: int) -> None:
        """That log is on its disk up to there."""
        if (pieces := self._written.get(key)) is None:
            return
        while pieces and pieces[0][0] <= flushed_end:
            self._unsynced_bytes -= pieces.popleft()[1]
        if not pieces:
            del self._written[key]

    def forget(self, key: PartitionKey) -> None:
        """That log catches up no more, or not with what it was sent."""
        self._unsynced_bytes -= sum(size_bytes for _, size_bytes in self._written.pop(key, ()))

    def free_us(self, now_us: int) -> int | None:
        """From when on somebody may take; not after `now_us`: at once; None: once something is synced."""
        return None if self._unsynced_bytes >= self._unsynced_bytes_max else self._rate.free_us(now_us)
