"""When a log looks for what retention no longer keeps, and which files are waiting to be removed.

Rules: one look at a time, at most one in RETENTION_INTERVAL_MS, and only when a limit is passed or log_start has moved.
What could not be removed waits for the next look, which comes later each time in a row.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.clock import growing
from penstock.commitlog.retention import LogConfig, Retention

_INTERVAL_US = limits.RETENTION_INTERVAL_MS * 1000
_RETRY_US = limits.UPKEEP_RETRY_MS * 1000
_RETRY_US_MAX = limits.REMOVAL_RETRY_MS_MAX * 1000


class Keeper:
    """What one log knows of its retention beside its config."""

    __slots__ = ("_failures", "_has_moved", "_looked_us", "_removable", "_under_way", "oldest_us")

    def __init__(self, *, now_us: int, oldest_us: int | None, removable: tuple[str, ...]) -> None:
        # No message is older. A look finds out what it is exactly; None: there is no message.
        self.oldest_us = oldest_us
        self._removable = removable
        self._has_moved = bool(removable)
        self._looked_us = now_us
        self._failures = 0  # removals in a row that could not be done
        self._under_way: Retention | None = None

    def wants_look(self, config: LogConfig, *, messages: int, size_bytes: int, now_us: int) -> bool:
        """Whether it is time for one; a clock that was set back does not put it off until it has caught up."""
        self._looked_us = min(self._looked_us, now_us)
        if self._under_way is not None:
            return False
        if self._has_moved and now_us >= self._removal_us:
            return True
        is_time = now_us - self._looked_us >= _INTERVAL_US
        return is_time and self._is_exceeded(config, messages, size_bytes, now_us)

    def dues_us(self, config: LogConfig, *, messages: int, size_bytes: int, now_us: int) -> list[int]:
        """When it will be, as far as it is known."""
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
        """When the next removal may begin."""
        return self._looked_us + growing(_RETRY_US, self._failures, _RETRY_US_MAX) if self._failures else 0

    def _is_exceeded(self, config: LogConfig, messages: int, size_bytes: int, now_us: int) -> bool:
        return config.is_exceeded(messages=messages, size_bytes=size_bytes, oldest_us=self.oldest_us, now_us=now_us)

    def look(self, retention: Retention, now_us: int) -> Retention:
        """A look begins."""
        self._looked_us = now_us
        self._under_way = retention
        return retention

    def looked(self, retention: Retention) -> bool:
        """It is over; False if it was given up meanwhile."""
        if retention is not self._under_way:
            return False
        self._under_way = None
        return True

    def give_up(self) -> None:
        """The log is closed: what comes back changes nothing."""
        self._under_way = None

    def restart(self, *, is_empty: bool, forgets: bool) -> None:
        """The log was cut: a look that is under way knows nothing of that. `forgets`: no old segment is left at all."""
        self._under_way = None
        if is_empty:
            self.oldest_us = None
        if forgets:
            self._removable, self._has_moved = (), False

    def moved(self, removable: tuple[str, ...]) -> None:
        """log_start has moved, past these segments."""
        self._has_moved = True
        self._removable += removable

    def failed(self, removable: tuple[str, ...]) -> None:
        """They could not be removed."""
        self._failures += 1
        self._has_moved = True
        self._removable = (*removable, *self._removable)

    def removed(self) -> None:
        """What was to be removed is."""
        self._failures = 0

    def take_removable(self) -> tuple[str, ...] | None:
        """The segments to remove now that log_start has moved, perhaps none of them; None: it has not."""
        if not self._has_moved:
            return None
        self._has_moved = False
        taken, self._removable = self._removable, ()
        return taken
