"""Streams by name: create, alter, delete, list, and resolve a name to its current stream.

Rules: requests about a stream's data carry its id. If the name means another stream by now, a request for the known
stream is repeated for the new one. A `StreamInfo` from the caller means that very stream, and nothing is repeated.
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
from penstock.client.link.link import CREATE_GRACE_S, Link
from penstock.client.streams.leaders import told_by_leaders
from penstock.client.streams.routing import Routes
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
    """Resolves and manages streams. `timeout` is in seconds."""

    def __init__(self, link: Link, routes: Routes) -> None:
        self._link = link
        self._routes = routes
        self._known: dict[str, StreamInfo] = {}

    async def create(self, config: StreamConfig, timeout: float) -> StreamInfo:
        """Create the stream, or return the existing one if it has the same config."""
        request = CreateStreamRequest(config=config, timeout_ms=milliseconds(timeout))
        answer, _ = await self._link.call(request, CreateStreamResponse, timeout_s=seconds_of(timeout) + CREATE_GRACE_S)
        self._known[config.name] = answer.stream
        self._routes.note(answer.stream)
        return (await told_by_leaders(self._link, [answer.stream], timeout))[0]

    async def alter(self, stream: StreamName, changes: dict[str, Any], timeout: float) -> StreamInfo:
        """Change fields of the stream's config."""
        name, stream_id = name_and_id(stream)
        check_durations(changes)
        request = AlterStreamRequest(name=name, stream_id=stream_id, changes=field_values(changes))
        answer, _ = await self._link.call(request, AlterStreamResponse, timeout_s=timeout)
        self._known[name] = answer.stream
        return (await told_by_leaders(self._link, [answer.stream], timeout))[0]

    async def set_intake(self, stream: StreamName, intake: Intake, timeout: float) -> StreamInfo:
        """Set whether the stream accepts messages."""
        name, stream_id = name_and_id(stream)
        request = SetIntakeRequest(name=name, stream_id=stream_id, intake=intake)
        answer, _ = await self._link.call(request, SetIntakeResponse, timeout_s=timeout)
        self._known[name] = answer.stream
        return (await told_by_leaders(self._link, [answer.stream], timeout))[0]

    async def delete(self, stream: StreamName, timeout: float) -> None:
        """Delete the stream and its data."""
        # By id: if the answer is lost and the request repeated, a stream created meanwhile is not deleted.
        info = stream if isinstance(stream, StreamInfo) else await self.named(stream, timeout)
        self._known.pop(info.name, None)
        request = DeleteStreamRequest(name=info.name, stream_id=info.stream_id)
        try:
            await self._link.call(request, DeleteStreamResponse, timeout_s=timeout)
        except (StreamNotFound, StreamChanged):
            if isinstance(stream, StreamInfo):
                raise

    async def all(self, timeout: float) -> list[StreamInfo]:
        """Return all streams, ordered by name, completed by their leaders."""
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
        """Return one stream, completed by its leaders. StreamNotFound."""
        return (await told_by_leaders(self._link, [await self.named(name, timeout)], timeout))[0]

    async def named(self, name: str, timeout: float) -> StreamInfo:
        """Return one stream as any broker knows it now. StreamNotFound."""
        answer, _ = await self._link.call(MetadataRequest(names=(name,)), MetadataResponse, timeout_s=timeout)
        for info in answer.streams:
            if info.name == name:
                self._known[name] = info
                self._routes.note(info)
                return info
        self._known.pop(name, None)
        raise StreamNotFound(ErrorCode.STREAM_NOT_FOUND, f"there is no stream {name!r}", stream=name)

    async def storing(self, subject: str, timeout: float) -> list[StreamInfo]:
        """Return the streams that store this subject (no wildcards). ValueError: an invalid subject."""
        if (mistake := subject_mistake(subject)) is not None:
            raise ValueError(mistake)
        answer, _ = await self._link.call(FindStreamsRequest(subject=subject), FindStreamsResponse, timeout_s=timeout)
        return list(answer.streams)

    async def info(self, stream: StreamName, timeout: float, partition: int = 0) -> StreamInfo:
        """Return a stream as known, perhaps from a while ago; ask again if it may have gained that partition since."""
        if isinstance(stream, StreamInfo):
            self._link.learn(stream)
            return stream
        known = self._known.get(stream)
        is_enough = known is not None and partition < max(1, len(known.partitions))
        return known if known is not None and is_enough else await self.named(stream, timeout)

    async def now(self, stream: StreamName, timeout: float) -> StreamInfo:
        """Return a stream as any broker knows it now; a `StreamInfo` is returned unchanged."""
        info = stream if isinstance(stream, StreamInfo) else await self.named(stream, timeout)
        self._link.learn(info)
        return info

    def known(self, info: StreamInfo) -> StreamInfo:
        """Return the stream last seen under that name, else `info`."""
        return self._known.get(info.name, info)

    async def with_id(self, stream: StreamName, timeout: float, call: Callable[[StreamId], Awaitable[T]]) -> T:
        """Call `call` with the stream's id; call it again if the name means another stream by now."""
        info = await self.info(stream, timeout)
        try:
            return await call(info.stream_id)
        except StreamChanged:
            if isinstance(stream, StreamInfo):
                raise
        # The name means another stream by now, or none.
        return await call((await self.named(info.name, timeout)).stream_id)
