"""Log lines that messages cause, limited in their rate: who publishes cannot flood the log of a subscriber."""

from __future__ import annotations

import logging
from collections.abc import Callable

INTERVAL_S = 10.0
"""Between two lines of one kind; the second tells how many were left out."""

LOGGER = logging.getLogger("penstock.frugal.scopes")


class Complaints:
    """Logs the first line of a kind, and then one in `INTERVAL_S` with the number of those left out."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: seconds of a monotonic clock."""
        self._now = now
        self._told_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def log(
        self, kind: str, text: Callable[[], str], level: int = logging.WARNING, *, error: BaseException | None = None
    ) -> None:
        """Log a line, if it is time, with the traceback of `error`. `kind` is one of a few fixed words, never from
        outside; `text` is made if needed.
        """
        now_s = self._now()
        told_s = self._told_s.get(kind)
        if told_s is not None and now_s - told_s < INTERVAL_S:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._told_s[kind] = now_s
        left_out = self._left_out.pop(kind, 0)
        more = f" ({left_out} more like it before)" if left_out else ""
        LOGGER.log(level, "%s%s", text(), more, exc_info=error)
