"""Checks if a stream that accepts messages already holds a backup, so that a restore can skip it.

Rules: the stream holds the backup if it ends at or after the backup's end, and their common rows have equal checksums.
Rows that its limits have deleted may be missing. With compaction, a time to live, rollups or changed times checksums
differ; then the first remaining row must be the backup's. If no row remains to compare, and the stream's limits explain
that, restored rows would be deleted at once: the restore skips the stream and says so. Limits do not explain purged
rows: a stream with only the last rows is reported as such; one without any row does not count as this backup.
"""

from __future__ import annotations

import time
from contextlib import closing
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.cli.backup import files as backup_files
from penstock.cli.messages import placed_rows

if TYPE_CHECKING:
    from penstock.cli.backup.files import PartitionBackup, StreamBackup
    from penstock.cli.messages.placed_rows import RowTimes
    from penstock.client.blocking.client import Client
    from penstock.messages import StreamInfo


class RestoredState(Enum):
    """Part of a backup that a stream holds."""

    NOTHING = "other rows, or it ends before the backup"
    ALL = "all rows, except those that its limits have deleted"
    REST = "only the last rows: earlier ones were purged"
    EXPIRED = "no rows: its limits have deleted all"


def held_of(
    client: Client, folder: Path, entry: StreamBackup, there: StreamInfo, times: RowTimes, timeout_s: float
) -> RestoredState:
    """Return which part of `entry` the stream `there`, which accepts messages, holds."""
    from penstock.client.bulk.placing import Placer

    if there.subject != entry.config.subject or len(there.partitions) != len(entry.partitions):
        return RestoredState.NOTHING
    expired = compared = 0
    is_purged = False
    for partition in entry.partitions:
        placer = Placer(client, there, partition.partition, timeout=timeout_s)
        if placer.end < partition.end:
            return RestoredState.NOTHING
        if partition.log_start >= partition.end:
            continue
        begin = max(placer.start, partition.log_start)
        is_explained = begin == partition.log_start or explains(
            there, folder, partition, placer.start, placer.end, times
        )
        if begin >= partition.end:
            if not is_explained:
                return RestoredState.NOTHING
            expired += 1
        elif _is_empty(client, there, partition, begin, timeout_s):
            expired += 1
        elif not _is_same(client, folder, partition, there, begin, times, timeout_s):
            return RestoredState.NOTHING
        else:
            compared += 1
            is_purged = is_purged or not (is_explained or _loses_rows(there))
    if is_purged:
        return RestoredState.REST
    return RestoredState.EXPIRED if expired and not compared else RestoredState.ALL


def _loses_rows(there: StreamInfo) -> bool:
    """True if rows may be deleted from the middle of its log."""
    return bool(there.config.compact or there.config.allow_message_ttl or there.config.allow_rollup)


def _is_empty(client: Client, there: StreamInfo, partition: PartitionBackup, begin: int, timeout_s: float) -> bool:
    """True if the log may lose rows in its middle, and has none left in `[begin, partition.end)`."""
    if not _loses_rows(there):
        return False
    number, end = partition.partition, partition.end
    with closing(client.messages(there, begin, end=end, partition=number, timeout=timeout_s)) as left:
        return next(left, None) is None


def explains(
    there: StreamInfo, folder: Path, partition: PartitionBackup, start: int, end: int, times: RowTimes
) -> bool:
    """True if the stream's limits can have raised the start of a log that ends at `end` to `start`."""
    config = there.config
    newer = end - partition.end
    if config.max_messages is not None and end - start >= config.max_messages:
        return True
    if newer > 0 and config.allow_rollup:
        return True
    size_bytes = there.partitions[partition.partition].size_bytes
    if newer > 0 and config.max_bytes is not None and size_bytes + limits.BATCH_BYTES_MAX > config.max_bytes:
        return True  # retention deletes a batch if the batches after it reach max_bytes
    if config.max_age_ms is None:
        return False
    last_us = 0  # time of the last row before `start`
    begin = max((one.base_offset for one in partition.files if one.base_offset < start), default=start)
    for rows, _ in backup_files.batches(folder, partition, begin):
        offsets = rows.column("offset")
        if not rows.num_rows or offsets[0].as_py() >= start:
            continue
        before = next((n for n in range(rows.num_rows) if offsets[n].as_py() >= start), rows.num_rows)
        last_us = rows.column("timestamp")[before - 1].value
    # Rows restored with changed times are older than in the backup.
    return times.are_changed or last_us < time.time_ns() // 1_000 - config.max_age_ms * 1_000


def _is_same(
    client: Client,
    folder: Path,
    partition: PartitionBackup,
    there: StreamInfo,
    begin: int,
    times: RowTimes,
    timeout_s: float,
) -> bool:
    if _loses_rows(there) or times.are_changed:
        return _begins_alike(client, folder, partition, there, begin, times, timeout_s)
    from penstock.commitlog.verify.checksums import RangeSums

    sums = RangeSums(begin, partition.end)
    for _ in placed_rows.summed(backup_files.batches(folder, partition, begin), sums):
        pass
    try:
        placed_rows.compare(client, there, partition.partition, sums, begin, partition.end, what="the backup")
    except OperationalError:
        return False
    return True


def _begins_alike(
    client: Client,
    folder: Path,
    partition: PartitionBackup,
    there: StreamInfo,
    begin: int,
    times: RowTimes,
    timeout_s: float,
) -> bool:
    from penstock.client.read.batches import messages_of

    number = partition.partition
    with closing(client.messages(there, begin, end=partition.end, partition=number, timeout=timeout_s)) as left:
        here = next(left, None)
    if here is None:
        return False
    for rows, _ in backup_files.batches(folder, partition, here.offset):
        for found in messages_of(rows.slice(0, 1)):
            same = (found.offset, found.subject, found.value) == (here.offset, here.subject, here.value)
            return same and times.are_alike(here.timestamp_us, found.timestamp_us)
    return False
