"""Requests for consumer group offsets: fetch, commit, list, heartbeat.

Rules: the stream that holds offsets is created when a consumer first commits or fetches; read-only calls do not create
it. A group's coordinator is the leader of one of its partitions: XXH64(group, seed 0) mod their number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar

from penstock.base import limits
from penstock.base.ids import LeaderEpoch, Offset, PartitionId, StreamId
from penstock.client.checks import milliseconds, seconds_of
from penstock.client.consume.progress import ReadMark
from penstock.client.errors import StreamChanged
from penstock.client.link.link import CREATE_GRACE_S, Link
from penstock.client.streams.named_streams import NamedStreams
from penstock.client.values import Start
from penstock.groups.rows import OFFSETS_STREAM, group_mistake
from penstock.hot import keyhash
from penstock.messages import (
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    CommittedOffset,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    GroupMember,
    GroupPartition,
    GroupStream,
    ListGroupsRequest,
    ListGroupsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetCommit,
    OffsetsStreamRequest,
    OffsetsStreamResponse,
    StreamInfo,
)

T = TypeVar("T")


class CommittedPositions(NamedTuple):
    """A group's committed offsets in a stream, by partition, and the members that read it."""

    offsets: dict[int, CommittedOffset]
    members: tuple[GroupMember, ...] = ()

    @property
    def owners(self) -> dict[int, str]:
        """The id of the member that owns each partition."""
        return {int(part): one.member_id for one in self.members for part in one.partitions}


