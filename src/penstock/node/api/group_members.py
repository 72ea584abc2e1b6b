"""Consumer groups with members, of one partition of `__offsets`, whose leader is their coordinator.

Rules: a generation is written and committed before a member learns of it (`penstock.groups.membership`); one is written
at a time. There are no timers: a member that was silent for its session is removed when a request concerns its group. A
group without members has no row. Groups in use count for the user of their first member, who may have its share of
GROUPS_IN_USE_MAX (`FairShares`). After a change of coordinator a session begins when the new one first loads the group:
the old one may have had heartbeats until then.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.fair_shares import FairShares
from penstock.base.ids import LeaderEpoch, PartitionId, StreamId, TimestampUs
from penstock.groups.membership import (
    Generation,
    GroupMembership,
    MemberHeartbeat,
    StreamPartition,
    in_use,
    unknown_member,
)
from penstock.groups.offsets import CommittedOffsets
from penstock.groups.rows import encode_generation, encode_generation_key
from penstock.messages import (
    AppendResponse,
    CommitOffsetsRequest,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    GroupMember,
    GroupPartition,
    Response,
)
from penstock.node.security.access import NO_ORIGIN, ClientOrigin

Rows = list[tuple[bytes, bytes | None]]
Write = Callable[[Rows, Callable[[Response | RemoteError], None]], None]


class _Presence(NamedTuple):
    """Origin and age of a member, as this coordinator has heard them, for people: they are in no log."""

    origin: ClientOrigin
    by: str  # user of its last heartbeat
    joined_us: int | None  # wall time; None: it joined at an earlier coordinator


_UNHEARD = _Presence(NO_ORIGIN, "", None)


class _Group:
    def __init__(self, membership: GroupMembership) -> None:
        self.membership = membership
        self.is_writing = False
        self._heard: dict[str, _Presence] = {}

    def hear(self, request: GroupHeartbeatRequest, origin: ClientOrigin, by: str, wall_us: int) -> None:
        """Note from where a member's heartbeat came, and of which user."""
        joined_us = wall_us if request.number == 1 else self.heard(request.member_id).joined_us
        self._heard[request.member_id] = _Presence(origin, by, joined_us)
        if len(self._heard) > len(self.membership.members):
            self._heard = {one: told for one, told in self._heard.items() if one in self.membership.members}

    def heard(self, member_id: str) -> _Presence:
        return self._heard.get(member_id, _UNHEARD)


