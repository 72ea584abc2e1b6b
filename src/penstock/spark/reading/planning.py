"""Planning of reads: converts options to ranges of partitions, and splits the ranges into pieces for tasks.

Rules: only the driver plans. A range is fixed when it is planned: a task that runs again reads the same rows. Messages
that were deleted from the log are an error, unless `failOnDataLoss` is false.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from penstock.access import Operation
from penstock.base.errors import ConfigError
from penstock.base.ids import are_different_clusters
from penstock.base.subjects import overlap
from penstock.client.blocking.client import Client
from penstock.client.errors import NotAuthorized, StreamNotFound
from penstock.client.values import EARLIEST, LATEST
from penstock.messages import StreamInfo
from penstock.spark import permissions
from penstock.spark.data_loss import check_there
from penstock.spark.options.options import Selection, SourceOptions
from penstock.spark.options.positions import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Boundary,
    Earliest,
    Key,
    Latest,
    Moment,
    Offsets,
    Position,
    Positions,
)

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


class Chosen(NamedTuple):
    """The streams and partitions to read."""

    streams: Mapping[str, StreamInfo]
    keys: tuple[Key, ...]

    @property
    def stream_ids(self) -> dict[str, int]:
        """Ids of the streams by name."""
        return {name: int(info.stream_id) for name, info in self.streams.items()}


def choose(client: Client, selection: Selection, timeout_s: float, *, may_lack: bool = False) -> Chosen:
    """Return the selected streams and partitions. Raise ConfigError if there is no stream, or no such partition.

    Raise StreamNotFound if a named stream does not exist, NotAuthorized without the permission to read it; with
    `may_lack`, leave such a stream out.
    """
    found = _streams(client, selection, timeout_s, may_lack=may_lack)
    if not found:
        text = "no stream matches; `penstock stream list` shows all streams"
        raise ConfigError([f"stream: {text}"])
    keys = []
    for name, info in sorted(found.items()):
        there = [int(one.partition) for one in info.partitions]
        wanted = there if selection.assigned is None else list(selection.assigned[name])
        if missing := sorted(set(wanted) - set(there)):
            raise ConfigError([f"assign: stream {name} has no partition {missing[0]}; it has {len(there)}"])
        keys += [Key(name, number) for number in wanted]
    return Chosen(found, tuple(keys))


def _streams(client: Client, selection: Selection, timeout_s: float, *, may_lack: bool) -> dict[str, StreamInfo]:
    named = {}
    for name in selection.names:
        try:
            named[name] = permissions.there(client, Operation.READ, name, timeout_s, selection.subjects)
        except (StreamNotFound, NotAuthorized):
            if not may_lack:
                raise
    if selection.names and not selection.globs:
        return named
    patterns = _patterns(selection)
    users_own = [info for info in client.streams(timeout=timeout_s) if not info.config.is_internal]
    if not (patterns or named):
        storing = selection.subjects
        return {one.name: one for one in users_own if any(overlap(one.subject, subject) for subject in storing)}
    return named | {one.name: one for one in users_own if any(pattern.match(one.name) for pattern in patterns)}


def _patterns(selection: Selection) -> list[re.Pattern[str]]:
    patterns = [re.compile(fnmatch.translate(one)) for one in selection.globs]
    if selection.pattern is not None:
        patterns.append(re.compile(f"(?:{selection.pattern})\\Z"))
    return patterns


def is_selected(name: str, selection: Selection) -> bool:
    """True if the selection has a stream's name or a pattern that matches it."""
    return name in selection.names or any(pattern.match(name) for pattern in _patterns(selection))


