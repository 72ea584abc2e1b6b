"""Pieces: the ranges of partitions that a batch or a query reads, and how many tasks share them.

Rules: a range is fixed when it is planned: a task that runs again reads the same rows. Messages that were deleted from
the log are an error, unless the user allows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from penstock.lake.reading.data_loss import PARAMETER_ADVICE, check_there
from penstock.lake.reading.positions import Key, Position
from penstock.lake.reading.selection import Chosen
from penstock.messages import StreamInfo

PIECE_BYTES = 128 * 1024 * 1024
"""Target size of a task in bytes: the default of Spark's spark.sql.files.maxPartitionBytes."""
_PIECE_ROWS_MIN = 10_000  # a smaller task costs more to start than to run


class Piece(NamedTuple):
    """The range of one task: offsets `[start, end)` of a partition, and the leader epochs of these positions."""

    stream: str
    stream_id: int
    partition: int
    start: int
    end: int
    leader_epoch: int = 0
    end_epoch: int = 0


def piece_of(
    info: StreamInfo, key: Key, begin: Position, end: Position, *, fail: bool, advice: str = PARAMETER_ADVICE
) -> Piece | None:
    """Return the range from `begin` to `end` as one piece; None if it is empty.

    If its first messages were deleted from the log: raise DataLossError if `fail` is set, else skip them.
    """
    if begin.offset >= end.offset:
        return None
    log_start = int(info.partitions[key.partition].log_start or 0)
    start = check_there(key, begin.offset, min(log_start, end.offset), fail=fail, advice=advice)
    if start >= end.offset:
        return None
    # After skipped messages the begin's epoch does not apply: nothing was read up to the new begin.
    epoch = begin.leader_epoch if start == begin.offset else end.leader_epoch
    return Piece(key.stream, int(info.stream_id), key.partition, start, end.offset, epoch, end.leader_epoch)


def cut(
    pieces: Iterable[Piece], row_bytes: Mapping[Key, float], partitions_min: int | None, records_max: int | None
) -> list[Piece]:
    """Split ranges into pieces of about PIECE_BYTES, at least `partitions_min`, none with over `records_max` rows."""
    ranges = [one for one in pieces if one.end > one.start]
    total = sum(one.end - one.start for one in ranges)
    out = []
    for one in ranges:
        rows = one.end - one.start
        size = row_bytes.get(Key(one.stream, one.partition), 0.0)
        count = max(1, min(int(rows * size // PIECE_BYTES) + 1, rows // _PIECE_ROWS_MIN))
        if partitions_min is not None:
            count = max(count, min(rows, -(-partitions_min * rows // total)))
        if records_max is not None:
            count = max(count, -(-rows // records_max))
        bounds = [one.start + rows * number // count for number in range(count + 1)]
        # Other leaders may have written messages in between; the leader of the end's epoch has all of them.
        epochs = [one.leader_epoch, *[one.end_epoch] * (count - 1)]
        parts = zip(pairwise(bounds), epochs, strict=True)
        out += [one._replace(start=start, end=end, leader_epoch=epoch) for (start, end), epoch in parts]
    return out


def row_bytes(chosen: Chosen) -> dict[Key, float]:
    """Return the average size of a message on disk, in bytes, for each partition."""
    out = {}
    for name, info in chosen.streams.items():
        for one in info.partitions:
            rows = (one.log_end or 0) - (one.log_start or 0)
            out[Key(name, int(one.partition))] = one.size_bytes / rows if rows > 0 else 0.0
    return out


def share(waiting: Mapping[Key, int], count_max: int) -> dict[Key, int]:
    """Divide `count_max` among partitions in proportion to their waiting rows; at least one row each if it suffices."""
    total = sum(waiting.values())
    if total <= count_max:
        return dict(waiting)
    out = {key: count * count_max // total for key, count in waiting.items()}
    left = count_max - sum(out.values())
    for key in sorted((key for key, count in waiting.items() if count), key=lambda key: (out[key], key)):
        if left <= 0:
            break
        out[key] += 1
        left -= 1
    return out


def log_starts_of(info: StreamInfo) -> dict[Key, int]:
    """Return the log start offset of each partition; 0 if unknown."""
    return {Key(info.name, int(one.partition)): int(one.log_start or 0) for one in info.partitions}


def lag_of(done: Mapping[Key, Position], log_starts: Mapping[Key, int], log_ends: Mapping[Key, Position]) -> int:
    """Return a job's lag: the number of offsets from its position to the high watermark, without deleted ones."""
    return sum(max(0, end.offset - max(log_starts.get(key, 0), done[key].offset)) for key, end in log_ends.items())


def ordered(pieces: Sequence[Piece]) -> list[Piece]:
    """Sort pieces by stream, partition and offset."""
    return sorted(pieces, key=lambda one: (one.stream, one.partition, one.start))
