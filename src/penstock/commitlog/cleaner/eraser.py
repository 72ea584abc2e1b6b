"""Schedules the removal of hidden rows from one log's segments, and holds its state.

Rules: a hidden row leaves its file when the segment is rewritten. That is due once a share of the segment's rows is
hidden, or ERASURE_WAIT_MS after the first row was hidden, for all segments at once: one deletion must not rewrite
gigabytes, and a thousand should do it once. They wait until the deduplication window is over, as message ids are read
from the log. Secure rows, which are to be erased at once, wait for neither, and come before all other cleaning. Which
hidden rows a file still has is not known after a restart: the rewrite looks first, and notes it (`Erased`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from penstock.base import limits
from penstock.base.clock import growing
from penstock.commitlog.config import LogConfig
from penstock.commitlog.segment.segment import Segment
from penstock.live.row_set import NONE, RowSet

_RETRY_US = limits.COMPACTION_RETRY_MS * 1_000
_RETRY_US_MAX = limits.COMPACTION_RETRY_MS_MAX * 1_000
_WAIT_US = limits.ERASURE_WAIT_MS * 1_000
_end_offset = attrgetter("end_offset")


class _Pending:
    """Hidden rows that a segment may still have."""

    __slots__ = ("due_us", "is_secure", "is_urgent", "segment")

    def __init__(self, segment: Segment, due_us: int, *, is_secure: bool, is_urgent: bool) -> None:
        self.segment = segment
        self.due_us = due_us
        self.is_secure = is_secure
        self.is_urgent = is_urgent


class Eraser:
    """Erasure of one log: rewrite `next_segment`; then call `written`, `looked` or `failed`."""

    __slots__ = ("_failures", "_key", "_not_before_us", "_pending", "_round_us", "hidden", "secure")

    def __init__(self) -> None:
        self.hidden = NONE
        self.secure = NONE  # of these, the ones that are erased without waiting for others
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
        # Each append moves `end`; what is pending changes with the segments that lie before it.
        key = sealed, config, bisect_right(sealed, end, key=_end_offset)
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
            is_secure = left_in(segment, self.secure) > 0
            # What has gone is hidden, but for what lies below the log start, in the first segment. To compare the sets
            # row by row takes hundreds of times as long as to count.
            exactly = is_secure or segment is sealed[0]
            left = left_in(segment, self.hidden) if exactly else self._more_than_gone(segment)
            if left <= 0:
                continue
            is_urgent = is_secure or left * limits.ERASED_SHARE >= stop - begin
            due_us = 0 if is_secure else segment.last_timestamp_us + config.dedup_window_us
            found.append(_Pending(segment, due_us, is_secure=is_secure, is_urgent=is_urgent))
        return found

    def _more_than_gone(self, segment: Segment) -> int:
        """Return how many more rows of a segment are hidden than have gone."""
        return self.hidden.count_in(segment.base_offset, segment.end_offset) - _gone(segment).count

    def next_segment(self, sealed: Sequence[Segment], config: LogConfig, end: int, now_us: int) -> Segment | None:
        """Return the segment to rewrite next, if one is due."""
        due_us = self.due_us(sealed, config, end, now_us)
        if due_us is None or due_us > now_us:
            return None
        return next(one.segment for one in self._pending if self._due_us(one) <= now_us)

    def next_secure(
        self, sealed: Sequence[Segment], config: LogConfig, end: int, now_us: int, judged: Sequence[Segment]
    ) -> Segment | None:
        """Return the next segment to rewrite because of secure rows, unless it is one of those `judged`."""
        if not self.secure or now_us < self._not_before_us:
            return None
        pending = self._look(sealed, config, end)
        return next((one.segment for one in pending if one.is_secure and one.segment not in judged), None)

    def erasable(self, segment: Segment, config: LogConfig, now_us: int) -> RowSet | None:
        """Return the hidden rows that may be erased when a segment is rewritten for any reason; None: none may."""
        if not config.erases:
            return None
        is_over = segment.last_timestamp_us + config.dedup_window_us <= now_us
        rows = (self.hidden if is_over else self.secure).between(segment.base_offset, segment.end_offset)
        return rows or None

    @property
    def is_failing(self) -> bool:
        """True if rewrites have failed again and again, as on a full disk."""
        return self._failures >= limits.ERASURES_FAILED_MAX

    def looked(self) -> None:
        """Take what a rewrite found, or that there was nothing to remove."""
        self._key = None
        self._failures = self._not_before_us = 0

    def failed(self, now_us: int) -> None:
        """Back off after a rewrite failed."""
        self._failures += 1
        self._not_before_us = now_us + growing(_RETRY_US, self._failures, _RETRY_US_MAX)


def left_in(segment: Segment, rows: RowSet) -> int:
    """Return how many of these rows a sealed segment's file may still hold the content of."""
    begin, end = segment.base_offset, segment.end_offset
    return rows.between(begin, end).count_beside(_gone(segment)) if rows.any_in(begin, end) else 0


def _gone(segment: Segment) -> RowSet:
    return NONE if segment.erased is None else segment.erased.rows
