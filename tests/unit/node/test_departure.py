"""Who is about to stop: first another one leads the metadata, then others lead the partitions."""

from __future__ import annotations

from collections.abc import Callable

from penstock.base import limits
from penstock.base.clock import Now
from tests.unit.node.members import Brokers, Member


def formed() -> Brokers:
    brokers = Brokers(1, 2, 3)
    brokers.run(5_000)
    assert len(brokers.leader.image.live_brokers()) == 3
    return brokers


def with_a_stream_of_the_metadata_leader() -> tuple[Brokers, str]:
    brokers = formed()
    for number in range(20):
        name = f"s{number}"
        caller = brokers.leader.create(name, subject=name, replicas=3)
        brokers.run(500)
        brokers.leader.answer(caller, object)  # type: ignore[type-var]
        if brokers.led(name) is brokers.leader:
            return brokers, name
    raise AssertionError("the metadata leader leads no stream")


def done(brokers: Brokers, take_over: Callable[[Now, Callable[[], None]], None]) -> list[bool]:
    """What others are to take over: it is, once True stands in the list."""
    heard: list[bool] = []
    take_over(brokers.clock.now, lambda: heard.append(True))
    brokers.settle()
    return heard


def until_done(brokers: Brokers, heard: list[bool]) -> None:
    for _ in range(100):
        if heard:
            return
        brokers.run(50)
    raise AssertionError("nobody took over")


def test_a_metadata_leader_goes_on_with_its_partitions_until_another_one_leads_the_metadata() -> None:
    brokers, name = with_a_stream_of_the_metadata_leader()
    leaving = brokers.leader
    until_done(brokers, done(brokers, leaving.node.hand_over))
    assert brokers.leader is not leaving
    assert brokers.led(name) is leaving
    leaving.publish(name, b"still", reply="r")
    brokers.run(200)
    assert leaving.acks[-1].body["replicas"] == 3


def test_who_takes_its_partitions_over_acks_without_asking_twice() -> None:
    """Time stands still from when it leaves: nothing is tried again."""
    brokers, name = with_a_stream_of_the_metadata_leader()
    leaving = brokers.leader
    until_done(brokers, done(brokers, leaving.node.hand_over))
    brokers.run(100)  # the drain of NATS
    assert done(brokers, leaving.node.leave) == [True]
    new = brokers.led(name)
    assert new is not leaving
    new.publish(name, b"over", reply="r")
    brokers.settle()
    assert new.acks[-1].body["replicas"] >= 2


def test_who_leads_no_metadata_hands_nothing_over() -> None:
    brokers = formed()
    term = brokers.leader.quorum.term
    other = next(one for one in brokers.members.values() if one is not brokers.leader)
    assert done(brokers, other.node.hand_over) == [True]
    assert brokers.leader.quorum.term == term


def test_a_metadata_leader_whom_nobody_can_follow_waits_for_nobody() -> None:
    brokers = formed()
    leaving = brokers.leader
    for other in [one for one in brokers.ids if one != leaving.broker_id]:
        brokers.kill(other)
    assert done(brokers, leaving.node.hand_over) == [True]


def test_a_metadata_leader_waits_for_a_bounded_time_for_one_that_hangs() -> None:
    brokers = formed()
    leaving = brokers.leader
    for other in [one for one in brokers.ids if one != leaving.broker_id]:
        brokers.hang(other)
    heard = done(brokers, leaving.node.hand_over)
    assert not heard
    brokers.run(limits.METADATA_LEAVE_MS + limits.RAFT_TICK_MS)
    assert heard == [True]


def test_the_metadata_go_to_a_voter_that_can_be_reached() -> None:
    """One that is gone may have had all of it."""
    for gone in range(2):
        brokers = formed()
        leaving = brokers.leader
        others: list[Member] = [one for one in brokers.members.values() if one is not leaving]
        brokers.kill(others[gone].broker_id)
        until_done(brokers, done(brokers, leaving.node.hand_over))
        assert brokers.leader is others[1 - gone]


def test_who_stops_where_nobody_leads_the_metadata_is_done_at_once() -> None:
    brokers = formed()
    last = brokers[1]
    for other in (2, 3):
        brokers.kill(other)
    brokers.run(5_000)
    assert last.quorum.leader is None
    left: list[bool] = []
    last.node.leave(brokers.clock.now, lambda: left.append(True))
    brokers.settle()
    assert left == [True]


def test_who_stops_under_a_new_metadata_leader_waits_for_a_bounded_time() -> None:
    """Which is dead of the others, it must find out first."""
    brokers = formed()
    brokers.kill(brokers.leader.broker_id)
    while not any(member.quorum.is_leader for member in brokers.members.values()):
        brokers.run(50)
    leaving = brokers.leader
    left: list[bool] = []
    leaving.node.leave(brokers.clock.now, lambda: left.append(True))
    brokers.settle()
    assert not left
    brokers.run(limits.HEARD_LATELY_MS + limits.RAFT_TICK_MS)
    assert left == [True]
