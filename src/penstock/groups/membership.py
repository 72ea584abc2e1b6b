"""Who is in a group, and which member has which partition: decided by its coordinator, heartbeat by heartbeat.

Rules: a generation is what the members have been granted. It is written to the log before any of it is told, and only
what is committed is told, so the next coordinator knows what every member may believe. A partition that a member was
granted goes to another one only when that member has said that it does not have it, or is gone. A member is gone when
it says so, or has not been heard of for its session; it comes back as another member, with another id. What a member
commits counts only for partitions that it was granted, no later than the generation it names. A member is that of the
user who made it: for everybody else there is none with its id. It is nothing to those who read other streams, too: they
may be anybody's who has chosen the same name for a group.

Theory: two sets make a partition change hands without two members having it. `granted` is what a member may have; it
is in the log. The target is what it should have; it follows from who is there. A member is told what is in both. So
one that is to give something back is told so first, and keeps the grant until a later heartbeat does not list it.

    A has p ─▶ target: B ─▶ A is told without p ─▶ A reports without p ─▶ B is granted p (in the log) ─▶ B is told p

A new coordinator does not know what the one before has told, and may tell until it knows that it leads no more. So it
takes everything that was granted for told, until the member names it as the one whose answer it heard last; and the
sessions of who was a member begin when the one before says nothing any more.

The target is balanced for each stream, to one, and moves no partition that need not move. It is the idea of Kafka's
KIP-848, with one request, the heartbeat, for all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError


class Part(NamedTuple):
    """A partition of a stream."""

    stream_id: int
    partition: int


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """A partition that a member may have, and since which generation."""

    stream_id: int
    partition: int
    since: int


class Granted(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a member may have, and how long it may be silent."""

    session_ms: int
    grants: tuple[Grant, ...]
    by: str = ""  # whose it is; empty: nobody had to log in, or it was granted before that was written


