"""The part of a stream's config that its logs need."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from penstock.base import limits
from penstock.base.config import Compression, StreamConfig

_EXPIRING_AGE_US = limits.EXPIRING_SEGMENT_AGE_MS * 1_000


class Deciding(Enum):
    """Which replica's cleaner decides on the rows that compaction and expiry remove, and how they go (ADR 89)."""

    ALONE = "each replica decides: its cleaner rewrites segments without them"
    BY_MARKS = "this one, which leads: what a survey finds is hidden by marks, and then erased as any hidden row"
    ELSEWHERE = "the leader's, or its node finds what expires (ADR 97): this one only erases what is hidden"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Limits and cleaning of one log. None: no limit."""

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
    erases: bool = True  # hidden rows leave the files
    indexes_subjects: bool = False  # each sealed segment gets a subject index, before it is first needed
    keeps_tombstones: bool = False  # of keys that have older messages in another log
    deciding: Deciding = Deciding.ALONE

    @classmethod
    def of(cls, config: StreamConfig) -> LogConfig:
        found = cls(
            segment_bytes=config.segment_bytes,
            segment_age_us=None if config.segment_age_ms is None else config.segment_age_ms * 1000,
            max_age_us=None if config.max_age_ms is None else config.max_age_ms * 1000,
            max_bytes=None if config.refuses_new else config.max_bytes,
            compact=config.compact,
            # Message ids are rebuilt from the log after a restart: messages within the deduplication window stay.
            compaction_lag_us=max(config.compaction_lag_ms, config.dedup_window_ms or 0) * 1000,
            tombstone_retention_us=config.tombstone_retention_ms * 1000,
            compression=config.compression,
            expires=config.allow_message_ttl,
            rolls_up=config.allow_rollup,
            dedup_window_us=(config.dedup_window_ms or 0) * 1000,
        )
        return found.untouched() if config.is_deletion_suspended else found

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
        """Return the config for a follower: retention limits are the leader's business; see `Log.raise_start`."""
        return replace(self, max_age_us=None, max_messages=None, max_bytes=None)

    def untouched(self) -> LogConfig:
        """Return the config for a log from which nothing is removed."""
        return replace(self.following(), compact=False, expires=False, rolls_up=False, erases=False)

    def is_exceeded(self, *, messages: int, size_bytes: int, oldest_us: int | None, now_us: int) -> bool:
        """True if a log exceeds one of the limits. `oldest_us` None: it has no messages."""
        too_many = self.max_messages is not None and messages > self.max_messages
        too_large = self.max_bytes is not None and size_bytes > self.max_bytes
        too_old = self.max_age_us is not None and oldest_us is not None and oldest_us < now_us - self.max_age_us
        return too_many or too_large or too_old
