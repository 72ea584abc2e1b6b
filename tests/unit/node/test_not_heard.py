"""A leader of which the metadata leader does not hear is mute: another one may lead by now."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode
from penstock.base.ids import PartitionId
from penstock.messages import AppendRequest, DeleteStreamRequest, ListOffsetsRequest
from tests.extent import each_change
from tests.unit.node.harness import batch_of
from tests.unit.node.members import Brokers, Member, formed
from tests.unit.node.test_members import with_stream


def cut_off(brokers: Brokers, member: Member) -> None:
    for other in brokers.ids:
        if other != member.broker_id:
            brokers.cut(member.broker_id, other)


@pytest.fixture
def brokers() -> Brokers:
    return with_stream()


@each_change
def test_a_deposed_leader_answers_nobody(brokers: Brokers) -> None:
    old = brokers.led("s")
    cut_off(brokers, old)
    brokers.run(2 * limits.SESSION_MS)
    assert old.nats.sids("s") == []
    assert brokers.led("s") is not old
    for member in brokers.members.values():
        member.acks.clear()
    for number in range(100):
        brokers.publish("s", b"x" * 900_000, reply=f"r{number}")
        brokers.run(50)
    assert old.acks == []
    assert len(brokers.led("s").acks) == 100


def test_what_only_a_leader_can_say_is_asked_of_others(brokers: Brokers) -> None:
    old = brokers.led("s")
    cut_off(brokers, old)
    brokers.run(2 * limits.SESSION_MS)
    refusal = old.refusal(ListOffsetsRequest(stream_id=old.stream_id("s"), partition=PartitionId(0), at="latest"))
    assert (refusal.code, refusal.details["leader"]) == (ErrorCode.NOT_LEADER, None)
    batch = bytes(batch_of([("s", None, b"v", None)]))
    assert old.refusal(AppendRequest(stream_id=old.stream_id("s")), batch).code == ErrorCode.NOT_LEADER


def test_who_slept_is_mute_before_it_looks_at_anything(brokers: Brokers) -> None:
    led = brokers.led("s")
    brokers.clock.advance_ms(limits.SESSION_MS)
    led.publish("s", b"late", reply="r")
    assert led.acks == []
    assert led.nats.sids("s") == []


def test_when_all_slept_the_gap_begins_before_that(brokers: Brokers) -> None:
    """What was published meanwhile comes to a broker that is mute by then, and is stored by nobody."""
    led = brokers.led("s")
    asleep_us = brokers.clock.now.wall_us
    brokers.clock.advance_ms(2 * limits.SESSION_MS)
    brokers.publish("s", b"while they slept", reply="r")
    brokers.run(2 * limits.SESSION_MS)
    assert led.acks == []
    led = brokers.led("s")
    brokers.publish("s", b"again", reply="t")
    brokers.run(100)
    assert [ack.reply for ack in led.acks] == ["t"]
    (partition,) = led.node._partitions.values()
    (gap,) = led.node._listener.gaps_of(partition)
    assert gap.end_us is not None
    assert 0 <= asleep_us - gap.start_us <= limits.REPLICA_FETCH_WAIT_MS * 1_000, "no longer than it must be"


def test_it_listens_again_once_it_is_heard_and_keeps_the_gap(brokers: Brokers) -> None:
    led = brokers.led("s")
    others = {one: brokers.kill(one) for one in brokers.ids if one != led.broker_id}
    brokers.run(2 * limits.SESSION_MS)
    assert led.nats.sids("s") == []
    (info,) = led.stream("s").partitions
    assert (info.state, info.state_reason) == ("no_leader", "the metadata leader did not answer this broker")
    for one, disk in others.items():
        brokers.start(one, disk)
    brokers.run(limits.SESSION_MS)
    assert brokers.led("s") is led
    brokers.publish("s", b"again", reply="t")
    brokers.run(100)
    assert [ack.reply for ack in led.acks] == ["t"]
    (partition,) = led.node._partitions.values()
    (gap,) = [gap for gap in led.node._listener.gaps_of(partition) if "did not answer" in gap.reason]
    assert gap.end_us is not None
    assert gap.end_us > gap.start_us


def test_a_stream_without_other_replicas_is_led_on() -> None:
    brokers = formed()
    brokers.leader.create("s", subject="s", replicas=1)
    brokers.run(500)
    led = brokers.led("s")
    cut_off(brokers, led)
    brokers.run(2 * limits.SESSION_MS)
    brokers.publish("s", b"v", reply="r")
    brokers.run(100)
    assert len(led.acks) == 1


def test_it_gives_no_early_acks(brokers: Brokers) -> None:
    old = brokers.led("s")
    cut_off(brokers, old)
    brokers.run(2 * limits.SESSION_MS)
    old.publish("s", b"v", reply="r", headers=b"NATS/1.0\r\nPenstock-Ack: leader\r\n\r\n")
    assert old.acks == []


@each_change
def test_whose_disk_hangs_hears_of_no_successor_and_is_mute_after_a_session(brokers: Brokers) -> None:
    old = brokers.led("s")
    if brokers.leader is old:
        brokers.leader.quorum.hand_over(next(one for one in brokers.ids if one != old.broker_id))
        brokers.run(1_000)
    old.disk_runs_at_once = False
    brokers.leader.create("t", subject="t", replicas=1)
    brokers.run(limits.SESSION_MS + limits.HEARTBEAT_MS)
    assert old.broker_id in brokers.leader.image.live_brokers()  # it is answered all the while, as one that lives
    assert old.nats.sids("s") == []


def test_a_metadata_leader_that_slept_is_heard_once_the_others_say_that_it_leads(brokers: Brokers) -> None:
    led = brokers.led("s")
    if brokers.leader is not led:
        brokers.leader.quorum.hand_over(led.broker_id)
        brokers.run(1_000)
    assert brokers.leader is led
    cut_off(brokers, led)
    brokers.clock.advance_ms(limits.SESSION_MS)  # nobody gets a turn, and then this one
    led.tick()
    led.publish("s", b"late", reply="r")
    assert led.quorum.is_leader  # as far as it knows
    assert led.acks == []
    assert led.nats.sids("s") == []


def test_a_metadata_leader_whose_disk_hangs_does_not_count_its_own_answers(brokers: Brokers) -> None:
    led = brokers.led("s")
    if brokers.leader is not led:
        brokers.leader.quorum.hand_over(led.broker_id)
        brokers.run(1_000)
    assert brokers.leader is led
    led.disk_runs_at_once = False
    led.request(DeleteStreamRequest(name="s"))  # a command, which its disk does not take
    brokers.run(limits.SESSION_MS + limits.HEARTBEAT_MS)
    assert led.disk
    assert led.nats.sids("s") == []
