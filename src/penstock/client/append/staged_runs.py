"""Publish one batch of a query into one partition: in pieces, by its own plan or by that of an earlier attempt.

Rules: the plan is committed before a piece names it, and each piece before the next one is requested. The leader tells
every caller how far the batch has come and by which plan, so any attempt continues by that plan and no other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import LeaderEpoch, Offset, PartitionId, StreamId
from penstock.base.staged import is_plan, plan_mark, plan_offset, staged_subject
from penstock.base.subjects import partition_subject
from penstock.batch import codec
from penstock.client.errors import StagedLost, TimedOut
from penstock.client.link.attempts import OutcomeDoubt
from penstock.client.link.link import Link
from penstock.client.read import batches
from penstock.hot.message_group import MessageGroup
from penstock.messages import (
    GetRequest,
    GetResponse,
    PublishStagedRequest,
    PublishStagedResponse,
    Request,
    Response,
    StagedRange,
    StageRequest,
    StageResponse,
)

_PAUSE_S_MIN = 0.05
_PAUSE_S_MAX = 1.0
_PASSING = (ErrorCode.OVERLOADED, ErrorCode.NOT_ENOUGH_REPLICAS)
_GONE = (ErrorCode.MESSAGE_NOT_FOUND, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.STREAM_CHANGED)

R = TypeVar("R", bound=Response)


class StagedBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch of rows that were staged together, and its size."""

    base_offset: int
    end_offset: int
    leader_epoch: int
    size_bytes: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.end_offset - self.base_offset


class Published(NamedTuple):
    """A batch of a query, completely published in a partition. None: published earlier, and no longer known."""

    base_offset: int | None  # of its first row; rows of others may lie between its pieces
    end_offset: int | None
    rows: int | None
    duplicate: bool  # it was already published when this call, or a retry of it, arrived
    overtaken: bool = False  # a later batch of the query is published; whether this one ever was is unknown


class _Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """Assigns staged batches to pieces."""

    query_id: bytes
    batch_id: int
    pieces: tuple[tuple[StagedBatch, ...], ...]


async def until_taken(
    link: Link, request: Request, response_type: type[R], deadline_s: float, raw: bytes | bytearray = b""
) -> tuple[R, bytes | memoryview]:
    """Call until answered, retrying passing errors with backoff, up to the deadline."""
    pause_s = _PAUSE_S_MIN
    doubt = OutcomeDoubt()
    clock = asyncio.get_running_loop()
    while True:
        left_s = deadline_s - clock.time()
        if left_s <= 0:
            raise TimedOut("the time-out passed before it could be asked")
        try:
            return await link.call(request, response_type, timeout_s=left_s, raw=raw, doubt=doubt)
        except RemoteError as error:
            is_passing = error.code in _PASSING or (error.code == ErrorCode.STORAGE_FAILED and doubt.exists)
            if not is_passing or clock.time() + pause_s >= deadline_s:
                raise
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 (spreads load)
        pause_s = min(_PAUSE_S_MAX, 2 * pause_s)


