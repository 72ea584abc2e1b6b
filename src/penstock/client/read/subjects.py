"""Subjects of a stream: which there are, how many messages they have, and the last message of each.

Rules: each partition has its own list, in byte order. Of several, each is asked for a whole page, so no subject within
the page of all is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from penstock.base import limits
from penstock.base.ids import Offset, PartitionId
from penstock.base.subjects import subject_mistake
from penstock.client.checks import whole_number
from penstock.client.errors import MessageNotFound
from penstock.client.link.link import Link
from penstock.client.publish_format import a_kind
from penstock.client.read.latest import Got
from penstock.client.read.reading import partition_numbers
from penstock.client.values import Message, SubjectState
from penstock.messages import ListSubjectsRequest, ListSubjectsResponse, StreamInfo


def subjects_to_list(subject: str | Iterable[str]) -> tuple[str, ...]:
    """Return checked subjects or patterns. TypeError, ValueError."""
    if not isinstance(subject, str | Iterable):
        raise TypeError(f"the subject is {a_kind(subject)}; give a pattern, or several in a list")
    wanted = (subject,) if isinstance(subject, str) else tuple(subject)
    if not 0 < len(wanted) <= limits.FETCH_SUBJECTS_MAX:
        raise ValueError(f"{len(wanted)} subjects were given; give 1 to {limits.FETCH_SUBJECTS_MAX}")
    for one in wanted:
        if (mistake := subject_mistake(one, wildcards=True)) is not None:
            raise ValueError(mistake)
    return wanted


async def list_subjects(
    link: Link,
    info: StreamInfo,
    wanted: tuple[str, ...],
    after: str,
    limit: int,
    partition: int | None,
    timeout_s: float,
) -> list[SubjectState]:
    """Return the first `limit` matching subjects behind `after`."""
    if (limit := whole_number("limit", limit)) < 1:
        raise ValueError(f"the limit {limit} is not positive")
    if not isinstance(after, str):
        raise TypeError(f"after is {a_kind(after)}; give a subject, '' to begin with the first one")
    found: list[SubjectState] = []
    while limit:
        page = min(limit, limits.SUBJECTS_LISTED_MAX)
        numbers = partition_numbers(info, partition)
        parts = await asyncio.gather(*(_page(link, info, wanted, after, page, one, timeout_s) for one in numbers))
        names = sorted({one.subject for part in parts for one in part}, key=str.encode)[:page]
        kept = frozenset(names)
        found += sorted(
            (one for part in parts for one in part if one.subject in kept),
            key=lambda one: (one.subject.encode(), one.partition),
        )
        limit -= len(names)
        if len(names) < page:
            break
        after = names[-1]
    return found


async def _page(
    link: Link,
    info: StreamInfo,
    wanted: tuple[str, ...],
    after: str,
    limit: int,
    partition: PartitionId,
    timeout_s: float,
) -> list[SubjectState]:
    request = ListSubjectsRequest(
        stream_id=info.stream_id, partition=partition, subjects=wanted, after=after, limit=limit
    )
    answer, _ = await link.call(request, ListSubjectsResponse, timeout_s=timeout_s)
    return [
        SubjectState(one.subject, one.messages, one.first_offset, one.last_offset, int(partition))
        for one in answer.subjects
    ]


async def count_messages(
    link: Link, info: StreamInfo, wanted: tuple[str, ...], partition: int | None, timeout_s: float
) -> int:
    """Return the number of messages on matching subjects."""
    numbers = partition_numbers(info, partition)
    return sum(await asyncio.gather(*(_count(link, info, wanted, one, timeout_s) for one in numbers)))


async def _count(
    link: Link, info: StreamInfo, wanted: tuple[str, ...], partition: PartitionId, timeout_s: float
) -> int:
    request = ListSubjectsRequest(stream_id=info.stream_id, partition=partition, subjects=wanted)
    messages = 0
    while True:
        answer, _ = await link.call(request, ListSubjectsResponse, timeout_s=timeout_s)
        messages += answer.messages
        end = answer.committed_end if request.end is None else request.end
        if answer.end_offset >= end:
            return messages
        request = msgspec.structs.replace(request, begin=answer.end_offset, end=Offset(end))


_AT_ONCE = 16  # messages asked for at the same time


async def lasts(found: Sequence[SubjectState], get: Callable[[dict[str, Any], int], Awaitable[Got]]) -> list[Message]:
    """Return the last message of each subject, found by `get` in its partition.

    Each request names the subject: the user may have the right to read only some.
    """

    async def last_of(one: SubjectState) -> Message | None:
        with suppress(MessageNotFound):
            return (await get({"offset": one.last, "subject": one.subject}, one.partition)).message
        with suppress(MessageNotFound):  # that one was deleted meanwhile
            return (await get({"subject": one.subject}, one.partition)).message
        return None

    messages: list[Message] = []
    for begin in range(0, len(found), _AT_ONCE):
        answers = await asyncio.gather(*map(last_of, found[begin : begin + _AT_ONCE]))
        messages += [one for one in answers if one is not None]
    return messages
