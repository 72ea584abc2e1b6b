"""Retention: computes the log start offset (`log_start`) from the stream's limits.

Rules: exact to the message for age and count, and to the batch for bytes. Whole segments below log_start are removed;
other space is freed with its segment. Only flushed messages are removed, so that log_start survives a crash. The newest
batch stays whatever `max_bytes` says, because a limit below the size of one message would keep nothing. The new start
is computed in a disk thread, because it may need an index on disk or, if that is lost, the whole segment; the log's own
task only acts on the result.

    tick → Retention.run (disk thread) → retained → Removal.run (disk thread)

| limit          | keeps                                                                     |
|----------------|---------------------------------------------------------------------------|
| `max_age_us`   | messages whose timestamp is at most this much before now                  |
| `max_messages` | the newest messages, counted in offsets                                   |
| `max_bytes`    | the newest batches whose total size is at most this                       |
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.base import limits
from penstock.base.config import Compression, StreamConfig
from penstock.base.errors import RemoteError
from penstock.commitlog.view.view import LogView

_EXPIRING_AGE_US = limits.EXPIRING_SEGMENT_AGE_MS * 1_000


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The part of a stream's config that its logs need. None: no limit."""

    segment_bytes: int
    segment_age_us: int | None = None
    max_age_us: int | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    compact: bool = False
    compaction_lag_us: int = 0
    tombstone_retention_us: int = 0
    compression: Compression = Compression.NONE
    expires: bool = False
    rolls_up: bool = False
    dedup_window_us: int = 0
    keeps_tombstones: bool = False  # of keys that have older messages in another log

    @classmethod
    def of(cls, config: StreamConfig) -> LogConfig:
        return cls(
            segment_bytes=config.segment_bytes,
            segment_age_us=None if config.segment_age_ms is None else config.segment_age_ms * 1000,
            max_age_us=None if config.max_age_ms is None else config.max_age_ms * 1000,
            max_messages=config.max_messages,
            max_bytes=config.max_bytes,
            compact=config.compact,
            # Message ids are rebuilt from the log after a restart: messages within the deduplication window stay.
            compaction_lag_us=max(config.compaction_lag_ms, config.dedup_window_ms or 0) * 1000,
            tombstone_retention_us=config.tombstone_retention_ms * 1000,
            compression=config.compression,
            expires=config.allow_message_ttl,
            rolls_up=config.allow_rollup,
            dedup_window_us=(config.dedup_window_ms or 0) * 1000,
        )

    @property
    def roll_age_us(self) -> int | None:
        """Maximum age of the active segment before it rolls."""
        if not (self.expires or self.rolls_up):
            return self.segment_age_us
        return min(_EXPIRING_AGE_US, self.segment_age_us or _EXPIRING_AGE_US)

    @property
    def passes_lag_us(self) -> int:
        """Minimum age of messages before a compaction pass considers them."""
        return self.compaction_lag_us if self.compact else self.dedup_window_us

    @property
    def merged_bytes_max(self) -> int:
        """Maximum size of a merged batch. `max_bytes` is exact to the batch, so batches must stay small beside it."""
        if self.max_bytes is None:
            return limits.MERGED_BYTES_MAX
        return min(limits.MERGED_BYTES_MAX, self.max_bytes // limits.MERGED_SHARE)

    def following(self) -> LogConfig:
        """Return the config for a follower: retention limits are the leader's business; see `Log.follow_start`."""
        return replace(self, max_age_us=None, max_messages=None, max_bytes=None)

    def untouched(self) -> LogConfig:
        """Return the config for a log from which nothing is removed."""
        return replace(self.following(), compact=False, expires=False, rolls_up=False)

    def is_exceeded(self, *, messages: int, size_bytes: int, oldest_us: int | None, now_us: int) -> bool:
        """True if a log exceeds one of the limits. `oldest_us` None: it has no messages."""
        too_many = self.max_messages is not None and messages > self.max_messages
        too_large = self.max_bytes is not None and size_bytes > self.max_bytes
        too_old = self.max_age_us is not None and oldest_us is not None and oldest_us < now_us - self.max_age_us
        return too_many or too_large or too_old


class Retention:
    """Computes the new log_start. Run it in a disk thread; then call `Log.retained` in any case."""

    __slots__ = ("_end", "_now_us", "_size_bytes", "_view", "config", "log_start", "oldest_us")

    def __init__(self, config: LogConfig, view: LogView, *, size_bytes: int, now_us: int, end: int) -> None:
        self.config = config
        self.log_start: int | None = None  # None: unknown
        self.oldest_us: int | None = None  # lower bound of timestamps from log_start on; None: unknown, or no message
        self._view = view
        self._size_bytes = size_bytes
        self._now_us = now_us
        self._end = end

    def run(self) -> None:
        """Compute the new log_start. If a read fails nothing is removed: corruption is reported, others retried."""
        try:
            log_start = log_start_by(
                self.config, self._view, size_bytes=self._size_bytes, now_us=self._now_us, end=self._end
            )
            self.oldest_us = self._view.timestamp_us_at(log_start)
            self.log_start = log_start
        except (RemoteError, OSError):
            return


def log_start_by(config: LogConfig, view: LogView, *, size_bytes: int, now_us: int, end: int) -> int:
    """Return the log_start that `config` requires, at most `end`, and never below the present one."""
    wanted = view.log_start
    if config.max_messages is not None:
        wanted = max(wanted, view.log_end - config.max_messages)
    if config.max_bytes is not None and size_bytes > config.max_bytes:
        wanted = max(wanted, view.start_keeping(config.max_bytes))
    if config.max_age_us is not None:
        wanted = max(wanted, view.offset_at(now_us - config.max_age_us, end=view.log_end))
    return min(wanted, max(end, view.log_start))
