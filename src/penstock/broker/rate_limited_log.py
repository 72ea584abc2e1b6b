"""Rate-limited log lines: at most one of a kind per interval, with the number of those suppressed.

Rules: clients and peers that can cause a line must not be able to flood the log. For a continuing problem the interval
doubles, up to the longest one, until `was_well`.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base import limits


@dataclass(slots=True)
class _Kind:
    told_us: int
    interval_us: int  # until the next line
    left_out: int = 0


class RateLimitedLog:
    """Decides which complaints are logged. Times are monotonic."""

    def __init__(self, interval_ms: int = limits.RATE_LIMITED_LOG_INTERVAL_MS, longest_ms: int = 0) -> None:
        """`longest_ms`: upper bound of the doubling interval; 0: constant interval."""
        self._interval_us = interval_ms * 1_000
        self._longest_us = max(interval_ms, longest_ms) * 1_000
        self._kinds: dict[str, _Kind] = {}

    def line(self, kind: str, text: str, now_us: int) -> str | None:
        """Return the line to log, or None. `kind` is one of a few fixed words, never external input."""
        known = self._kinds.get(kind)
        if known is not None and now_us - known.told_us < known.interval_us:
            known.left_out += 1
            return None
        interval_us = self._interval_us if known is None else min(2 * known.interval_us, self._longest_us)
        self._kinds[kind] = _Kind(now_us, interval_us)
        return f"{text} ({known.left_out} more like it before)" if known is not None and known.left_out else text

    def was_well(self, kind: str) -> None:
        """Reset the interval: the next problem of this kind is logged soon, but not before the interval is over."""
        if (known := self._kinds.get(kind)) is not None:
            known.interval_us = self._interval_us
