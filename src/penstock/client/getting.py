"""One message, by its place or the latest of its kind."""

from __future__ import annotations

from typing import Any

from penstock.base.ids import PartitionId, StreamId
from penstock.client import batches
from penstock.client.checks import check_asked_for
from penstock.client.link import Link
from penstock.client.named_streams import NamedStreams
from penstock.client.values import Message, StreamName
from penstock.messages import GetRequest, GetResponse


async def get(
    link: Link, streams: NamedStreams, stream: StreamName, which: dict[str, Any], partition: int, timeout_s: float
) -> Message:
    """The message with that `offset`, or the latest with that `key` or `subject`: as `which` says."""

    async def ask(stream_id: StreamId) -> Message:
        request = GetRequest(stream_id=stream_id, partition=PartitionId(partition), **which)
        answer, raw = await link.call(request, GetResponse, timeout_s=timeout_s)
        batches.check_format(answer.format_version)
        source = f"the answer of {link.server_of(stream_id, request.partition)}"
        found = batches.one_message(raw, answer.offset, partition, source=source)
        check_asked_for(request, found, source=source)
        return found

    return await streams.with_id(stream, timeout_s, ask)
