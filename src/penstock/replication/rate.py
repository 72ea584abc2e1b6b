"""Byte rate limit (token bucket): an excess now is paid for by waiting later.

Rules: a caller may overdraw once, so a piece larger than a second's worth still gets through; nothing is taken while
there is a debt. At rest it saves up a quarter of a second's worth, no more.
"""

from __future__ import annotations

_SAVED_S = 0.25


class ByteRate:
    """One budget, shared by all that take from it. Times are elapsed microseconds."""

    def __init__(self, bytes_per_s: int) -> None:
        assert bytes_per_s > 0, bytes_per_s
        self.bytes_per_s = bytes_per_s
        self._saved_bytes = bytes_per_s * _SAVED_S
        self._at_us = 0

    def take(self, size_bytes: int, now_us: int) -> None:
        """Charge received bytes."""
        self._pass(now_us)
        self._saved_bytes -= size_bytes

    def give(self, size_bytes: int) -> None:
        """Refund bytes that cost nothing."""
        self._saved_bytes += size_bytes  # at most what was taken; `_pass` bounds it anyway

    def free_us(self, now_us: int) -> int:
        """The time from which more may be taken; at most `now_us`: at once."""
        self._pass(now_us)
        if self._saved_bytes >= 0:
            return now_us
        return now_us + int(-self._saved_bytes * 1_000_000 / self.bytes_per_s) + 1

    def _pass(self, now_us: int) -> None:
        passed_us = max(0, now_us - self._at_us)
        self._at_us = max(now_us, self._at_us)
        self._saved_bytes = min(
            self.bytes_per_s * _SAVED_S, self._saved_bytes + self.bytes_per_s * passed_us / 1_000_000
        )
