"""Retention: raises the log start offset (`log_start`) as the stream's limits require, and removes what lies below it.

Rules: exact to the message for age and count, and to the batch for bytes. Whole segments below log_start are removed;
other space is freed with its segment. Only flushed messages are removed, so that log_start survives a crash. The newest
batch stays whatever `max_bytes` says, because a limit below the size of one message would keep nothing. The new start
is computed in a disk thread, because it may need an index on disk or, if that is lost, the whole segment; the log's own
task only acts on the result. One retention task at a time, at most one in RETENTION_INTERVAL_MS, and only if a limit is
exceeded or log_start was raised. Failed removals are retried with backoff.

    tick → Retention.run (disk thread) → Log.apply_retention → Removal.run (disk thread)

| limit          | keeps                                                                     |
|----------------|---------------------------------------------------------------------------|
| `max_age_us`   | messages whose timestamp is at most this much before now                  |
| `max_messages` | the newest offsets; a broker counts messages: `node.partition.row_limit`  |
| `max_bytes`    | the newest batches whose total size, without hidden rows, is at most this |
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.base import limits
from penstock.base.clock import growing
from penstock.base.errors import RemoteError
from penstock.commitlog.config import LogConfig
from penstock.commitlog.files import files
from penstock.commitlog.files.files import LogFolder
from penstock.commitlog.view import LogView
from penstock.live.row_set import RowSet

_INTERVAL_US = limits.RETENTION_INTERVAL_MS * 1000
_RETRY_US = limits.MAINTENANCE_RETRY_MS * 1000
_RETRY_US_MAX = limits.REMOVAL_RETRY_MS_MAX * 1000


class Retention:
    """Computes the new log_start. Run it in a disk thread; then call `Log.apply_retention`, or `Log.discard_retention`
    if the log is to be truncated.
    """

    __slots__ = ("_end", "_hidden", "_now_us", "_size_bytes", "_view", "config", "log_start", "oldest_us")

    def __init__(
        self, config: LogConfig, view: LogView, *, hidden: RowSet, size_bytes: int, now_us: int, end: int
    ) -> None:
        """`end`: the most that log_start may become. `hidden`: rows that take no bytes of the limit."""
        self.config = config
        self.log_start: int | None = None  # None: unknown
        self.oldest_us: int | None = None  # lower bound of timestamps from log_start on; None: unknown, or no message
        self._view = view
        self._hidden = hidden
        self._size_bytes = size_bytes
        self._now_us = now_us
        self._end = end

    def run(self) -> None:
        """Compute the new log_start. If a read fails nothing is removed: corruption is reported, others retried."""
        try:
            log_start = self._required_start()
            self.oldest_us = self._view.timestamp_us_at(log_start)
            self.log_start = log_start
        except (RemoteError, OSError):
            return

    def _required_start(self) -> int:
        """Return the log_start that the config requires; it is never below the present one."""
        config, view = self.config, self._view
        wanted = view.log_start
        if config.max_messages is not None:
            wanted = max(wanted, view.log_end - config.max_messages)
        if config.max_bytes is not None and self._size_bytes > config.max_bytes:
            wanted = max(wanted, view.start_keeping(config.max_bytes, self._hidden))
        if config.max_age_us is not None:
            wanted = max(wanted, view.offset_at(self._now_us - config.max_age_us, end=view.log_end))
        return min(wanted, max(self._end, view.log_start))


class Removal:
    """Makes a raised log_start durable, then deletes the segments below it, which the log has already dropped.

    Run it in a disk thread. If it raises OSError, call `Log.removal_failed`: the removal is retried later.
    """

    __slots__ = ("_folder", "_sync_first", "is_void", "paths")

    def __init__(self, folder: LogFolder, paths: tuple[str, ...], sync_first: Callable[[], None]) -> None:
        self._folder = folder
        self._sync_first = sync_first
        self.paths = paths  # segment paths, oldest first
        self.is_void = False  # the log was reset meanwhile: the files are removed, and a name may be in use again

    def run(self) -> None:
        """Sync the checkpoint and the next segment's name, remove the files, and sync their folder."""
        self._sync_first()
        if self.paths:
            self._folder.sync()
        for path in self.paths:
            if self.is_void:
                return
            self._folder.vfs.remove(path)
            files.remove_beside(self._folder.vfs, path)
        if self.paths:
            self._folder.sync()


class RetentionTracker:
    """Schedules the retention of one log, and queues the files to remove."""

    __slots__ = ("_begun_us", "_failures", "_is_start_raised", "_removable", "_taken", "_under_way", "oldest_us")

    def __init__(self, *, now_us: int, oldest_us: int | None, removable: tuple[str, ...]) -> None:
        # Lower bound of all timestamps; a retention task makes it exact. None: the log is empty.
        self.oldest_us = oldest_us
        self._removable = removable
        self._taken: tuple[str, ...] = ()  # being removed
        self._is_start_raised = bool(removable)
        self._begun_us = now_us  # when the latest task began
        self._failures = 0  # failed removals in a row
        self._under_way: Retention | None = None

    def is_due(self, now_us: int, *, is_exceeded: bool) -> bool:
        """True if retention is due. A clock that was set back does not delay it until the clock has caught up.

        `is_exceeded`: the log exceeds one of its limits.
        """
        self._begun_us = min(self._begun_us, now_us)
        if self._under_way is not None:
            return False
        if self._is_start_raised and now_us >= self._removal_us:
            return True
        return is_exceeded and now_us - self._begun_us >= _INTERVAL_US

    def dues_us(self, now_us: int, max_age_us: int | None, *, is_exceeded: bool) -> list[int]:
        """Return the times at which retention will be due, as far as known."""
        if self._under_way is not None:
            return []
        dues = [max(now_us, self._removal_us)] if self._is_start_raised else []
        earliest_us = self._begun_us + _INTERVAL_US
        if is_exceeded:
            dues.append(earliest_us)
        elif max_age_us is not None and self.oldest_us is not None:
            dues.append(max(earliest_us, self.oldest_us + max_age_us + 1))
        return dues

    @property
    def _removal_us(self) -> int:
        """Earliest time of the next removal."""
        return self._begun_us + growing(_RETRY_US, self._failures, _RETRY_US_MAX) if self._failures else 0

    def begin(self, retention: Retention, now_us: int) -> Retention:
        """Begin a retention task."""
        self._begun_us = now_us
        self._under_way = retention
        return retention

    def end(self, retention: Retention) -> bool:
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
            self._removable, self._taken, self._is_start_raised = (), (), False

    def start_raised(self, removable: tuple[str, ...]) -> None:
        """Record that log_start was raised past these segments."""
        self._is_start_raised = True
        self._removable += removable

    def failed(self, removable: tuple[str, ...]) -> None:
        """Requeue segments that could not be removed."""
        self._failures += 1
        self._taken = ()
        self._is_start_raised = True
        self._removable = (*removable, *self._removable)

    def removed(self) -> None:
        """Reset the backoff after a successful removal."""
        self._failures = 0
        self._taken = ()

    @property
    def pending(self) -> tuple[str, ...]:
        """Paths of segments that are below log_start, and not yet known to be removed."""
        return self._removable + self._taken

    def take_removable(self) -> tuple[str, ...] | None:
        """Return the segments to remove since log_start was raised, perhaps none; None: it was not."""
        if not self._is_start_raised:
            return None
        self._is_start_raised = False
        self._taken, self._removable = self._removable, ()
        return self._taken
