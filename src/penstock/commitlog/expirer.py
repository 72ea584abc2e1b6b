"""When the segments of one log are looked at for messages whose time to live is over, and what is known of them.

Rules: each sealed segment is looked at once, and again when the next of its messages is to go: what is known of it is
one number. Where there are too many such segments, those are forgotten whose messages go last, and all are looked at
again when their time has come. After a start nothing is known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.clock import growing
from penstock.commitlog.expiry import ExpiryRules, ExpirySurvey
from penstock.commitlog.judged import Judged
from penstock.commitlog.retention import LogConfig
from penstock.commitlog.segment import Segment
from penstock.commitlog.view import LogView
from penstock.vfs import Vfs

if TYPE_CHECKING:
    from penstock.commitlog.compactor import Compactor

_RETRY_US = limits.COMPACTION_RETRY_MS * 1_000
_RETRY_US_MAX = limits.COMPACTION_RETRY_MS_MAX * 1_000
_SKIPPED_MAX = 64
_base_offset = attrgetter("base_offset")
_end_offset = attrgetter("end_offset")


class Expirer:
    """One log's. `begin` a survey, run it, hand it to `surveyed`; write what `take_judged` gives."""

    __slots__ = ("_awaits_compaction", "_awaits_more", "_dues", "_failures", "_forgotten_us", "_judged", "_known_end",
                 "_next_us", "_not_before_us", "_survey")  # fmt: skip

    def __init__(self) -> None:
        self._survey: ExpirySurvey | None = None  # under way
        self._judged: Judged | None = None  # what is to be written
        self._known_end = 0  # segments up to here were looked at
        self._dues: dict[int, int] = {}  # of those by their base offsets: when their next messages go
        self._next_us: int | None = None  # the first of these times
        self._forgotten_us: int | None = None  # the first of others
        self._awaits_more: tuple[int, int] | None = None  # base and end of the last one, whose last message is to go
        self._awaits_compaction: set[int] = set()  # base offsets of those that have messages to go after a pass
        self._not_before_us = 0
        self._failures = 0  # in a row

    def due_us(self, sealed: Sequence[Segment], config: LogConfig, end: int) -> int | None:
        """When a segment is to be looked at; None: not by time alone. `end`: of what may be judged."""
        if not config.expires or self._survey is not None:
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
        """The next one that was not looked at; one whose index file is not written yet is passed over."""
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
    ) -> ExpirySurvey | None:
        """A survey, if it is time for one; no pass of compaction is under way."""
        due_us = self.due_us(sealed, config, end)
        if due_us is None or now_us < due_us:
            return None
        if self._forgotten_us is not None and self._forgotten_us <= now_us:
            self._forget_all()
        segment = self._next_of(sealed, end, now_us)
        if segment is None:
            return None
        rules = ExpiryRules(now_us, end, config.dedup_window_us)
        if config.compact:
            compacted_end, forced_keys = compactor.settled
            rules = rules._replace(is_compacted=True, compacted_end=compacted_end, forced_keys=forced_keys)
        if config.rolls_up:
            rolled_end, forced_subjects = compactor.rolled
            rules = rules._replace(rolled_end=rolled_end, forced_subjects=forced_subjects)
        self._survey = ExpirySurvey(vfs, view, segment, rules)
        return self._survey

    def _next_of(self, sealed: Sequence[Segment], end: int, now_us: int) -> Segment | None:
        """The segment whose turn it is; those that are not there any more are forgotten on the way."""
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
                self._forgotten_us = min(forgotten_us, self._forgotten_us or forgotten_us)
        self._next_us = min(self._dues.values(), default=None)

    def _forget_all(self) -> None:
        self._known_end = 0
        self._dues.clear()
        self._awaits_compaction.clear()
        self._next_us = self._forgotten_us = self._awaits_more = None

    def surveyed(self, survey: ExpirySurvey, now_us: int) -> None:
        """It is done, has failed, or was given up."""
        if survey is not self._survey:
            return
        self._survey = None
        if survey.is_void or not survey.is_whole:
            self._not_before_us = now_us + self._wait_us()
            return
        if survey.judged is None:
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

    def take_judged(self, sealed: Sequence[Segment]) -> Judged | None:
        """The segment that is to be written, if it is there still."""
        judged, self._judged = self._judged, None
        return judged if judged is not None and judged.segment in sealed else None

    def not_written(self, base_offset: int, now_us: int) -> None:
        """What was judged is not done: look at it again."""
        self._know(base_offset, now_us + self._wait_us())

    def written(self) -> None:
        """What was judged is done."""
        self._failures = 0

    def _wait_us(self) -> int:
        self._failures += 1
        return growing(_RETRY_US, self._failures, _RETRY_US_MAX)

    def reconsider(self) -> None:
        """What was judged and is not written yet is judged anew: the rules are others, or the log is."""
        self._survey = None
        if self._judged is not None:
            self._know(self._judged.segment.base_offset, 0)
            self._judged = None

    def compacted(self) -> None:
        """A pass of compaction is over: what has waited for that may go."""
        if len(self._awaits_compaction) >= limits.EXPIRING_SEGMENTS_MAX:  # there may be more
            self._forget_all()
        elif self._awaits_compaction:
            self._dues.update(dict.fromkeys(self._awaits_compaction, 0))
            self._next_us = 0
            self._awaits_compaction.clear()

    def cut(self, end: int) -> None:
        """The log was cut there: what comes behind is new."""
        self.reconsider()
        self._known_end = min(self._known_end, end)
        self._awaits_compaction = {one for one in self._awaits_compaction if one < end}
        self._dues = {base_offset: due_us for base_offset, due_us in self._dues.items() if base_offset < end}
        self._next_us = min(self._dues.values(), default=None)
        if self._awaits_more is not None and self._awaits_more[0] >= end:
            self._awaits_more = None
