"""One group, heartbeat by heartbeat: how partitions change hands, and whose commits count."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.groups.membership import Generation, Grant, Granted, GroupMembership, MemberHeartbeat, StreamPartition
from penstock.groups.rows import (
    decode_generation,
    decode_generation_key,
    encode_generation,
    encode_generation_key,
)
from tests.work import lines_run

FOUR = {7: 4}


def beat(
    member_id: str, number: int, *owned: int, streams: frozenset[int] = frozenset({7}), leader_epoch: int = 1
) -> MemberHeartbeat:
    return MemberHeartbeat(
        member_id, number, streams, frozenset(StreamPartition(7, one) for one in owned), 1_000, leader_epoch
    )


def advance(group: GroupMembership, partitions: dict[int, int] | None = None) -> None:
    if (generation := group.next_generation(partitions or FOUR)) is not None:
        group.writes(generation)
        group.wrote(generation)


def told(group: GroupMembership, member_id: str) -> list[int]:
    return [part.partition for part in group.answer_for(member_id, FOUR).assigned]


def refusal(group: GroupMembership, member_id: str, generation: int, *parts: int) -> str | None:
    try:
        group.check_commit(member_id, generation, [StreamPartition(7, one) for one in parts])
    except RemoteError as error:
        return error.code
    return None


def two_members() -> GroupMembership:
    """`a` had all, and has been told to give 2 and 3 back to `b`."""
    group = GroupMembership(Generation(0), 1, 0)
    group.heartbeat(beat("a", 1), 0)
    assert told(group, "a") == []  # it is not written yet
    advance(group)
    assert told(group, "a") == [0, 1, 2, 3]
    group.heartbeat(beat("a", 2, 0, 1, 2, 3), 0)
    group.heartbeat(beat("b", 1), 0)
    advance(group)
    assert told(group, "a") == [0, 1]
    assert told(group, "b") == []
    return group


def test_what_is_to_change_hands_is_given_back_before_another_one_gets_it() -> None:
    group = two_members()
    assert not group.answer_for("b", FOUR).is_settled
    group.heartbeat(beat("a", 3, 0, 1, 2), 0)  # of two, one is still being worked on
    advance(group)
    assert told(group, "b") == [3]
    group.heartbeat(beat("a", 4, 0, 1), 0)
    advance(group)
    assert told(group, "b") == [2, 3]
    assert group.answer_for("a", FOUR).is_settled
    assert group.answer_for("b", FOUR).is_settled
    assert group.next_generation(FOUR) is None


def test_what_was_told_and_not_yet_reported_is_not_given_away() -> None:
    group = GroupMembership(Generation(0), 1, 0)
    group.heartbeat(beat("a", 1), 0)
    advance(group)
    assert told(group, "a") == [0, 1, 2, 3]  # in the answer to a heartbeat that listed nothing
    group.heartbeat(beat("b", 1), 0)
    advance(group)
    assert told(group, "b") == []


def test_what_is_being_taken_away_is_told_to_nobody() -> None:
    group = GroupMembership(Generation(0), 1, 0)
    group.heartbeat(beat("a", 1), 0)
    advance(group)
    group.heartbeat(beat("b", 1), 0)  # before `a` was told of anything: some of it can go to `b`
    generation = group.next_generation(FOUR)
    assert generation is not None
    group.writes(generation)
    group.left("b")
    assert told(group, "a") == [0, 1]  # it should have all now, but what is being written gives the others to `b`
    group.wrote(generation)
    advance(group)
    assert told(group, "a") == [0, 1, 2, 3]


def test_a_heartbeat_that_comes_late_says_nothing() -> None:
    group = GroupMembership(Generation(0), 1, 0)
    group.heartbeat(beat("a", 1), 0)
    advance(group)
    told(group, "a")
    group.heartbeat(beat("a", 3, 0, 1, 2, 3), 0)
    group.heartbeat(beat("b", 1), 500_000)
    group.heartbeat(beat("a", 2), 900_000)  # sent before it had anything
    advance(group)
    assert told(group, "b") == []
    group.expire(1_000_000)  # nor did it count as a sign of life
    assert group.members == {"b"}


def test_a_commit_counts_only_for_what_the_member_has_since_then() -> None:
    group = two_members()
    assert refusal(group, "a", 1, 0, 1, 2, 3) is None  # what it is to give back is its own until it has
    group.heartbeat(beat("a", 3, 0, 1), 0)
    advance(group)
    assert refusal(group, "a", 9, 2) == ErrorCode.FENCED_GENERATION
    number = group.generation.number
    assert refusal(group, "b", number, 2, 3) is None
    assert refusal(group, "b", number - 1, 2) == ErrorCode.FENCED_GENERATION
    group.left("b")
    advance(group)
    assert told(group, "a") == [0, 1, 2, 3]
    assert refusal(group, "a", 1, 2) == ErrorCode.FENCED_GENERATION  # sent when it had it the first time
    assert refusal(group, "a", group.generation.number, 0, 1, 2, 3) is None
    assert refusal(group, "b", group.generation.number, 2) == ErrorCode.UNKNOWN_MEMBER


def test_who_is_silent_is_gone_and_comes_back_as_another() -> None:
    group = two_members()
    group.heartbeat(beat("b", 2), 500_000)
    group.expire(1_000_000)
    assert group.members == {"b"}
    advance(group)
    assert told(group, "b") == [0, 1, 2, 3]
    with pytest.raises(RemoteError, match="join again as another") as refused:
        group.heartbeat(beat("a", 4, 0, 1), 1_000_000)
    assert refused.value.code == ErrorCode.UNKNOWN_MEMBER
    assert refusal(group, "a", 99, 0) == ErrorCode.UNKNOWN_MEMBER


def test_the_next_coordinator_lets_nothing_go_that_a_member_may_have() -> None:
    group = two_members()
    found = decode_generation(encode_generation(group.generation))
    assert found is not None
    after = GroupMembership(found, 2, 5_000_000)
    assert after.next_generation(FOUR) is None
    after.heartbeat(beat("b", 2), 5_500_000)
    advance(after)
    assert told(after, "b") == []
    after.heartbeat(beat("b", 3), 8_500_000)
    after.expire(8_999_999)  # the coordinator before may have gone on for 3 s, and heard `a` until then
    assert after.members == {"a", "b"}
    after.expire(9_000_000)
    advance(after)
    assert told(after, "b") == [0, 1, 2, 3]


def test_what_could_not_be_written_is_made_up_for_by_the_next() -> None:
    """Else what it takes away would be with nobody."""
    group = GroupMembership(Generation(0), 1, 0)
    group.heartbeat(beat("a", 1), 0)
    advance(group)
    told(group, "a")
    group.heartbeat(beat("b", 1), 0)
    group.heartbeat(beat("a", 2, 0, 1), 0)
    generation = group.next_generation(FOUR)
    assert generation is not None
    group.writes(generation)  # and the log refuses it
    group.left("b")
    again = group.next_generation(FOUR)
    assert again is not None
    group.writes(again)
    group.wrote(again)
    assert group.next_generation(FOUR) is None
    assert told(group, "a") == [0, 1, 2, 3]
    assert group.answer_for("a", FOUR).is_settled


def calm(members: int, partitions: int) -> tuple[GroupMembership, list[MemberHeartbeat], dict[int, int]]:
    """A group in which nothing changes any more, and what its members say from then on."""
    group, there = GroupMembership(Generation(0), 1, 0), {7: partitions}
    names = [f"m{number}" for number in range(members)]
    for name in names:
        group.heartbeat(MemberHeartbeat(name, 1, frozenset({7}), frozenset(), 60_000, 0), 0)
    advance(group, there)
    has = {name: frozenset(group.answer_for(name, there).assigned) for name in names}
    assert sum(map(len, has.values())) == partitions
    return group, [MemberHeartbeat(name, 2, frozenset({7}), has[name], 60_000, 1) for name in names], there


def test_a_heartbeat_costs_as_much_as_its_member_has_and_not_as_its_group() -> None:
    def cost(members: int, partitions: int) -> int:
        group, beats, there = calm(members, partitions)

        def heartbeats(number: int) -> None:
            for one in beats[:4]:
                group.heartbeat(one._replace(number=number), 0)
                assert group.next_generation(there) is None
                assert group.answer_for(one.member_id, there).is_settled
                assert group.streams == {7}

        heartbeats(2)
        return lines_run(lambda: heartbeats(3))

    assert cost(256, 1_024) < 2 * cost(4, 16)  # each member has 4


def test_the_next_coordinator_believes_nobody_who_has_not_heard_it() -> None:
    group = two_members()
    after = GroupMembership(group.generation, 2, 0)
    after.heartbeat(beat("b", 2), 0)
    after.heartbeat(beat("a", 2), 0)  # sent long ago, when it had nothing; the coordinator before has heard a later one
    advance(after)
    assert told(after, "b") == []
    after.heartbeat(beat("a", 4, 0, 1, leader_epoch=2), 0)
    advance(after)
    assert told(after, "b") == [2, 3]


def test_streams_that_not_all_read_are_shared_by_those_who_do() -> None:
    group = GroupMembership(Generation(0), 1, 0)
    group.heartbeat(beat("a", 1, streams=frozenset({7, 8})), 0)
    group.heartbeat(beat("b", 1, streams=frozenset({8})), 0)
    partitions = {7: 2, 8: 2}
    advance(group, partitions)
    assert set(group.answer_for("a", partitions).assigned) == {
        StreamPartition(7, 0),
        StreamPartition(7, 1),
        StreamPartition(8, 1),
    }
    assert set(group.answer_for("b", partitions).assigned) == {StreamPartition(8, 0)}
    assert group.streams == {7, 8}
    advance(group, {7: 0, 8: 2})  # deleted
    assert {part.stream_id for part in group.answer_for("a", {7: 0, 8: 2}).assigned} == {8}


def test_single_partitions_of_many_streams_are_spread() -> None:
    group = GroupMembership(Generation(0), 1, 0)
    streams = frozenset(range(1, 7))
    partitions = dict.fromkeys(streams, 1)
    for member_id in "abc":
        group.heartbeat(beat(member_id, 1, streams=streams), 0)
    advance(group, partitions)
    assert [len(group.answer_for(member_id, partitions).assigned) for member_id in "abc"] == [2, 2, 2]


def test_more_members_than_a_row_can_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUP_MEMBERS_MAX", 2)
    group = two_members()
    with pytest.raises(RemoteError) as refused:
        group.heartbeat(beat("c", 1), 0)
    assert refused.value.code == ErrorCode.TOO_LARGE


def test_the_bytes_of_a_generation_are_these() -> None:
    generation = Generation(5, {"m1": Granted(10_000, (Grant(7, 0, 3), Grant(7, 2, 5)))})
    assert encode_generation_key("billing") == b"v1/group/billing"
    assert encode_generation(generation) == (
        b'{"number":5,"members":{"m1":{"session_ms":10000,"grants":[[7,0,3],[7,2,5]]}}}'
    )
    assert decode_generation(encode_generation(generation)) == generation
    assert decode_generation_key(b"v1/group/billing") == "billing"
    for key in (None, b"", b"v1/group/", b"v2/group/a", b"v1/group/a/b", b"v1/offset/a/1/0"):
        assert decode_generation_key(key) is None
    for value in (b"", b"{}", b"[]", b'{"number":"1"}', b"\xff"):
        assert decode_generation(value) is None
