"""Truncate the beginning of a stream: resolve a position and send requests to the leaders.

Rules: a stream recreated under the same name is not truncated. A time is first resolved to an offset in each partition:
the messages before the first one at or after that time are deleted.
"""

from __future__ import annotations

from penstock.base.ids import Offset
from penstock.client.checks import place_of
from penstock.client.link.link import Link
from penstock.client.read.reading import find_place, partition_number
from penstock.client.values import Start, Truncation
from penstock.messages import StreamInfo, TruncateRequest, TruncateResponse


async def truncate(
    link: Link, info: StreamInfo, before: Start, partition: int | None, *, dry_run: bool, timeout_s: float
) -> list[Truncation]:
    """Truncate; return what was, or would be, deleted of each partition.

    ValueError: a negative offset, or an offset without a partition if the stream has several.
    """
    numbers, before = [partition_number(info, partition)], place_of(before)
    if partition is None and len(info.partitions) > 1:
        if isinstance(before, int):
            text = f"an offset is a place in one partition, and stream {info.name} has {len(info.partitions)}"
            raise ValueError(f"{text}: say which with partition=")
        numbers = [one.partition for one in info.partitions]
    if isinstance(before, int) and before < 0:
        raise ValueError(f"the offset {before} is negative; offsets count from 0")
    done = []
    for number in numbers:
        end = before
        if not isinstance(end, int):
            end = (await find_place(link, info.stream_id, number, before, timeout_s)).offset
        request = TruncateRequest(stream_id=info.stream_id, partition=number, before=Offset(end), is_dry_run=dry_run)
        answer, _ = await link.call(request, TruncateResponse, timeout_s=timeout_s)
        done.append(Truncation(int(number), answer.log_start, answer.messages, answer.size_bytes))
    return done