def find(
    client: Client, chosen: Chosen, where: Boundary, options: SourceOptions, *, otherwise: int = EARLIEST_OFFSET
) -> dict[Key, Position]:
    """Return each partition's position; `otherwise` if `where` does not name it. Raise ConfigError."""
    named = where.offsets if isinstance(where, Offsets) else where.each_ms if isinstance(where, Moment) else {}
    if unknown := sorted({Key(name, number) for name, one in named.items() for number in one} - set(chosen.keys)):
        text = f"{unknown[0].stream}, partition {unknown[0].partition}, is not among the partitions that are read"
        raise ConfigError([f"startingOffsets, endingOffsets: {text}"])
    if isinstance(where, Offsets) and where.noted is not None:
        _check_noted(client, chosen, where.noted, options.timeout_s)
    return {key: _find_one(client, chosen.streams[key.stream], key, where, options, otherwise) for key in chosen.keys}


def _check_noted(client: Client, chosen: Chosen, noted: Positions, timeout_s: float) -> None:
    """Raise ConfigError if a checkpoint's offsets are from another cluster, or from another stream of the same name."""
    now = client.cluster_id(timeout=timeout_s)
    mistakes = [
        f"they are of stream {name} as it was before it was deleted and made anew"
        for name, stream_id in noted.stream_ids.items()
        if name in chosen.streams and int(chosen.streams[name].stream_id) != stream_id
    ]
    if are_different_clusters(noted.cluster, now):
        mistakes = [f"they are of another cluster, {noted.cluster}; these brokers are {now}"]
    if mistakes:
        raise ConfigError([f"startingOffsets, endingOffsets: {one}" for one in mistakes])


def _find_one(
    client: Client, info: StreamInfo, key: Key, where: Boundary, options: SourceOptions, otherwise: int
) -> Position:
    if isinstance(where, Earliest):
        offset = EARLIEST_OFFSET
    elif isinstance(where, Latest):
        offset = LATEST_OFFSET
    elif isinstance(where, Moment):
        return _at_moment(client, info, key, where, options, otherwise)
    else:
        offset = where.offsets.get(key.stream, {}).get(key.partition, otherwise)
    at = EARLIEST if offset == EARLIEST_OFFSET else LATEST
    found = client.offsets(info, at, partition=key.partition, timeout=options.timeout_s)
    epoch = int(info.partitions[key.partition].leader_epoch)
    if offset < 0:
        return Position(found.offset, epoch)
    if offset > found.committed_end:
        text = f"offset {offset} of {key.stream}, partition {key.partition}, is beyond its end, {found.committed_end}"
        raise ConfigError([f"startingOffsets, endingOffsets: {text}"])
    return Position(offset, epoch)


def _at_moment(
    client: Client, info: StreamInfo, key: Key, where: Moment, options: SourceOptions, otherwise: int
) -> Position:
    at_ms = where.all_ms if where.all_ms is not None else where.each_ms.get(key.stream, {}).get(key.partition)
    epoch = int(info.partitions[key.partition].leader_epoch)
    if at_ms is None:
        at = EARLIEST if otherwise == EARLIEST_OFFSET else LATEST
        return Position(client.offsets(info, at, partition=key.partition, timeout=options.timeout_s).offset, epoch)
    try:
        moment = datetime.fromtimestamp(at_ms / 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        text = f"{at_ms} milliseconds since 1970 are beyond the calendar"
        raise ConfigError([f"startingTimestamp, endingTimestamp: {text}"]) from None
    found = client.offsets(info, moment, partition=key.partition, timeout=options.timeout_s)
    if found.timestamp is None and not where.latest_if_none:
        text = f"no message of {key.stream}, partition {key.partition}, is as late as {moment.isoformat()}"
        hint = "set startingOffsetsByTimestampStrategy to latest to begin at the end there"
        raise ConfigError([f"startingTimestamp: {text}; {hint}"])
    return Position(found.offset, epoch)


def piece_of(info: StreamInfo, key: Key, begin: Position, end: Position, *, fail: bool) -> Piece | None:
    """Return the range from `begin` to `end` as one piece; None if it is empty.

    If its first messages were deleted from the log: raise DataLossError if `fail` is set, else skip them.
    """
    if begin.offset >= end.offset:
        return None
    log_start = int(info.partitions[key.partition].log_start or 0)
    start = check_there(key, begin.offset, min(log_start, end.offset), fail=fail)
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
