"""Where groups of consumers are in a stream: committed, asked for, listed.

All of it goes to the leader of one partition of the stream `__offsets`: XXH64(group, seed 0) mod its partitions.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.base import limits
from penstock.base.ids import LeaderEpoch
from penstock.messages.fields import (
    Int32Field,
    Int64Field,
    LeaderEpochField,
    OffsetField,
    PartitionField,
    Request,
    Response,
    StreamIdField,
    TimestampField,
)
from penstock.messages.streams import StreamInfo

GroupField = Annotated[
    str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]+\Z", min_length=1, max_length=limits.GROUP_NAME_CHARS_MAX)
]
MemberField = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]+\Z", min_length=1, max_length=64)]
MetadataField = Annotated[str, msgspec.Meta(max_length=limits.OFFSET_METADATA_CHARS_MAX)]


class OffsetsStreamRequest(Request, frozen=True, kw_only=True):
    """Which stream holds the offsets? It is made if there is none."""

    timeout_ms: Int64Field = 10_000


class OffsetsStreamResponse(Response, frozen=True, kw_only=True):
    """That stream, and who leads its partitions."""

    stream: StreamInfo


class CommittedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group is in a partition."""

    partition: PartitionField
    offset: OffsetField  # of the next message
    leader_epoch: LeaderEpochField | None = None  # of a leader in whose log that offset was right
    metadata: MetadataField = ""  # a note of the consumer's
    committed_us: TimestampField | None = None


class OffsetCommit(msgspec.Struct, frozen=True, kw_only=True):
    """Where a group is from now on in a partition; `offset` None: it begins anew."""

    stream_id: StreamIdField
    partition: PartitionField
    offset: OffsetField | None
    leader_epoch: LeaderEpochField | None = None
    metadata: MetadataField = ""
    is_begin: bool = False  # only where nothing is committed yet, and then also of what no member was granted


class CommitOffsetsRequest(Request, frozen=True, kw_only=True):
    """Commit offsets, all or none. `stream_id` and `partition` are those of `__offsets`.

    Of streams that members of the group read only they commit, each of what it has: `member_id` says who, and
    `generation` which the last one is that it was told. A member is that of the user who made it.
    """

    stream_id: StreamIdField
    partition: PartitionField
    group: GroupField
    offsets: Annotated[tuple[OffsetCommit, ...], msgspec.Meta(min_length=1, max_length=limits.OFFSETS_PER_COMMIT_MAX)]
    member_id: MemberField | None = None
    generation: Int64Field = 0


class CommitOffsetsResponse(Response, frozen=True, kw_only=True):
    """Sent once they are committed: no failover loses them."""

    committed_us: TimestampField


class GroupPartition(msgspec.Struct, frozen=True, array_like=True):
    """A partition of a stream."""

    stream_id: StreamIdField
    partition: PartitionField


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a group, and the partitions of the stream that was asked about that it may have."""

    member_id: str
    partitions: tuple[PartitionField, ...] = ()


class GroupHeartbeatRequest(Request, frozen=True, kw_only=True):
    """A member of a group is there; the first one joins. `stream_id` and `partition` are those of `__offsets`.

    One at a time: `number` rises with each, also when it is asked again. `owned` is what it reads then, or may begin
    to read before the next one.
    """

    stream_id: StreamIdField
    partition: PartitionField
    group: GroupField
    member_id: MemberField  # random, of its own choice
    number: Annotated[int, msgspec.Meta(ge=1, le=limits.OFFSET_MAX)]
    stream_ids: Annotated[tuple[StreamIdField, ...], msgspec.Meta(max_length=limits.GROUP_STREAMS_MAX)]  # that it reads
    owned: Annotated[tuple[GroupPartition, ...], msgspec.Meta(max_length=limits.GROUP_PARTITIONS_MAX)] = ()
    session_ms: Annotated[int, msgspec.Meta(ge=limits.GROUP_SESSION_MS_MIN, le=limits.GROUP_SESSION_MS_MAX)] = (
        limits.GROUP_SESSION_MS_DEFAULT
    )
    leader_epoch: LeaderEpochField = LeaderEpoch(0)  # of the last answer that it has heard
    is_leaving: bool = False  # it has nothing any more, and does not come back under this id


class GroupHeartbeatResponse(Response, frozen=True, kw_only=True):
    """What the member may read from now on, and nothing else; what it is to give back, it stops reading, and says so.

    `is_settled`: it has what it should have, as things are; else it should ask again soon.
    """

    generation: Int64Field
    leader_epoch: LeaderEpochField  # of the coordinator, to be named in the next heartbeat
    assigned: tuple[GroupPartition, ...]
    is_settled: bool


class FetchOffsetsRequest(Request, frozen=True, kw_only=True):
    """Where is a group in the stream `of_stream_id`? `stream_id` and `partition` are those of `__offsets`."""

    stream_id: StreamIdField
    partition: PartitionField
    group: GroupField
    of_stream_id: StreamIdField


class FetchOffsetsResponse(Response, frozen=True, kw_only=True):
    """By partition, in order; those of which nothing is committed are left out. `members`: who reads the stream."""

    offsets: tuple[CommittedOffset, ...]
    members: tuple[GroupMember, ...] = ()


class GroupStream(msgspec.Struct, frozen=True, kw_only=True):
    """A group, a stream, of how many partitions it has committed offsets, and how many members read it."""

    group: str
    stream_id: StreamIdField
    partitions: Int32Field
    members: Int32Field = 0


class ListGroupsRequest(Request, frozen=True, kw_only=True):
    """Which groups does one partition of `__offsets` hold? Page by page: begin behind a group and a stream."""

    stream_id: StreamIdField
    partition: PartitionField
    after_group: str = ""
    after_stream_id: Int64Field = 0


class ListGroupsResponse(Response, frozen=True, kw_only=True):
    """In the order of groups and streams; an empty page is the end."""

    groups: tuple[GroupStream, ...]
