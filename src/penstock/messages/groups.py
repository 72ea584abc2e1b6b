"""Consumer groups: commit and fetch offsets, heartbeats and assignments, lists.

All of them go to the leader of one partition of the stream `__offsets`: XXH64(group, seed 0) mod its partitions.
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
    """Request the stream that holds the offsets; it is created if missing."""

    timeout_ms: Int64Field = 10_000


class OffsetsStreamResponse(Response, frozen=True, kw_only=True):
    """The stream `__offsets` and the leaders of its partitions."""

    stream: StreamInfo


class CommittedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """A group's committed offset in a partition."""

    partition: PartitionField
    offset: OffsetField  # of the next message
    leader_epoch: LeaderEpochField | None = None  # of a leader whose log had that offset
    metadata: MetadataField = ""  # the consumer's note
    committed_us: TimestampField | None = None


class OffsetCommit(msgspec.Struct, frozen=True, kw_only=True):
    """A new committed offset; `offset` None deletes it."""

    stream_id: StreamIdField
    partition: PartitionField
    offset: OffsetField | None
    leader_epoch: LeaderEpochField | None = None
    metadata: MetadataField = ""
    is_begin: bool = False  # only if nothing is committed yet; then also for partitions that are not assigned


class CommitOffsetsRequest(Request, frozen=True, kw_only=True):
    """Commit offsets, atomically. `stream_id` and `partition` are those of `__offsets`.

    In streams with group members only these commit, each for its assigned partitions: `member_id`, and `generation`,
    the last one that the member received. A member belongs to the user who created it.
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
    """A member of a group, and its assigned partitions of the requested stream.

    The coordinator knows the rest from the member's heartbeats alone: it is "" and None before the first one, and
    `joined_us` is None if the member joined at an earlier coordinator. Earlier versions do not send it. `client_name`
    and `address` are "" for callers other than the member's user, administrators and those who may monitor.
    """

    member_id: str
    partitions: tuple[PartitionField, ...] = ()
    client_name: str = ""
    address: str = ""  # HOST:PORT from which its heartbeats come
    joined_us: TimestampField | None = None


class GroupHeartbeatRequest(Request, frozen=True, kw_only=True):
    """Heartbeat of a group member; the first one joins. `stream_id` and `partition` are those of `__offsets`.

    One at a time: `number` rises with each, also with a retry. `owned`: the partitions that it reads, or may begin to
    read before the next heartbeat.
    """

    stream_id: StreamIdField
    partition: PartitionField
    group: GroupField
    member_id: MemberField  # random, chosen by the member
    number: Annotated[int, msgspec.Meta(ge=1, le=limits.OFFSET_MAX)]
    stream_ids: Annotated[tuple[StreamIdField, ...], msgspec.Meta(max_length=limits.GROUP_STREAMS_MAX)]  # that it reads
    owned: Annotated[tuple[GroupPartition, ...], msgspec.Meta(max_length=limits.GROUP_PARTITIONS_MAX)] = ()
    session_ms: Annotated[int, msgspec.Meta(ge=limits.GROUP_SESSION_MS_MIN, le=limits.GROUP_SESSION_MS_MAX)] = (
        limits.GROUP_SESSION_MS_DEFAULT
    )
    leader_epoch: LeaderEpochField = LeaderEpoch(0)  # of the last answer received
    is_leaving: bool = False  # it owns nothing any more, and does not return under this id


class GroupHeartbeatResponse(Response, frozen=True, kw_only=True):
    """The member's assignment. It stops reading all other partitions, and confirms that with the next heartbeat.

    `is_settled`: the assignment is final until the group changes; else the member should send the next heartbeat soon.
    """

    generation: Int64Field
    leader_epoch: LeaderEpochField  # of the coordinator, to be named in the next heartbeat
    assigned: tuple[GroupPartition, ...]
    is_settled: bool


class FetchOffsetsRequest(Request, frozen=True, kw_only=True):
    """Request a group's offsets in the stream `of_stream_id`. `stream_id` and `partition` are those of `__offsets`."""

    stream_id: StreamIdField
    partition: PartitionField
    group: GroupField
    of_stream_id: StreamIdField


class FetchOffsetsResponse(Response, frozen=True, kw_only=True):
    """Committed offsets by partition; partitions without one are left out. `members`: those that read the stream."""

    offsets: tuple[CommittedOffset, ...]
    members: tuple[GroupMember, ...] = ()


class GroupStream(msgspec.Struct, frozen=True, kw_only=True):
    """A group and a stream: the number of partitions with committed offsets, and of members that read it."""

    group: str
    stream_id: StreamIdField
    partitions: Int32Field
    members: Int32Field = 0


class ListGroupsRequest(Request, frozen=True, kw_only=True):
    """List the groups of one partition of `__offsets`, page by page: begin after a group and a stream."""

    stream_id: StreamIdField
    partition: PartitionField
    after_group: str = ""
    after_stream_id: Int64Field = 0


class ListGroupsResponse(Response, frozen=True, kw_only=True):
    """In the order of groups and streams; an empty page is the end."""

    groups: tuple[GroupStream, ...]
