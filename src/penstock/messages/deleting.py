"""Requests that delete single messages, or the messages of a subject, of one partition.

Rules: they go to the partition's leader, and are answered once the deletion is on the disks of all in-sync replicas:
from then on no leader shows the messages. Other messages keep their offsets. A repeated request deletes nothing twice.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.base import limits
from penstock.base.ids import PartitionId
from penstock.messages.fields import (
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


class DeleteMessagesResponse(Response, frozen=True, kw_only=True):
    """The number of messages that this request deleted, and of those that were deleted before.

    `missing`: offsets without a message: never stored, compacted or expired.
    """

    deleted: Int64Field
    already_deleted: Int64Field = 0
    missing: OffsetsField = ()


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


class PurgeSubjectResponse(Response, frozen=True, kw_only=True):
    """The number of messages that this request deleted; for a dry run, those to delete.

    `next_offset`: the next request's `start`, with `before` as answered and `keep` 0; None: the purge is complete.
    """

    messages: Int64Field
    before: OffsetField
    next_offset: OffsetField | None = None
