"""Streams by their names, as the brokers tell them: made, changed, deleted, listed, and what a name stands for now.

Rules: what is asked about a stream's data names its id. A name may stand for another stream by now: then what was asked
of the one that was known is asked once more of the one that is there. A `StreamInfo` of the caller's means that very
stream, and nothing is asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from penstock.base.config import Intake, StreamConfig
from penstock.base.errors import ErrorCode
from penstock.base.ids import StreamId
from penstock.base.subjects import subject_mistake
from penstock.client.checks import check_durations, field_values, milliseconds, name_and_id, seconds_of
from penstock.client.errors import StreamChanged, StreamNotFound
from penstock.client.leaders import told_by_leaders
from penstock.client.link import CREATE_GRACE_S, Link
from penstock.client.routing import Routes
from penstock.client.values import StreamName
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    DeleteStreamRequest,
    DeleteStreamResponse,
    FindStreamsRequest,
    FindStreamsResponse,
    MetadataRequest,
    MetadataResponse,
    SetIntakeRequest,
    SetIntakeResponse,
    StreamInfo,
)

T = TypeVar("T")


class NamedStreams:
    """See the module. `timeout` is in seconds."""

    def __init__(self, link: Link, routes: Routes) -> None:
        self._link = link
        self._routes = routes
        self._known: dict[str, StreamInfo] = {}

    async def create(self, config: StreamConfig, timeout: float) -> StreamInfo:
        """Make it, or give the one that is there with the same config."""
        request = CreateStreamRequest(config=config, timeout_ms=milliseconds(timeout))
        answer, _ = await self._link.call(request, CreateStreamResponse, timeout_s=seconds_of(timeout) + CREATE_GRACE_S)
        self._known[config.name] = answer.stream
        self._routes.note(answer.stream)
        return (await told_by_leaders(self._link, [answer.stream], timeout))[0]

    async def alter(self, stream: StreamName, changes: dict[str, Any], timeout: float) -> StreamInfo:
        """Change fields of its config."""
        name, stream_id = name_and_id(stream)
        check_durations(changes)
        request = AlterStreamRequest(name=name, stream_id=stream_id, changes=field_values(changes))
        answer, _ = await self._link.call(request, AlterStreamResponse, timeout_s=timeout)
        self._known[name] = answer.stream
        return (await told_by_leaders(self._link, [answer.stream], timeout))[0]

    async def set_intake(self, stream: StreamName, intake: Intake, timeout: float) -> StreamInfo:
        """Have it take messages, or not."""
        name, stream_id = name_and_id(stream)
        request = SetIntakeRequest(name=name, stream_id=stream_id, intake=intake)
        answer, _ = await self._link.call(request, SetIntakeResponse, timeout_s=timeout)
        self._known[name] = answer.stream
        return (await told_by_leaders(self._link, [answer.stream], timeout))[0]

    async def delete(self, stream: StreamName, timeout: float) -> None:
        """Delete it and its data."""
        # Deleted by id: if the answer is lost and the request repeated, a stream made meanwhile is not hit.
        info = stream if isinstance(stream, StreamInfo) else await self.named(stream, timeout)
        self._known.pop(info.name, None)
        request = DeleteStreamRequest(name=info.name, stream_id=info.stream_id)
        try:
            await self._link.call(request, DeleteStreamResponse, timeout_s=timeout)
        except (StreamNotFound, StreamChanged):
            if isinstance(stream, StreamInfo):
                raise

    async def all(self, timeout: float) -> list[StreamInfo]:
        """All of them, in the order of their names, with what their leaders say."""
        found: list[StreamInfo] = []
        clock = asyncio.get_running_loop()
        deadline_s = clock.time() + seconds_of(timeout)
        after: str | None = None
        while True:
            request = MetadataRequest(after=after)
            answer, _ = await self._link.call(request, MetadataResponse, timeout_s=deadline_s - clock.time())
            found += await told_by_leaders(self._link, answer.streams, deadline_s - clock.time())
            if answer.next_after is None or not answer.streams:
                return found
            after = answer.next_after

    async def one(self, name: str, timeout: float) -> StreamInfo:
        """One, with what its leaders say. StreamNotFound."""
        return (await told_by_leaders(self._link, [await self.named(name, timeout)], timeout))[0]

    async def named(self, name: str, timeout: float) -> StreamInfo:
        """One as any broker knows it now. StreamNotFound."""
        answer, _ = await self._link.call(MetadataRequest(names=(name,)), MetadataResponse, timeout_s=timeout)
        for info in answer.streams:
            if info.name == name:
                self._known[name] = info
                self._routes.note(info)
                return info
        self._known.pop(name, None)
        raise StreamNotFound(ErrorCode.STREAM_NOT_FOUND, f"there is no stream {name!r}", stream=name)

    async def storing(self, subject: str, timeout: float) -> list[StreamInfo]:
        """Those that store a message on this plain subject. ValueError if it is none."""
        if (mistake := subject_mistake(subject)) is not None:
            raise ValueError(mistake)
        answer, _ = await self._link.call(FindStreamsRequest(subject=subject), FindStreamsResponse, timeout_s=timeout)
        return list(answer.streams)

    async def info(self, stream: StreamName, timeout: float, partition: int = 0) -> StreamInfo:
        """One as it is known, perhaps for long; asked for anew where it may have got that partition since."""
        if isinstance(stream, StreamInfo):
            self._link.learn(stream)
            return stream
        known = self._known.get(stream)
        is_enough = known is not None and partition < max(1, len(known.partitions))
        return known if known is not None and is_enough else await self.named(stream, timeout)

    async def now(self, stream: StreamName, timeout: float) -> StreamInfo:
        """One as any broker knows it now, or as the caller has it."""
        info = stream if isinstance(stream, StreamInfo) else await self.named(stream, timeout)
        self._link.learn(info)
        return info

    def known(self, info: StreamInfo) -> StreamInfo:
        """What that one's name stood for the last time that anybody asked."""
        return self._known.get(info.name, info)

    async def with_id(self, stream: StreamName, timeout: float, call: Callable[[StreamId], Awaitable[T]]) -> T:
        """What `call` gives for the stream's id; called again if the name means another stream by now."""
        info = await self.info(stream, timeout)
        try:
            return await call(info.stream_id)
        except StreamChanged:
            if isinstance(stream, StreamInfo):
                raise
        # The name means another stream by now, or none.
        return await call((await self.named(info.name, timeout)).stream_id)