class GroupPositions:
    """Sends the requests. `timeout_s` bounds each answer, including failovers."""

    def __init__(self, link: Link, streams: NamedStreams) -> None:
        self.link = link
        self.streams = streams
        self._kept: StreamInfo | None = None  # the stream that holds the offsets
        self._tasks: set[asyncio.Task[None]] = set()  # heartbeat tasks of members

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that is cancelled when the client is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel all tasks."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def fetch(self, group: str, stream_id: StreamId, timeout_s: float) -> dict[int, CommittedOffset]:
        """Return a group's committed offsets in a stream, by partition."""
        found = await self._with_stream(lambda kept: self._fetch(kept, group, stream_id, timeout_s), timeout_s)
        return found.offsets

    async def read(self, group: str, stream_id: StreamId, timeout_s: float) -> CommittedPositions:
        """Return committed offsets and members without creating anything."""
        kept = await self._if_there(timeout_s)
        return CommittedPositions({}) if kept is None else await self._fetch(kept, group, stream_id, timeout_s)

    async def commit(
        self,
        group: str,
        stream_id: StreamId,
        marks: Mapping[int, ReadMark | None],
        timeout_s: float,
        *,
        member_id: str | None = None,
        generation: int = 0,
        is_begin: bool = False,
    ) -> None:
        """Commit offsets of partitions, all or none; None deletes a committed offset. GroupInUse, MemberFenced.

        `is_begin`: set only offsets that are not committed yet, also of partitions that other members own.
        """
        offsets = tuple(
            OffsetCommit(
                stream_id=stream_id,
                partition=PartitionId(number),
                offset=None if mark is None else Offset(mark.offset),
                leader_epoch=None if mark is None else mark.leader_epoch,
                is_begin=is_begin,
            )
            for number, mark in sorted(marks.items())
        )

        async def commit(kept: StreamInfo) -> None:
            request = CommitOffsetsRequest(
                stream_id=kept.stream_id,
                partition=_place(kept, group),
                group=group,
                offsets=offsets,
                member_id=member_id,
                generation=generation,
            )
            await self.link.call(request, CommitOffsetsResponse, timeout_s=timeout_s)

        await self._with_stream(commit, timeout_s)

    async def heartbeat(
        self,
        group: str,
        member_id: str,
        number: int,
        stream_id: StreamId,
        owned: tuple[GroupPartition, ...],
        *,
        session_ms: int,
        leader_epoch: LeaderEpoch,
        is_leaving: bool,
        timeout_s: float,
    ) -> GroupHeartbeatResponse:
        """Send a member's heartbeat to the coordinator. MemberFenced: it is no longer a member."""

        async def beat(kept: StreamInfo) -> GroupHeartbeatResponse:
            request = GroupHeartbeatRequest(
                stream_id=kept.stream_id,
                partition=_place(kept, group),
                group=group,
                member_id=member_id,
                number=number,
                stream_ids=(stream_id,),
                owned=owned,
                session_ms=session_ms,
                leader_epoch=leader_epoch,
                is_leaving=is_leaving,
            )
            return (await self.link.call(request, GroupHeartbeatResponse, timeout_s=timeout_s))[0]

        return await self._with_stream(beat, timeout_s)

    async def all(self, timeout_s: float) -> list[GroupStream]:
        """Return all groups and their streams, unordered."""
        kept = await self._if_there(timeout_s)
        if kept is None:
            return []
        found = await asyncio.gather(*(self._of(kept, one.partition, timeout_s) for one in kept.partitions))
        return [one for page in found for one in page]

    async def _of(self, kept: StreamInfo, partition: PartitionId, timeout_s: float) -> list[GroupStream]:
        found: list[GroupStream] = []
        while True:
            request = ListGroupsRequest(
                stream_id=kept.stream_id,
                partition=partition,
                after_group=found[-1].group if found else "",
                after_stream_id=found[-1].stream_id if found else 0,
            )
            answer, _ = await self.link.call(request, ListGroupsResponse, timeout_s=timeout_s)
            found += answer.groups
            if len(answer.groups) < limits.GROUP_STREAMS_PER_ANSWER_MAX:
                return found

    async def _fetch(self, kept: StreamInfo, group: str, stream_id: StreamId, timeout_s: float) -> CommittedPositions:
        request = FetchOffsetsRequest(
            stream_id=kept.stream_id, partition=_place(kept, group), group=group, of_stream_id=stream_id
        )
        answer, _ = await self.link.call(request, FetchOffsetsResponse, timeout_s=timeout_s)
        offsets = {int(one.partition): one for one in answer.offsets}
        return CommittedPositions(offsets, answer.members)

    async def _if_there(self, timeout_s: float) -> StreamInfo | None:
        request = MetadataRequest(names=(OFFSETS_STREAM,))
        answer, _ = await self.link.call(request, MetadataResponse, timeout_s=timeout_s)
        return next((info for info in answer.streams if info.config.is_internal), None)

    async def _with_stream(self, call: Callable[[StreamInfo], Awaitable[T]], timeout_s: float) -> T:
        """Call `call` with the stream that holds offsets; call it again if that stream was recreated."""
        if (kept := self._kept) is not None:
            try:
                return await call(kept)
            except StreamChanged as error:  # its metadata were lost, or the stream being read was deleted
                if error.details.get("stream_id") != kept.stream_id:
                    raise
        request = OffsetsStreamRequest(timeout_ms=milliseconds(timeout_s))
        answer, _ = await self.link.call(
            request, OffsetsStreamResponse, timeout_s=seconds_of(timeout_s) + CREATE_GRACE_S
        )
        self._kept = answer.stream
        return await call(answer.stream)


def check_group(group: str) -> None:
    """Raise ValueError if `group` is not a valid group name."""
    if (mistake := group_mistake(group)) is not None:
        raise ValueError(mistake)


def mark_of(committed: CommittedOffset) -> ReadMark:
    """Return a committed offset as a mark."""
    return ReadMark(committed.offset, committed.leader_epoch)


def start_of(info: StreamInfo, number: int, committed: Mapping[int, CommittedOffset], start: Start) -> Start:
    """Return where a group begins in a partition without a committed offset; `start`: for a group without any.

    A new group commits its start in all partitions. So a partition without one was added later, and is read from its
    beginning, because its messages are newer than those the group has read.
    """
    was_added = bool(info.counts) and number >= info.counts[0]
    return "earliest" if was_added and committed else start


def _place(kept: StreamInfo, group: str) -> PartitionId:
    return PartitionId(keyhash.partition_of(group.encode(), len(kept.partitions)))
