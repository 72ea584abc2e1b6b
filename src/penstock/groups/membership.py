"""Consumer group membership and assignment, decided by the group's coordinator, heartbeat by heartbeat.

Rules: a generation is the set of grants of all members. It is written to the log before any of it is sent, and only
committed generations are sent, so the next coordinator knows what every member may believe. A granted partition goes to
another member only after its member has reported that it no longer has it, or has been removed. A member is removed
when it leaves or its session times out; it returns as another member with another id. A member's commit counts only for
partitions granted to it no later than the generation it names. A member belongs to the user who created it: for other
users no member has its id. It does not concern readers of other streams either: another user may have chosen the same
group name.

Theory: two sets move a partition between members so that two never have it. `granted` is what a member may have; it is
in the log. The target is what it should have, computed from the members. A member is sent the intersection. So a member
that is to give up a partition learns that first, and keeps the grant until a later heartbeat does not list it.

    A has p ─▶ target: B ─▶ A is sent without p ─▶ A reports without p ─▶ B is granted p (in the log) ─▶ B is sent p

A new coordinator does not know what its predecessor sent, and the predecessor may send until it learns that it was
deposed. So the new one assumes that all grants were sent, until the member names it as the coordinator that answered
last; and sessions of existing members begin when the predecessor is surely silent.

The target is balanced per stream, to within one partition, and moves no partition without need. It is the idea of
Kafka's KIP-848, with one request, the heartbeat, for all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError


class StreamPartition(NamedTuple):
    stream_id: int
    partition: int


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """A partition granted to a member, and since which generation."""

    stream_id: int
    partition: int
    since: int


class Granted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A member's grants and session time-out."""

    session_ms: int
    grants: tuple[Grant, ...]
    by: str = ""  # user of the member; empty if authentication was off, or in rows of an older version


