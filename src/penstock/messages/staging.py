"""Staging rows, and publishing what was staged: exactly once by query and batch.

| request        | who answers                                   | raw part of the request                        |
|----------------|-----------------------------------------------|------------------------------------------------|
| staged stream  | any broker                                    |                                                |
| stage          | the leader of the partition that it is staged in | one batch message, as of an append          |
| publish staged | the leader of the partition it is for         |                                                |
| list published | the same                                      |                                                |

What is staged for partition p of a stream lies in partition p of the stream `__staged-<id>`, which has the same
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
    """Which stream holds what is staged for that one? It is made if there is none."""

    stream_id: StreamIdField
    timeout_ms: Int64Field = 10_000


class StagedStreamResponse(Response, frozen=True, kw_only=True):
    """That stream, and who leads its partitions."""

    stream: StreamInfo


class StageRequest(Request, frozen=True, kw_only=True):
    """Append the batch behind the body to what is staged for a stream, and check it by the rules of that one.

    `stream_id` and `partition` are those of the stream that holds it. Once more does no harm: only what is named is
    published. `is_plan`: it is for clients, on the subject of the stream that holds it, and never published.
    `query_id`, `batch_id`: it is published as that batch or not at all, and goes soon after that batch is published;
    without them it goes with the age limit. A broker of an earlier version takes no notice of them.
    """

    stream_id: StreamIdField
    partition: PartitionField
    is_plan: bool = False
    query_id: QueryIdField | None = None
    batch_id: Int64Field = 0


class StageResponse(AppendResponse, frozen=True, kw_only=True):
    """Where the rows are until they are published: what names them, together with their leader epoch."""


class StagedRange(msgspec.Struct, frozen=True, array_like=True):
    """Rows that were staged, as the answer to an append says."""

    base_offset: OffsetField
    end_offset: OffsetField
    leader_epoch: LeaderEpochField


class PublishStagedRequest(Request, frozen=True, kw_only=True):
    """Append these rows, in this order, as one batch: a piece of the run of a query's batch, unless it is there.

    Batches of a query rise, pieces are counted from 0. A run of more than one piece has a plan: a row that was staged
    in the same partition and says what all its pieces are; each piece names its mark (`base.staged`).
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
    """How far the query's batch is published, all of it committed.

    `duplicate`: nothing was stored for this request. Of an earlier batch of the query `pieces` is None. The offsets are
    those of the piece that was asked for, where they are known: it is the last one that there is.
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
    """Which queries does the leader of a partition know? Page by page: begin behind an id."""

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    after_query_id: bytes = b""


class QueryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A query, and the last batch that it has published, or begun to publish."""

    query_id: QueryIdField
    batch_id: Int64Field
    pieces: Int64Field
    is_complete: bool
    last_offset: OffsetField
    timestamp_us: TimestampField


class ListPublishedResponse(Response, frozen=True, kw_only=True):
    """In the order of their ids; an empty page is the end."""

    queries: tuple[QueryInfo, ...]
