"""Finds the last messages of a stream: of all partitions together, the latest ones by their timestamps.

Rules: each partition is read backwards in windows of offsets, each GROWTH times as long as the one after it, until it
has enough messages or its log begins: after compaction, and with a filter, offsets have no messages. No row is read
twice, and of each partition no more rows are kept than are wanted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.ids import PartitionId
from penstock.client.link.link import Link
from penstock.client.read import batches
from penstock.client.read.batches import OffsetRange
from penstock.client.read.filters import Filter
from penstock.client.read.reading import Reader, ReadPlan, find_place
from penstock.client.values import LATEST, MessageList
from penstock.messages import StreamInfo

if TYPE_CHECKING:
    import pyarrow as pa

_GROWTH = 4


async def last_messages(
    link: Link, info: StreamInfo, numbers: Iterable[PartitionId], count: int, where: Filter | None, timeout_s: float
) -> MessageList:
    """Return the last `count` messages of these partitions that match, oldest first. Raises as `Client.read` does."""
    numbers = list(numbers)
    if not count:
        return MessageList()
    found = await asyncio.gather(*(find_place(link, info.stream_id, one, LATEST, timeout_s) for one in numbers))
    places = dict(zip(numbers, found, strict=True))
    begins = {number: int(place.committed_end) for number, place in places.items()}  # what is read begins here
    rows: dict[PartitionId, deque[pa.RecordBatch]] = {number: deque() for number in numbers}
    window = count
    while True:
        plans = []
        for number, place in places.items():
            if begins[number] > place.log_start and _rows_of(rows[number]) < count:
                what = OffsetRange(max(place.log_start, begins[number] - window), begins[number])
                is_one = len(info.partitions) > 1
                plans.append(
                    ReadPlan(
                        info.stream_id,
                        info.name,
                        number,
                        what,
                        place.leader_epoch,
                        follow=False,
                        is_one_of_several=is_one,
                    )
                )
                begins[number] = what.start
        if not plans:
            return _latest(rows, count)
        for number, older in (await _read(link, plans, count, where, timeout_s)).items():
            rows[number].extendleft(reversed(older))
        window *= _GROWTH


async def _read(
    link: Link, plans: list[ReadPlan], count: int, where: Filter | None, timeout_s: float
) -> dict[PartitionId, deque[pa.RecordBatch]]:
    """Return the rows of each plan's partition, without the first ones that are not among its last `count`."""
    kept: dict[PartitionId, deque[pa.RecordBatch]] = {one.partition: deque() for one in plans}
    reader = Reader(
        link, plans, batch_rows_max=limits.READ_BATCH_ROWS_DEFAULT, columns=None, timeout_s=timeout_s, where=where
    )
    async with reader:
        while (found := await reader.next_batches()) is not None:
            for batch in found:
                said = batches.partition_of(batch)
                mine = kept[plans[0].partition if said is None else PartitionId(said)]
                mine.append(batch)
                while _rows_of(mine) - mine[0].num_rows >= count:
                    mine.popleft()
    return kept


def _rows_of(found: Iterable[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in found)


def _latest(rows: dict[PartitionId, deque[pa.RecordBatch]], count: int) -> MessageList:
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
