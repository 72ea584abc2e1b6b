"""Schedules the retention of one log, and queues the files to remove.

Rules: one retention task at a time, at most one in RETENTION_INTERVAL_MS, and only if a limit is exceeded or log_start
has moved. Failed removals are retried with backoff.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.clock import growing
from penstock.commitlog.view.retention import LogConfig, Retention

_INTERVAL_US = limits.RETENTION_INTERVAL_MS * 1000
_RETRY_US = limits.MAINTENANCE_RETRY_MS * 1000
_RETRY_US_MAX = limits.REMOVAL_RETRY_MS_MAX * 1000


class RetentionTracker:
    """Retention state of one log, besides its config."""

    __slots__ = ("_failures", "_has_moved", "_looked_us", "_removable", "_under_way", "oldest_us")

    def __init__(self, *, now_us: int, oldest_us: int | None, removable: tuple[str, ...]) -> None:
        # Lower bound of all timestamps; a retention task makes it exact. None: the log is empty.
        self.oldest_us = oldest_us
        self._removable = removable
        self._has_moved = bool(removable)
        self._looked_us = now_us
        self._failures = 0  # failed removals in a row
        self._under_way: Retention | None = None

    def wants_look(self, config: LogConfig, *, messages: int, size_bytes: int, now_us: int) -> bool:
        """True if retention is due. A clock that was set back does not delay it until the clock has caught up."""
        self._looked_us = min(self._looked_us, now_us)
        if self._under_way is not None:
            return False
        if self._has_moved and now_us >= self._removal_us:
            return True
        is_time = now_us - self._looked_us >= _INTERVAL_US
        return is_time and self._is_exceeded(config, messages, size_bytes, now_us)

    def dues_us(self, config: LogConfig, *, messages: int, size_bytes: int, now_us: int) -> list[int]:
        """Return the times at which retention will be due, as far as known."""
        if self._under_way is not None:
            return []
        dues = [max(now_us, self._removal_us)] if self._has_moved else []
        earliest_us = self._looked_us + _INTERVAL_US
        if self._is_exceeded(config, messages, size_bytes, now_us):
            dues.append(earliest_us)
        elif config.max_age_us is not None and self.oldest_us is not None:
            dues.append(max(earliest_us, self.oldest_us + config.max_age_us + 1))
        return dues

    @property
    def _removal_us(self) -> int:
        """Earliest time of the next removal."""
        return self._looked_us + growing(_RETRY_US, self._failures, _RETRY_US_MAX) if self._failures else 0

    def _is_exceeded(self, config: LogConfig, messages: int, size_bytes: int, now_us: int) -> bool:
        return config.is_exceeded(messages=messages, size_bytes=size_bytes, oldest_us=self.oldest_us, now_us=now_us)

    def begin(self, retention: Retention, now_us: int) -> Retention:
        """Begin a retention task."""
        self._looked_us = now_us
        self._under_way = retention
        return retention

    def looked(self, retention: Retention) -> bool:
        """End a retention task; return False if it was abandoned meanwhile."""
        if retention is not self._under_way:
            return False
        self._under_way = None
        return True

    def give_up(self) -> None:
        """Ignore the running task's result, as the log is being closed."""
        self._under_way = None

    def restart(self, *, is_empty: bool, forgets: bool) -> None:
        """Reset after a truncation, voiding the running task. `forgets`: none of the old segments is left."""
        self._under_way = None
        if is_empty:
            self.oldest_us = None
        if forgets:
            self._removable, self._has_moved = (), False

    def moved(self, removable: tuple[str, ...]) -> None:
        """Record that log_start has moved past these segments."""
        self._has_moved = True
        self._removable += removable

    def failed(self, removable: tuple[str, ...]) -> None:
        """Requeue segments that could not be removed."""
        self._failures += 1
        self._has_moved = True
        self._removable = (*removable, *self._removable)

    def removed(self) -> None:
        """Reset the backoff after a successful removal."""
        self._failures = 0

    def take_removable(self) -> tuple[str, ...] | None:
        """Return the segments to remove since log_start moved, perhaps none; None: it has not moved."""
        if not self._has_moved:
            return None
        self._has_moved = False
        taken, self._removable = self._removable, ()
        return taken
