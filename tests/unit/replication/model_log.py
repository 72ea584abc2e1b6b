"""A log as replication sees it: batches with an epoch and a size, and what of them is on the disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.base.errors import ErrorCode, RemoteError


@dataclass(frozen=True)
class Batch:
    epoch: int
    base: int
    end: int
    size: int
    values: tuple[int, ...]  # of each offset; they tell apart what has the same place in different histories


@dataclass(frozen=True)
class Range:
    batches: tuple[Batch, ...]

    @property
    def length(self) -> int:
        return sum(batch.size for batch in self.batches)


class OverlapError(Exception):
    """The first batch begins at `base`, inside the log."""

    def __init__(self, base: int) -> None:
        super().__init__(base)
        self.base = base


class ModelLog:
    """It keeps what is on the disk apart from what is written."""

    def __init__(self) -> None:
        self.log_start = 0
        self.batches: list[Batch] = []
        self.flushed_end = 0
        self._empty_end = 0
        self.noted_committed_end = 0  # in the checkpoint
        self.is_cold = False  # lookups need a disk thread

    @property
    def log_end(self) -> int:
        return self.batches[-1].end if self.batches else self._empty_end

    @property
    def last_epoch(self) -> int:
        return self.batches[-1].epoch if self.batches else 0

    def epoch_end(self, leader_epoch: int) -> tuple[int, int]:
        kept = [batch for batch in self.batches if batch.epoch <= leader_epoch]
        return (kept[-1].epoch, kept[-1].end) if kept else (0, self.log_start)

    def find(self, offset: int, bytes_max: int) -> Range | None:
        return None if self.is_cold else self.range(offset, bytes_max)

    def range(self, offset: int, bytes_max: int) -> Range:
        replica_start = self.batches[0].base if self.batches else self.log_end
        if offset < replica_start and offset < self.log_start:
            raise RemoteError(ErrorCode.OFFSET_OUT_OF_RANGE, "it is gone", replica_start=replica_start)
        out: list[Batch] = []
        size = 0
        for batch in self.batches:
            if batch.end > offset:
                if out and size + batch.size > bytes_max:
                    break
                out.append(batch)
                size += batch.size
        return Range(tuple(out))

    def append(self, batch: Batch) -> None:
        assert batch.base == self.log_end, (batch, self.log_end)
        assert batch.epoch >= self.last_epoch, (batch, self.last_epoch)
        self.batches.append(batch)

    def append_fetched(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            if batch.base < self.log_end:
                raise OverlapError(batch.base)
            self.append(batch)

    def merge(self, end: int) -> None:
        """As a cleaner does: what lies below `end`, and is of one epoch, becomes one batch."""
        kept = [batch for batch in self.batches if batch.end > end]
        merged = [batch for batch in self.batches if batch.end <= end]
        assert len({batch.epoch for batch in merged}) == 1, merged
        size = sum(batch.size for batch in merged)
        values = tuple(value for batch in merged for value in batch.values)
        one = Batch(merged[0].epoch, merged[0].base, merged[-1].end, size, values)
        self.batches = [one, *kept]

    def truncate(self, end: int) -> None:
        assert self.log_start <= end <= self.log_end, (self.log_start, end, self.log_end)
        first = self.batches[0].base if self.batches else self._empty_end
        self.batches = [batch for batch in self.batches if batch.end <= end]
        self._empty_end = max(self.log_start, first)
        self._bound()

    def reset(self, start: int) -> None:
        self.batches = []
        self.log_start = self._empty_end = self.flushed_end = self.noted_committed_end = start

    def start_at(self, log_start: int) -> None:
        assert self.log_start <= log_start <= self.log_end, (self.log_start, log_start, self.log_end)
        self._empty_end = self.log_end
        self.log_start = log_start
        self.batches = [batch for batch in self.batches if batch.end > log_start]
        self.flushed_end = max(self.flushed_end, log_start)

    def flush(self, committed_end: int) -> None:
        self.flushed_end = self.log_end
        self.noted_committed_end = min(committed_end, self.log_end)

    def lose_power(self) -> None:
        self.truncate(max(self.flushed_end, self.log_start))

    def _bound(self) -> None:
        self.flushed_end = min(self.flushed_end, self.log_end)
        self.noted_committed_end = min(self.noted_committed_end, self.log_end)

    def contents(self) -> dict[int, tuple[int, int]]:
        """Each offset's epoch and value."""
        return {
            offset: (batch.epoch, value)
            for batch in self.batches
            for offset, value in enumerate(batch.values, batch.base)
        }
