"""Read one message: by offset, or the latest of a key or subject."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.base.ids import PartitionId, StreamId
from penstock.client.checks import check_asked_for, whole_number
from penstock.client.errors import MessageNotFound
from penstock.client.link.link import Link
from penstock.client.read import batches
from penstock.client.streams.named_streams import NamedStreams
from penstock.client.values import Message, StreamName
from penstock.messages import GetRequest, GetResponse


async def get(
    link: Link, streams: NamedStreams, stream: StreamName, which: dict[str, Any], partition: int, timeout_s: float
) -> Message:
    """Return the message with that `offset`, or the latest with that `key` or `subject`, as given in `which`."""

    async def ask(stream_id: StreamId) -> Message:
        request = GetRequest(stream_id=stream_id, partition=PartitionId(whole_number("partition", partition)), **which)
        answer, raw = await link.call(request, GetResponse, timeout_s=timeout_s)
        batches.check_format(answer.format_version)
        source = f"the answer of {link.server_of(stream_id, request.partition)}"
        found = batches.one_message(raw, answer.offset, partition, source=source)
        check_asked_for(request, found, source=source)
        return found

    return await streams.with_id(stream, timeout_s, ask)


async def last(
    link: Link,
    streams: NamedStreams,
    stream: StreamName,
    which: dict[str, Any],
    partition: int | None,
    timeout_s: float,
) -> Message:
    """Return the latest message of a `key` or `subject`, in one partition; `partition` None: in all of the stream.

    If keys have moved, messages in newer partitions are later; otherwise the timestamps decide.
    """
    info = await streams.now(stream, timeout_s)
    if partition is not None or len(info.partitions) <= 1:
        return await get(link, streams, stream, which, partition or 0, timeout_s)
    asked = (get(link, streams, info, which, int(one.partition), timeout_s) for one in info.partitions)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    found = [one for one in answers if isinstance(one, Message)]
    missing = [one for one in answers if isinstance(one, BaseException)]
    for error in missing:
        if not isinstance(error, MessageNotFound):
            raise error
    if not found:
        raise missing[0]
    moved = info.counts if "key" in which or info.config.split.token else ()
    steps = moved or (len(info.partitions),)
    return max(found, key=lambda one: (sum(count <= one.partition for count in steps), one.timestamp_us, one.partition))
