"""Deletes single messages of a partition, and those of a subject."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import msgspec

from penstock.base import limits
from penstock.base.errors import ErrorCode
from penstock.base.ids import Offset, PartitionId
from penstock.base.subjects import subject_mistake
from penstock.client.checks import whole_number
from penstock.client.errors import MessageNotFound
from penstock.client.link.link import Link
from penstock.client.publish_format import a_kind
from penstock.client.read.reading import find_place, partition_number, partition_numbers
from penstock.client.values import Deletion, Start, SubjectPurge
from penstock.messages import (
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    PurgeSubjectRequest,
    PurgeSubjectResponse,
    StreamInfo,
)


async def delete_messages(
    link: Link, info: StreamInfo, offsets: SupportsIndex | Sequence[int], partition: int | None, timeout_s: float
) -> Deletion:
    """Delete the messages at these offsets. ValueError; MessageNotFound if a single offset has no message."""
    is_one = isinstance(offsets, SupportsIndex)
    wanted = [offsets] if isinstance(offsets, SupportsIndex) else list(offsets)
    numbers = sorted({whole_number("offset", one) for one in wanted})
    if not numbers:
        return Deletion(0)
    if numbers[0] < 0:
        raise ValueError(f"the offset {numbers[0]} is negative; offsets count from 0")
    if partition is None and len(info.partitions) > 1:
        text = f"an offset is a place in one partition, and stream {info.name} has {len(info.partitions)}"
        raise ValueError(f"{text}: say which with partition=")
    number = partition_number(info, partition)
    done = Deletion(0)
    for begin in range(0, len(numbers), limits.DELETED_OFFSETS_MAX):
        asked = tuple(map(Offset, numbers[begin : begin + limits.DELETED_OFFSETS_MAX]))
        request = DeleteMessagesRequest(stream_id=info.stream_id, partition=number, offsets=asked)
        answer, _ = await link.call(request, DeleteMessagesResponse, timeout_s=timeout_s)
        done = Deletion(
            done.deleted + answer.deleted,
            done.already_deleted + answer.already_deleted,
            (*done.missing, *answer.missing),
        )
    if is_one and done.missing:
        text = f"the message at offset {numbers[0]} is not there: it has expired, was compacted or never stored"
        raise MessageNotFound(ErrorCode.MESSAGE_NOT_FOUND, text, offset=numbers[0])
    return done


async def purge_subject(
    link: Link,
    info: StreamInfo,
    subject: str,
    before: Start | None,
    keep: int,
    partition: int | None,
    *,
    is_dry_run: bool,
    timeout_s: float,
) -> list[SubjectPurge]:
    """Delete the messages on a subject, in all partitions or in one; a request at a time, until all is done."""
    if not isinstance(subject, str):
        raise TypeError(f"the subject {subject!r} is {a_kind(subject)}; give one as str, which may have wildcards")
    if (mistake := subject_mistake(subject, wildcards=True)) is not None:
        raise ValueError(mistake)
    if (kept := whole_number("keep", keep)) < 0:
        raise ValueError(f"keep is {kept}; the number of messages to keep is 0 or more")
    done = []
    for number in partition_numbers(info, partition, before):
        end = before
        if end is not None and not isinstance(end, int):
            end = (await find_place(link, info.stream_id, number, end, timeout_s)).offset
        done.append(await _purge(link, info, subject, end, kept, number, is_dry_run=is_dry_run, timeout_s=timeout_s))
    return done


async def _purge(
    link: Link,
    info: StreamInfo,
    subject: str,
    before: int | None,
    keep: int,
    partition: PartitionId,
    *,
    is_dry_run: bool,
    timeout_s: float,
) -> SubjectPurge:
    request = PurgeSubjectRequest(
        stream_id=info.stream_id,
        partition=partition,
        subject=subject,
        before=None if before is None else Offset(before),
        keep=keep,
        is_dry_run=is_dry_run,
    )
    messages = 0
    while True:
        answer, _ = await link.call(request, PurgeSubjectResponse, timeout_s=timeout_s)
        messages += answer.messages
        if answer.next_offset is None:
            return SubjectPurge(int(partition), messages, int(answer.before))
        request = msgspec.structs.replace(request, start=answer.next_offset, before=answer.before, keep=0)
