"""The limits of a partition in messages and bytes, on its leader: decided at once, by numbers in memory.

Rules: a message is a live row, stored and not hidden. Which offsets have no stored row (gaps) is read from the log once
in each leadership, in a disk thread; messages wait until it is known. Then the number of live rows follows from the
ends of the log and the set of hidden rows. So nothing has to be taken back when a write fails or a log is truncated.

| discard | at a limit                                                                                          |
|---------|-----------------------------------------------------------------------------------------------------|
| old     | the log start for readers rises with each commit: the newest `rows_max` committed live rows stay    |
| new     | what would exceed a limit is refused; rows that are not committed yet count                         |

Bytes are those of the segment files, less the share of hidden rows that they hold still. With discard old they are a
matter of retention (`commitlog.retention`). Rows that
the cleaner takes by compaction, times to live and rollups: with discard new they are gaps, and make room; with discard
old they count as rows, as replicas take them at different times, and must agree on the log start.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.batch.layout import BODY_POSITION, BUFFER_COUNT
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import LiveCounts, Log, LogView, TooManyRowsError
from penstock.ingest.admission import Room
from penstock.live.row_set import NONE, RowSet

UNCOUNTED = "the messages in the log are being counted for its limits"
_BATCH_BYTES = BODY_POSITION + 8 * BUFFER_COUNT  # of a batch without its rows; each buffer is padded


class ReadGaps:
    """Finds the offsets of a view that have no stored row, in a disk thread."""

    def __init__(self, view: LogView) -> None:
        self._view = view
        self.found = NONE

    def run(self) -> None:
        """Raise RemoteError (corrupt_range) or OSError."""
        while True:
            try:
                self.found = LiveCounts(self._view, self._view.log_end).gone()
            except TooManyRowsError:  # it goes on where it has stopped
                continue
            return


class RowLimit:
    """The limits of one leadership, and what is known of the log for them."""

    __slots__ = ("_counted", "_gaps", "_gone", "_hidden", "bytes_max", "failure", "is_cleaned", "is_outdated",
                 "is_reading", "refuses_new", "rows_max", "waiting")  # fmt: skip

    def __init__(self, config: StreamConfig) -> None:
        self._gaps: RowSet | None = None
        self._gone, self._hidden = NONE, NONE  # gaps and hidden rows; hidden rows of which it was made
        self._counted: tuple[int, int, int] | None = None  # start, end, and the live rows from one to the other
        self.is_reading = False
        self.failure = ""  # why the gaps could not be read
        self.is_outdated = False  # the cleaner has taken rows since the present reading began
        self.waiting: list[Callable[[], None]] = []  # called at the end of the present reading
        self.rows_max: int | None = None
        self.bytes_max: int | None = None
        self.refuses_new = self.is_cleaned = False  # is_cleaned: the cleaner takes rows that are not hidden
        self.configure(config)

    @classmethod
    def applies(cls, config: StreamConfig) -> bool:
        """True if a leader of such a stream needs one."""
        if config.refuses_new:
            return config.max_messages is not None or config.max_bytes is not None
        return config.max_messages is not None and not config.is_deletion_suspended

    def configure(self, config: StreamConfig) -> None:
        """Take the limits of a config to which it applies."""
        had = self.rows_max is not None, self.refuses_new, self.is_cleaned
        self.rows_max, self.bytes_max = config.max_messages, config.max_bytes
        self.refuses_new = config.refuses_new
        self.is_cleaned = config.compact or config.allow_message_ttl or config.allow_rollup
        if not self.needs_gaps:
            self.known(NONE)
        elif had != (self.rows_max is not None, self.refuses_new, self.is_cleaned):
            self._gaps = None

    @property
    def needs_gaps(self) -> bool:
        """True if the number of live rows depends on the gaps of the log."""
        return self.rows_max is not None and not (self.is_cleaned and not self.refuses_new)

    @property
    def is_known(self) -> bool:
        """True if the number of live rows is known."""
        return self._gaps is not None

    def known(self, gaps: RowSet) -> None:
        """Take the gaps; what was appended after they were read has none."""
        self._gaps = self._gone = gaps
        self._hidden, self._counted = NONE, None

    def go_on(self) -> None:
        """Call what waits."""
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            one()

    def rows(self, start: int, end: int, hidden: RowSet | None) -> int:
        """Return the number of live rows from one offset to another: cheap, if they were raised since the last call."""
        assert self._gaps is not None
        hidden = NONE if hidden is None else hidden
        if hidden is not self._hidden:
            gone = self._gaps.union(hidden, self._hidden, self._gone)
            self._hidden, self._gone, self._counted = hidden, gone, None
        gone = self._gone
        if self._counted is None or start < self._counted[0] or end < self._counted[1]:
            found = end - start - gone.count_in(start, end)
        else:
            begin, stop, found = self._counted
            found += end - stop - gone.count_in(stop, end)
            found -= start - begin - gone.count_in(begin, start)
        self._counted = start, end, found
        return found

    def start_of_newest(self, start: int, end: int, hidden: RowSet | None) -> int:
        """Return the offset from which on the newest `rows_max` live rows before `end` are; at least `start`."""
        if self.rows_max is None or end - start <= self.rows_max:
            return start
        left = self.rows(start, end, hidden) - self.rows_max
        return self._gone.behind_absent(start, left) if left > 0 else start

    def room(self, log: Log, start: int, count: int) -> Room:
        """Return what the log takes of `count` messages from a publisher, in one or several batches."""
        rows = size_bytes = -1
        if self.rows_max is not None:
            rows = max(0, self.rows_max - self.rows(start, log.log_end, log.hidden))
        if self.bytes_max is not None:
            batches = 1 + count // limits.BATCH_ROWS_MAX
            size_bytes = max(0, self.bytes_max - self._bytes(log) - batches * _BATCH_BYTES - SCHEMA_BYTES)
        return Room(rows, size_bytes)

    def exceeded(self, log: Log, start: int, count: int, size_bytes: int) -> str | None:
        """Return the limit that `count` more messages in a batch of that size would exceed, as JetStream calls it.

        None: it has room.
        """
        if count and self.rows_max is not None and self.rows(start, log.log_end, log.hidden) + count > self.rows_max:
            return "messages"
        if self.bytes_max is not None and self._bytes(log) + size_bytes + SCHEMA_BYTES > self.bytes_max:
            return "bytes"
        return None

    def _bytes(self, log: Log) -> int:
        """Return the size that counts; hidden rows are looked at only if the files are half full."""
        assert self.bytes_max is not None
        return log.size_bytes if log.size_bytes < self.bytes_max // 2 else log.live_bytes

    def may_grow(self, log: Log, start: int, decided_end: int) -> bool:
        """True if there is room once it is decided what the rows behind `decided_end` hide: they may hide as many."""
        if decided_end >= log.log_end:
            return False
        return self.rows_max is None or self.rows(start, decided_end, log.hidden) < self.rows_max
