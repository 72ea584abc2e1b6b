"""Members of groups and their coordinator, on one broker and through failovers."""

from __future__ import annotations

import msgspec
import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import LeaderEpoch, Offset, PartitionId
from penstock.groups.rows import OFFSETS_STREAM
from penstock.hot.keyhash import partition_of
from penstock.messages import (
    CommitOffsetsRequest,
    CommitOffsetsResponse,
    FetchOffsetsResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    GroupPartition,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommit,
)
from penstock.node.security.access import ClientOrigin
from tests.unit.node.api.test_offsets import (
    NUMBER,
    again,
    asked,
    commit_of,
    fetch_of,
    leader_of,
    three,
    told,
    with_offsets,
)
from tests.unit.node.harness import Broker


class Member:
    """A consumer that does as it is told."""

    def __init__(self, broker: Broker, name: str, group: str = "billing", session_ms: int = 1_000) -> None:
        self.broker = broker
        self.name = name
        self.group = group
        self.session_ms = session_ms
        self.number = 0
        self.generation = 0
        self.leader_epoch = LeaderEpoch(0)
        self.owned: tuple[int, ...] = ()
        self.is_settled = False

    def request(self, *, is_leaving: bool = False) -> GroupHeartbeatRequest:
        self.number += 1
        stream_id = self.broker.stream_id("orders")
        return GroupHeartbeatRequest(
            stream_id=self.broker.stream_id(OFFSETS_STREAM),
            partition=PartitionId(partition_of(self.group.encode(), limits.OFFSETS_PARTITIONS)),
            group=self.group,
            member_id=self.name,
            number=self.number,
            stream_ids=(stream_id,),
            owned=tuple(GroupPartition(stream_id, PartitionId(one)) for one in self.owned),
            session_ms=self.session_ms,
            leader_epoch=self.leader_epoch,
            is_leaving=is_leaving,
        )

    def take(self, answer: object) -> tuple[int, ...]:
        assert isinstance(answer, GroupHeartbeatResponse), answer
        self.generation, self.is_settled = answer.generation, answer.is_settled
        self.leader_epoch = answer.leader_epoch
        self.owned = tuple(one.partition for one in answer.assigned)
        return self.owned

    def beat(self) -> tuple[int, ...]:
        return self.take(again(self.broker, self.request()))

    def refusal(self) -> str:
        """Why it is no member."""
        answer = again(self.broker, self.request())
        assert isinstance(answer, RemoteError), answer
        return answer.code

    def leave(self) -> None:
        assert isinstance(again(self.broker, self.request(is_leaving=True)), GroupHeartbeatResponse)

    def commit_request(self, *offsets: tuple[int, int], generation: int | None = None) -> CommitOffsetsRequest:
        stream_id = self.broker.stream_id("orders")
        return CommitOffsetsRequest(
            stream_id=self.broker.stream_id(OFFSETS_STREAM),
            partition=PartitionId(partition_of(self.group.encode(), limits.OFFSETS_PARTITIONS)),
            group=self.group,
            offsets=tuple(
                OffsetCommit(stream_id=stream_id, partition=PartitionId(number), offset=Offset(offset))
                for number, offset in offsets
            ),
            member_id=self.name,
            generation=self.generation if generation is None else generation,
        )

    def commit(self, *offsets: tuple[int, int], generation: int | None = None) -> str | None:
        """Why it was refused."""
        answer = again(self.broker, self.commit_request(*offsets, generation=generation))
        if isinstance(answer, RemoteError):
            return answer.code
        assert isinstance(answer, CommitOffsetsResponse)
        return None


def test_members_share_the_partitions_and_hand_them_over() -> None:
    broker = with_offsets(partitions=4)
    a, b = Member(broker, "a"), Member(broker, "b")
    assert a.beat() == ()  # it is written when the answer is made
    assert not a.is_settled
    assert a.beat() == (0, 1, 2, 3)
    assert a.is_settled
    assert b.beat() == ()
    assert a.beat() == (0, 1)
    assert b.beat() == ()
    assert not b.is_settled
    assert a.beat() == (0, 1)  # now it has said that it gave them back
    assert b.beat() == (2, 3)
    assert b.is_settled
    assert a.commit((0, 5)) is None
    assert b.commit((2, 7), (3, 8)) is None
    assert a.commit((1, 6), (2, 9)) == ErrorCode.FENCED_GENERATION  # all or none
    assert told(broker) == {0: 5, 2: 7, 3: 8}
    b.leave()
    assert b.commit((2, 9)) == ErrorCode.UNKNOWN_MEMBER
    assert a.beat() == (0, 1, 2, 3)  # what it left is given on at once
    a.leave()
    assert [row.value for row in broker.read(OFFSETS_STREAM, NUMBER) if row.key == b"v1/group/billing"][-1] is None


