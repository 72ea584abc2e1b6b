"""Restart policy for a broker process that has ended, and whether it is logged.

Rules: a broker with invalid settings is not restarted: only an operator can change them. Any other is, with backoff: a
disk that is mounted late, or a port that becomes free, should need no operator. After a run of SUPERVISOR_STEADY_MS the
backoff starts again. The same failure is logged once.

| it ended                              | then                                                       |
|---------------------------------------|------------------------------------------------------------|
| with USED_WRONGLY                     | logged; no restart                                         |
| before it listened, another reason    | logged; restart, from SUPERVISOR_RETRY_MS_MAX / 8 on       |
| the same as the time before           | not logged again                                           |
| after it had listened                 | logged; restart, from SUPERVISOR_RETRY_MS_MIN on           |
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.base import limits

USED_WRONGLY = 2
"""Exit code of a broker whose settings are invalid."""
_REFUSED_MS_MIN = limits.SUPERVISOR_RETRY_MS_MAX // 8


class ProcessExit(NamedTuple):
    """One ended run of a broker."""

    code: int  # -N: signal N
    ran_ms: int
    has_listened: bool
    reason: str  # the last error that it logged


class RestartDecision(NamedTuple):
    """Decision after a run."""

    delay_ms: int | None  # None: no restart
    is_news: bool  # True if it should be logged


class RestartPolicy:
    """Restart state of one broker."""

    def __init__(self) -> None:
        self._delay_ms = 0
        self._trouble: tuple[int, str] | None = None  # exit code and reason of the previous run

    def ended(self, run: ProcessExit) -> RestartDecision:
        """Return the decision after a run."""
        trouble = run.code, run.reason
        is_news = trouble != self._trouble
        if run.ran_ms >= limits.SUPERVISOR_STEADY_MS:
            self._delay_ms, is_news = 0, True
        self._trouble = trouble
        if run.code == USED_WRONGLY:
            return RestartDecision(None, is_news=True)
        first_ms = limits.SUPERVISOR_RETRY_MS_MIN if run.has_listened else _REFUSED_MS_MIN
        self._delay_ms = min(max(first_ms, 2 * self._delay_ms), limits.SUPERVISOR_RETRY_MS_MAX)
        return RestartDecision(self._delay_ms, is_news or run.has_listened)
