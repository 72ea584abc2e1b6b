"""Consumer groups: list them, read their committed offsets and lag, commit, reset and delete offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from penstock.base.ids import Offset, PartitionId, StreamId
from penstock.client.checks import place_of, whole_numbers
from penstock.client.consume.positions import GroupPositions, check_group
from penstock.client.consume.progress import ReadMark
from penstock.client.errors import specific
from penstock.client.read.reading import find_place, partition_number, partition_numbers
from penstock.client.values import EARLIEST, Start, StreamName, datetime_of
from penstock.groups.membership import in_use
from penstock.messages import CommittedOffset, GroupStream, ListOffsetsResponse, StreamInfo


class Group(NamedTuple):
    """A consumer group with committed offsets in a stream."""

    group: str
    stream: str | None  # None: the stream was deleted, and its offsets will be deleted soon
    stream_id: int
    partitions: int  # number of partitions with committed offsets
    members: int  # consumers that share them now, according to their coordinator


class GroupOffset(NamedTuple):
    """A group's committed offset in a partition, and the partition's range."""

    partition: int
    offset: int | None  # of the next message; None: nothing is committed
    committed: datetime | None
    log_start: int
    committed_end: int
    member: str | None = None  # the consumer to which it is assigned; None: none known to the coordinator

    @property
    def lag(self) -> int:
        """Consumer lag: offsets from the committed offset to `committed_end`; without an offset from `log_start`."""
        return max(0, self.committed_end - max(self.log_start, self.offset or 0))


class Groups:
    """`client.groups`: consumer groups and their committed offsets."""

    def __init__(self, positions: GroupPositions) -> None:
        self._positions = positions

    async def all(self, *, timeout: float = 10.0) -> list[Group]:
        """Return all groups and the streams in which they have committed offsets, in order."""
        found = await self._positions.all(timeout)
        infos = await self._positions.streams.all(timeout) if found else []
        names = {info.stream_id: info.name for info in infos}
        return sorted(_named(found, names), key=lambda one: (one.group, one.stream or "", one.stream_id))

    async def offsets(self, group: str, stream: StreamName, *, timeout: float = 10.0) -> list[GroupOffset]:
        """Return the group's committed offset and lag in each partition of a stream. StreamNotFound."""
        check_group(group)
        info = await self._positions.streams.now(stream, timeout)
        found = await self._positions.read(group, info.stream_id, timeout)
        ends = await self._places(info, partition_numbers(info, None), EARLIEST, timeout)
        members = found.members
        return [
            _group_offset(number, found.offsets.get(number), end)._replace(member=members.get(number))
            for number, end in ends.items()
        ]

    async def commit(
        self, group: str, stream: StreamName, offsets: Mapping[int, int], *, timeout: float = 10.0
    ) -> None:
        """Commit offsets for a group in some partitions, all or none: by partition, the offset of the next message.

        Meant for programs that keep their positions elsewhere and want them visible here. StreamNotFound, GroupInUse
        (the group has members).
        """
        check_group(group)
        info = await self._positions.streams.now(stream, timeout)
        epochs = {int(one.partition): one.leader_epoch for one in info.partitions}
        marks: dict[int, ReadMark | None] = {
            partition_number(info, number): ReadMark(Offset(offset), epochs[number])
            for number, offset in whole_numbers(offsets).items()
        }
        await self._positions.commit(group, info.stream_id, marks, timeout)

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
        info = await self._positions.streams.now(stream, timeout)
        to = place_of(to)
        places = await self._places(info, partition_numbers(info, partition, to), to, timeout)
        if dry_run:
            if count := (await self._positions.read(group, info.stream_id, timeout)).members_count:
                raise specific(in_use(group, count))
        else:
            marks: dict[int, ReadMark | None] = {
                number: ReadMark(at.offset, at.leader_epoch) for number, at in places.items()
            }
            await self._positions.commit(group, info.stream_id, marks, timeout)
        return [GroupOffset(number, at.offset, None, at.log_start, at.committed_end) for number, at in places.items()]

    async def delete(self, group: str, stream: StreamName | None = None, *, timeout: float = 10.0) -> list[Group]:
        """Delete a group's committed offsets, in a stream or in all; return the groups. GroupInUse: it has members."""
        check_group(group)
        wanted = None if stream is None else (await self._positions.streams.now(stream, timeout)).stream_id
        gone = []
        for one in await self._positions.all(timeout):
            if one.group == group and wanted in (None, one.stream_id):
                found = (await self._positions.read(group, one.stream_id, timeout)).offsets
                if found:
                    await self._positions.commit(group, one.stream_id, dict.fromkeys(found), timeout)
                gone.append(one)
        names = {info.stream_id: info.name for info in await self._positions.streams.all(timeout)} if gone else {}
        return _named(gone, names)

    async def _places(
        self, info: StreamInfo, numbers: list[PartitionId], place: Start, timeout_s: float
    ) -> dict[int, ListOffsetsResponse]:
        link = self._positions.link
        found = await asyncio.gather(*(find_place(link, info.stream_id, one, place, timeout_s) for one in numbers))
        return {int(number): one for number, one in zip(numbers, found, strict=True)}


def _named(found: Iterable[GroupStream], names: Mapping[StreamId, str]) -> list[Group]:
    return [
        Group(one.group, names.get(one.stream_id), int(one.stream_id), one.partitions, one.members) for one in found
    ]


def _group_offset(number: int, found: CommittedOffset | None, end: ListOffsetsResponse) -> GroupOffset:
    if found is None:
        return GroupOffset(number, None, None, end.log_start, end.committed_end)
    moment = None if found.committed_us is None else datetime_of(found.committed_us)
    return GroupOffset(number, found.offset, moment, end.log_start, end.committed_end)