def test_nothing_is_told_before_it_is_on_the_disk() -> None:
    broker = with_offsets()
    told(broker)
    broker.syncs_hang = True
    a = Member(broker, "a")
    assert a.beat() == ()
    assert a.beat() == ()
    broker.syncs_hang = False
    broker.settle()
    assert a.beat() == (0, 1)


def test_who_is_silent_for_its_session_loses_all_and_its_commits_count_no_more() -> None:
    broker = with_offsets()
    a, b = Member(broker, "a"), Member(broker, "b")
    a.beat()
    b.beat()
    broker.clock.advance_ms(600)
    b.beat()
    assert told(broker) == {}
    broker.clock.advance_ms(400)
    assert a.commit((0, 1)) == ErrorCode.UNKNOWN_MEMBER
    b.beat()
    assert b.beat() == (0, 1)
    assert b.commit((0, 4)) is None
    assert a.refusal() == ErrorCode.UNKNOWN_MEMBER
    assert told(broker) == {0: 4}


def test_a_group_with_members_takes_no_commit_of_others() -> None:
    broker = with_offsets()
    a = Member(broker, "a")
    a.beat()
    error = again(broker, commit_of(broker, 3))
    assert isinstance(error, RemoteError)
    assert (error.code, error.details["members"]) == (ErrorCode.GROUP_IN_USE, 1)
    assert isinstance(again(broker, commit_of(broker, 3, group="other")), CommitOffsetsResponse)
    broker.clock.advance_ms(1_000)
    assert isinstance(again(broker, commit_of(broker, 3)), CommitOffsetsResponse)
    ghost = Member(broker, "ghost", group="third")
    assert ghost.commit((0, 1)) == ErrorCode.UNKNOWN_MEMBER


def test_a_restart_forgets_no_generation() -> None:
    broker = with_offsets()
    a, b = Member(broker, "a"), Member(broker, "b")
    a.beat()
    b.beat()
    a.beat()
    a.beat()
    assert b.beat() == (1,)
    after = broker.crash().start()
    a.broker = b.broker = after
    assert b.commit((1, 3)) is None  # before anybody is heard
    assert b.commit((0, 3)) == ErrorCode.FENCED_GENERATION
    assert b.commit((1, 3), generation=1) == ErrorCode.FENCED_GENERATION
    assert a.beat() == (0,)
    assert b.beat() == (1,)
    c = Member(after, "c")
    c.number = 3
    assert c.refusal() == ErrorCode.UNKNOWN_MEMBER
    after.clock.advance_ms(999)
    a.beat()
    after.clock.advance_ms(1)
    a.beat()
    assert a.beat() == (0, 1)


def test_who_has_which_partition_can_be_asked() -> None:
    broker = with_offsets()
    a, b = Member(broker, "a"), Member(broker, "b")
    for member in (a, b, a, a, b):
        member.beat()
    a.commit((0, 1))
    answer = again(broker, fetch_of(broker))
    assert isinstance(answer, FetchOffsetsResponse)
    assert [(one.member_id, one.partitions) for one in answer.members] == [("a", (0,)), ("b", (1,))]
    request = ListGroupsRequest(stream_id=broker.stream_id(OFFSETS_STREAM), partition=NUMBER)
    assert [one.members for one in broker.ask(request, ListGroupsResponse).groups] == [2]


def test_a_stream_that_is_deleted_is_told_and_its_partitions_are_nobodys() -> None:
    broker = with_offsets()
    a = Member(broker, "a")
    a.beat()
    request = a.request()
    broker.delete("orders")
    assert broker.refusal(request).code == ErrorCode.STREAM_CHANGED


