"""A refusal is given once no other broker can store the message: never by a leader that has a successor."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from penstock.base import limits
from penstock.base.config import Intake
from penstock.messages import SetIntakeRequest
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind
from tests.extent import each_change
from tests.full_disk import fill
from tests.unit.node.harness import Broker
from tests.unit.node.members import Brokers, Member
from tests.unit.node.test_members import with_stream

_EXPECTS_7 = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 7\r\n\r\n"


def is_full(led: Member) -> None:
    fill(led.vfs)


def is_over_budget(led: Member) -> None:
    (partition,) = led.node._partitions.values()
    while partition.in_flight.size_bytes <= partition.budget.partition_bytes_max:
        led.publish("s", b"x" * 900_000)


def works(led: Member) -> None:
    """What is refused is what the message expects."""


def takes_nothing(operation: FileOperation) -> FileFault | None:
    return FileFault(errno.ENOSPC) if operation.kind is FileOperationKind.WRITE else None


REASONS = [(is_full, None, 10077), (is_over_budget, None, 10008), (works, _EXPECTS_7, 10071)]


def cut_off(brokers: Brokers, one: Member) -> None:
    for other in brokers.ids:
        if other != one.broker_id:
            brokers.cut(one.broker_id, other)


@each_change
@pytest.mark.parametrize(("becomes", "headers", "err_code"), REASONS)
def test_one_that_may_be_deposed_refuses_nothing(
    becomes: Callable[[Member], None], headers: bytes | None, err_code: int
) -> None:
    brokers = with_stream()
    led = brokers.led("s")
    cut_off(brokers, led)
    becomes(led)
    led.publish("s", b"v", reply="r", headers=headers)
    (partition,) = led.node._partitions.values()
    assert partition.dropped  # it was refused here
    brokers.run(2 * limits.SESSION_MS)
    assert brokers.led("s") is not led
    for other in brokers.ids:
        brokers.join(led.broker_id, other)
    brokers.run(limits.SESSION_MS)
    assert led.acks == []


@pytest.mark.parametrize(("becomes", "headers", "err_code"), [*REASONS[::2]])
def test_one_that_leads_refuses_once_the_metadata_leader_has_confirmed_it(
    becomes: Callable[[Member], None], headers: bytes | None, err_code: int
) -> None:
    brokers = with_stream(replicas=2, min_isr=1)
    led = brokers.led("s")
    (follower,) = set(brokers.partition("s").replicas) - {led.broker_id}
    brokers.kill(follower)  # so nobody else may lead
    brokers.run(2 * limits.SESSION_MS)
    assert brokers.led("s") is led
    becomes(led)
    led.acks.clear()
    led.publish("s", b"v", reply="r", headers=headers)
    assert led.acks == []
    brokers.run(50)
    assert [(ack.reply, ack.err_code) for ack in led.acks] == [("r", err_code)]


def test_one_that_has_asked_for_a_successor_is_silent_from_then_on() -> None:
    brokers = with_stream()
    led = brokers.led("s")
    if brokers.leader is led:
        led.quorum.hand_over(next(one for one in brokers.ids if one != led.broker_id))
        brokers.run(1_000)
    led.vfs.plan = takes_nothing  # of the metadata either: it never hears who leads next
    for number in range(20):
        brokers.publish("s", b"v%d" % number, reply=f"r{number}")
        brokers.run(50)
    successor = brokers.led("s")
    assert successor is not led
    assert led.nats.sids("s")  # and hears the same messages
    assert len(successor.acks) > 10
    assert [ack.reply for ack in led.acks] == ["r0"]  # was confirmed by what asked for the successor
    assert "r0" not in successor.acked()


def test_where_nobody_else_could_lead_it_refuses_at_once() -> None:
    broker = Broker().start()
    broker.create("s", "s")
    fill(broker.vfs)
    broker.publish("s", b"v", reply="r")
    assert [ack.err_code for ack in broker.acks] == [10077]


def test_a_flood_of_refusals_takes_few_heartbeats_and_bounded_memory() -> None:
    brokers = with_stream()
    led = brokers.led("s")
    brokers.leader.request(SetIntakeRequest(name="s", intake=Intake.READ_ONLY))
    brokers.run(100)
    cut_off(brokers, led)
    sent = led.node._cluster.beats.sent
    refusals = led.node._budget.refusals
    for _ in range(1_000):
        led.publish("s", b"v", reply="_INBOX." + "i" * 2_000, count=10)
        assert refusals._size_bytes <= limits.REFUSALS_WAITING_BYTES_MAX
        brokers.clock.advance_ms(0.1)
        led.tick()
    assert 0 < led.node._cluster.beats.sent - sent <= 1 + 100 // limits.REFUSALS_CONFIRM_MS
    assert led.acks == []


def test_a_metadata_leader_that_was_deposed_confirms_nothing() -> None:
    brokers = Brokers(1, 2, 3, 4, 5)
    brokers.run(5_000)
    caller = brokers.leader.create("s", subject="s", replicas=5)
    brokers.run(500)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]
    led = brokers.led("s")
    if brokers.leader is led:
        led.quorum.hand_over(next(one for one in brokers.ids if one != led.broker_id))
        brokers.run(1_100)
    deposed = brokers.leader
    assert led is not deposed
    cut_off_together = (deposed, led)
    others = [brokers[one] for one in brokers.ids if brokers[one] not in cut_off_together]
    for one in cut_off_together:
        for other in others:
            brokers.cut(one.broker_id, other.broker_id)
    has_not_heard = 0  # rounds in which there is a successor of which the deposed one has not heard
    for number in range(40):
        led.publish("s", b"v", reply=f"r{number}", headers=_EXPECTS_7)
        for other in others:
            other.publish("s", b"v", reply=f"r{number}")
        brokers.run(50)
        leaders = {other.node._cluster.image.streams[led.stream_id("s")].partitions[0].leader for other in others}
        has_not_heard += deposed.quorum.is_leader and led.broker_id not in leaders
    assert has_not_heard > 5
    brokers.run(3_000)  # until they do not wait for the two any more
    stored = {ack.reply for other in others for ack in other.acks if not ack.err_code}
    assert len(stored) > 10
    assert not stored & {ack.reply for ack in led.acks}
