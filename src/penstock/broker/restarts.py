"""When a broker that has ended is started again, and what is told of it.

Rules: one that cannot work with its settings is not started again: only an operator changes them. Any other is, ever
later: a disk that is mounted late, or a port that becomes free, is no reason to have somebody come. One that ran for
SUPERVISOR_STEADY_MS begins from the start. The same trouble is told once.

| it ended                              | then                                                       |
|---------------------------------------|------------------------------------------------------------|
| with USED_WRONGLY                     | told; never again                                          |
| before it listened, another reason    | told; again, from SUPERVISOR_RETRY_MS_MAX / 8 on           |
| the same as the time before           | not told again                                             |
| after it had listened                 | told; again, from SUPERVISOR_RETRY_MS_MIN on               |
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.base import limits

USED_WRONGLY = 2
"""The exit code of a broker whose settings cannot work."""
_REFUSED_MS_MIN = limits.SUPERVISOR_RETRY_MS_MAX // 8


class Ended(NamedTuple):
    """One run of a broker, at its end."""

    code: int  # -N: signal N
    ran_ms: int
    has_listened: bool
    reason: str  # the last error that it logged


class Verdict(NamedTuple):
    """What is to be done."""

    delay_ms: int | None  # None: it is not started again
    is_news: bool  # whether to tell of it


class Restarts:
    """Of one broker."""

    def __init__(self) -> None:
        self._delay_ms = 0
        self._trouble: tuple[int, str] | None = None  # exit code and reason of the run before, if it did not last

    def ended(self, run: Ended) -> Verdict:
        """What follows from that."""
        trouble = run.code, run.reason
        is_news = trouble != self._trouble
        if run.ran_ms >= limits.SUPERVISOR_STEADY_MS:
            self._delay_ms, is_news = 0, True
        self._trouble = trouble
        if run.code == USED_WRONGLY:
            return Verdict(None, is_news=True)
        first_ms = limits.SUPERVISOR_RETRY_MS_MIN if run.has_listened else _REFUSED_MS_MIN
        self._delay_ms = min(max(first_ms, 2 * self._delay_ms), limits.SUPERVISOR_RETRY_MS_MAX)
        return Verdict(self._delay_ms, is_news or run.has_listened)
