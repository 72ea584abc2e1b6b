"""The last rows of one partition, found backwards from its end.

Rules: a partition is read in windows of offsets, each GROWTH times as long as the one after it, until it has enough
rows or its log begins: after compaction, and with a filter, offsets have no rows. No row is read twice, and no more
batches are kept than hold the rows that are wanted.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from penstock.client.read.batches import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

_GROWTH = 4


class LastRows:
    """A search for the last `count` rows of the offsets `log_start` to before `end`, without I/O.

    The caller reads each range of `next_range` and appends its batches in order; `batches` are what was found.
    """

    def __init__(self, log_start: int, end: int, count: int) -> None:
        self._log_start = log_start
        self._begin = end  # the first offset that was read
        self._count = count
        self._length = count
        self._window: deque[pa.RecordBatch] = deque()  # of the range that is read now
        self._later: deque[pa.RecordBatch] = deque()  # of the ranges behind it
        self._later_rows = 0

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The rows found, in order: the last `count` and perhaps some before them in the first batch."""
        return [*self._window, *self._later]

    def next_range(self) -> OffsetRange | None:
        """Return the range to read next, or None if there are enough rows or no more offsets."""
        self._later.extendleft(reversed(self._window))
        self._later_rows += _rows_of(self._window)
        self._window.clear()
        if self._later_rows >= self._count or self._begin <= self._log_start:
            return None
        found = OffsetRange(max(self._log_start, self._begin - self._length), self._begin)
        self._begin = found.start
        self._length *= _GROWTH
        return found

    def append(self, batch: pa.RecordBatch) -> None:
        """Take the next batch of the range, and let go of those before the last `count` rows."""
        self._window.append(batch)
        while _rows_of(self._window) - self._window[0].num_rows + self._later_rows >= self._count:
            self._window.popleft()


def _rows_of(found: deque[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in found)
