"""Members of a group through joins, crashes, lost answers, late heartbeats and failovers of their coordinator.

Whatever happens: no two members that are not taken for gone have one partition; what a member commits counts only while
it has the partition; and when all is calm, all partitions are shared, each with one member, evenly.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.groups.membership import Generation, GroupMembership, HeartbeatAnswer, MemberHeartbeat, StreamPartition
from penstock.groups.rows import decode_generation, encode_generation
from tests.extent import examples

STREAM = 7
SESSION_MS = 1_000
SESSION_US = SESSION_MS * 1_000


class Consumer:
    """A member as a client keeps to the rules: one heartbeat at a time, and it believes nothing that came late."""

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.number = 0
        self.owned: frozenset[StreamPartition] = frozenset()
        self.generation = 0
        self.heard_us = 0
        self.leader_epoch = 0
        self.is_gone = False  # it has been told so, or should know

    def beat(self) -> MemberHeartbeat:
        self.number += 1
        return MemberHeartbeat(
            self.member_id, self.number, frozenset({STREAM}), self.owned, SESSION_MS, self.leader_epoch
        )

    def took(self, told: HeartbeatAnswer, leader_epoch: int, now_us: int) -> None:
        self.heard_us = now_us
        self.leader_epoch = leader_epoch
        self.generation = told.generation
        # It gives back at once what it is not to have, and begins with what is new.
        self.owned = frozenset(told.assigned)


class Groups(RuleBasedStateMachine):
    """One group; the log of its generations, of which the last may not be committed yet."""

    def __init__(self) -> None:
        super().__init__()
        self.now_us = 0
        self.consumers: list[Consumer] = []
        self.names = 0
        self.log = [Generation(0)]
        self.pending: Generation | None = None
        self.doubtful: Generation | None = None
        self.late: list[MemberHeartbeat] = []

    @initialize(count=st.integers(1, 7))
    def begin(self, count: int) -> None:
        self.partitions = {STREAM: count}
        self.leader_epoch = 1
        self.group = GroupMembership(self.log[-1], self.leader_epoch, 0)

    def _propose(self) -> None:
        self.group.expire(self.now_us)
        if self.pending is None:
            self.pending = self.group.next_generation(self.partitions)
            if self.pending is not None:
                self.group.writes(self.pending)

    def _commit(self) -> None:
        if self.pending is not None:
            data = encode_generation(self.pending)
            found = decode_generation(data)
            assert found == self.pending
            self.log.append(found)
            self.group.wrote(found)
            self.pending = None

    def _beat(self, consumer: Consumer, beat: MemberHeartbeat) -> HeartbeatAnswer | None:
        self.group.expire(self.now_us)
        try:
            self.group.heartbeat(beat, self.now_us)
            self._propose()
            return self.group.answer_for(beat.member_id, self.partitions)
        except RemoteError as error:
            if error.code != ErrorCode.UNKNOWN_MEMBER:
                raise
            return None

    @property
    def alive(self) -> list[Consumer]:
        return [one for one in self.consumers if not one.is_gone]

    @rule()
    def join(self) -> None:
        if len(self.alive) < 4:
            self.names += 1
            self.consumers.append(Consumer(f"m{self.names}"))
            self.beat(len(self.alive) - 1, "heard")

    @rule(which=st.integers(0, 3), fate=st.sampled_from(["heard", "answer lost", "late"]))
    def beat(self, which: int, fate: str) -> None:
        if which >= len(self.alive):
            return
        consumer = self.alive[which]
        beat = consumer.beat()
        if fate == "late":  # it comes after those that are sent later
            self.late.append(beat)
            return
        told = self._beat(consumer, beat)
        if fate == "heard":
            if told is None:
                consumer.is_gone, consumer.owned = True, frozenset()
            else:
                consumer.took(told, self.leader_epoch, self.now_us)

    @rule()
    def late_one_comes(self) -> None:
        if self.late:
            beat = self.late.pop(0)
            consumer = next(one for one in self.consumers if one.member_id == beat.member_id)
            if beat.number < consumer.number and beat.number > 1:
                self._beat(consumer, beat)

    @rule(rounds=st.integers(1, 2))
    def all_beat(self, rounds: int) -> None:
        for _ in range(rounds):
            for which in range(len(self.alive)):
                self.beat(which, "heard")
                self._commit()

    @rule(which=st.integers(0, 3))
    def leave(self, which: int) -> None:
        if which < len(self.alive):
            consumer = self.alive[which]
            consumer.is_gone, consumer.owned = True, frozenset()
            self.group.left(consumer.member_id)
            self._propose()

    @rule()
    def commit(self) -> None:
        self._commit()

    @rule(is_there=st.booleans())
    def write_fails(self, is_there: bool) -> None:
        """Nobody knows what became of it; if it is there, the next coordinator may find it."""
        if self.pending is not None:
            self.doubtful = self.pending if is_there else None
            self.pending = None

    @rule(ms=st.integers(1, 700))
    def time_passes(self, ms: int) -> None:
        self.now_us += ms * 1_000
        for consumer in self.alive:
            if self.now_us - consumer.heard_us >= SESSION_US:
                consumer.is_gone, consumer.owned = True, frozenset()

    @rule(is_written=st.booleans())
    def failover(self, is_written: bool) -> None:
        """What was on its way is in the next coordinator's log, or not."""
        if is_written:
            self._commit()
        if self.doubtful is not None and self.doubtful.number > self.log[-1].number:
            self.log.append(self.doubtful)
        self.pending = self.doubtful = None
        self.leader_epoch += 1
        self.group = GroupMembership(self.log[-1], self.leader_epoch, self.now_us)

    @invariant()
    def nobody_has_what_another_one_has(self) -> None:
        owned = [part for consumer in self.alive for part in consumer.owned]
        assert len(owned) == len(set(owned)), {one.member_id: one.owned for one in self.alive}

    @invariant()
    def only_who_has_it_commits(self) -> None:
        for part in (StreamPartition(STREAM, number) for number in range(self.partitions[STREAM])):
            may = []
            for consumer in self.consumers:
                try:
                    self.group.check_commit(consumer.member_id, consumer.generation, [part])
                except RemoteError as error:
                    if error.code not in (ErrorCode.UNKNOWN_MEMBER, ErrorCode.FENCED_GENERATION):
                        raise
                    is_its = part in consumer.owned and consumer.member_id in self.group.members
                    assert not is_its, (consumer.member_id, part)
                else:
                    may.append(consumer.member_id)
            assert len(may) <= 1, may

    def teardown(self) -> None:
        """All are heard again, often enough: then everything is shared, and nothing moves any more."""
        if not hasattr(self, "group"):
            return
        # Those of whom nothing is heard are gone by and by, those of a coordinator before this one last.
        for _ in range(12 + 3 * limits.SESSION_MS // SESSION_MS):
            self.now_us += SESSION_US // 3
            for consumer in self.alive:
                told = self._beat(consumer, consumer.beat())
                if told is None:
                    consumer.is_gone, consumer.owned = True, frozenset()
                else:
                    consumer.took(told, self.leader_epoch, self.now_us)
                self._commit()
        there = self.alive
        if not there:
            return
        counts = sorted(len(one.owned) for one in there)
        assert sum(counts) == self.partitions[STREAM]
        assert counts[-1] - counts[0] <= 1
        assert all(self.group.answer_for(one.member_id, self.partitions).is_settled for one in there)
        assert self.group.next_generation(self.partitions) is None


Groups.TestCase.settings = settings(max_examples=examples(300), stateful_step_count=50, deadline=None)
TestMembership = Groups.TestCase