class Generation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The grants of all members of a group: a row of the log."""

    number: int
    members: dict[str, Granted] = msgspec.field(default_factory=dict)


class MemberHeartbeat(NamedTuple):
    """One heartbeat. `number` rises with each one of a member, from 1, which joins.

    `leader_epoch` is that of the coordinator that answered the member last; 0 for none. `by`: the user.
    """

    member_id: str
    number: int
    streams: frozenset[int]
    owned: frozenset[StreamPartition]
    session_ms: int
    leader_epoch: int
    by: str = ""


class HeartbeatAnswer(NamedTuple):
    """The answer to a member. `is_settled`: True if it has all that it should have for now."""

    generation: int
    assigned: tuple[StreamPartition, ...]
    is_settled: bool


class _Member:
    def __init__(self, session_ms: int, now_us: int, granted: Iterable[StreamPartition] = (), by: str = "") -> None:
        self.by = by
        self.beat: MemberHeartbeat | None = None  # last heartbeat; None before the first to this coordinator
        # Granted partitions reported last or sent since. All of them before this coordinator has a report.
        self.may_have = set(granted)
        self.session_ms = session_ms
        self.deadline_us = now_us + session_ms * 1_000


_DEPOSED_US = limits.SESSION_MS * 1_000
"""The time for which a deposed coordinator may go on before it learns of its successor (µs)."""


class GroupMembership:
    """One group, at its coordinator. Times are elapsed µs; `generation` is the last committed one.

    The caller gets the next one from `next_generation`, announces it with `writes`, and installs it with `wrote` once
    it is committed.
    """

    def __init__(self, generation: Generation, leader_epoch: int, now_us: int) -> None:
        """Start from the log. Sessions of existing members begin when the previous coordinator is surely silent."""
        self.generation = generation
        self._leader_epoch = leader_epoch
        self._written: dict[str, frozenset[StreamPartition]] | None = (
            None  # grants that every possibly written generation leaves
        )
        self._members = {
            one: _Member(granted.session_ms, now_us + _DEPOSED_US, self._granted(one), granted.by)
            for one, granted in generation.members.items()
        }
        # Computed once per change, not with every heartbeat.
        self._target: dict[str, frozenset[StreamPartition]] = {}
        self._partitions: dict[int, int] | None = None  # partition counts of the target; None: compute it again
        self._streams: frozenset[int] | None = None
        self._is_calm = False  # there is nothing to write

    @property
    def streams(self) -> frozenset[int]:
        """Streams that the members read or have grants of."""
        if self._streams is None:
            self._streams = frozenset[int]().union(*map(self._read_by, self._members))
        return self._streams

    @property
    def members(self) -> frozenset[str]:
        """Ids of the present members."""
        return frozenset(self._members)

    @property
    def owner(self) -> str:
        """User of the first member, whose share the group counts against; empty if none."""
        return next((member.by for member in self._members.values()), "")

    def readers(self, stream_ids: Iterable[int]) -> list[str]:
        """Return the members that read one of these streams, or have grants of it, sorted."""
        wanted = frozenset(stream_ids)
        return sorted(one for one in self._members if not wanted.isdisjoint(self._read_by(one)))

    def _read_by(self, member_id: str) -> set[int]:
        beat = self._members[member_id].beat
        streams = {part.stream_id for part in self._granted(member_id)}
        return streams if beat is None else streams | beat.streams

    def check_own(self, member_id: str, by: str) -> None:
        """Raise RemoteError (unknown_member) if it belongs to another user. `by` is empty if authentication is off."""
        member = self._members.get(member_id)
        if member is not None and by and member.by and member.by != by:
            raise unknown_member(member_id)

    def heartbeat(self, beat: MemberHeartbeat, now_us: int) -> None:
        """Handle a heartbeat. Raise RemoteError: unknown_member, too_large."""
        self.check_own(beat.member_id, beat.by)
        member = self._members.get(beat.member_id)
        if member is None:
            if beat.number != 1:
                raise unknown_member(beat.member_id)
            if len(self._members) >= limits.GROUP_MEMBERS_MAX:
                text = f"the group has {limits.GROUP_MEMBERS_MAX} members already"
                raise RemoteError(ErrorCode.TOO_LARGE, text)
            member = self._members[beat.member_id] = _Member(beat.session_ms, now_us, by=beat.by)
        if member.beat is not None and beat.number <= member.beat.number:
            return  # late, or a duplicate
        if member.beat is None or (beat.streams, beat.session_ms) != (member.beat.streams, member.beat.session_ms):
            self._changed()
        if beat.by and not member.by:  # it was granted while authentication was off
            member.by = beat.by
            self._changed()
        member.beat = beat
        if beat.leader_epoch == self._leader_epoch:  # otherwise it may precede a coordinator's last answer
            has = {part for part in self._granted(beat.member_id) if part in beat.owned}
            self._is_calm = self._is_calm and has == member.may_have
            member.may_have = has
        member.session_ms = beat.session_ms
        member.deadline_us = now_us + beat.session_ms * 1_000

    def left(self, member_id: str, by: str = "") -> None:
        """Remove a member that leaves. Raise RemoteError (unknown_member) if it belongs to another user."""
        self.check_own(member_id, by)
        self._members.pop(member_id, None)
        self._changed()

    def expire(self, now_us: int) -> None:
        """Remove members whose session has timed out."""
        for member_id in [one for one, member in self._members.items() if member.deadline_us <= now_us]:
            del self._members[member_id]
            self._changed()

    def _changed(self) -> None:
        self._partitions = self._streams = None
        self._is_calm = False

    def next_generation(self, partitions: Mapping[int, int]) -> Generation | None:
        """Return the generation to write; None if it is unchanged. `partitions`: the number per existing stream."""
        self._look(partitions)
        if self._is_calm:
            return None
        kept = {member_id: self._kept(member_id) for member_id in sorted(self._members)}
        taken = {part for parts in kept.values() for part in parts}
        number = self.generation.number + 1
        members: dict[str, Granted] = {}
        for member_id, parts in kept.items():
            wanted = {part: number for part in self._target[member_id] if part not in taken}
            grants = sorted({**parts, **wanted}.items())
            member = self._members[member_id]
            members[member_id] = Granted(member.session_ms, tuple(Grant(*p, since) for p, since in grants), member.by)
        # A generation announced but not written blocks what it revokes, until another one is written.
        self._is_calm = members == self.generation.members and self._written is None
        return None if self._is_calm else Generation(number, members)

    def writes(self, generation: Generation) -> None:
        """Note that `generation` is being written and may be committed: what it revokes is no longer sent."""
        written = {one: _parts(granted) for one, granted in generation.members.items()}
        if self._written is not None:
            before = self._written
            written = {one: parts & before.get(one, frozenset()) for one, parts in written.items()}
        self._written = written
        self._is_calm = False

    def wrote(self, generation: Generation) -> None:
        """Install a committed generation."""
        self.generation = generation
        self._written = None
        self._changed()

    def _kept(self, member_id: str) -> dict[StreamPartition, int]:
        """Return grants of a member that it has not given up."""
        member, target = self._members[member_id], self._target[member_id]
        return {
            part: since for part, since in self._granted(member_id).items() if part in target or part in member.may_have
        }

    def _granted(self, member_id: str) -> dict[StreamPartition, int]:
        granted = self.generation.members.get(member_id)
        return (
            {}
            if granted is None
            else {StreamPartition(one.stream_id, one.partition): one.since for one in granted.grants}
        )

    def _look(self, partitions: Mapping[int, int]) -> None:
        """Compute the target assignment, if anything has changed."""
        if partitions == self._partitions:
            return
        self._is_calm = False
        self._partitions = dict(partitions)
        granted = {member_id: set(self._granted(member_id)) for member_id in self._members}
        target: dict[str, set[StreamPartition]] = {member_id: set() for member_id in sorted(self._members)}
        wanted: dict[int, list[str]] = {}
        for member_id in target:
            beat = self._members[member_id].beat
            # The streams of a member without a heartbeat are unknown: it keeps its grants.
            streams = {part.stream_id for part in granted[member_id]} if beat is None else beat.streams
            for stream_id in streams:
                wanted.setdefault(stream_id, []).append(member_id)
        for stream_id in sorted(wanted):
            _share(stream_id, partitions.get(stream_id, 0), wanted[stream_id], granted, target)
        self._target = {member_id: frozenset(parts) for member_id, parts in target.items()}

    def answer_for(self, member_id: str, partitions: Mapping[int, int]) -> HeartbeatAnswer:
        """Return the assignment to send to a member. Raise RemoteError (unknown_member)."""
        if member_id not in self._members:
            raise unknown_member(member_id)
        self._look(partitions)
        granted, target = self._granted(member_id), self._target[member_id]
        left = granted.keys() if self._written is None else self._written.get(member_id, frozenset())
        assigned = tuple(sorted(part for part in granted if part in target and part in left))
        self._members[member_id].may_have.update(assigned)
        is_settled = member_id in self.generation.members and len(assigned) == len(granted) == len(target)
        return HeartbeatAnswer(self.generation.number, assigned, is_settled)

    def check_commit(self, member_id: str, generation: int, parts: Iterable[StreamPartition]) -> None:
        """Raise RemoteError: unknown_member, or fenced_generation if another member may have a partition by now."""
        if member_id not in self._members:
            raise unknown_member(member_id)
        granted = self._granted(member_id)
        for part in parts:
            since = granted.get(part)
            if since is None or generation < since:
                text = f"partition {part.partition} of stream {part.stream_id} is not assigned to {member_id!r}"
                raise RemoteError(ErrorCode.FENCED_GENERATION, f"{text} in generation {generation}: nothing committed")


def _parts(granted: Granted) -> frozenset[StreamPartition]:
    return frozenset(StreamPartition(one.stream_id, one.partition) for one in granted.grants)


def in_use(group: str, count: int) -> RemoteError:
    """Return the error for a commit from outside a group with `count` members."""
    who = "1 member" if count == 1 else f"{count} members"
    text = f"group {group!r} has {who}: only they commit; stop them, or wait until they are gone"
    return RemoteError(ErrorCode.GROUP_IN_USE, text, members=count)


def unknown_member(member_id: str) -> RemoteError:
    """Return the error for a member that timed out or never joined."""
    text = f"the group has no member {member_id!r}: it was silent for its session, or has left; join again as another"
    return RemoteError(ErrorCode.UNKNOWN_MEMBER, text)


def _share(
    stream_id: int,
    count: int,
    member_ids: list[str],
    granted: Mapping[str, set[StreamPartition]],
    target: dict[str, set[StreamPartition]],
) -> None:
    """Balance a stream's partitions to within one, with the fewest moves."""
    parts = [StreamPartition(stream_id, number) for number in range(count)]
    least, more = divmod(count, len(member_ids))
    has = {member_id: [part for part in parts if part in granted[member_id]] for member_id in member_ids}
    # Members with more keep more; of the rest, those with the fewest partitions of other streams get one more.
    order = sorted(member_ids, key=lambda one: (-min(len(has[one]), least + 1), len(target[one]), one))
    quota = {member_id: least + (place < more) for place, member_id in enumerate(order)}
    free = set(parts)
    for member_id in order:
        kept = [part for part in has[member_id] if part in free][: quota[member_id]]
        target[member_id].update(kept)
        quota[member_id] -= len(kept)
        free.difference_update(kept)
    left = iter(sorted(free))
    for member_id in order:
        for _ in range(quota[member_id]):
            target[member_id].add(next(left))
