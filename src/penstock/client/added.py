"""Partitions that a stream gets while it is followed.

Rules: the metadata are looked at every PARTITIONS_LOOK_S. A partition that was added is read from its beginning, once
its reader was handed all that the older ones have of the keys that left them, up to their marks: so of each key the old
comes before the new, and nobody has to remember tombstones for it. Who does not answer is asked again.
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
from penstock.client.link import Link
from penstock.client.reading import Plan, Reader, plan
from penstock.client.values import EARLIEST
from penstock.messages import MetadataRequest, MetadataResponse, StreamInfo


def readable(info: StreamInfo, ends: Mapping[PartitionId, int], count: int = 0) -> int:
    """How many partitions a reader may read who has read up to `ends`; `count` are what it has begun with already."""
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


class Added:
    """Those of one stream, of which a reader begins with `count`."""

    def __init__(self, link: Link, info: StreamInfo, count: int, timeout_s: float) -> None:
        self._link = link
        self._info = info
        self._count = count
        self._timeout_s = timeout_s
        self._due_s = asyncio.get_running_loop().time() + limits.PARTITIONS_LOOK_S

    async def next(self, reader: Reader) -> list[Plan]:
        """What `reader` is to read from now on, once there is some."""
        while True:
            count = await self._ready(reader)
            try:
                made = [await self._plan(PartitionId(number)) for number in range(self._count, count)]
            except (TimedOut, Unavailable):  # nobody leads it yet, say
                await asyncio.sleep(limits.PARTITIONS_LOOK_S)
                continue
            self._count = count
            return made

    async def _plan(self, number: PartitionId) -> Plan:
        return await plan(self._link, self._info, number, EARLIEST, None, follow=True, timeout_s=self._timeout_s)

    async def _ready(self, reader: Reader) -> int:
        """How many can be read, once these are more."""
        while (count := readable(self._info, reader.covered_ends, self._count)) == self._count:
            reader.moved.clear()
            wakes = reader.moved if len(self._info.partitions) > self._count else asyncio.Event()
            try:
                async with asyncio.timeout_at(self._due_s):
                    await wakes.wait()
            except TimeoutError:
                await self._look()
                self._due_s = asyncio.get_running_loop().time() + limits.PARTITIONS_LOOK_S
        return count

    async def _look(self) -> None:
        request = MetadataRequest(names=(self._info.name,))
        with contextlib.suppress(TimedOut, Unavailable):
            answer, _ = await self._link.call(request, MetadataResponse, timeout_s=self._timeout_s)
            for info in answer.streams:
                if info.stream_id == self._info.stream_id:  # else whoever fetches is told
                    self._info = info
