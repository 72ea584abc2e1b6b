"""Planning of reads: converts options to ranges of partitions, and splits the ranges into pieces for tasks.

Rules: only the driver plans. A range is fixed when it is planned: a task that runs again reads the same rows. Messages
that were deleted from the log are an error, unless `failOnDataLoss` is false.
"""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.base.errors import ConfigError
from penstock.base.ids import are_different_clusters
from penstock.client.blocking.client import Client
from penstock.client.values import EARLIEST, LATEST
from penstock.lake.reading.positions import Key, Position
from penstock.lake.reading.selection import Chosen
from penstock.messages import StreamInfo
from penstock.spark.options.options import SourceOptions
from penstock.spark.options.positions import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Boundary,
    Earliest,
    Latest,
    Moment,
    Offsets,
    Positions,
)


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
