"""Detect partitions added to a stream that a reader follows.

Rules: the metadata are polled every PARTITIONS_POLL_S. An added partition is read from its beginning once the reader
has been given everything up to the marks in the older partitions, that is, everything they hold of the keys that moved.
So the old messages of a key come before its new ones, and no tombstones have to be remembered. If brokers do not
answer, the poll is repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from itertools import pairwise

from penstock.base import limits
from penstock.base.ids import PartitionId
from penstock.base.partitioning import PartitionBy
from penstock.client.errors import TimedOut, Unavailable
from penstock.client.link.link import Link
from penstock.client.read.reading import Reader, ReadPlan, plan
from penstock.client.values import EARLIEST
from penstock.messages import MetadataRequest, MetadataResponse, StreamInfo


def readable(info: StreamInfo, ends: Mapping[PartitionId, int], count: int = 0) -> int:
    """Return how many partitions a reader that has read up to `ends` may read; `count` are already being read."""
    if not info.counts or info.config.split.how is PartitionBy.GROUP:
        return max(count, len(info.partitions))
    ready = info.counts[0]
    for before, after in pairwise(info.counts):
        marks = {one.partition: one.end_offset for one in info.key_marks if one.partitions == after}
        is_read = len(marks) == before and all(ends.get(number, 0) >= end for number, end in marks.items())
        if after > count and not is_read:
            break
        ready = after
    return max(count, ready)


class NewPartitions:
    """Polls for partitions that one stream gains beyond the first `count`."""

    def __init__(self, link: Link, info: StreamInfo, count: int, timeout_s: float) -> None:
        self._link = link
        self._info = info
        self._count = count
        self._timeout_s = timeout_s
        self._due_s = asyncio.get_running_loop().time() + limits.PARTITIONS_POLL_S

    async def next(self, reader: Reader) -> list[ReadPlan]:
        """Wait until more partitions may be read; return the plans for them."""
        while True:
            count = await self._ready(reader)
            try:
                made = [await self._plan(PartitionId(number)) for number in range(self._count, count)]
            except (TimedOut, Unavailable):  # for example, the new partition has no leader yet
                await asyncio.sleep(limits.PARTITIONS_POLL_S)
                continue
            self._count = count
            return made

    async def _plan(self, number: PartitionId) -> ReadPlan:
        return await plan(self._link, self._info, number, EARLIEST, None, follow=True, timeout_s=self._timeout_s)

    async def _ready(self, reader: Reader) -> int:
        """Wait until more partitions may be read; return their total number."""
        while (count := readable(self._info, reader.covered_ends, self._count)) == self._count:
            reader.moved.clear()
            wakes = reader.moved if len(self._info.partitions) > self._count else asyncio.Event()
            try:
                async with asyncio.timeout_at(self._due_s):
                    await wakes.wait()
            except TimeoutError:
                await self._look()
                self._due_s = asyncio.get_running_loop().time() + limits.PARTITIONS_POLL_S
        return count

    async def _look(self) -> None:
        request = MetadataRequest(names=(self._info.name,))
        with contextlib.suppress(TimedOut, Unavailable):
            answer, _ = await self._link.call(request, MetadataResponse, timeout_s=self._timeout_s)
            for info in answer.streams:
                if info.stream_id == self._info.stream_id:  # else it was recreated; the next fetch reports that
                    self._info = info
