"""Reads the last messages of a stream: of all partitions together, the latest ones by their timestamps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.ids import PartitionId
from penstock.client.link.link import Link
from penstock.client.read import batches
from penstock.client.read.filters import Filter
from penstock.client.read.last_rows import LastRows
from penstock.client.read.reading import Reader, ReadPlan, find_place
from penstock.client.values import LATEST, MessageList
from penstock.messages import StreamInfo

if TYPE_CHECKING:
    import pyarrow as pa


async def last_messages(
    link: Link, info: StreamInfo, numbers: Iterable[PartitionId], count: int, where: Filter | None, timeout_s: float
) -> MessageList:
    """Return the last `count` messages of these partitions that match, oldest first. Raises as `Client.read` does."""
    numbers = list(numbers)
    if not count:
        return MessageList()
    found = await asyncio.gather(*(find_place(link, info.stream_id, one, LATEST, timeout_s) for one in numbers))
    places = dict(zip(numbers, found, strict=True))
    rows = {number: LastRows(place.log_start, int(place.committed_end), count) for number, place in places.items()}
    while True:
        plans = [
            ReadPlan(
                info.stream_id,
                info.name,
                number,
                offsets,
                places[number].leader_epoch,
                follow=False,
                is_one_of_several=len(info.partitions) > 1,
            )
            for number, last in rows.items()
            if (offsets := last.next_range()) is not None
        ]
        if not plans:
            return _latest({number: last.batches for number, last in rows.items()}, count)
        await _read(link, plans, rows, where, timeout_s)


async def _read(
    link: Link, plans: list[ReadPlan], rows: Mapping[PartitionId, LastRows], where: Filter | None, timeout_s: float
) -> None:
    reader = Reader(
        link, plans, batch_rows_max=limits.READ_BATCH_ROWS_DEFAULT, columns=None, timeout_s=timeout_s, where=where
    )
    async with reader:
        while (found := await reader.next_batches()) is not None:
            for batch in found:
                said = batches.partition_of(batch)
                rows[plans[0].partition if said is None else PartitionId(said)].append(batch)


def _latest(rows: Mapping[PartitionId, list[pa.RecordBatch]], count: int) -> MessageList:
    import pyarrow as pa
    import pyarrow.compute as pc

    stamps = [batch.column("timestamp").cast(pa.int64()) for found in rows.values() for batch in found]
    if not stamps:
        return MessageList()
    all_stamps = pa.concat_arrays(stamps)
    # Only rows that may be among the latest become objects.
    least = all_stamps[pc.top_k_unstable(all_stamps, min(count, len(all_stamps)))[-1].as_py()]
    messages = [
        message
        for number, found in rows.items()
        for batch in found
        for message in batches.messages_of(
            batch.filter(pc.greater_equal(batch.column("timestamp").cast(pa.int64()), least)), number
        )
    ]
    messages.sort(key=lambda one: (one.timestamp_us, one.partition, one.offset))
    return MessageList(messages[-count:])
