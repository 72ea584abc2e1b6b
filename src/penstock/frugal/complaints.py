"""Log lines that a peer can cause: at most one of a kind in an interval, with the number of those left out."""

from __future__ import annotations

import logging
from collections.abc import Callable

INTERVAL_S = 5.0
"""Time between two lines of one kind."""


class Complaints:
    """Logs, but not at the rate at which peers cause it. `kind` is one of a few fixed words."""

    def __init__(self, log: logging.Logger, now: Callable[[], float]) -> None:
        self._log = log
        self._now = now
        self._told: dict[str, tuple[float, int]] = {}  # when, and how many were left out since

    def tell(self, kind: str, text: str, *, level: int = logging.WARNING, error: BaseException | None = None) -> None:
        """Log the text, with the traceback of `error`, or count that it was left out."""
        now = self._now()
        told_s, left_out = self._told.get(kind, (None, 0))
        if told_s is not None and now - told_s < INTERVAL_S:
            self._told[kind] = (told_s, left_out + 1)
            return
        self._told[kind] = (now, 0)
        more = f" ({left_out} more like it before)" if left_out else ""
        self._log.log(level, "%s%s", text, more, exc_info=error)
