"""Who is about to stop: first another one leads the metadata, then others lead the partitions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.base import limits
from penstock.base.clock import Now
from tests.unit.node.members import Brokers, Member, formed


def with_a_stream_of_the_metadata_leader() -> tuple[Brokers, str]:
    brokers = formed()
    return brokers, led_by(brokers, metadata_leader=True)


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


@pytest.mark.parametrize("idle_ms", [0, 150, 300, 450])
def test_the_gap_of_a_handover_begins_when_the_leader_begins_to_leave_nats(idle_ms: int) -> None:
    """However long ago a follower was answered last: it is told once more."""
    brokers, name = with_a_stream_of_the_metadata_leader()
    leaving = brokers.leader
    until_done(brokers, done(brokers, leaving.node.hand_over))
    brokers.run(idle_ms)
    left_us = brokers.clock.wall_us
    leaving.node.drain(brokers.clock.now)
    brokers.settle()
    brokers.run(750)  # the drain of NATS, longer than a poll
    assert done(brokers, leaving.node.leave) == [True]
    brokers.run(200)
    new = brokers.led(name)
    (partition,) = [one for one in new.node._partitions.values() if one.stream.name == name]
    (gap,) = new.node._listener.gaps_of(partition)
    assert gap.end_us is not None
    assert (gap.start_us - left_us, gap.end_us - left_us) == (0, 750_000)


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


class SlowDisks(Brokers):
    """Their disks take 20 ms for whatever they do."""

    def go_until(self, is_there: Callable[[], bool]) -> int:
        """Let time pass, in steps of 1 ms; how many it took."""
        begun: dict[int, int] = {}
        for elapsed_ms in range(10_000):
            if is_there():
                return elapsed_ms
            self.clock.advance_ms(1)
            for member in self.members.values():
                member.disk_runs_at_once = False
                for work in list(member.disk):
                    if elapsed_ms - begun.setdefault(id(work), elapsed_ms) >= 20:
                        del begun[id(work)]
                        member.run_disk(member.disk.index(work))
                        member.turn()
                if member.node.next_wake_us <= self.clock.elapsed_us:
                    member.node.tick(self.clock.now)
            self.settle()
        raise AssertionError("not in 10 s")

    def __init__(self, *ids: int) -> None:
        super().__init__(*ids)
        self.stopping: list[Callable[[], bool]] = []

    def stops(self, broker_id: int) -> None:
        """SIGTERM, as the driver carries it out, with 2 ms for NATS."""
        node = self[broker_id].node
        drained_us: list[int] = []
        left: list[bool] = []

        def go_on() -> bool:
            if drained_us and self.clock.elapsed_us >= drained_us[0]:
                drained_us.clear()
                node.leave(self.clock.now, lambda: left.append(True))
            return bool(left)

        self.stopping.append(go_on)
        node.hand_over(self.clock.now, lambda: drained_us.append(self.clock.elapsed_us + 2_000))

    def have_gone(self) -> bool:
        """Whether all who were told to stop have left; they go as they do."""
        return not [one for one in self.stopping if not one()]


def led_by(brokers: Brokers, *, metadata_leader: bool) -> str:
    """The name of a stream on all three whose leader leads the metadata, or does not."""
    for number in range(20):
        name = f"{metadata_leader}{number}".lower()
        caller = brokers.leader.create(name, subject=name, replicas=3)
        brokers.run(500)
        brokers.leader.answer(caller, object)  # type: ignore[type-var]
        if (brokers.led(name) is brokers.leader) == metadata_leader:
            return name
    raise AssertionError("all are led by the others")


def acks_within(brokers: SlowDisks, name: str) -> int:
    """ms until what is published to that stream is acked."""
    reply = f"r.{name}"

    def acked() -> bool:
        for member in list(brokers.members.values()):
            if not asked and member.nats.sids(name):
                member.publish(name, b"after", reply=reply)
                asked.append(True)
        answers = [ack for one in brokers.members.values() for ack in one.acks if ack.reply == reply]
        return any(ack.err_code == 0 for ack in answers)

    asked: list[bool] = []
    return brokers.go_until(acked)


def slow() -> SlowDisks:
    brokers = SlowDisks(1, 2, 3)
    brokers.run(5_000)
    assert len(brokers.leader.image.live_brokers()) == 3
    return brokers


@pytest.mark.parametrize("leads_the_stream", [True, False])
def test_a_metadata_leader_that_stops_is_heard_by_its_successor(leads_the_stream: bool) -> None:
    """Which must save that it was elected, before it hears anything: else nobody would know that it has gone."""
    brokers = slow()
    name = led_by(brokers, metadata_leader=leads_the_stream)
    leaving = brokers.leader.broker_id
    brokers.stops(leaving)
    brokers.go_until(brokers.have_gone)
    brokers.kill(leaving)
    assert acks_within(brokers, name) < 300


def test_two_that_stop_at_once_are_both_heard() -> None:
    brokers = slow()
    name = led_by(brokers, metadata_leader=False)
    leaving = {brokers.leader.broker_id, brokers.led(name).broker_id}
    (left,) = set(brokers.ids) - leaving
    for one in leaving:
        brokers.stops(one)
    brokers.go_until(brokers.have_gone)
    last = brokers[left]
    assert brokers.go_until(lambda: last.image.live_brokers() == {left}) < 300
    assert last.image.by_name(name).partitions[0].leader == left


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
    brokers.run(limits.RECENT_HEARTBEAT_MS + limits.RAFT_TICK_MS)
    assert left == [True]
