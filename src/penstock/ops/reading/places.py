"""Positions at which reading begins and ends."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, NamedTuple

from penstock.ops.errors import ArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.blocking.client import Client
    from penstock.client.read.filters import Filter
    from penstock.client.values import OffsetAt, Start
    from penstock.messages import StreamInfo

BATCH_ROWS_MAX = 10_000

Batches = Generator["pa.RecordBatch", None, None]


class LastMessages(NamedTuple):
    """The place before the last `message_count` messages of the log."""

    message_count: int


def all_partitions(
    client: Client,
    info: StreamInfo,
    start: Start | LastMessages,
    end: Start | LastMessages | None,
    follow: bool,
    timeout: float,
    where: Filter | None = None,
) -> Batches:
    """Read all partitions, each in its order. Raise ArgumentError for an offset, which needs one partition."""
    if isinstance(start, int | LastMessages) or isinstance(end, int | LastMessages):
        text = f"{info.name} has {len(info.partitions)} partitions, each with offsets of its own"
        raise ArgumentError(f"{text}: say which with --partition, or give a time")
    return client.read(info, start, end=end, follow=follow, batch_rows_max=BATCH_ROWS_MAX, timeout=timeout, where=where)


def place_of(client: Client, info: StreamInfo, partition: int, place: Start | LastMessages, timeout: float) -> OffsetAt:
    """Resolve a position in one partition to an offset."""
    from penstock.client.values import LATEST

    if not isinstance(place, LastMessages):
        return client.offsets(info, place, partition=partition, timeout=timeout)
    end = client.offsets(info, LATEST, partition=partition, timeout=timeout)
    return end._replace(offset=max(end.log_start, end.committed_end - place.message_count))
