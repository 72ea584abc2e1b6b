"""Schedules the search of one log's segments for messages whose time to live (TTL) is over, and holds its state.

Rules: each sealed segment is checked once, and again when its next message expires: one number per segment is kept.
Beyond EXPIRING_SEGMENTS_MAX segments the ones that expire last are forgotten, and all are checked again when the first
of those is due. After a restart nothing is known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.clock import growing
from penstock.commitlog.cleaner.expiry import ExpiryRules, ExpirySurvey
from penstock.commitlog.cleaner.retained_rows import RetainedRows
from penstock.commitlog.config import Deciding, LogConfig
from penstock.commitlog.segment.segment import Segment
from penstock.commitlog.view import LogView
from penstock.live.row_set import RowSet
from penstock.vfs import Vfs

if TYPE_CHECKING:
    from penstock.commitlog.cleaner.compactor import Compactor

_RETRY_US = limits.COMPACTION_RETRY_MS * 1_000
_RETRY_US_MAX = limits.COMPACTION_RETRY_MS_MAX * 1_000
_SKIPPED_MAX = 64
_base_offset = attrgetter("base_offset")
_end_offset = attrgetter("end_offset")


class Expirer:
    """Expiry of one log: `begin` a survey, run it, call `surveyed`; rewrite what `take_judged` returns."""

    __slots__ = ("_awaits_compaction", "_awaits_more", "_dues", "_failures", "_forgotten_us", "_judged", "_known_end",
                 "_next_us", "_not_before_us", "_survey")  # fmt: skip

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget all that was found: each segment is checked again."""
        self._survey: ExpirySurvey | None = None  # running
        self._judged: RetainedRows | None = None  # the segment to be rewritten
        self._known_end = 0  # segments up to here were checked
        self._dues: dict[int, int] = {}  # base offset → time at which the segment's next message expires
        self._next_us: int | None = None  # the first of these times
        self._forgotten_us: int | None = None  # the first time among forgotten segments
        self._awaits_more: tuple[int, int] | None = None  # base and end of the last segment: its last row has expired
        self._awaits_compaction: set[int] = set()  # base offsets of segments whose messages go after a compaction pass
        self._not_before_us = 0
        self._failures = 0  # failures in a row

    def due_us(self, sealed: Sequence[Segment], config: LogConfig, end: int) -> int | None:
        """Time at which a segment is to be checked; None if time alone requires none. `end`: of what may be removed."""
        if not config.expires or self._survey is not None or config.deciding is Deciding.ELSEWHERE:
            return None
        if self._judged is not None:
            return 0
        if self._unknown(sealed, end) is not None:
            return self._not_before_us
        if self._awaits_more is not None and end > self._awaits_more[1]:
            return self._not_before_us
        dues = [due_us for due_us in (self._next_us, self._forgotten_us) if due_us is not None]
        return max(min(dues), self._not_before_us) if dues else None

    def _unknown(self, sealed: Sequence[Segment], end: int) -> Segment | None:
        """Return the next segment not yet checked, skipping those whose index file is not yet written."""
        number = bisect_right(sealed, self._known_end, key=_end_offset)
        for segment in sealed[number : number + _SKIPPED_MAX]:
            if segment.end_offset > end:
                return None
            if segment.entries is None:
                return segment
        return None

    def begin(
        self,
        vfs: Vfs,
        view: LogView,
        sealed: Sequence[Segment],
        config: LogConfig,
        end: int,
        now_us: int,
        compactor: Compactor,
        hidden: RowSet | None = None,
    ) -> ExpirySurvey | None:
        """Return a survey if one is due. Call it only while no compaction pass is running.

        `hidden`: rows that no reader is shown.
        """
        due_us = self.due_us(sealed, config, end)
        if due_us is None or now_us < due_us:
            return None
        if self._forgotten_us is not None and self._forgotten_us <= now_us:
            self._forget_all()
        segment = self._next_of(sealed, end, now_us)
        if segment is None:
            return None
        rules = ExpiryRules(now_us, end, config.dedup_window_us)
        if config.deciding is Deciding.BY_MARKS:
            rules = rules._replace(end=end + 1, by_marks=True, hidden=hidden)
        if config.compact:
            compacted_end, forced_keys = compactor.settled
            rules = rules._replace(is_compacted=True, compacted_end=compacted_end, forced_keys=forced_keys)
        if config.rolls_up:
            rolled_end, forced_subjects = compactor.rolled
            rules = rules._replace(rolled_end=rolled_end, forced_subjects=forced_subjects)
        self._survey = ExpirySurvey(vfs, view, segment, rules)
        return self._survey

    def _next_of(self, sealed: Sequence[Segment], end: int, now_us: int) -> Segment | None:
        """Return the segment to check next, forgetting removed ones on the way."""
        if self._awaits_more is not None and end > self._awaits_more[1]:
            self._know(self._awaits_more[0], 0)
            self._awaits_more = None
        while self._next_us is not None and self._next_us <= now_us:
            base_offset = min(self._dues, key=self._dues.__getitem__)
            number = bisect_left(sealed, base_offset, key=_base_offset)
            segment = sealed[number] if number < len(sealed) else None
            is_there = segment is not None and segment.base_offset == base_offset and segment.end_offset <= end
            if is_there and segment is not None and segment.entries is None:
                return segment
            self._know(base_offset, now_us + _RETRY_US if is_there else None)
        if (found := self._unknown(sealed, end)) is not None:
            number = bisect_right(sealed, self._known_end, key=_end_offset)
            while (segment := sealed[number]) is not found:  # it has no index file, perhaps until a restart
                self._know(segment.base_offset, now_us + _RETRY_US)
                number += 1
        return found

    def _know(self, base_offset: int, due_us: int | None) -> None:
        self._dues.pop(base_offset, None)
        if due_us is not None:
            self._dues[base_offset] = due_us
            if len(self._dues) > limits.EXPIRING_SEGMENTS_MAX:
                last = max(self._dues, key=self._dues.__getitem__)
                forgotten_us = self._dues.pop(last)
                if self._forgotten_us is None or forgotten_us < self._forgotten_us:
                    self._forgotten_us = forgotten_us
        self._next_us = min(self._dues.values(), default=None)

    def _forget_all(self) -> None:
        self._known_end = 0
        self._dues.clear()
        self._awaits_compaction.clear()
        self._next_us = self._forgotten_us = self._awaits_more = None

    def surveyed(self, survey: ExpirySurvey, now_us: int) -> bool:
        """Take a survey that succeeded, failed or was abandoned; return True if it counts."""
        if survey is not self._survey:
            return False
        self._survey = None
        if survey.is_void or not survey.is_whole:
            self._not_before_us = now_us + self._wait_us()
            return False
        if survey.judged is None and not survey.found:
            self._failures = 0
        segment, base_offset = survey.segment, survey.segment.base_offset
        self._know(base_offset, survey.next_us)
        self._awaits_compaction.discard(base_offset)
        if survey.awaits_compaction and len(self._awaits_compaction) < limits.EXPIRING_SEGMENTS_MAX:
            self._awaits_compaction.add(base_offset)
        if survey.awaits_more:
            self._awaits_more = base_offset, segment.end_offset
        self._known_end = max(self._known_end, segment.end_offset)
        self._judged = survey.judged
        return True

    def take_judged(self, sealed: Sequence[Segment]) -> RetainedRows | None:
        """Return the segment to rewrite if it still exists."""
        judged, self._judged = self._judged, None
        return judged if judged is not None and judged.segment in sealed else None

    def not_written(self, base_offset: int, now_us: int, *, is_voided: bool) -> None:
        """Retry a segment whose rewrite was voided at once, and one whose rewrite failed with backoff."""
        self._know(base_offset, 0 if is_voided else now_us + self._wait_us())

    def written(self) -> None:
        """Reset the backoff after a rewrite."""
        self._failures = 0

    def _wait_us(self) -> int:
        self._failures += 1
        return growing(_RETRY_US, self._failures, _RETRY_US_MAX)

    def reconsider(self) -> None:
        """Decide again on what was not yet rewritten: the rules or the log have changed."""
        self._survey = None
        if self._judged is not None:
            self._know(self._judged.segment.base_offset, 0)
            self._judged = None

    def compacted(self) -> None:
        """Check the segments that waited for the end of a compaction pass."""
        if len(self._awaits_compaction) >= limits.EXPIRING_SEGMENTS_MAX:  # more may wait than were recorded
            self._forget_all()
        elif self._awaits_compaction:
            self._dues.update(dict.fromkeys(self._awaits_compaction, 0))
            self._next_us = 0
            self._awaits_compaction.clear()

    def cut(self, end: int) -> None:
        """Adjust the state after a truncation to `end`."""
        self.reconsider()
        self._known_end = min(self._known_end, end)
        self._awaits_compaction = {one for one in self._awaits_compaction if one < end}
        self._dues = {base_offset: due_us for base_offset, due_us in self._dues.items() if base_offset < end}
        self._next_us = min(self._dues.values(), default=None)
        if self._awaits_more is not None and self._awaits_more[0] >= end:
            self._awaits_more = None
