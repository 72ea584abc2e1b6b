"""A broker that stops answers the API requests that it has not answered: their callers ask again at another one."""

from __future__ import annotations

import json
from typing import Any

from penstock.jetstream import lookups
from tests.groups import group_of
from tests.unit.jetstream.api_broker import ApiBroker, ApiBrokers
from tests.unit.jetstream.test_confirmation import ask, stale

STOPPING = (503, 10008)


def with_messages() -> ApiBroker:
    broker = ApiBroker().start()
    broker.create("s", "s.>")
    for number in range(3):
        broker.publish(f"s.{number}", b"%d" % number)
    broker.tick(1_000)
    return broker


def send(broker: ApiBroker, *calls: tuple[str, Any], times: int = 1) -> list[str]:
    """One read with these calls; return their reply subjects."""
    rows = [
        (f"$JS.API.{operation}".encode(), b"reply.%d" % number, None, json.dumps(request).encode() if request else b"")
        for number, (operation, request) in enumerate(calls * times)
    ]
    broker.gateway.messages_received(group_of(rows), broker.clock.now)
    return [reply.decode() for _, reply, _, _ in rows]


def stop(broker: ApiBroker) -> None:
    """What waits for the disk goes on waiting."""
    broker.gateway.shut_down()
    broker.turn()


def refused(broker: ApiBroker, reply: str) -> bool:
    if (block := broker.blocks.get(reply)) is not None:
        return block.startswith(b"NATS/1.0 503 ")
    error = json.loads(broker.answers[reply])["error"]
    return (error["code"], error["err_code"]) == STOPPING


def test_requests_in_the_queue_are_refused() -> None:
    broker = with_messages()
    replies = send(broker, ("STREAM.INFO.s", None), ("DIRECT.GET.s", {"seq": 1}), times=50)
    assert broker.gateway.has_next_turn
    stop(broker)
    assert broker.answers.keys() == set(replies)
    assert refused(broker, "reply.98")
    assert refused(broker, "reply.99")
    assert not broker.gateway.has_next_turn


def test_requests_that_wait_for_the_disk_are_refused() -> None:
    broker = with_messages()
    broker.disk_runs_at_once = False
    calls = [
        ("STREAM.INFO.s", None), ("DIRECT.GET.s.s.1", None), ("DIRECT.GET.s", {"seq": 2}),
        ("STREAM.MSG.GET.s", {"seq": 1}), ("STREAM.MSG.GET.s", {"next_by_subj": "s.>"}),
        ("DIRECT.GET.s", {"next_by_subj": "s.>"}),
        *[("DIRECT.GET.s", {"seq": 1, "batch": 2})] * (lookups.BATCHES_RUNNING_MAX + 1),
    ]  # fmt: skip
    replies = send(broker, *calls)
    broker.turn()
    waiting = [one for one in replies if one not in broker.answers]
    assert len(waiting) >= 4
    stop(broker)
    assert broker.answers.keys() == set(replies)
    assert all(refused(broker, one) for one in waiting)
    assert broker.gateway.under_way == 0
    assert broker.gateway.lookups.next_deadline_us is None


def test_requests_that_would_be_asked_again_are_refused() -> None:
    broker = with_messages()
    broker.unsent_bytes = lookups.UNSENT_BYTES_MAX + 1
    (reply,) = send(broker, ("DIRECT.GET.s", {"seq": 1, "batch": 2}))
    assert broker.gateway.lookups.next_deadline_us is not None
    stop(broker)
    assert refused(broker, reply)
    assert broker.gateway.lookups.next_deadline_us is None


def test_requests_that_wait_for_the_metadata_leader_are_refused() -> None:
    _, behind = stale()
    ask(behind, "STREAM.NAMES")
    assert "_INBOX.caller" not in behind.answers
    behind.gateway.shut_down()
    behind.turn()
    assert refused(behind, "_INBOX.caller")


def test_what_comes_later_is_refused_too() -> None:
    broker = with_messages()
    broker.gateway.shut_down()
    replies = send(broker, ("STREAM.INFO.s", None), ("DIRECT.GET.s.s.1", None))
    broker.turn()
    assert all(refused(broker, one) for one in replies)


def test_what_the_node_answers_later_is_no_second_answer() -> None:
    broker = with_messages()
    broker.disk_runs_at_once = False
    replies = send(broker, ("STREAM.INFO.s", None), ("DIRECT.GET.s", {"next_by_subj": "s.>"}))
    broker.turn()
    stop(broker)
    assert all(refused(broker, one) for one in replies)
    broker.answers.clear()
    broker.settle()
    broker.gateway_tick(5_000)
    assert not broker.answers


def test_calls_that_a_stopping_leader_does_not_take_are_refused() -> None:
    brokers = ApiBrokers(1, 2, 3)
    brokers.run(6_000)
    brokers.leader.create("s", replicas=3)
    brokers.run(1_000)
    leader = brokers.leader.image.by_name("s").partitions[0].leader
    other = next(one for one in brokers.all if one.broker_id != leader)
    for is_cut in (False, True):
        if is_cut:
            brokers.cut(int(leader), int(other.broker_id))
        else:
            brokers.stopping.add(leader)
        for operation in ("STREAM.INFO.s", "DIRECT.GET.s.s", "CONSUMER.NAMES.s"):
            ask(other, operation)
            brokers.settle()
            assert refused(other, "_INBOX.caller")
            other.blocks.clear()
