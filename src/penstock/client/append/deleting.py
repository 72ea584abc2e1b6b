"""Deletes single messages of a partition, and those of a subject; waits until secure deletions are erased."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsIndex

import msgspec

from penstock.base import limits
from penstock.base.errors import ErrorCode
from penstock.base.ids import Offset, PartitionId
from penstock.base.subjects import subject_mistake
from penstock.client.checks import whole_number
from penstock.client.errors import MessageNotFound, TimedOut
from penstock.client.link.link import Link
from penstock.client.publish_format import a_kind
from penstock.client.read.reading import find_place, partition_number, partition_numbers
from penstock.client.values import Deletion, Erasure, Start, SubjectPurge
from penstock.messages import (
    AwaitErasureRequest,
    AwaitErasureResponse,
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    ErasureState,
    PurgeSubjectRequest,
    PurgeSubjectResponse,
    ReplicaErasure,
    StreamInfo,
)

Progress = Callable[[Erasure], None]
"""Called with each state of an erasure, while it waits."""


async def delete_messages(
    link: Link,
    info: StreamInfo,
    offsets: SupportsIndex | Sequence[int],
    partition: int | None,
    timeout_s: float,
    *,
    is_secure: bool = False,
    progress: Progress | None = None,
) -> Deletion:
    """Delete the messages at these offsets. ValueError; MessageNotFound if a single offset has no message; TimedOut if
    they are deleted, and not erased in time.
    """
    is_one = isinstance(offsets, str) or not isinstance(offsets, Iterable)
    wanted: list[Any] = [offsets] if is_one else list(offsets)  # type: ignore[arg-type]
    numbers = sorted({whole_number("offset", one) for one in wanted})
    if not numbers:
        return Deletion(0)
    if numbers[0] < 0:
        raise ValueError(f"the offset {numbers[0]} is negative; offsets count from 0")
    if partition is None and len(info.partitions) > 1:
        text = f"an offset is a place in one partition, and stream {info.name} has {len(info.partitions)}"
        raise ValueError(f"{text}: say which with partition=")
    number = partition_number(info, partition)
    done, marks_end, committed_end = Deletion(0), Offset(0), 0
    for begin in range(0, len(numbers), limits.DELETED_OFFSETS_MAX):
        asked = tuple(map(Offset, numbers[begin : begin + limits.DELETED_OFFSETS_MAX]))
        request = DeleteMessagesRequest(stream_id=info.stream_id, partition=number, offsets=asked, is_secure=is_secure)
        answer, _ = await link.call(request, DeleteMessagesResponse, timeout_s=timeout_s)
        done = Deletion(
            done.deleted + answer.deleted,
            done.already_deleted + answer.already_deleted,
            (*done.missing, *answer.missing),
        )
        marks_end, committed_end = answer.marks_end, answer.committed_end
    if is_one and done.missing:
        text = f"there is no message at offset {numbers[0]}: it has expired, or was purged or compacted"
        if numbers[0] >= committed_end:
            text = f"there is no message at offset {numbers[0]} yet: the next one gets offset {committed_end}"
        raise MessageNotFound(ErrorCode.MESSAGE_NOT_FOUND, text, offset=numbers[0])
    if not is_secure:
        return done
    return done._replace(erasure=await _erased(link, info, number, marks_end, timeout_s, progress))


async def _erased(
    link: Link, info: StreamInfo, partition: PartitionId, marks_end: Offset, timeout_s: float, progress: Progress | None
) -> Erasure:
    """Wait until all live replicas have erased what the marks before `marks_end` name. TimedOut."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limits.SECURE_DELETION_WAIT_MS / 1_000
    request = AwaitErasureRequest(stream_id=info.stream_id, partition=partition, marks_end=marks_end)
    answer_s = 2 * limits.ERASURE_ANSWER_MS / 1_000
    while True:
        answer, _ = await link.call(request, AwaitErasureResponse, timeout_s=max(timeout_s, answer_s))
        found = _erasure(partition, answer.replicas)
        if progress is not None:
            progress(found)
        if not found.waiting:
            return found
        if loop.time() >= deadline_s:
            text = "the messages are deleted, and no reader gets them; they are not erased from all files yet"
            raise TimedOut(f"{text}: {'; '.join(found.waiting)}; that goes on: repeat the request to wait for it")


def _erasure(partition: PartitionId, replicas: Sequence[ReplicaErasure]) -> Erasure:
    ended = (ErasureState.ERASED, ErasureState.ABSENT)
    return Erasure(
        int(partition),
        tuple(int(one.broker_id) for one in replicas if one.state == ErasureState.ERASED),
        tuple(_waiting_text(one) for one in replicas if one.state not in ended),
        tuple(int(one.broker_id) for one in replicas if one.state == ErasureState.ABSENT),
    )


def _waiting_text(one: ReplicaErasure) -> str:
    what = "1 message is" if one.messages == 1 else f"{one.messages} messages are"
    left = f"{what} left, " if one.messages else ""
    return f"broker {one.broker_id}: {left}{one.waits_for or one.state}"


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
    is_secure: bool = False,
    progress: Progress | None = None,
) -> list[SubjectPurge]:
    """Delete the messages on a subject, in all partitions or in one; a request at a time, until all is done. TimedOut
    if they are deleted, and not erased in time.
    """
    if not isinstance(subject, str):
        raise TypeError(f"the subject {subject!r} is {a_kind(subject)}; give one as str, which may have wildcards")
    if (mistake := subject_mistake(subject, wildcards=True)) is not None:
        raise ValueError(mistake)
    if (kept := whole_number("keep", keep)) < 0:
        raise ValueError(f"keep is {kept}; the number of messages to keep is 0 or more")
    done, marks = [], []
    for number in partition_numbers(info, partition, before):
        end = before
        if end is not None and not isinstance(end, int):
            end = (await find_place(link, info.stream_id, number, end, timeout_s)).offset
        request = PurgeSubjectRequest(
            stream_id=info.stream_id,
            partition=number,
            subject=subject,
            before=None if end is None else Offset(end),
            keep=kept,
            is_dry_run=is_dry_run,
            is_secure=is_secure,
        )
        purged, marks_end = await _purge(link, request, timeout_s)
        done.append(purged)
        marks.append(marks_end)
    if not is_secure or is_dry_run:
        return done
    return [  # they are erased side by side while the first one is waited for
        one._replace(erasure=await _erased(link, info, PartitionId(one.partition), end, timeout_s, progress))
        for one, end in zip(done, marks, strict=True)
    ]


async def _purge(link: Link, request: PurgeSubjectRequest, timeout_s: float) -> tuple[SubjectPurge, Offset]:
    """Return what was purged of a partition, and the end of its marks."""
    messages = 0
    while True:
        answer, _ = await link.call(request, PurgeSubjectResponse, timeout_s=timeout_s)
        messages += answer.messages
        if answer.keep:
            request = msgspec.structs.replace(request, before=answer.before, keep=answer.keep)
            continue
        if answer.next_offset is None:
            return SubjectPurge(int(request.partition), messages, int(answer.before)), answer.marks_end
        request = msgspec.structs.replace(request, start=answer.next_offset, before=answer.before, keep=0)
