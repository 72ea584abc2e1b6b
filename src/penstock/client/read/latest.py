"""Latest message of a key or of a subject: one request to each partition, where the stream is known already.

Rules: a stream may have got partitions since it was looked up. Each answer says how many there are now; if these are
more, or a broker of an earlier version does not say, the stream is looked up and all partitions are asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from penstock.client.errors import MessageNotFound, StreamChanged
from penstock.client.streams.named_streams import NamedStreams
from penstock.client.values import Message, StreamName
from penstock.messages import StreamInfo


class Got(NamedTuple):
    """The answer of a partition. `partitions`: their number in the stream; None: the broker does not tell."""

    message: Message
    partitions: int | None


Get = Callable[[StreamName, dict[str, Any], int, float], Awaitable[Got]]
"""Returns the latest message of a key or subject in a partition, within seconds. MessageNotFound."""


async def latest(streams: NamedStreams, get: Get, stream: StreamName, which: dict[str, Any], timeout: float) -> Message:
    """Return the latest message of `which` in all partitions. MessageNotFound; StreamChanged of a `StreamInfo`."""
    info = await streams.info(stream, timeout)
    try:
        answers = await _of_all(get, info, which, timeout)
    except StreamChanged:
        if isinstance(stream, StreamInfo):
            raise
        answers = []
    if not isinstance(stream, StreamInfo) and not (answers and all(_told(one) == _count(info) for one in answers)):
        info = await streams.named(info.name, timeout)
        answers = await _of_all(get, info, which, timeout)
    found = [one.message for one in answers if isinstance(one, Got)]
    if not found:
        (error, *_) = (one for one in answers if isinstance(one, MessageNotFound))
        raise error
    # If keys have moved, messages in newer partitions are later; otherwise the timestamps decide.
    moved = info.counts if "key" in which or info.config.split.token else ()
    steps = moved or (len(info.partitions),)
    return max(found, key=lambda one: (sum(count <= one.partition for count in steps), one.timestamp_us, one.partition))


async def _of_all(get: Get, info: StreamInfo, which: dict[str, Any], timeout: float) -> list[Got | MessageNotFound]:
    """Return the answers of all partitions as `info` has them, in order. Raise any other error."""
    if _count(info) == 1:
        try:
            return [await get(info, which, 0, timeout)]
        except MessageNotFound as missing:
            return [missing]
    asked = (get(info, which, partition, timeout) for partition in range(_count(info)))
    answers: list[Got | MessageNotFound] = []
    for one in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(one, BaseException) and not isinstance(one, MessageNotFound):
            raise one
        answers.append(one)
    return answers


def _count(info: StreamInfo) -> int:
    return max(1, len(info.partitions))


def _told(answer: Got | MessageNotFound) -> int | None:
    """Return the number of partitions that an answer names."""
    if isinstance(answer, Got):
        return answer.partitions
    details: Mapping[str, Any] = answer.details
    told = details.get("partitions")
    return told if isinstance(told, int) else None
