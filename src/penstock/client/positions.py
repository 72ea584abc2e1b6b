"""Where groups are, as the brokers keep it: asked for, committed, listed.

Rules: the stream that holds offsets is made when the first is committed or asked for by a consumer; whoever only looks
makes none. A group's offsets are with the leader of one of its partitions: XXH64(group, seed 0) mod their number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar

from penstock.base import limits
from penstock.base.ids import LeaderEpoch, Offset, PartitionId, StreamId
from penstock.client.checks import milliseconds, seconds_of
from penstock.client.errors import StreamChanged
from penstock.client.link import CREATE_GRACE_S, Link
from penstock.client.named_streams import NamedStreams
from penstock.client.progress import Mark
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


class Committed(NamedTuple):
    """Where a group is in a stream, by partition; which member of it reads that one, if any; how many there are."""

    offsets: dict[int, CommittedOffset]
    members: dict[int, str]
    members_count: int = 0


class Positions:
    """See the module. Each answer is waited for `timeout_s`, failovers included."""

    def __init__(self, link: Link, streams: NamedStreams) -> None:
        self.link = link
        self.streams = streams
        self._kept: StreamInfo | None = None  # the stream that holds them
        self._tasks: set[asyncio.Task[None]] = set()  # of members

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that ends with the client, at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """The client is closed."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def fetch(self, group: str, stream_id: StreamId, timeout_s: float) -> dict[int, CommittedOffset]:
        """What a group has committed in a stream, by partition."""
        found = await self._with_stream(lambda kept: self._fetch(kept, group, stream_id, timeout_s), timeout_s)
        return found.offsets

    async def look(self, group: str, stream_id: StreamId, timeout_s: float) -> Committed:
        """The same, where nothing is made for it, and who reads what."""
        kept = await self._if_there(timeout_s)
        return Committed({}, {}) if kept is None else await self._fetch(kept, group, stream_id, timeout_s)

    async def commit(
        self,
        group: str,
        stream_id: StreamId,
        marks: Mapping[int, Mark | None],
        timeout_s: float,
        *,
        member_id: str | None = None,
        generation: int = 0,
        is_begin: bool = False,
    ) -> None:
        """Commit offsets of partitions, all or none; None forgets what was committed. GroupInUse, MemberFenced.

        `is_begin`: only of those where nothing is committed, also where others read them.
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
        """Tell the coordinator that a member is there. MemberFenced: it is none any more."""

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
        """All groups and streams, in no order."""
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

    async def _fetch(self, kept: StreamInfo, group: str, stream_id: StreamId, timeout_s: float) -> Committed:
        request = FetchOffsetsRequest(
            stream_id=kept.stream_id, partition=_place(kept, group), group=group, of_stream_id=stream_id
        )
        answer, _ = await self.link.call(request, FetchOffsetsResponse, timeout_s=timeout_s)
        offsets = {int(one.partition): one for one in answer.offsets}
        members = {int(part): one.member_id for one in answer.members for part in one.partitions}
        return Committed(offsets, members, len(answer.members))

    async def _if_there(self, timeout_s: float) -> StreamInfo | None:
        request = MetadataRequest(names=(OFFSETS_STREAM,))
        answer, _ = await self.link.call(request, MetadataResponse, timeout_s=timeout_s)
        return next((info for info in answer.streams if info.config.is_internal), None)

    async def _with_stream(self, call: Callable[[StreamInfo], Awaitable[T]], timeout_s: float) -> T:
        """What `call` gives for the stream that holds offsets; called again if that is another one by now."""
        if (kept := self._kept) is not None:
            try:
                return await call(kept)
            except StreamChanged as error:  # its metadata are lost, say; or the stream that is read was deleted
                if error.details.get("stream_id") != kept.stream_id:
                    raise
        request = OffsetsStreamRequest(timeout_ms=milliseconds(timeout_s))
        answer, _ = await self.link.call(
            request, OffsetsStreamResponse, timeout_s=seconds_of(timeout_s) + CREATE_GRACE_S
        )
        self._kept = answer.stream
        return await call(answer.stream)


def check_group(group: str) -> None:
    """ValueError: it cannot name a group."""
    if (mistake := group_mistake(group)) is not None:
        raise ValueError(mistake)


def mark_of(committed: CommittedOffset) -> Mark:
    """The place that was committed."""
    return Mark(committed.offset, committed.leader_epoch)


def start_of(info: StreamInfo, number: int, committed: Mapping[int, CommittedOffset], start: Start) -> Start:
    """Where a group begins in a partition in which it has never been; `start`: where it is to, if all is new to it.

    Where a group begins it says so of all partitions. So one of which it has not said so was added since, and is read
    from its beginning: what is there came after what the group has read.
    """
    was_added = bool(info.counts) and number >= info.counts[0]
    return "earliest" if was_added and committed else start


def _place(kept: StreamInfo, group: str) -> PartitionId:
    return PartitionId(keyhash.partition_of(group.encode(), len(kept.partitions)))