def test_groups_and_partitions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUPS_IN_USE_MAX", 1)
    monkeypatch.setattr(limits, "OFFSETS_PARTITIONS", 1)
    broker = with_offsets()
    a = Member(broker, "a")
    a.beat()
    other = Member(broker, "b", group="other")
    assert other.refusal() == ErrorCode.TOO_LARGE
    broker.clock.advance_ms(1_000)
    other.number = 0
    assert other.refusal() == ErrorCode.TOO_LARGE  # it is found out, and written
    other.number = 0
    other.beat()
    assert other.beat() == (0, 1)  # the group before had nobody in it any more
    monkeypatch.setattr(limits, "GROUP_PARTITIONS_MAX", 1)
    third = Member(broker, "c", group="other")
    assert third.refusal() == ErrorCode.TOO_LARGE


def test_a_member_that_names_more_streams_later_is_bounded_as_one_that_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = with_offsets()
    broker.create("more", subject="more", partitions=2)
    a = Member(broker, "a")
    a.beat()
    monkeypatch.setattr(limits, "GROUP_PARTITIONS_MAX", 3)
    request = a.request()
    both = (*request.stream_ids, broker.stream_id("more"))
    assert broker.refusal(msgspec.structs.replace(request, stream_ids=both)).code == ErrorCode.TOO_LARGE
    assert a.beat() == (0, 1)


def test_hostile_numbers_and_names_are_refused_where_they_are_read() -> None:
    broker = with_offsets()
    request = Member(broker, "a").request()
    for field, value in (
        ("number", 0),
        ("session_ms", 1),
        ("session_ms", 10**9),
        ("member_id", ""),
        ("member_id", "a/b"),
        ("group", "a\n"),
        ("stream_ids", [1] * (limits.GROUP_STREAMS_MAX + 1)),
    ):
        data = {**msgspec.to_builtins(request), field: value}
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(data, GroupHeartbeatRequest)


def test_the_next_coordinator_knows_the_members_and_fences_the_others() -> None:
    brokers = three()
    first = leader_of(brokers)
    a, b = (Member(brokers[first], name, session_ms=60_000) for name in "ab")

    def beat(member: Member, broker_id: int) -> tuple[int, ...]:
        member.broker = brokers[broker_id]
        return member.take(asked(brokers, broker_id, member.request()))

    for member in (a, a, b, a, a):
        beat(member, first)
    assert beat(b, first) == (1,)
    assert isinstance(asked(brokers, first, b.commit_request((1, 4))), CommitOffsetsResponse)
    brokers.kill(first)
    brokers.run(10_000)
    second = leader_of(brokers)
    assert second != first
    b.broker = a.broker = brokers[second]
    refused = asked(brokers, second, a.commit_request((1, 9)))
    assert isinstance(refused, RemoteError)
    assert refused.code == ErrorCode.FENCED_GENERATION
    assert beat(a, second) == (0,)
    assert beat(b, second) == (1,)
    assert isinstance(asked(brokers, second, b.commit_request((1, 5))), CommitOffsetsResponse)
    answer = asked(brokers, second, fetch_of(brokers[second]))
    assert isinstance(answer, FetchOffsetsResponse)
    assert [(one.partition, one.offset) for one in answer.offsets] == [(1, 5)]


def test_a_member_is_shown_with_its_client_and_since_when() -> None:
    broker = with_offsets(partitions=2)
    told(broker)
    a = Member(broker, "a")
    broker.origin = ClientOrigin("billing-1", "10.0.0.7:40312")
    joined_us = broker.clock.now.wall_us
    a.beat()
    broker.clock.advance_ms(100)
    a.beat()
    answer = broker.ask(fetch_of(broker), FetchOffsetsResponse)
    (one,) = answer.members
    assert (one.member_id, one.client_name, one.address) == ("a", "billing-1", "10.0.0.7:40312")
    assert one.joined_us == joined_us


def test_what_an_earlier_coordinator_heard_of_a_member_is_unknown() -> None:
    broker = with_offsets(partitions=2)
    told(broker)
    broker.origin = ClientOrigin("billing-1", "10.0.0.7:40312")
    a = Member(broker, "a")
    a.beat()
    a.beat()
    broker.crash()
    broker.start()
    assert again(broker, fetch_of(broker)).members[0].client_name == ""  # type: ignore[attr-defined]
    a.beat()
    (one,) = again(broker, fetch_of(broker)).members  # type: ignore[attr-defined]
    assert (one.client_name, one.joined_us) == ("billing-1", None)
