"""Schedules the compaction passes of one log, and holds their state.

A pass begins once enough has been added since the last one and is old enough, or when tombstones may be removed. Where
rollups of subjects are allowed, a pass begins with each sealed segment. It ends at once if the segment has no rollup;
otherwise it covers the whole log, and the next such pass waits so that they take only a share of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import takewhile

from penstock.base import limits
from penstock.base.clock import growing
from penstock.commitlog.cleaner.compaction import Survey
from penstock.commitlog.cleaner.retained_rows import CompactionRules, RetainedRows
from penstock.commitlog.config import Deciding, LogConfig
from penstock.commitlog.segment.segment import Segment
from penstock.commitlog.view import LogView
from penstock.live.row_set import RowSet
from penstock.vfs import Vfs

_RETRY_US = limits.COMPACTION_RETRY_MS * 1_000
_RETRY_US_MAX = limits.COMPACTION_RETRY_MS_MAX * 1_000


class _Forced:
    """Keys (or subjects) of messages that should be removed but must cover offsets; includes removed ones. Bounded."""

    __slots__ = ("_size_bytes", "values")

    def __init__(self) -> None:
        self.values: frozenset[bytes] = frozenset()
        self._size_bytes = 0

    @property
    def is_whole(self) -> bool:
        """True if the set is complete."""
        return self._size_bytes <= limits.COMPACTION_FORCED_BYTES_MAX

    def add(self, values: Iterable[bytes]) -> None:
        """Add values; clear the set once it exceeds its limit."""
        if not self.is_whole:
            return
        more = frozenset(values) - self.values
        self.values |= more
        self._size_bytes += sum(len(one) + limits.COMPACTION_FORCED_BYTES_EACH for one in more)
        if self._size_bytes > limits.COMPACTION_FORCED_BYTES_MAX:
            self.values = frozenset()  # an incomplete set proves nothing


class Compactor:
    """Compaction of one log: `begin`, run the survey, `surveyed`; rewrite each `next_judged`; `finish`."""

    __slots__ = (
        "_clean_end",
        "_failures",
        "_forced_keys",
        "_forced_subjects",
        "_goes_on",
        "_has_tombstones",
        "_judged",
        "_not_before_us",
        "_passes",
        "_rolled_end",
        "_rollups_not_before_us",
        "_started_us",
        "_survey",
        "_tombstones_end",
    )

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget all that earlier passes have found: the next one reads the whole log."""
        self._survey: Survey | None = None  # of the running pass
        self._judged: deque[RetainedRows] = deque()  # segments still to be rewritten
        self._clean_end = 0  # of the previous pass
        self._goes_on = False  # the previous pass had too many keys to hold: the next one does not wait for more data
        self._forced_keys = _Forced()
        self._forced_subjects = _Forced()  # of messages that a rollup should have removed
        self._passes: deque[tuple[int, int]] = deque()  # when each ended, and its end offset
        self._tombstones_end = 0  # tombstones before it have stayed long enough
        self._has_tombstones = False
        self._not_before_us = 0
        self._failures = 0  # failed passes in a row
        self._rolled_end = 0  # end offset up to which rollups are done
        self._rollups_not_before_us = 0
        self._started_us = 0  # when the running pass began

    @property
    def judged(self) -> list[Segment]:
        """The segments that the running pass is still to rewrite: what it has judged holds for these files only."""
        return [one.segment for one in self._judged]

    @property
    def is_under_way(self) -> bool:
        """True while a pass is running."""
        return self._survey is not None

    def due_us(self, sealed: Iterable[Segment], config: LogConfig, end: int) -> int | None:
        """Time at which the next pass may begin; None if time alone starts none. `end`: of what may be compacted."""
        if self.is_under_way or config.deciding is Deciding.ELSEWHERE:
            return None
        dues = []
        if config.compact:
            dues.append(self._keys_due_us(sealed, config, end))
        if config.rolls_up:
            dues.append(self._rollups_due_us(sealed, config, end))
        return min((max(one, self._not_before_us) for one in dues if one is not None), default=None)

    def _rollups_due_us(self, sealed: Iterable[Segment], config: LogConfig, end: int) -> int | None:
        """Time at which the first segment not checked for rollups is old enough."""
        for segment in _judgeable(sealed, end):
            if segment.end_offset > self._rolled_end:
                return max(segment.last_timestamp_us + config.passes_lag_us, self._rollups_not_before_us)
        return None

    def _keys_due_us(self, sealed: Iterable[Segment], config: LogConfig, end: int) -> int | None:
        """Time at which the next pass may begin because of keys."""
        dues = []
        total_bytes = dirty_bytes = 0
        for segment in _judgeable(sealed, end):
            total_bytes += segment.size_bytes
            if segment.end_offset > self._clean_end:
                dirty_bytes += segment.size_bytes
                if self._goes_on or dirty_bytes * limits.COMPACTION_DIRTY_SHARE >= total_bytes:
                    dues.append(segment.last_timestamp_us + config.compaction_lag_us)
        if self._has_tombstones and self._passes and self._may_go and not config.keeps_tombstones:
            dues.append(self._passes[0][0] + max(config.tombstone_retention_us, _RETRY_US))
        return min(dues, default=None)

    def begin(
        self,
        vfs: Vfs,
        view: LogView,
        sealed: Iterable[Segment],
        config: LogConfig,
        end: int,
        now_us: int,
        hidden: RowSet | None = None,
    ) -> Survey | None:
        """Return the survey of a new pass if one is due. `hidden`: rows that replace no other."""
        due_us = self.due_us(sealed, config, end)
        if due_us is None or now_us < due_us:
            return None
        keys_due_us = self._keys_due_us(sealed, config, end) if config.compact else None
        old_us = now_us - config.passes_lag_us
        segments = list(takewhile(lambda one: one.last_timestamp_us <= old_us, _judgeable(sealed, end)))
        if not segments:
            self._not_before_us = now_us + _RETRY_US
            return None
        while self._passes and self._passes[0][0] <= now_us - config.tombstone_retention_us:
            self._tombstones_end = max(self._tombstones_end, self._passes.popleft()[1])
        end = segments[-1].end_offset
        tombstones_end = self._tombstones_end if self._may_go and not config.keeps_tombstones else 0
        rules = CompactionRules(
            min(self._clean_end, end),
            end,
            tombstones_end,
            self._forced_keys.values,
            by_key=config.compact,
            rollups_start=min(self._rolled_end, end) if config.rolls_up else None,
            keys_go=self._may_go,
            is_due=keys_due_us is not None and keys_due_us <= now_us,
            hidden=hidden,
            by_marks=config.deciding is Deciding.BY_MARKS,
        )
        self._started_us = now_us
        self._survey = Survey(vfs, view, segments, rules, config.merged_bytes_max)
        return self._survey

    @property
    def settled(self) -> tuple[int, frozenset[bytes]]:
        """Offset below which no key has an older message, and the keys excepted from that."""
        return (self._clean_end, self._forced_keys.values) if self._may_go else (0, frozenset())

    @property
    def rolled(self) -> tuple[int, frozenset[bytes]]:
        """Offset below which rollups have removed all older messages, and the subjects excepted from that."""
        forced = self._forced_subjects
        return (self._rolled_end, forced.values) if forced.is_whole else (0, frozenset())

    def is_wanted(self, config: LogConfig) -> bool:
        """True if the running pass is still wanted by the current config."""
        if self._survey is None:
            return False
        rules = self._survey.rules
        if config.deciding is Deciding.ELSEWHERE or rules.by_marks != (config.deciding is Deciding.BY_MARKS):
            return False
        return (config.compact or not rules.by_key) and (config.rolls_up or rules.rollups_start is None)

    def surveyed(self, survey: Survey, now_us: int) -> bool:
        """Take a survey that succeeded, failed or was abandoned; return True if it counts."""
        if survey is not self._survey:
            return False
        if survey.is_void or not survey.is_whole:
            self.abandon(now_us)
            return False
        self._forced_keys.add(survey.forced_keys)
        self._forced_subjects.add(survey.forced_subjects)
        self._judged.extend(survey.judged)
        return True

    def next_judged(self, sealed: Sequence[Segment]) -> RetainedRows | None:
        """Return the next segment to rewrite that still exists; None at the end of the pass."""
        while self._judged:
            judged = self._judged.popleft()
            if judged.segment in sealed:
                return judged
        return None

    @property
    def _may_go(self) -> bool:
        """True if tombstones may be removed: all keys whose older message must stay are known."""
        return self._forced_keys.is_whole

    def finish(self, now_us: int) -> None:
        """End the pass after all its segments were rewritten."""
        survey = self._survey
        assert survey is not None
        self._failures = 0
        if survey.has_judged and survey.rules.by_key:
            self._clean_end = max(self._clean_end, survey.end)
            self._goes_on = survey.end < survey.rules.end
            self._has_tombstones = survey.has_tombstones
            if len(self._passes) == limits.COMPACTION_PASSES_MAX:
                self._passes.pop()  # its tombstones wait for those of this pass
            self._passes.append((now_us, survey.end))
        if survey.rules.rollups_start is not None:
            self._rolled_end = max(self._rolled_end, survey.end)
            if survey.has_judged:
                rest_us = (limits.ROLLUP_PASSES_SHARE - 1) * max(0, now_us - self._started_us)
                self._rollups_not_before_us = now_us + rest_us
        self._end()

    def abandon(self, now_us: int) -> None:
        """Abandon the running pass and back off; segments already rewritten stay valid."""
        self._failures += 1
        self._not_before_us = now_us + growing(_RETRY_US, self._failures, _RETRY_US_MAX)
        self._end()

    def interrupt(self) -> None:
        """End the running pass; the next one may begin at once."""
        self._end()

    def _end(self) -> None:
        self._survey = None
        self._judged.clear()

    def cut(self, end: int) -> None:
        """Adjust the state after a truncation to `end`."""
        self._end()
        self._clean_end = min(self._clean_end, end)
        self._rolled_end = min(self._rolled_end, end)
        self._tombstones_end = min(self._tombstones_end, end)
        self._passes = deque((over_us, min(judged_end, end)) for over_us, judged_end in self._passes)


def _judgeable(sealed: Iterable[Segment], end: int) -> Iterable[Segment]:
    return takewhile(lambda one: one.end_offset <= end and one.entries is None, sealed)