class GroupMembers:
    """The groups of one leadership.

    `write` appends rows; `partitions_of` returns the partition count of a stream, 0 if it does not exist; `readable`
    returns how many of them a group may read: the others wait until it has read what came before in older partitions.
    """

    def __init__(
        self,
        offsets: CommittedOffsets,
        leader_epoch: LeaderEpoch,
        write: Write,
        partitions_of: Callable[[int], int],
        readable: Callable[[str, int], int],
    ) -> None:
        self._offsets = offsets
        self._leader_epoch = leader_epoch
        self._write = write
        self._partitions_of = partitions_of
        self._readable = readable
        self._groups: dict[str, _Group] = {}

    def heartbeat(
        self,
        request: GroupHeartbeatRequest,
        now: Now,
        by: str = "",
        sharer: str = "",
        origin: ClientOrigin = NO_ORIGIN,
    ) -> GroupHeartbeatResponse:
        """Handle a member's heartbeat, or its leaving. `by`: the member's user; `sharer`: the user that a new group
        counts for (`FairShares`).

        RemoteError unknown_member, too_large.
        """
        now_us = now.elapsed_us
        group = self._load(request.group, now_us)
        if group is None:
            if request.is_leaving or request.number != 1:
                raise unknown_member(request.member_id)
            self._check_room(now_us, sharer)
            group = self._groups[request.group] = _Group(GroupMembership(Generation(0), self._leader_epoch, now_us))
        membership = group.membership
        if request.is_leaving:
            membership.left(request.member_id, by)
        else:
            streams = frozenset(int(one) for one in request.stream_ids)
            count = sum(map(self._partitions_of, streams | membership.streams))
            is_more = request.member_id not in membership.members or not streams <= membership.streams
            if is_more and count > limits.GROUP_PARTITIONS_MAX:
                text = f"the streams of the group have {count} partitions; the limit is {limits.GROUP_PARTITIONS_MAX}"
                raise RemoteError(ErrorCode.TOO_LARGE, text)
            owned = frozenset(StreamPartition(int(one.stream_id), int(one.partition)) for one in request.owned)
            asked = (request.session_ms, request.leader_epoch, by)
            membership.heartbeat(MemberHeartbeat(request.member_id, request.number, streams, owned, *asked), now_us)
            group.hear(request, origin, by, now.wall_us)
        self._write_next_generation(request.group, group)
        if request.is_leaving:
            return self._answer(membership.generation.number, (), is_settled=True)
        partitions = self._partitions(request.group, membership)
        is_whole = all(count == self._partitions_of(stream_id) for stream_id, count in partitions.items())
        told = membership.answer_for(request.member_id, partitions)
        assigned = tuple(GroupPartition(StreamId(one.stream_id), PartitionId(one.partition)) for one in told.assigned)
        return self._answer(told.generation, assigned, is_settled=told.is_settled and is_whole)

    def _answer(
        self, generation: int, assigned: tuple[GroupPartition, ...], *, is_settled: bool
    ) -> GroupHeartbeatResponse:
        return GroupHeartbeatResponse(
            generation=generation, leader_epoch=self._leader_epoch, assigned=assigned, is_settled=is_settled
        )

    def check_commit(self, request: CommitOffsetsRequest, now_us: int, by: str = "") -> None:
        """Raise RemoteError unknown_member, fenced_generation or group_in_use if the commit is not allowed."""
        group = self._load(request.group, now_us)
        if request.member_id is None:
            streams = {int(one.stream_id) for one in request.offsets}
            if group is not None and (readers := group.membership.readers(streams)):
                raise in_use(request.group, len(readers))
            return
        if group is None:
            raise unknown_member(request.member_id)
        group.membership.check_own(request.member_id, by)
        parts = [StreamPartition(int(one.stream_id), int(one.partition)) for one in request.offsets if not one.is_begin]
        group.membership.check_commit(request.member_id, request.generation, parts)

    def having(self, name: str, stream_id: int, now_us: int, by: str | None = None) -> tuple[GroupMember, ...]:
        """Return the members of a group that read a stream, each with its assigned partitions of it.

        `by`: only members of this user are returned with name and address of their client; None: all are.
        """
        group = self._load(name, now_us)
        if group is None:
            return ()
        granted = group.membership.generation.members
        found = []
        for member_id in group.membership.readers([stream_id]):
            told = group.heard(member_id)
            origin = told.origin if by in (None, told.by) else NO_ORIGIN
            grants = granted[member_id].grants if member_id in granted else ()
            found.append(
                GroupMember(
                    member_id=member_id,
                    partitions=tuple(PartitionId(one.partition) for one in grants if one.stream_id == stream_id),
                    client_name=origin.name,
                    address=origin.address,
                    joined_us=None if told.joined_us is None else TimestampUs(told.joined_us),
                )
            )
        return tuple(found)

    def count(self, name: str, stream_id: int, now_us: int) -> int:
        """Return how many members of a group read a stream."""
        group = self._load(name, now_us)
        return 0 if group is None else len(group.membership.readers([stream_id]))

    def _load(self, name: str, now_us: int) -> _Group | None:
        group = self._groups.get(name)
        if group is None:
            generation = self._offsets.generations.get(name)
            if generation is None:
                return None
            group = self._groups[name] = _Group(GroupMembership(generation, self._leader_epoch, now_us))
        group.membership.expire(now_us)
        return group

    def _check_room(self, now_us: int, sharer: str) -> None:
        """Raise RemoteError too_large if there is no room for another group; remove groups without members first."""
        if self._shares().fits(sharer, 1, limits.GROUPS_IN_USE_MAX):
            return
        for name in sorted(self._groups.keys() | self._offsets.generations.keys()):
            group = self._load(name, now_us)
            if group is not None and not group.membership.members:
                self._write_next_generation(name, group)
        if not (shares := self._shares()).fits(sharer, 1, limits.GROUPS_IN_USE_MAX):
            text = f"of groups with members in one partition {shares.refused(sharer, limits.GROUPS_IN_USE_MAX)}"
            raise RemoteError(ErrorCode.TOO_LARGE, f"{text}; try again, or take a group of another name")

    def _shares(self) -> FairShares:
        """Count the groups in use by the user of their first member."""
        loaded = ((group.membership.owner, 1) for group in self._groups.values())
        others = (
            (next((member.by for member in one.members.values()), ""), 1)
            for name, one in self._offsets.generations.items()
            if name not in self._groups
        )
        return FairShares(chain(loaded, others))

    def _partitions(self, name: str, membership: GroupMembership) -> dict[int, int]:
        return {stream_id: self._readable(name, stream_id) for stream_id in membership.streams}

    def _write_next_generation(self, name: str, group: _Group) -> None:
        """Write the next generation if one is due and none is being written."""
        membership = group.membership
        if group.is_writing:
            return
        generation = membership.next_generation(self._partitions(name, membership))
        if generation is None:
            if not membership.members:
                self._groups.pop(name, None)
            return

        def written(response: Response | RemoteError) -> None:
            group.is_writing = False
            if isinstance(response, AppendResponse):  # otherwise retried with the next heartbeat
                membership.wrote(generation)
                if not (generation.members or membership.members):
                    self._groups.pop(name, None)

        group.is_writing = True
        membership.writes(generation)
        value = encode_generation(generation) if generation.members else None
        self._write([(encode_generation_key(name), value)], written)
