"""Consumer groups: list them, read their committed offsets and lag, commit, reset and delete offsets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from penstock.base.errors import PenstockError
from penstock.base.ids import Offset, PartitionId, StreamId
from penstock.client.checks import fixed_place_of, whole_numbers
from penstock.client.consume.positions import GroupPositions, check_group
from penstock.client.consume.progress import ReadMark
from penstock.client.errors import specific
from penstock.client.read.reading import find_place, partition_number, partition_numbers
from penstock.client.values import Start, StreamName, datetime_of
from penstock.groups.membership import in_use
from penstock.messages import CommittedOffset, GroupStream, ListOffsetsRequest, ListOffsetsResponse, StreamInfo


class Group(NamedTuple):
    """A consumer group with committed offsets in a stream."""

    group: str
    stream: str | None  # None: the stream was deleted, and its offsets will be deleted soon
    stream_id: int
    partitions: int  # number of partitions with committed offsets
    members: int  # consumers that share them now, according to their coordinator
    lag: int | None = None  # of all partitions together; None: not asked for, or some leader did not answer


class GroupOffset(NamedTuple):
    """A group's committed offset in a partition, and the partition's range."""

    partition: int
    offset: int | None  # of the next message; None: nothing is committed
    committed: datetime | None
    log_start: int
    committed_end: int
    member: str | None = None  # the consumer to which it is assigned; None: none known to the coordinator
    # Consumer lag: messages from `offset` to `committed_end`, without an offset from `log_start`; of an earlier broker
    # the offsets, deleted messages included.
    lag: int = 0


class GroupConsumer(NamedTuple):
    """A member of a consumer group: a consumer that shares a stream's partitions with the others."""

    member: str  # the id of `GroupOffset.member`
    client_name: (
        str  # `connect(name=…)`; "": its coordinator does not know, as after a failover, or is an earlier version
    )
    address: str  # HOST:PORT of its client; "": as above; both "" if it is another user's and you may not monitor
    joined: datetime | None  # None: as above, or before its present coordinator
    partitions: tuple[int, ...]  # assigned to it


_READS_AT_ONCE = 32  # requests for the offsets of groups


