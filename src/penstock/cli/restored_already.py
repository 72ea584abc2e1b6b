"""Whether a stream that takes messages already is one that a restore has made: then nothing of it is to be brought.

Rules: it holds the backup if it goes at least as far, and the rows that both have are the same, by checksums. What its
limits have taken since is no longer there, and need not be. Where rows go by themselves (compaction, a time to live,
rollups), or get other times, checksums differ: there the first row that is left must be the backup's.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.base.errors import OperationalError
from penstock.cli import backup_files, placed_rows

if TYPE_CHECKING:
    from penstock.cli.backup_files import PartitionBackup, StreamBackup
    from penstock.cli.placed_rows import RowTimes
    from penstock.client.blocking import Client
    from penstock.messages import StreamInfo


def holds_backup(
    client: Client, folder: Path, entry: StreamBackup, there: StreamInfo, times: RowTimes, timeout_s: float
) -> bool:
    """Whether `there` holds all of `entry`, as far as its limits have left that."""
    from penstock.client.placing import Placer

    if there.subject != entry.config.subject or len(there.partitions) != len(entry.partitions):
        return False
    for partition in entry.partitions:
        placer = Placer(client, there, partition.partition, timeout=timeout_s)
        if placer.end < partition.end:
            return False
        begin = max(placer.start, partition.log_start)
        if partition.log_start < partition.end and not (
            begin < partition.end and _is_same(client, folder, partition, there, begin, times, timeout_s)
        ):
            return False
    return True


def _is_same(
    client: Client,
    folder: Path,
    partition: PartitionBackup,
    there: StreamInfo,
    begin: int,
    times: RowTimes,
    timeout_s: float,
) -> bool:
    config = there.config
    if config.compact or config.allow_message_ttl or config.allow_rollup or times.are_changed:
        return _begins_alike(client, folder, partition, there, begin, times, timeout_s)
    from penstock.commitlog.checksums import RangeSums

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
    from penstock.client.batches import messages_of

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
