"""Requests that delete single messages, or the messages of a subject, of one partition.

Rules: they go to the partition's leader, and are answered once the deletion is on the disks of all in-sync replicas:
from then on no leader shows the messages. Other messages keep their offsets. A repeated request deletes nothing twice.
With `is_secure` each replica erases the bytes at once, also of messages that were deleted before; `AwaitErasureRequest`
asks how far they are. `marks_end` of the answer stands for all deletions of the partition so far.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from penstock.base import limits
from penstock.base.ids import PartitionId
from penstock.messages.fields import (
    BrokerIdField,
    Int64Field,
    OffsetField,
    PartitionField,
    Request,
    Response,
    StreamIdField,
    SubjectField,
)

OffsetsField = Annotated[tuple[OffsetField, ...], msgspec.Meta(max_length=limits.DELETED_OFFSETS_MAX)]


class DeleteMessagesRequest(Request, frozen=True, kw_only=True):
    """Delete the committed messages at these offsets."""

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    offsets: Annotated[tuple[OffsetField, ...], msgspec.Meta(min_length=1, max_length=limits.DELETED_OFFSETS_MAX)]
    is_secure: bool = False


class DeleteMessagesResponse(Response, frozen=True, kw_only=True):
    """The number of messages that this request deleted, and of those that no reader was shown any more.

    The latter were deleted, or hidden by a limit by subject, a rollup, an expiry or compaction. `missing`: other
    offsets without a message, which is purged, or not stored yet at `committed_end` and beyond.
    """

    deleted: Int64Field
    already_deleted: Int64Field = 0
    missing: OffsetsField = ()
    marks_end: OffsetField = 0  # type: ignore[assignment]
    committed_end: OffsetField = 0  # type: ignore[assignment]


class PurgeSubjectRequest(Request, frozen=True, kw_only=True):
    """Delete the committed messages on `subject`, which may have wildcards, from `start` to before `before`.

    `before` None: all that is committed now. `keep`: the last ones of them stay. A request looks through a bounded part
    of the log; its answer names where the next one goes on.
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    subject: SubjectField
    start: OffsetField = 0  # type: ignore[assignment]
    before: OffsetField | None = None
    keep: Int64Field = 0
    is_dry_run: bool = False  # report only what would be deleted
    is_secure: bool = False


class PurgeSubjectResponse(Response, frozen=True, kw_only=True):
    """The number of messages that this request deleted; for a dry run, those to delete.

    `next_offset`: the next request's `start`, with `before` as answered and `keep` 0; None: the purge is complete. With
    `keep` nothing was deleted yet: the next request has `before` and `keep` as answered, to look further back.
    """

    messages: Int64Field
    before: OffsetField
    next_offset: OffsetField | None = None
    keep: Int64Field = 0
    marks_end: OffsetField = 0  # type: ignore[assignment]


class AwaitErasureRequest(Request, frozen=True, kw_only=True):
    """Wait until all live replicas of a partition have erased what was deleted securely, by marks below `marks_end`.

    Answered after ERASURE_ANSWER_MS at the latest, with the state so far; it goes on, and can be asked for again.
    """

    stream_id: StreamIdField
    partition: PartitionField = PartitionId(0)
    marks_end: OffsetField


class ErasureState(StrEnum):
    """State of an erasure on one replica."""

    ERASED = "erased"
    WAITING = "waiting"
    ABSENT = "absent"  # its broker is not live; it erases when it is back


class ReplicaErasure(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's state: an `ErasureState`, or a newer one. While it waits, its files may hold `messages` of those
    deleted; `waits_for`: why.
    """

    broker_id: BrokerIdField
    state: str
    messages: Int64Field = 0
    waits_for: str = ""


class AwaitErasureResponse(Response, frozen=True, kw_only=True):
    """The state of all replicas, read replicas (observers) included."""

    replicas: tuple[ReplicaErasure, ...] = ()


class ErasedRequest(Request, frozen=True, kw_only=True):
    """Ask another broker how far its replica has erased what was deleted securely."""

    stream_id: StreamIdField
    partition: PartitionField


class ErasedResponse(Response, frozen=True, kw_only=True):
    """All that marks below `erased_end` name is erased; of the others, files may hold `messages`. `waits_for`: why."""

    erased_end: OffsetField
    messages: Int64Field = 0
    waits_for: str = ""
