"""Exactly-once publishing in two phases: stage rows (any process), then publish them as a numbered batch.

Rules: staged rows are invisible to readers until they are published. `publish` names a query, the number of its batch
and the staged rows of that batch; publishing the same batch again, with the same rows or others, stores nothing. The
part of a batch that goes to one partition becomes visible atomically if it fits into one batch of the log. A larger
part is published in pieces, in order, each atomically; a plan, stored beside the staged rows, fixes the rows of each
piece. An attempt that finds the pieces of another one continues by its plan, so a batch never mixes the rows of two
attempts.

| what is lost               | then                                                                                  |
|----------------------------|---------------------------------------------------------------------------------------|
| the answer to a `stage`    | the rows are staged again; unreferenced rows are never published, and expire          |
| the answer to a `publish`  | it is retried, and gets the offsets of the rows                                       |
| the publishing process     | the next one publishes the same batch and continues where it stopped                  |
| a leader                   | the next leader knows from its log what is published                                  |
| staged rows                | StagedLost: nothing is published instead; stage the batch again                       |
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from penstock.base import limits
from penstock.base.errors import ErrorCode
from penstock.base.ids import StreamId
from penstock.client import columns
from penstock.client.append.staged_runs import Published, PublishRun, StagedBatch, until_taken
from penstock.client.checks import milliseconds, seconds_of
from penstock.client.errors import StagedLost, StreamChanged
from penstock.client.link.link import CREATE_GRACE_S, Link
from penstock.client.read import reading
from penstock.client.streams.named_streams import NamedStreams
from penstock.client.values import StreamName, datetime_of
from penstock.messages import (
    ListPublishedRequest,
    ListPublishedResponse,
    Response,
    StagedStreamRequest,
    StagedStreamResponse,
    StageRequest,
    StageResponse,
    StreamInfo,
)

_IN_FLIGHT = 4  # staged batches of one call, each kept in memory until it is answered
_PAUSE_S_MIN = 0.05
_PAUSE_S_MAX = 1.0
_PASSING = (ErrorCode.OVERLOADED, ErrorCode.NOT_ENOUGH_REPLICAS)

R = TypeVar("R", bound=Response)
_Batch = tuple[bytes | None, int]
"""(query id, batch number) for which rows are staged; (None, 0): unspecified."""


class Staged(msgspec.Struct, frozen=True):
    """Rows staged for a partition, in order: the argument of `publish`, in this process or any other."""

    stream_id: int
    partition: int
    staged_stream_id: int  # id of the stream that holds them
    batches: tuple[StagedBatch, ...]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(one.rows for one in self.batches)

    @property
    def size_bytes(self) -> int:
        """Size of the staged batches in bytes."""
        return sum(one.size_bytes for one in self.batches)

    def to_dict(self) -> dict[str, Any]:
        """Return dicts and lists of numbers, for JSON or another transport."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Staged:
        """Rebuild from the result of `to_dict`. ValueError: it is not one."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"this is not what was staged: {error}") from None


class PublishedQuery(NamedTuple):
    """A query, and the last batch that it published into a partition within the last seven days."""

    partition: int
    query_id: UUID
    batch_id: int
    pieces: int
    is_complete: bool  # if False, a later attempt continues with the rest
    last_offset: int
    last_publish: datetime


class Staging:
    """`client.staging`: stage rows and publish them exactly once. `timeout` is in seconds."""

    def __init__(self, link: Link, streams: NamedStreams) -> None:
        self._link = link
        self._streams = streams
        self._holders: dict[StreamId, StreamInfo] = {}  # by stream: the internal stream that holds its staged rows

    async def stage(
        self,
        stream: StreamName,
        data: Any,
        *,
        partition: int = 0,
        query_id: UUID | bytes | str | None = None,
        batch_id: int | None = None,
        timeout: float = 60.0,
    ) -> Staged:
        """Stage rows for a partition; columns as in `Client.append`. They are invisible until they are published.

        Staged rows expire after a day, or when more than 8 GiB are staged behind them in the partition. With `query_id`
        and `batch_id` (both or neither) they can be published only as that batch, and their space is freed some minutes
        after that. `timeout` applies to the whole call. Rows that the stream would refuse are refused: RemoteError
        too_large, bad_request, StreamNotFound, StreamChanged, StorageFailed, TimedOut.
        """
        deadline_s = asyncio.get_running_loop().time() + seconds_of(timeout)
        batch = _batch_of(query_id, batch_id)
        info = await self._streams.info(stream, timeout, partition)
        try:
            return await self._stage(info, data, partition, batch, deadline_s)
        except StreamChanged:
            if isinstance(stream, StreamInfo):
                raise
        # The name means another stream by now, or the stream that holds its staged rows was recreated.
        self._holders.pop(info.stream_id, None)
        return await self._stage(await self._streams.named(info.name, timeout), data, partition, batch, deadline_s)

    async def _stage(self, info: StreamInfo, data: Any, partition: int, batch: _Batch, deadline_s: float) -> Staged:
        number = reading.partition_number(info, partition)
        table = columns.to_table(data, stream_subject=info.config.subject_of(number))
        bytes_max = min(limits.APPEND_BYTES_MAX, self._link.hello.limits.append_bytes_max)
        holder = await self._holder(info.stream_id, number, deadline_s)
        query, batch_id = batch
        request = StageRequest(stream_id=holder.stream_id, partition=number, query_id=query, batch_id=batch_id)
        waiting: deque[asyncio.Task[StagedBatch]] = deque()
        done: list[StagedBatch] = []
        try:
            for message in columns.batch_messages(table, bytes_max=bytes_max, bytes_wanted=limits.PIECE_BYTES_MAX):
                waiting.append(asyncio.create_task(self._stage_one(request, message, deadline_s)))
                if len(waiting) == _IN_FLIGHT:
                    done.append(await waiting.popleft())
            while waiting:
                done.append(await waiting.popleft())
        except BaseException:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            raise
        return Staged(int(info.stream_id), int(number), int(holder.stream_id), tuple(done))

    async def _stage_one(self, request: StageRequest, message: bytearray, deadline_s: float) -> StagedBatch:
        answer, _ = await until_taken(self._link, request, StageResponse, deadline_s, message)
        return StagedBatch(answer.base_offset, answer.end_offset, answer.leader_epoch, len(message))

    async def _holder(self, stream_id: StreamId, number: int, deadline_s: float) -> StreamInfo:
        """Return the stream that holds the staged rows; ask again if the stream gained partitions."""
        holder = self._holders.get(stream_id)
        if holder is None or number >= len(holder.partitions):
            timeout_s = max(0.001, deadline_s - asyncio.get_running_loop().time())
            request = StagedStreamRequest(stream_id=stream_id, timeout_ms=milliseconds(timeout_s))
            answer, _ = await self._link.call(request, StagedStreamResponse, timeout_s=timeout_s + CREATE_GRACE_S)
            if len(self._holders) >= limits.PUBLISH_ROUTES_MAX:
                self._holders.clear()
            holder = self._holders[stream_id] = answer.stream
        return holder

    async def publish(
        self,
        stream: StreamName,
        staged: Iterable[Staged],
        *,
        query_id: UUID | bytes | str,
        batch_id: int,
        partition: int = 0,
        timeout: float = 60.0,
    ) -> Published:
        """Publish rows staged for a partition, in this order, as batch `batch_id` of a query; at most once in total.

        The batch numbers of a query must increase; for each partition the leader remembers the last one for seven days.
        Without rows nothing is done. The call retries until it is answered or `timeout` has passed.
        StagedLost: some rows have expired, or were lost by an unclean leader election; nothing, or nothing more, is
        published. RemoteError: run_unfinished, an earlier batch of the query is only partly published; out_of_sequence,
        the log has lost acked rows; too_large; bad_request. StreamChanged, ReadOnly, StorageFailed; TimedOut: it may be
        published or not, so call again.
        """
        deadline_s = asyncio.get_running_loop().time() + seconds_of(timeout)
        query = _query_id(query_id)
        _check_number(batch_id)
        info = await self._streams.info(stream, timeout, partition)
        number = reading.partition_number(info, partition)
        parts = list(staged)
        for one in parts:
            if one.stream_id != info.stream_id:
                text = f"rows were staged for stream {one.stream_id}; {info.name!r} is stream {info.stream_id} now"
                raise StreamChanged(ErrorCode.STREAM_CHANGED, text, stream_id=one.stream_id)
            if one.partition != number:
                raise ValueError(f"the rows were staged for partition {one.partition}, not for partition {number}")
        holders = {one.staged_stream_id for one in parts if one.batches}
        if not holders:
            return Published(None, None, 0, duplicate=False)
        if len(holders) > 1:
            text = f"the rows were staged in several streams, {sorted(holders)}, of which at most one exists"
            raise StagedLost(ErrorCode.STAGED_LOST, f"nothing was published: {text}; stage all of them again")
        run = PublishRun(self._link, info.stream_id, number, StreamId(holders.pop()), query, batch_id, deadline_s)
        return await run.publish([batch for one in parts for batch in one.batches])

    async def queries(
        self, stream: StreamName, *, partition: int | None = None, timeout: float = 10.0
    ) -> list[PublishedQuery]:
        """Return the queries that published into a stream in the last seven days, as leaders know. StreamNotFound."""
        info = await self._streams.now(stream, timeout)
        found = []
        for number in reading.partition_numbers(info, partition):
            after = b""
            while True:
                request = ListPublishedRequest(stream_id=info.stream_id, partition=number, after_query_id=after)
                answer, _ = await self._link.call(request, ListPublishedResponse, timeout_s=timeout)
                if not answer.queries:
                    break
                after = answer.queries[-1].query_id
                found += [
                    PublishedQuery(
                        int(number),
                        UUID(bytes=one.query_id),
                        one.batch_id,
                        one.pieces,
                        one.is_complete,
                        one.last_offset,
                        datetime_of(one.timestamp_us),
                    )
                    for one in answer.queries
                ]
        return found


def _batch_of(query_id: UUID | bytes | str | None, batch_id: int | None) -> _Batch:
    """Return the batch for which rows are staged. ValueError."""
    if query_id is None or batch_id is None:
        if query_id is not None or batch_id is not None:
            raise ValueError("rows are staged for a batch of a query: name both query_id and batch_id, or neither")
        return None, 0
    _check_number(batch_id)
    return _query_id(query_id), batch_id


def _check_number(batch_id: int) -> None:
    if not 0 <= batch_id < 2**63:
        raise ValueError(f"batch {batch_id}: they count from 0, up to 2^63")


def _query_id(query_id: UUID | bytes | str) -> bytes:
    found = UUID(query_id) if isinstance(query_id, str) else query_id
    data = found.bytes if isinstance(found, UUID) else bytes(found)
    if len(data) != 16 or not any(data):
        raise ValueError(f"the query id is {query_id!r}; it is a UUID, or its 16 bytes, not all zeros")
    return data
