"""What others make us log: at most one line of a kind in a while, with the number of those left out.

Rules: whoever can cause a line must not be able to flood the log with it. What goes on and on is told at intervals that
double, up to the longest one, until it was well for a while.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base import limits


@dataclass(slots=True)
class _Kind:
    told_us: int
    interval_us: int  # until the next line
    left_out: int = 0


class Complaints:
    """Decides which complaints are told. Times are those of a clock that only goes forward."""

    def __init__(self, interval_ms: int = limits.COMPLAINT_INTERVAL_MS, longest_ms: int = 0) -> None:
        """`longest_ms`: up to where the interval doubles; 0: it stays."""
        self._interval_us = interval_ms * 1_000
        self._longest_us = max(interval_ms, longest_ms) * 1_000
        self._kinds: dict[str, _Kind] = {}

    def line(self, kind: str, text: str, now_us: int) -> str | None:
        """What to log, or None. `kind` is one of a few words of ours, never something from outside."""
        known = self._kinds.get(kind)
        if known is not None and now_us - known.told_us < known.interval_us:
            known.left_out += 1
            return None
        interval_us = self._interval_us if known is None else min(2 * known.interval_us, self._longest_us)
        self._kinds[kind] = _Kind(now_us, interval_us)
        return f"{text} ({known.left_out} more like it before)" if known is not None and known.left_out else text

    def was_well(self, kind: str) -> None:
        """That went well for a while: what is wrong next is told soon, though not sooner than the interval allows."""
        if (known := self._kinds.get(kind)) is not None:
            known.interval_us = self._interval_us