class PublishRun:
    """Publishes one batch of a query into one partition."""

    def __init__(
        self,
        link: Link,
        stream_id: StreamId,
        partition: PartitionId,
        holder_id: StreamId,
        query_id: bytes,
        batch_id: int,
        deadline_s: float,
    ) -> None:
        self._link = link
        self._stream_id = stream_id
        self._partition = partition
        self._holder_id = holder_id
        self._query_id = query_id
        self._batch_id = batch_id
        self._deadline_s = deadline_s

    async def publish(self, staged: Sequence[StagedBatch]) -> Published:
        """Publish all of it, piece by piece, or the rest of an earlier attempt by that attempt's plan."""
        pieces = _pieces(staged)
        plan = None if len(pieces) == 1 else await self._write_plan(pieces)
        number, base_offset, has_stored = 0, None, False
        while True:
            answer = await self._ask(pieces[number], number, plan, is_last=number == len(pieces) - 1)
            has_stored |= not answer.duplicate
            if number == 0:
                base_offset = answer.base_offset
            if answer.is_complete:
                rows = sum(one.rows for piece in pieces for one in piece)
                if answer.pieces != len(pieces) or (answer.duplicate and answer.plan != plan):
                    rows = -1  # published by another attempt, whose rows may differ
                elif answer.duplicate and plan is None:
                    rows = -1 if answer.end_offset is None else answer.end_offset - (answer.base_offset or 0)
                counted = None if rows < 0 else rows
                return Published(base_offset, answer.end_offset, counted, not has_stored, answer.pieces is None)
            if answer.plan is None or answer.pieces is None:
                text = f"piece {number} of the batch was answered by {answer}"
                raise RemoteError(ErrorCode.INTERNAL, text)
            if answer.plan != plan:
                plan = int(answer.plan)
                pieces = await self._read_plan(plan)
            number = answer.pieces
            if number >= len(pieces):
                text = f"its plan has {len(pieces)} pieces, {number} are published, and none was the last"
                raise RemoteError(ErrorCode.INTERNAL, text)

    async def _ask(
        self, piece: Sequence[StagedBatch], number: int, plan: int | None, *, is_last: bool
    ) -> PublishStagedResponse:
        request = PublishStagedRequest(
            stream_id=self._stream_id,
            partition=self._partition,
            staged_stream_id=self._holder_id,
            query_id=self._query_id,
            batch_id=self._batch_id,
            piece=number,
            is_last=is_last,
            plan=None if plan is None else Offset(plan),
            staged=_ranges(piece),
        )
        answer, _ = await until_taken(self._link, request, PublishStagedResponse, self._deadline_s)
        return answer

    async def _write_plan(self, pieces: Sequence[Sequence[StagedBatch]]) -> int:
        """Store the plan and return its mark; the plan is committed before a piece names it."""
        subject = partition_subject(staged_subject(self._stream_id), self._partition)
        value = msgspec.msgpack.encode(_Plan(self._query_id, self._batch_id, tuple(map(tuple, pieces))))
        group = MessageGroup.of([subject.encode()], [value])
        message, _ = codec.encode(group, 0, 1, base_offset=0, timestamp_us=0, leader_epoch=0)
        request = StageRequest(
            stream_id=self._holder_id,
            partition=self._partition,
            is_plan=True,
            query_id=self._query_id,
            batch_id=self._batch_id,
        )
        answer, _ = await until_taken(self._link, request, StageResponse, self._deadline_s, message)
        return plan_mark(answer.base_offset, answer.leader_epoch)

    async def _read_plan(self, mark: int) -> list[tuple[StagedBatch, ...]]:
        """Read the plan of an earlier attempt. StagedLost: the plan is gone, so no attempt can continue."""
        offset = plan_offset(mark)
        request = GetRequest(stream_id=self._holder_id, partition=self._partition, offset=Offset(offset))
        text = f"another attempt has published a part of this batch, by a plan at offset {offset} of the staged rows"
        try:
            answer, raw = await until_taken(self._link, request, GetResponse, self._deadline_s)
        except RemoteError as error:
            if error.code in _GONE:
                raise StagedLost(ErrorCode.STAGED_LOST, f"{text}, which no longer exists") from None
            raise
        batches.check_format(answer.format_version)
        found = batches.one_message(raw, answer.offset, self._partition, source="the plan of a batch")
        try:
            plan = msgspec.msgpack.decode(found.value or b"", type=_Plan)
        except (msgspec.DecodeError, UnicodeDecodeError):
            plan = None
        is_it = is_plan(mark, codec.read_header(raw).leader_epoch)
        if plan is None or not is_it or (plan.query_id, plan.batch_id) != (self._query_id, self._batch_id):
            raise StagedLost(ErrorCode.STAGED_LOST, f"{text}, where something else is stored now")
        return list(plan.pieces)


def _pieces(staged: Sequence[StagedBatch]) -> list[tuple[StagedBatch, ...]]:
    """Split the batches, in order, into as few pieces as the limits allow."""
    pieces: list[list[StagedBatch]] = [[]]
    rows = size_bytes = 0
    for one in staged:
        rows, size_bytes = rows + one.rows, size_bytes + one.size_bytes
        is_full = (
            rows > limits.BATCH_ROWS_MAX
            or size_bytes > limits.PIECE_BYTES_MAX
            or len(pieces[-1]) == limits.STAGED_PER_PIECE_MAX
        )
        if is_full and pieces[-1]:
            pieces.append([])
            rows, size_bytes = one.rows, one.size_bytes
        pieces[-1].append(one)
    return [tuple(piece) for piece in pieces]


def _ranges(piece: Sequence[StagedBatch]) -> tuple[StagedRange, ...]:
    """Return the ranges of a request: contiguous batches form one range."""
    found: list[StagedRange] = []
    for one in piece:
        start = Offset(one.base_offset)
        if found and found[-1].end_offset == one.base_offset and found[-1].leader_epoch == one.leader_epoch:
            start = found.pop().base_offset
        found.append(StagedRange(start, Offset(one.end_offset), LeaderEpoch(one.leader_epoch)))
    return tuple(found)
