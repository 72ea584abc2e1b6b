"""Staged rows and their publication: exactly once by query and batch (transactions).

| request        | answered by                                   | raw part of the request                        |
|----------------|-----------------------------------------------|------------------------------------------------|
| staged stream  | any broker                                    |                                                |
| stage          | the leader of the partition of the staging stream | one batch message, as for an append        |
| publish staged | the leader of the target partition            |                                                |
| list published | the same                                      |                                                |

Rows staged for partition p of a stream are stored in partition p of the stream `__staged-<id>`, which has the same
replicas.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.base import limits
from penstock.base.ids import PartitionId
from penstock.messages.fields import (
    Int64Field,
    LeaderEpochField,
    OffsetField,
    PartitionField,
    Request,
    Response,
    StreamIdField,
    TimestampField,
)
from penstock.messages.records import AppendResponse
from penstock.messages.streams import StreamInfo

QueryIdField = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
PieceField = Annotated[int, msgspec.Meta(ge=0, lt=2**32 - 1)]


class StagedStreamRequest(Request, frozen=True, kw_only=True):
    """Request the stream that holds rows staged for that stream; it is created if missing."""

    stream_id: StreamIdField
    timeout_ms: Int64Field = 10_000


class StagedStreamResponse(Response, frozen=True, kw_only=True):
    """The staging stream and the leaders of its partitions."""

    stream: StreamInfo


class StageRequest(Request, frozen=True, kw_only=True):
    """Append the batch after the body to the staged rows of a stream, checked by that stream's rules.

    `stream_id` and `partition` are those of the staging stream. A retry does no harm: only named rows are published.
    `is_plan`: a row for clients, on the staging stream's own subject, never published. `query_id`, `batch_id`: the rows
    are published as that batch or not at all, and are removed soon after that batch is published; without them they are
    removed by the age limit. An older broker ignores them.
    """

    stream_id: StreamIdField
    partition: PartitionField
    is_plan: bool = False
    query_id: QueryIdField | None = None
    batch_id: Int64Field = 0


class StageResponse(AppendResponse, frozen=True, kw_only=True):
    """The location of the staged rows; with the leader epoch it names them."""


class StagedRange(msgspec.Struct, frozen=True, array_like=True):
    """Staged rows, as in the answer to an append."""

    base_offset: OffsetField
    end_offset: OffsetField
    leader_epoch: LeaderEpochField


class PublishStagedRequest(Request, frozen=True, kw_only=True):
    """Append these rows, in this order, as one batch: a piece of a query's batch, unless it was published before.

    Batch ids of a query rise, pieces count from 0. A batch of several pieces has a plan: a row staged in the same
    partition that lists all pieces; each piece names its mark (`base.staged`).
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    staged_stream_id: StreamIdField
    query_id: QueryIdField
    batch_id: Int64Field
    piece: PieceField = 0
    is_last: bool = True
    plan: OffsetField | None = None
    staged: Annotated[tuple[StagedRange, ...], msgspec.Meta(min_length=1, max_length=limits.STAGED_PER_PIECE_MAX)]


class PublishStagedResponse(Response, frozen=True, kw_only=True):
    """The publication state of the query's batch, all of it committed.

    `duplicate`: this request stored nothing. `pieces` is None for an earlier batch of the query. The offsets are those
    of the requested piece where they are known, which is when it is the last one.
    """

    duplicate: bool
    is_complete: bool
    pieces: Int64Field | None = None
    plan: OffsetField | None = None
    base_offset: OffsetField | None = None
    end_offset: OffsetField | None = None
    leader_epoch: LeaderEpochField
    fsynced: bool


class ListPublishedRequest(Request, frozen=True, kw_only=True):
    """List the queries known to a partition's leader, page by page: begin after an id."""

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    after_query_id: bytes = b""


class QueryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A query, and the last batch whose publication has begun."""

    query_id: QueryIdField
    batch_id: Int64Field
    pieces: Int64Field
    is_complete: bool
    last_offset: OffsetField
    timestamp_us: TimestampField


class ListPublishedResponse(Response, frozen=True, kw_only=True):
    """In the order of their ids; an empty page is the end."""

    queries: tuple[QueryInfo, ...]
