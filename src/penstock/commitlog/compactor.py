"""When one log is compacted, and what is known of the passes before.

A pass begins once enough has come since the last one, and is old enough; or when tombstones may go. Where rollups of
subjects are allowed, one begins with each segment that is sealed. It ends soon if there is none in it; else it judges
all, and the next such one waits so long that they take a part of the time only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import takewhile

from penstock.base import limits
from penstock.base.clock import growing
from penstock.commitlog.compaction import Survey
from penstock.commitlog.judged import Judged, Rules
from penstock.commitlog.retention import LogConfig
from penstock.commitlog.segment import Segment
from penstock.commitlog.view import LogView
from penstock.vfs import Vfs

_RETRY_US = limits.COMPACTION_RETRY_MS * 1_000
_RETRY_US_MAX = limits.COMPACTION_RETRY_MS_MAX * 1_000


class _Forced:
    """Keys, or subjects, of messages that were to go and could not; those that went since, too. Bounded."""

    __slots__ = ("_size_bytes", "values")

    def __init__(self) -> None:
        self.values: frozenset[bytes] = frozenset()
        self._size_bytes = 0

    @property
    def is_whole(self) -> bool:
        """Whether all of them are known."""
        return self._size_bytes <= limits.COMPACTION_FORCED_BYTES_MAX

    def add(self, values: Iterable[bytes]) -> None:
        """These, too; none, once there are too many."""
        if not self.is_whole:
            return
        more = frozenset(values) - self.values
        self.values |= more
        self._size_bytes += sum(len(one) + limits.COMPACTION_FORCED_BYTES_EACH for one in more)
        if self._size_bytes > limits.COMPACTION_FORCED_BYTES_MAX:
            self.values = frozenset()  # of what is not whole nothing follows


class Compactor:
    """One log's. `begin` a survey, run it, hand it to `surveyed`; write what `next_judged` gives, until `finish`."""

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
        self._survey: Survey | None = None  # of the pass under way
        self._judged: deque[Judged] = deque()  # what is to be written yet
        self._clean_end = 0  # of the pass before
        self._goes_on = False  # that pass had more keys than it could note: the next one is not to wait for more
        self._forced_keys = _Forced()
        self._forced_subjects = _Forced()  # of messages that were to go for a rollup
        self._passes: deque[tuple[int, int]] = deque()  # when each was over, and up to where it had judged
        self._tombstones_end = 0  # those before it have stayed long enough
        self._has_tombstones = False
        self._not_before_us = 0
        self._failures = 0  # passes in a row that came to nothing
        self._rolled_end = 0  # up to where rollups of subjects have been seen to
        self._rollups_not_before_us = 0
        self._started_us = 0  # when the pass under way began

    @property
    def is_under_way(self) -> bool:
        """Whether a pass is."""
        return self._survey is not None

    def due_us(self, sealed: Iterable[Segment], config: LogConfig, end: int) -> int | None:
        """When the next pass may begin; None: not by time alone. `end`: of what may be judged."""
        if self.is_under_way:
            return None
        dues = []
        if config.compact:
            dues.append(self._keys_due_us(sealed, config, end))
        if config.rolls_up:
            dues.append(self._rollups_due_us(sealed, config, end))
        return min((max(one, self._not_before_us) for one in dues if one is not None), default=None)

    def _rollups_due_us(self, sealed: Iterable[Segment], config: LogConfig, end: int) -> int | None:
        """When the first segment that was not looked at for rollups is old enough."""
        for segment in _judgeable(sealed, end):
            if segment.end_offset > self._rolled_end:
                return max(segment.last_timestamp_us + config.passes_lag_us, self._rollups_not_before_us)
        return None

    def _keys_due_us(self, sealed: Iterable[Segment], config: LogConfig, end: int) -> int | None:
        """When the next pass may begin because of keys."""
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
        self, vfs: Vfs, view: LogView, sealed: Iterable[Segment], config: LogConfig, end: int, now_us: int
    ) -> Survey | None:
        """A pass, if it is time for one."""
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
        rules = Rules(
            min(self._clean_end, end),
            end,
            tombstones_end,
            self._forced_keys.values,
            by_key=config.compact,
            rollups_start=min(self._rolled_end, end) if config.rolls_up else None,
            keys_go=self._may_go,
            is_due=keys_due_us is not None and keys_due_us <= now_us,
        )
        self._started_us = now_us
        self._survey = Survey(vfs, view, segments, rules, config.merged_bytes_max)
        return self._survey

    @property
    def settled(self) -> tuple[int, frozenset[bytes]]:
        """Up to where no key has an older message, and those keys of which that is not so."""
        return (self._clean_end, self._forced_keys.values) if self._may_go else (0, frozenset())

    @property
    def rolled(self) -> tuple[int, frozenset[bytes]]:
        """Up to where what comes before the rollups of subjects has gone, and those subjects of which not all has."""
        forced = self._forced_subjects
        return (self._rolled_end, forced.values) if forced.is_whole else (0, frozenset())

    def is_wanted(self, config: LogConfig) -> bool:
        """Whether the pass under way is, by the config as it is now."""
        if self._survey is None:
            return False
        rules = self._survey.rules
        return (config.compact or not rules.by_key) and (config.rolls_up or rules.rollups_start is None)

    def surveyed(self, survey: Survey, now_us: int) -> None:
        """It is done, has failed, or was given up."""
        if survey is not self._survey:
            return
        if survey.is_void or not survey.is_whole:
            self.abandon(now_us)
        else:
            self._forced_keys.add(survey.forced_keys)
            self._forced_subjects.add(survey.forced_subjects)
            self._judged.extend(survey.judged)

    def next_judged(self, sealed: Sequence[Segment]) -> Judged | None:
        """The next segment to be written, which is there still."""
        while self._judged:
            judged = self._judged.popleft()
            if judged.segment in sealed:
                return judged
        return None

    @property
    def _may_go(self) -> bool:
        """Whether tombstones may: all keys are known of which an older message must stay."""
        return self._forced_keys.is_whole

    def finish(self, now_us: int) -> None:
        """All segments of the pass are written."""
        survey = self._survey
        assert survey is not None
        self._failures = 0
        if survey.has_judged and survey.rules.by_key:
            self._clean_end = max(self._clean_end, survey.end)
            self._goes_on = survey.end < survey.rules.end
            self._has_tombstones = survey.has_tombstones
            if len(self._passes) == limits.COMPACTION_PASSES_MAX:
                self._passes.pop()  # its tombstones wait for those of this one
            self._passes.append((now_us, survey.end))
        if survey.rules.rollups_start is not None:
            self._rolled_end = max(self._rolled_end, survey.end)
            if survey.has_judged:
                rest_us = (limits.ROLLUP_PASSES_SHARE - 1) * max(0, now_us - self._started_us)
                self._rollups_not_before_us = now_us + rest_us
        self._end()

    def abandon(self, now_us: int) -> None:
        """The pass under way comes to nothing; what it has written is well."""
        self._failures += 1
        self._not_before_us = now_us + growing(_RETRY_US, self._failures, _RETRY_US_MAX)
        self._end()

    def _end(self) -> None:
        self._survey = None
        self._judged.clear()

    def cut(self, end: int) -> None:
        """The log was cut there: what comes behind is new."""
        self._end()
        self._clean_end = min(self._clean_end, end)
        self._rolled_end = min(self._rolled_end, end)
        self._tombstones_end = min(self._tombstones_end, end)
        self._passes = deque((over_us, min(judged_end, end)) for over_us, judged_end in self._passes)


def _judgeable(sealed: Iterable[Segment], end: int) -> Iterable[Segment]:
    return takewhile(lambda one: one.end_offset <= end and one.entries is None, sealed)
