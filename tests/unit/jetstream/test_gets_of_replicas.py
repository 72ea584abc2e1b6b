"""Gets at a leader with replicas: out of memory as long as it has a lease, and no longer."""

from __future__ import annotations

import msgspec

from penstock.base import limits
from penstock.jetstream.api_call import ApiCall
from tests.groups import group_of
from tests.unit.jetstream.api_broker import ApiBrokers, ApiMember

GET = b"$JS.API.DIRECT.GET.orders.orders.a"
INBOX = "_INBOX.caller"


def led() -> tuple[ApiBrokers, ApiMember]:
    """A cluster, and the broker that leads a stream of three replicas with one message."""
    brokers = ApiBrokers(1, 2, 3)
    brokers.run(6_000)
    brokers.leader.create("orders", subject="orders.>", replicas=3)
    brokers.run(1_000)
    leader = brokers[int(brokers.led("orders").broker_id)]
    leader.deliver([(b"orders.a", b"r.0", None, b"first")])
    brokers.run(1_000)
    return brokers, leader


def is_at_once(member: ApiMember) -> bool:
    """Have NATS give a get to this broker; True if it is answered, and nothing else follows."""
    member.answers.pop(INBOX, None)
    is_quick = member.gateway.messages_received(group_of([(GET, INBOX.encode(), None, b"")]), member.clock.now)
    member.turn()
    return is_quick


def test_a_get_is_answered_at_once_while_the_lease_holds() -> None:
    brokers, leader = led()
    assert not is_at_once(leader)
    brokers.settle()  # the other brokers promise
    assert leader.answers[INBOX] == b"first"
    assert not is_at_once(leader)
    assert is_at_once(leader)
    assert leader.answers[INBOX] == b"first"
    count = leader.node.event_count
    leader.answers.clear()
    passed_on = ApiCall(GET.decode(), INBOX.encode(), None, b"", 1, leader.clock.now.wall_us)
    leader.gateway.passed_on(msgspec.msgpack.encode([passed_on]), leader.clock.now)
    leader.turn()
    assert (leader.answers[INBOX], leader.node.event_count) == (b"first", count)
    brokers.clock.advance_ms(limits.LEADER_LEASE_MS)  # as of a process that was suspended: it has heard of nothing
    assert not is_at_once(leader)
    assert INBOX not in leader.answers