class Groups:
    """`client.groups`: consumer groups and their committed offsets."""

    def __init__(self, positions: GroupPositions) -> None:
        self.positions = positions
        """Requests of members that read partitions by themselves: heartbeats, and offsets fetched and committed."""

    async def all(self, *, lag: bool = False, timeout: float = 10.0) -> list[Group]:
        """Return all groups and the streams in which they have committed offsets, in order.

        `lag`: with their lag, which costs a request for each of them, and one for each partition in which they lag.
        """
        found = await self.positions.all(timeout)
        infos = {info.stream_id: info for info in await self.positions.streams.all(timeout)} if found else {}
        groups = _named(found, {stream_id: info.name for stream_id, info in infos.items()})
        if lag:
            turns = asyncio.Semaphore(_READS_AT_ONCE)
            asked = (self._lagging(one, infos.get(StreamId(one.stream_id)), turns, timeout) for one in groups)
            groups = list(await asyncio.gather(*asked))
        return sorted(groups, key=lambda one: (one.group, one.stream or "", one.stream_id))

    async def _lagging(
        self, group: Group, info: StreamInfo | None, turns: asyncio.Semaphore, timeout_s: float
    ) -> Group:
        if info is None:
            return group
        async with turns:
            offsets = (await self.positions.read(group.group, info.stream_id, timeout_s)).offsets
            lag = 0
            for part in info.partitions:
                if part.log_start is None or part.committed_end is None:
                    return group
                found = offsets.get(int(part.partition))
                offset = _offset(found)
                left = part.committed_end - max(part.log_start, offset)
                if left > 0:
                    with contextlib.suppress(PenstockError):  # the user may not read the stream: count the offsets
                        left = _lag(await self._place(info, int(part.partition), offset, timeout_s), offset)
                    lag += left
        return group._replace(lag=lag)

    async def offsets(self, group: str, stream: StreamName, *, timeout: float = 10.0) -> list[GroupOffset]:
        """Return the group's committed offset and lag in each partition of a stream. StreamNotFound."""
        check_group(group)
        info = await self.positions.streams.now(stream, timeout)
        found = await self.positions.read(group, info.stream_id, timeout)
        begins = {int(number): found.offsets.get(int(number)) for number in partition_numbers(info, None)}
        asked = (self._place(info, number, _offset(one), timeout) for number, one in begins.items())
        ends = dict(zip(begins, await asyncio.gather(*asked), strict=True))
        owners = found.owners
        return [
            _group_offset(number, found.offsets.get(number), end)._replace(member=owners.get(number))
            for number, end in ends.items()
        ]

    async def members(self, group: str, stream: StreamName, *, timeout: float = 10.0) -> list[GroupConsumer]:
        """Return the group's members that read a stream, those that joined first first. StreamNotFound."""
        check_group(group)
        info = await self.positions.streams.now(stream, timeout)
        found = await self.positions.read(group, info.stream_id, timeout)
        members = sorted(found.members, key=lambda one: (one.joined_us or 0, one.member_id))
        return [
            GroupConsumer(
                one.member_id,
                one.client_name,
                one.address,
                None if one.joined_us is None else datetime_of(one.joined_us),
                tuple(map(int, one.partitions)),
            )
            for one in members
        ]

    async def commit(
        self, group: str, stream: StreamName, offsets: Mapping[int, int], *, timeout: float = 10.0
    ) -> None:
        """Commit offsets for a group in some partitions, all or none: by partition, the offset of the next message.

        Meant for programs that keep their positions elsewhere and want them visible here. StreamNotFound, GroupInUse
        (the group has members).
        """
        check_group(group)
        info = await self.positions.streams.now(stream, timeout)
        epochs = {int(one.partition): one.leader_epoch for one in info.partitions}
        marks: dict[int, ReadMark | None] = {
            partition_number(info, number): ReadMark(Offset(offset), epochs[number])
            for number, offset in whole_numbers(offsets).items()
        }
        await self.positions.commit(group, info.stream_id, marks, timeout)

    async def reset(
        self,
        group: str,
        stream: StreamName,
        to: Start,
        *,
        partition: int | None = None,
        dry_run: bool = False,
        timeout: float = 10.0,
    ) -> list[GroupOffset]:
        """Set a group's committed offsets to a position, in all partitions or in one. Stop its consumers first.

        Returns the new offsets. An offset requires `partition` if the stream has several. `dry_run`: only return the
        offsets. StreamNotFound, OffsetOutOfRange, GroupInUse (it has members; also with `dry_run`).
        """
        check_group(group)
        info = await self.positions.streams.now(stream, timeout)
        to = fixed_place_of(to)
        places = await self._places(info, partition_numbers(info, partition, to), to, timeout)
        if dry_run:
            if members := (await self.positions.read(group, info.stream_id, timeout)).members:
                raise specific(in_use(group, len(members)))
        else:
            marks: dict[int, ReadMark | None] = {
                number: ReadMark(at.offset, at.leader_epoch) for number, at in places.items()
            }
            await self.positions.commit(group, info.stream_id, marks, timeout)
        asked = (self._place(info, number, int(at.offset), timeout) for number, at in places.items())
        ends = await asyncio.gather(*asked)
        return [
            GroupOffset(number, at.offset, None, at.log_start, at.committed_end, lag=_lag(end, int(at.offset)))
            for (number, at), end in zip(places.items(), ends, strict=True)
        ]

    async def delete(self, group: str, stream: StreamName | None = None, *, timeout: float = 10.0) -> list[Group]:
        """Delete a group's committed offsets, in a stream or in all; return the groups. GroupInUse: it has members."""
        check_group(group)
        wanted = None if stream is None else (await self.positions.streams.now(stream, timeout)).stream_id
        gone = []
        for one in await self.positions.all(timeout):
            if one.group == group and wanted in (None, one.stream_id):
                found = (await self.positions.read(group, one.stream_id, timeout)).offsets
                if found:
                    await self.positions.commit(group, one.stream_id, dict.fromkeys(found), timeout)
                gone.append(one)
        names = {info.stream_id: info.name for info in await self.positions.streams.all(timeout)} if gone else {}
        return _named(gone, names)

    async def _places(
        self, info: StreamInfo, numbers: list[PartitionId], place: Start, timeout_s: float
    ) -> dict[int, ListOffsetsResponse]:
        link = self.positions.link
        found = await asyncio.gather(*(find_place(link, info.stream_id, one, place, timeout_s) for one in numbers))
        return {int(number): one for number, one in zip(numbers, found, strict=True)}

    async def _place(self, info: StreamInfo, number: int, offset: int, timeout_s: float) -> ListOffsetsResponse:
        """Return a partition's range, and the number of its messages from an offset on."""
        request = ListOffsetsRequest(
            stream_id=info.stream_id, partition=PartitionId(number), at="earliest", rows_from=Offset(offset)
        )
        return (await self.positions.link.call(request, ListOffsetsResponse, timeout_s=timeout_s))[0]


def _lag(found: ListOffsetsResponse, offset: int) -> int:
    """Return the number of messages from an offset on; of an earlier broker the number of offsets."""
    return max(0, found.committed_end - max(found.log_start, offset)) if found.rows is None else found.rows


def _offset(found: CommittedOffset | None) -> int:
    return 0 if found is None else int(found.offset)


def _named(found: Iterable[GroupStream], names: Mapping[StreamId, str]) -> list[Group]:
    return [
        Group(one.group, names.get(one.stream_id), int(one.stream_id), one.partitions, one.members) for one in found
    ]


def _group_offset(number: int, found: CommittedOffset | None, end: ListOffsetsResponse) -> GroupOffset:
    if found is None:
        return GroupOffset(number, None, None, end.log_start, end.committed_end, lag=_lag(end, 0))
    moment = None if found.committed_us is None else datetime_of(found.committed_us)
    lag = _lag(end, int(found.offset))
    return GroupOffset(number, found.offset, moment, end.log_start, end.committed_end, lag=lag)