class Generation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the members of a group are granted: a row of the log."""

    number: int
    members: dict[str, Granted] = msgspec.field(default_factory=dict)


class Beat(NamedTuple):
    """One heartbeat. `number` rises with each of a member, from 1: the first one joins.

    `leader_epoch` is that of the coordinator whose answer the member heard last; 0: of none. `by`: who sends it.
    """

    member_id: str
    number: int
    streams: frozenset[int]
    owned: frozenset[Part]
    session_ms: int
    leader_epoch: int
    by: str = ""


class Told(NamedTuple):
    """What a member hears. `is_settled`: it has all that it should have, as things are."""

    generation: int
    assigned: tuple[Part, ...]
    is_settled: bool


class _Member:
    def __init__(self, session_ms: int, now_us: int, granted: Iterable[Part] = (), by: str = "") -> None:
        self.by = by
        self.beat: Beat | None = None  # the last; None: this coordinator has heard none yet
        # Of what it is granted: what it said last, and what it was told since. Before this coordinator knows, all.
        self.may_have = set(granted)
        self.session_ms = session_ms
        self.deadline_us = now_us + session_ms * 1_000


_DEPOSED_US = limits.SESSION_MS * 1_000
"""How long a coordinator that leads no more may go on: it has not heard of its successor."""


class Membership:
    """One group, for its coordinator. Times are in µs, elapsed; `generation` is the last one that is committed.

    The next one is asked for, announced with `writes`, and, once it is committed, put in its place with `wrote`.
    """

    def __init__(self, generation: Generation, leader_epoch: int, now_us: int) -> None:
        """As the log has it; who was a member has a session from when the coordinator before, who may hear it still, is
        surely silent.
        """
        self.generation = generation
        self._leader_epoch = leader_epoch
        self._written: dict[str, frozenset[Part]] | None = None  # what remains to each in all that may come to be
        self._members = {
            one: _Member(granted.session_ms, now_us + _DEPOSED_US, self._granted(one), granted.by)
            for one, granted in generation.members.items()
        }
        # What follows from who is there is found once, and not with every heartbeat.
        self._target: dict[str, frozenset[Part]] = {}
        self._partitions: dict[int, int] | None = None  # of which it was found; None: it is to be found
        self._streams: frozenset[int] | None = None
        self._is_calm = False  # nothing is to be written

    @property
    def streams(self) -> frozenset[int]:
        """What its members read, or have."""
        if self._streams is None:
            self._streams = frozenset[int]().union(*map(self._read_by, self._members))
        return self._streams

    @property
    def members(self) -> frozenset[str]:
        """Who is in it, as far as is known now."""
        return frozenset(self._members)

    @property
    def owner(self) -> str:
        """The user of its first member, for whom the group counts; empty: of nobody, as with members."""
        return next((member.by for member in self._members.values()), "")

    def readers(self, stream_ids: Iterable[int]) -> list[str]:
        """Who of them reads one of these streams, or has something of it, sorted."""
        wanted = frozenset(stream_ids)
        return sorted(one for one in self._members if not wanted.isdisjoint(self._read_by(one)))

    def _read_by(self, member_id: str) -> set[int]:
        beat = self._members[member_id].beat
        streams = {part.stream_id for part in self._granted(member_id)}
        return streams if beat is None else streams | beat.streams

    def check_own(self, member_id: str, by: str) -> None:
        """RemoteError unknown_member: it is somebody else's. Empty: nobody has to log in."""
        member = self._members.get(member_id)
        if member is not None and by and member.by and member.by != by:
            raise unknown_member(member_id)

    def heard(self, beat: Beat, now_us: int) -> None:
        """A member has said that it is there. RemoteError unknown_member, too_large."""
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
            return  # it was late, on another connection, or comes twice
        if member.beat is None or (beat.streams, beat.session_ms) != (member.beat.streams, member.beat.session_ms):
            self._changed()
        if beat.by and not member.by:  # it was granted before anybody had to log in
            member.by = beat.by
            self._changed()
        member.beat = beat
        if beat.leader_epoch == self._leader_epoch:  # else it may have been sent before a coordinator told it more
            has = {part for part in self._granted(beat.member_id) if part in beat.owned}
            self._is_calm = self._is_calm and has == member.may_have
            member.may_have = has
        member.session_ms = beat.session_ms
        member.deadline_us = now_us + beat.session_ms * 1_000

    def left(self, member_id: str, by: str = "") -> None:
        """A member is gone, and has nothing any more. RemoteError unknown_member: that is not for him to say."""
        self.check_own(member_id, by)
        self._members.pop(member_id, None)
        self._changed()

    def expire(self, now_us: int) -> None:
        """Who was silent for its session is gone."""
        for member_id in [one for one, member in self._members.items() if member.deadline_us <= now_us]:
            del self._members[member_id]
            self._changed()

    def _changed(self) -> None:
        self._partitions = self._streams = None
        self._is_calm = False

    def next_generation(self, partitions: Mapping[int, int]) -> Generation | None:
        """What is to be written now; None: nothing. `partitions`: how many each stream has that is there."""
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
        # What was announced, and then not written, holds back what it takes away until another one is.
        self._is_calm = members == self.generation.members and self._written is None
        return None if self._is_calm else Generation(number, members)

    def writes(self, generation: Generation) -> None:
        """It is being written, and may come to be whatever is heard of it: what it takes away is told to nobody."""
        written = {one: _parts(granted) for one, granted in generation.members.items()}
        if self._written is not None:
            before = self._written
            written = {one: parts & before.get(one, frozenset()) for one, parts in written.items()}
        self._written = written
        self._is_calm = False

    def wrote(self, generation: Generation) -> None:
        """It is committed, and so counts, whatever came before."""
        self.generation = generation
        self._written = None
        self._changed()

    def _kept(self, member_id: str) -> dict[Part, int]:
        """What a member was granted and has not given back."""
        member, target = self._members[member_id], self._target[member_id]
        return {
            part: since for part, since in self._granted(member_id).items() if part in target or part in member.may_have
        }

    def _granted(self, member_id: str) -> dict[Part, int]:
        granted = self.generation.members.get(member_id)
        return {} if granted is None else {Part(one.stream_id, one.partition): one.since for one in granted.grants}

    def _look(self, partitions: Mapping[int, int]) -> None:
        """Find the target, if something has changed."""
        if partitions == self._partitions:
            return
        self._is_calm = False
        self._partitions = dict(partitions)
        granted = {member_id: set(self._granted(member_id)) for member_id in self._members}
        target: dict[str, set[Part]] = {member_id: set() for member_id in sorted(self._members)}
        wanted: dict[int, list[str]] = {}
        for member_id in target:
            beat = self._members[member_id].beat
            # Of whom nothing was heard yet it is not known what it reads: it keeps what it has.
            streams = {part.stream_id for part in granted[member_id]} if beat is None else beat.streams
            for stream_id in streams:
                wanted.setdefault(stream_id, []).append(member_id)
        for stream_id in sorted(wanted):
            _share(stream_id, partitions.get(stream_id, 0), wanted[stream_id], granted, target)
        self._target = {member_id: frozenset(parts) for member_id, parts in target.items()}

    def told(self, member_id: str, partitions: Mapping[int, int]) -> Told:
        """What a member may have now. RemoteError unknown_member."""
        if member_id not in self._members:
            raise unknown_member(member_id)
        self._look(partitions)
        granted, target = self._granted(member_id), self._target[member_id]
        left = granted.keys() if self._written is None else self._written.get(member_id, frozenset())
        assigned = tuple(sorted(part for part in granted if part in target and part in left))
        self._members[member_id].may_have.update(assigned)
        is_settled = member_id in self.generation.members and len(assigned) == len(granted) == len(target)
        return Told(self.generation.number, assigned, is_settled)

    def check_commit(self, member_id: str, generation: int, parts: Iterable[Part]) -> None:
        """RemoteError unknown_member, fenced_generation: another member may have one of these by now."""
        if member_id not in self._members:
            raise unknown_member(member_id)
        granted = self._granted(member_id)
        for part in parts:
            since = granted.get(part)
            if since is None or generation < since:
                text = f"partition {part.partition} of stream {part.stream_id} is not with member {member_id!r}"
                raise RemoteError(ErrorCode.FENCED_GENERATION, f"{text} in generation {generation}: nothing committed")


def _parts(granted: Granted) -> frozenset[Part]:
    return frozenset(Part(one.stream_id, one.partition) for one in granted.grants)


def in_use(group: str, count: int) -> RemoteError:
    """So many of its members read that, and only they commit."""
    who = "1 member" if count == 1 else f"{count} members"
    text = f"group {group!r} has {who}: only they commit; stop them, or wait until they are gone"
    return RemoteError(ErrorCode.GROUP_IN_USE, text, members=count)


def unknown_member(member_id: str) -> RemoteError:
    """It was silent for its session, or never joined."""
    text = f"the group has no member {member_id!r}: it was silent for its session, or has left; join again as another"
    return RemoteError(ErrorCode.UNKNOWN_MEMBER, text)


def _share(
    stream_id: int, count: int, member_ids: list[str], granted: Mapping[str, set[Part]], target: dict[str, set[Part]]
) -> None:
    """Share the partitions of a stream: as many for each, to one, and none moves that need not."""
    parts = [Part(stream_id, number) for number in range(count)]
    least, more = divmod(count, len(member_ids))
    has = {member_id: [part for part in parts if part in granted[member_id]] for member_id in member_ids}
    # Those who have more keep more; beyond that, whoever has the least of other streams gets one more.
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
