"""Schedules the removal of hidden rows from one log's segments, and holds its state.

Rules: a hidden row leaves its file when the segment is rewritten. That is due once a share of the segment's rows is
hidden, or ERASURE_WAIT_MS after the first row was hidden, for all segments at once: one deletion must not rewrite
gigabytes, and a thousand should do it once. Rows that are to be erased at once do not wait for that. All wait until the
deduplication window is over, as message ids are read from the log, and until a pass has applied the segment's rollups.
Which hidden rows a file still has is not known after a restart: the rewrite looks first, and notes it (`Erased`).
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.base import limits
from penstock.base.clock import growing
from penstock.commitlog.cleaner.compactor import Compactor
from penstock.commitlog.config import LogConfig
from penstock.commitlog.segment.segment import Segment
from penstock.live.row_set import NONE, RowSet

_RETRY_US = limits.COMPACTION_RETRY_MS * 1_000
_RETRY_US_MAX = limits.COMPACTION_RETRY_MS_MAX * 1_000
_WAIT_US = limits.ERASURE_WAIT_MS * 1_000


class _Pending:
    """Hidden rows that a segment may still have."""

    __slots__ = ("due_us", "is_urgent", "segment")

    def __init__(self, segment: Segment, due_us: int, *, is_urgent: bool) -> None:
        self.segment = segment
        self.due_us = due_us
        self.is_urgent = is_urgent


class Eraser:
    """Erasure of one log: rewrite `next_segment`; then call `written`, `looked` or `failed`."""

    __slots__ = ("_compactor", "_failures", "_key", "_not_before_us", "_pending", "_round_us", "hidden", "secure")

    def __init__(self, compactor: Compactor) -> None:
        self.hidden = NONE
        self.secure = NONE  # of these, the ones that are erased without waiting for others
        self._compactor = compactor
        self._pending: list[_Pending] = []
        self._key: tuple[object, ...] | None = None  # of what `_pending` was made
        self._round_us: int | None = None  # when all that is pending is due
        self._not_before_us = 0
        self._failures = 0

    def hide(self, hidden: RowSet, secure: RowSet) -> None:
        """Replace the set of hidden rows."""
        self.hidden, self.secure = hidden, secure
        self._key = None

    def due_us(self, sealed: Sequence[Segment], config: LogConfig, end: int, now_us: int | None = None) -> int | None:
        """Time at which a segment is to be rewritten; None: time alone requires none. `end`: of what may be removed."""
        if not self.hidden:
            return None
        pending = self._look(sealed, config, end)
        if not pending:
            self._round_us = None
            return None
        if self._round_us is None and now_us is not None:
            self._round_us = now_us + _WAIT_US
        dues = [self._due_us(one) for one in pending]
        return max(self._not_before_us, min(dues))

    def _due_us(self, one: _Pending) -> int:
        if one.is_urgent:
            return one.due_us
        return max(one.due_us, 0 if self._round_us is None else self._round_us)

    def _look(self, sealed: Sequence[Segment], config: LogConfig, end: int) -> list[_Pending]:
        key = sealed, config, end, self._compactor.rolled_end
        if self._key != key:
            self._key = key
            self._pending = [] if not config.erases else self._found(sealed, config, end)
        return self._pending

    def _found(self, sealed: Sequence[Segment], config: LogConfig, end: int) -> list[_Pending]:
        found = []
        for segment in sealed:
            begin, stop = segment.base_offset, segment.end_offset
            if stop > end:
                break
            if segment.entries is not None:
                self._key = None  # its index file may be written at any time
                continue
            if not self._may_erase(segment, config):
                continue
            if not self.hidden.any_in(begin, stop):
                continue
            rows, secure_rows = (NONE, NONE) if segment.erased is None else segment.erased[:2]
            left = _lacking(self.hidden.between(begin, stop), rows)
            if not left:
                continue
            is_secure = self.secure.any_in(begin, stop) and _lacking(self.secure.between(begin, stop), secure_rows) > 0
            is_urgent = is_secure or left * limits.ERASED_SHARE >= stop - begin
            due_us = segment.last_timestamp_us + config.dedup_window_us
            found.append(_Pending(segment, due_us, is_urgent=is_urgent))
        return found

    def _may_erase(self, segment: Segment, config: LogConfig) -> bool:
        return config.erases and (not config.rolls_up or segment.end_offset <= self._compactor.rolled_end)

    def next_segment(self, sealed: Sequence[Segment], config: LogConfig, end: int, now_us: int) -> Segment | None:
        """Return the segment to rewrite next, if one is due."""
        due_us = self.due_us(sealed, config, end, now_us)
        if due_us is None or due_us > now_us:
            return None
        return next(one.segment for one in self._pending if self._due_us(one) <= now_us)

    def erasable(self, segment: Segment, config: LogConfig, now_us: int) -> tuple[RowSet, RowSet] | None:
        """Return what may be erased when a segment is rewritten for any reason: hidden rows, secure ones; or None."""
        is_over = segment.last_timestamp_us + config.dedup_window_us <= now_us
        if not is_over or not self._may_erase(segment, config):
            return None
        hidden = self.hidden.between(segment.base_offset, segment.end_offset)
        return (hidden, self.secure.between(segment.base_offset, segment.end_offset)) if hidden else None

    def looked(self) -> None:
        """Take what a rewrite found, or that there was nothing to remove."""
        self._key = None
        self._failures = self._not_before_us = 0

    def failed(self, now_us: int) -> None:
        """Back off after a rewrite failed."""
        self._failures += 1
        self._not_before_us = now_us + growing(_RETRY_US, self._failures, _RETRY_US_MAX)


def _lacking(some: RowSet, others: RowSet) -> int:
    """Return how many members of the first set are not in the second, which may have others."""
    return (some | others).count - others.count
