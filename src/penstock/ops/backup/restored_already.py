"""Checks if a stream that accepts messages already holds a backup, so that a restore can skip it.

Rules: the stream holds the backup if it ends at or after the backup's end, and their common rows have equal checksums.
Rows that its limits have deleted may be missing. Where checksums differ, rows may have been deleted since: then each
row that is left must be the backup's. With compaction, a time to live, rollups or changed times checksums differ; then
the first remaining row must be the backup's. If no row remains to compare, and the stream's limits explain
that, restored rows would be deleted at once: the restore skips the stream and says so. Limits do not explain purged
rows: a stream with only the last rows is reported as such; one without any row does not count as this backup.
"""

from __future__ import annotations

import time
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.client.blocking.client import Client
from penstock.client.bulk.placing import Placer
from penstock.client.read.batches import messages_of
from penstock.client.values import Message
from penstock.commitlog.verify.checksums import RangeSums
from penstock.messages import StreamInfo
from penstock.ops import placed_rows
from penstock.ops.backup import files as backup_files
from penstock.ops.backup.files import PartitionBackup, StreamBackup
from penstock.ops.placed_rows import RowTimes


class RestoredState(Enum):
    """Part of a backup that a stream holds."""

    NOTHING = "other rows, or it ends before the backup"
    ALL = "all rows, except those that its limits have deleted"
    REST = "only the last rows: earlier ones were purged"
    EXPIRED = "no rows: its limits have deleted all"


def _content(row: Message) -> tuple[object, ...]:
    return row.timestamp_us, row.subject, row.key, row.value, row.headers


class ExistingStream(NamedTuple):
    """The stream `there`, compared with the backup in `folder`."""

    client: Client
    folder: Path
    there: StreamInfo
    times: RowTimes
    timeout_s: float

    def state(self, entry: StreamBackup) -> RestoredState:
        """Return which part of `entry` the stream, which accepts messages, holds."""
        have, had = {*self.there.subjects}, {*entry.config.subjects}
        if have != had or len(self.there.partitions) != len(entry.partitions):
            return RestoredState.NOTHING
        expired = compared = 0
        is_purged = False
        for partition in entry.partitions:
            placer = Placer(self.client, self.there, partition.partition, timeout=self.timeout_s)
            if placer.end < partition.end:
                return RestoredState.NOTHING
            if partition.log_start >= partition.end:
                continue
            begin = max(placer.start, partition.log_start)
            is_explained = begin == partition.log_start or self.explains(partition, placer.start, placer.end)
            if begin >= partition.end:
                if not is_explained:
                    return RestoredState.NOTHING
                expired += 1
            elif self._is_empty(partition, begin):
                expired += 1
            elif not self._is_same(partition, begin):
                return RestoredState.NOTHING
            else:
                compared += 1
                is_purged = is_purged or not (is_explained or self._loses_rows)
        if is_purged:
            return RestoredState.REST
        return RestoredState.EXPIRED if expired and not compared else RestoredState.ALL

    @property
    def _loses_rows(self) -> bool:
        """True if rows may be deleted from the middle of its log."""
        config = self.there.config
        by_marks = config.subject_limit or config.is_consumed
        return bool(config.compact or config.allow_message_ttl or config.allow_rollup or by_marks)

    def _is_empty(self, partition: PartitionBackup, begin: int) -> bool:
        """True if the log may lose rows in its middle, and has none left in `[begin, partition.end)`."""
        if not self._loses_rows:
            return False
        number, end = partition.partition, partition.end
        with closing(
            self.client.messages(self.there, begin, end=end, partition=number, timeout=self.timeout_s)
        ) as left:
            return next(left, None) is None

    def explains(self, partition: PartitionBackup, start: int, end: int) -> bool:
        """True if the stream's limits can have raised the start of a log that ends at `end` to `start`."""
        config = self.there.config
        newer = end - partition.end
        if config.max_messages is not None and end - start >= config.max_messages:
            return True
        if config.is_consumed or (newer > 0 and config.allow_rollup):
            return True
        size_bytes = self.there.partitions[partition.partition].size_bytes
        if start < end and config.max_bytes is not None and size_bytes + limits.BATCH_BYTES_MAX > config.max_bytes:
            return True  # retention deletes a batch if the batches after it reach max_bytes; the last one stays
        if config.max_age_ms is None:
            return False
        last_us = 0  # time of the last row before `start`
        begin = max((one.base_offset for one in partition.files if one.base_offset < start), default=start)
        for rows, _ in backup_files.batches(self.folder, partition, begin):
            offsets = rows.column("offset")
            if not rows.num_rows or offsets[0].as_py() >= start:
                continue
            before = next((n for n in range(rows.num_rows) if offsets[n].as_py() >= start), rows.num_rows)
            last_us = rows.column("timestamp")[before - 1].value
        # Rows restored with changed times are older than in the backup.
        return self.times.are_changed or last_us < time.time_ns() // 1_000 - config.max_age_ms * 1_000

    def _is_same(self, partition: PartitionBackup, begin: int) -> bool:
        if self._loses_rows or self.times.are_changed:
            return self._begins_alike(partition, begin)
        sums = RangeSums(begin, partition.end)
        for _ in placed_rows.summed(backup_files.batches(self.folder, partition, begin), sums):
            pass
        number, end = partition.partition, partition.end
        try:
            placed_rows.compare(self.client, self.there, number, sums, begin, end, what="the backup")
        except OperationalError:
            return self._has_no_other(partition, begin)
        return True

    def _has_no_other(self, partition: PartitionBackup, begin: int) -> bool:
        """True if the log has rows in `[begin, partition.end)`, all of them the backup's: others were deleted."""
        number, end = partition.partition, partition.end
        left = self.client.messages(self.there, begin, end=end, partition=number, timeout=self.timeout_s)
        with closing(left):
            batches = backup_files.batches(self.folder, partition, begin)
            ours = (row for rows, _ in batches for row in messages_of(rows) if row.offset >= begin)
            here, count = next(left, None), 0
            for row in ours:
                if here is None or here.offset > row.offset:
                    continue
                if here.offset < row.offset or _content(here) != _content(row):
                    return False
                here, count = next(left, None), count + 1
        return here is None and count > 0

    def _begins_alike(self, partition: PartitionBackup, begin: int) -> bool:
        number, end = partition.partition, partition.end
        with closing(
            self.client.messages(self.there, begin, end=end, partition=number, timeout=self.timeout_s)
        ) as left:
            here = next(left, None)
        if here is None:
            return False
        for rows, _ in backup_files.batches(self.folder, partition, here.offset):
            for found in messages_of(rows.slice(0, 1)):
                same = (found.offset, found.subject, found.value) == (here.offset, here.subject, here.value)
                return same and self.times.are_alike(here.timestamp_us, found.timestamp_us)
        return False
