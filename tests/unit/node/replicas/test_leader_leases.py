"""Look-ups at a leader: at once under a lease, by a heartbeat where promises cannot come, never by a deposed one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation, Offset
from penstock.messages import (
    API_OF_REQUEST,
    GetRequest,
    GetResponse,
    LeaseRequest,
    LeaseResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListSubjectsRequest,
    ListSubjectsResponse,
    RegisterBrokerResponse,
    Request,
    TruncateRequest,
)
from penstock.node.quorum.metadata_forwarding import THE_BROKER
from tests.unit.node.harness import Broker
from tests.unit.node.members import Brokers, Member, formed


def with_messages(*values: bytes, **config: Any) -> Brokers:
    """Three brokers, and a stream with one message for each of the values."""
    brokers = formed()
    brokers.leader.create("s", subject="s", **{"replicas": 3, **config})
    brokers.run(500)
    for value in values:
        brokers.publish("s", value)
    brokers.run(1_000)
    return brokers


def apart_from_metadata(brokers: Brokers, stream: str = "s") -> Member:
    """The leader of the stream, which does not lead the metadata."""
    led = brokers.led(stream)
    if brokers.leader is led:
        led.quorum.hand_over(next(one for one in brokers.ids if one != led.broker_id))
        brokers.run(1_000)
    assert brokers.leader is not led
    return led


def depose(brokers: Brokers, led: Member, stream: str = "s") -> None:
    """Cut it off from the others, which have another leader by their reports at once, while it does not know it."""
    for other in brokers.ids:
        if other != led.broker_id:
            brokers.cut(led.broker_id, other)
    brokers.settle()
    brokers.run(50)
    assert brokers.led(stream) is not led


def latest(member: Member) -> ListOffsetsRequest:
    return ListOffsetsRequest(stream_id=member.stream_id("s"), at="latest")


def end_of(member: Member, caller: Hashable) -> int:
    return member.answer(caller, ListOffsetsResponse).offset


def leases(member: Member) -> Any:
    return member.node._replicas.leases


def asked_leases(brokers: Brokers) -> int:
    """Lease requests that are on their way."""
    return sum(isinstance(getattr(item, "request", None), LeaseRequest) for _, item in brokers.carry)


def test_a_look_up_waits_for_promises_and_the_next_ones_do_not() -> None:
    brokers = with_messages(b"one")
    led = brokers.led("s")
    first, second = led.request(latest(led)), led.request(latest(led))
    assert not {first, second} & led.replies.keys()
    assert asked_leases(brokers) == 2  # one for each of the others, not for each look-up
    brokers.settle()
    assert end_of(led, first) == end_of(led, second) == 1
    third = led.request(latest(led))
    assert end_of(led, third) == 1
    assert asked_leases(brokers) == 0


def test_look_ups_renew_the_lease_before_it_ends() -> None:
    brokers = with_messages(b"one")
    led = brokers.led("s")
    led.request(latest(led))
    brokers.settle()
    for _ in range(20):
        brokers.clock.advance_ms(limits.LEADER_LEASE_MS * 6 // 10)
        assert end_of(led, led.request(latest(led))) == 1
        brokers.settle()


def test_without_look_ups_nobody_is_asked() -> None:
    brokers = with_messages(b"one")
    led = brokers.led("s")
    led.request(latest(led))
    brokers.run(10_000)
    given = [leases(one)._given._given[led.broker_id] for one in brokers.members.values() if one is not led]
    assert all(until_us < brokers.clock.now.elapsed_us - 9_000_000 for until_us in given)


@pytest.mark.parametrize(
    ("request_of", "kind"),
    [
        (lambda stream_id: GetRequest(stream_id=stream_id, subject="s"), GetResponse),
        (lambda stream_id: GetRequest(stream_id=stream_id, offset=Offset(0), is_latest=True), GetResponse),
        (lambda stream_id: ListSubjectsRequest(stream_id=stream_id, subjects=("s",)), ListSubjectsResponse),
        (lambda stream_id: ListOffsetsRequest(stream_id=stream_id, at="earliest"), ListOffsetsResponse),
        (lambda stream_id: GetRequest(stream_id=stream_id, offset=Offset(5)), RemoteError),  # is it there by now?
    ],
)
def test_what_only_the_leader_knows_is_confirmed(request_of: Any, kind: type) -> None:
    brokers = with_messages(b"one")
    led = brokers.led("s")
    caller = led.request(request_of(led.stream_id("s")))
    assert caller not in led.replies
    brokers.settle()
    assert led.answer(caller, kind) is not None


def test_a_message_at_an_offset_is_got_at_once() -> None:
    """It does not change. That it was deleted since may be found later, unless it is to be the latest state."""
    brokers = with_messages(b"one")
    led = brokers.led("s")
    led.ask(GetRequest(stream_id=led.stream_id("s"), offset=Offset(0)), GetResponse)


def test_a_deposed_leader_answers_no_look_up() -> None:
    brokers = with_messages(b"one")
    led = apart_from_metadata(brokers)
    caller = led.request(latest(led))
    brokers.settle()
    assert end_of(led, caller) == 1  # it has the lease
    depose(brokers, led)
    brokers.led("s").publish("s", b"two", reply="r")
    answered_ms = 0
    for _ in range(3 * limits.SESSION_MS // 50):
        has_acked = bool(brokers.led("s").acks)
        asked = led.request(latest(led))
        is_answered = asked in led.replies and isinstance(led.replies[asked].response, ListOffsetsResponse)
        assert not (is_answered and has_acked)
        answered_ms += 50 * is_answered
        brokers.run(50)
        if not is_answered and asked in led.replies:
            led.answer(asked, RemoteError)  # type: ignore[type-var]
    assert 0 < answered_ms <= limits.LEADER_LEASE_MS
    assert brokers.led("s").acks


def test_a_successor_acks_only_after_the_lease() -> None:
    brokers = with_messages(b"one")
    led = apart_from_metadata(brokers)
    caller = led.request(latest(led))
    brokers.settle()
    assert end_of(led, caller) == 1
    depose(brokers, led)
    successor = brokers.led("s")
    (partition,) = successor.node._partitions.values()
    assert partition.leadership is not None
    assert partition.leadership.is_bound
    successor.publish("s", b"two", reply="r")
    brokers.settle()
    assert not successor.acks
    assert end_of(led, led.request(latest(led))) == 1  # true still
    brokers.run(2 * limits.LEADER_LEASE_MS)
    assert [ack.reply for ack in successor.acks] == ["r"]
    late = led.request(latest(led))
    brokers.settle()
    assert late not in led.replies


def test_without_look_ups_a_successor_acks_at_once() -> None:
    brokers = with_messages(b"one")
    led = apart_from_metadata(brokers)
    depose(brokers, led)
    successor = brokers.led("s")
    successor.publish("s", b"two", reply="r")
    brokers.settle()
    assert [ack.reply for ack in successor.acks] == ["r"]


def test_a_new_leader_truncates_nothing_that_an_earlier_one_may_show() -> None:
    brokers = with_messages(b"one", b"two")
    led = apart_from_metadata(brokers)
    led.request(latest(led))
    brokers.settle()
    depose(brokers, led)
    successor = brokers.led("s")
    request = TruncateRequest(stream_id=successor.stream_id("s"), before=Offset(1))
    assert successor.refusal(request).code == ErrorCode.NOT_YET
    brokers.run(2 * limits.LEADER_LEASE_MS)
    caller = successor.request(request)
    brokers.run(200)
    assert not isinstance(successor.replies[caller].response, RemoteError)  # type: ignore[type-var]


def test_a_controlled_shutdown_is_as_quick_with_a_lease() -> None:
    """A broker that leaves uses no lease any more, before others lead."""
    brokers = with_messages(b"one")
    led = brokers.led("s")
    led.request(latest(led))
    brokers.settle()
    brokers.stop(led.broker_id)
    successor = brokers.led("s")
    (partition,) = successor.node._partitions.values()
    assert partition.leadership is not None
    assert not partition.leadership.is_bound


def test_who_leaves_uses_no_lease() -> None:
    brokers = with_messages(b"one")
    led = brokers.led("s")
    led.request(latest(led))
    brokers.settle()
    (partition,) = led.node._partitions.values()
    assert partition.leadership is not None
    now_us = brokers.clock.now.elapsed_us
    assert leases(led)._holds(partition.leadership.successors, now_us)
    led.node._cluster.registration.leave()
    assert not leases(led)._holds(partition.leadership.successors, now_us)


def test_where_a_follower_is_away_a_heartbeat_confirms() -> None:
    brokers = with_messages(b"one")
    led = apart_from_metadata(brokers)
    (follower,) = {*brokers.ids} - {led.broker_id, brokers.leader.broker_id}
    brokers.kill(follower)
    caller = led.request(latest(led))
    assert caller not in led.replies
    brokers.settle()
    assert end_of(led, caller) == 1


def test_below_min_isr_look_ups_go_on() -> None:
    brokers = with_messages(b"one", replicas=2, min_isr=2)
    led = brokers.led("s")
    (follower,) = set(brokers.partition("s").replicas) - {led.broker_id}
    brokers.kill(follower)
    brokers.run(2 * limits.SESSION_MS)
    assert brokers.led("s") is led
    caller = led.request(latest(led))
    brokers.run(50)
    assert end_of(led, caller) == 1


def test_a_follower_that_hangs_costs_the_wait_and_then_a_heartbeat_confirms() -> None:
    brokers = with_messages(b"one")
    led = apart_from_metadata(brokers)
    (follower,) = {*brokers.ids} - {led.broker_id, brokers.leader.broker_id}
    brokers.hang(follower)
    caller = led.request(latest(led))
    brokers.settle()
    assert caller not in led.replies
    brokers.run(2 * limits.LEASE_WAIT_MS)
    assert end_of(led, caller) == 1


def test_what_nobody_confirms_is_to_be_asked_again() -> None:
    brokers = with_messages(b"one")
    led = apart_from_metadata(brokers)
    for other in brokers.ids:
        if other != led.broker_id:
            brokers.cut(led.broker_id, other)
    caller = led.request(latest(led))
    brokers.run(limits.COMMIT_REFUSAL_WAIT_MS + 100)
    error = led.answer(caller, RemoteError)  # type: ignore[type-var]
    assert error.code == ErrorCode.NOT_YET
    assert "still leads" in error.message


def test_a_look_up_that_waits_when_another_broker_leads_is_sent_there() -> None:
    brokers = with_messages(b"one")
    led = brokers.led("s")
    brokers.hang(next(one for one in brokers.ids if one != led.broker_id))
    caller = led.request(latest(led))
    brokers.settle()
    led.node._resigned(next(iter(led.node._partitions.values())))
    led.turn()
    assert led.answer(caller, RemoteError).code == ErrorCode.NOT_LEADER  # type: ignore[type-var]


def test_where_no_other_broker_may_lead_it_is_answered_at_once() -> None:
    broker = Broker().start()
    broker.create("s", "s")
    broker.publish("s", b"one")
    assert broker.ask(ListOffsetsRequest(stream_id=broker.stream_id("s"), at="latest"), ListOffsetsResponse).offset == 1


def test_below_feature_level_0_4_nobody_is_asked() -> None:
    brokers = Brokers(1, 2, 3, broker_version="0.3.0")
    brokers.run(5_000)
    brokers.leader.create("s", subject="s", replicas=3)
    brokers.run(500)
    led = brokers.led("s")
    led.ask(latest(led), ListOffsetsResponse)
    assert asked_leases(brokers) == 0
    giver, run = brokers[1], brokers[1].image.brokers[2].incarnation
    giver.who = THE_BROKER
    # The asker may have heard sooner that the level was raised, and a leadership that begins here would not be bound.
    assert giver.refusal(LeaseRequest(broker_id=BrokerId(2), incarnation=run)).code == ErrorCode.UNSUPPORTED_VERSION


def test_a_stop_and_a_lost_connection_end_the_wait() -> None:
    brokers = with_messages(b"one")
    led = brokers.led("s")
    gone, stays = led.request(latest(led)), led.request(latest(led))
    led.node.callers_disconnected([gone])
    led.open_requests.discard(gone)
    led.stop()
    assert gone not in led.replies
    assert led.answer(stays, RemoteError).code == ErrorCode.STOPPING  # type: ignore[type-var]


def test_look_ups_that_wait_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNCONFIRMED_LOOKUPS_MAX", 2)
    brokers = with_messages(b"one")
    led = brokers.led("s")
    callers = [led.request(latest(led)) for _ in range(3)]
    assert led.answer(callers[2], RemoteError).code == ErrorCode.OVERLOADED  # type: ignore[type-var]
    brokers.settle()
    assert end_of(led, callers[0]) == end_of(led, callers[1]) == 1
    assert end_of(led, led.request(latest(led))) == 1  # their shares are free again


@pytest.mark.parametrize(("step", "code"), [(1, ErrorCode.UNKNOWN_EPOCH), (-1, ErrorCode.STALE_INCARNATION)])
def test_a_promise_is_given_to_a_known_run_only(step: int, code: ErrorCode) -> None:
    brokers = with_messages(b"one")
    giver, taker = brokers[1], BrokerId(2)
    run = giver.image.brokers[taker].incarnation
    giver.who = THE_BROKER
    request = LeaseRequest(broker_id=taker, incarnation=Incarnation(run + step))
    assert giver.refusal(request).code == code
    nobody = LeaseRequest(broker_id=BrokerId(9), incarnation=run)
    assert giver.refusal(nobody).code == ErrorCode.UNKNOWN_EPOCH
    promise = giver.ask(LeaseRequest(broker_id=taker, incarnation=run), LeaseResponse)
    assert promise == LeaseResponse(lease_us=limits.LEADER_LEASE_MS * 1_000, index=giver.image.index)


def test_a_lease_is_asked_by_brokers() -> None:
    asked: type[Request] = LeaseRequest
    assert API_OF_REQUEST[asked].repeatable


def test_a_promise_by_newer_metadata_counts_once_that_has_arrived() -> None:
    brokers = with_messages(b"one")
    led = apart_from_metadata(brokers)
    caller = led.request(latest(led))
    asked = list(brokers.carry)
    brokers.carry.clear()
    brokers.hang(led.broker_id)
    brokers.leader.create("t", subject="t", replicas=3)
    brokers.settle()
    brokers.run(50)
    brokers.carry += asked
    brokers.settle()
    late = brokers._hung[led.broker_id]
    late.sort(key=lambda sent: not (isinstance(sent[1], tuple) and isinstance(sent[1][0].response, LeaseResponse)))
    brokers.wake(led.broker_id)
    brokers.settle()
    assert led.image.index == brokers.leader.image.index
    assert end_of(led, caller) == 1


def test_a_late_registration_does_not_end_a_promise() -> None:
    """The process that sent it twice goes on under the first one, and has the lease, until it hears of the second."""
    brokers = with_messages(b"one")
    led = apart_from_metadata(brokers)
    twice = led.node._cluster.registration._who
    caller = led.request(latest(led))
    brokers.settle()
    assert end_of(led, caller) == 1
    for other in brokers.ids:
        if other != led.broker_id:
            brokers.cut(led.broker_id, other)
    leader = brokers.leader
    leader.who = THE_BROKER
    registered = leader.request(twice)
    brokers.settle()
    brokers.run(50)
    leader.answer(registered, RegisterBrokerResponse)
    successor = brokers.led("s")
    assert successor is not led
    successor.publish("s", b"two", reply="r")
    brokers.settle()
    assert end_of(led, led.request(latest(led))) == 1
    assert not successor.acks
    brokers.run(2 * limits.LEADER_LEASE_MS)
    assert [ack.reply for ack in successor.acks] == ["r"]
