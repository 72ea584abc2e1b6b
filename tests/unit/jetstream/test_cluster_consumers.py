"""Stored consumers of a cluster: another leader goes on with them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.messages import StoreLetterRequest
from penstock.node.step import PeerRequest
from tests.unit.jetstream.api_broker import ApiBrokers, ApiMember
from tests.unit.jetstream.readers.gateways import Delivered, parsed
from tests.unit.node.members import Asked, Member

S = 1_000_000_000


def call(brokers: ApiBrokers, member: ApiMember, operation: str, request: Any = None) -> dict[str, Any]:
    """Return the answer of a broker to a request, which may be passed on."""
    payload = b"" if request is None else json.dumps(request).encode()
    for one in brokers.all:
        one.answers.pop("_INBOX.caller", None)
    member.deliver([(f"$JS.API.{operation}".encode(), b"_INBOX.caller", None, payload)])
    for _ in range(60):
        brokers.run(50)
        for one in brokers.all:
            if answer := one.answers.pop("_INBOX.caller", None):
                found: dict[str, Any] = json.loads(answer)
                return found
    raise AssertionError(f"no answer to {operation}")


def leader_of(brokers: ApiBrokers, stream: str) -> ApiMember:
    member = brokers.all[0]
    leader = member.image.by_name(stream).partitions[0].leader
    assert leader is not None
    return brokers[leader]


def pulled(brokers: ApiBrokers, member: ApiMember, batch: int, **more: Any) -> list[Delivered]:
    """Return what a pull request gets."""
    member.leaf.frames.clear()
    request = json.dumps({"batch": batch, "no_wait": True, **more}).encode()
    member.deliver([(b"$JS.API.CONSUMER.MSG.NEXT.s.d", b"_INBOX.pull", None, request)])
    brokers.run(200)
    return parsed(b"".join(member.leaf.frames))


def test_the_next_leader_goes_on_with_a_consumer() -> None:
    brokers = ApiBrokers(1, 2, 3)
    brokers.run(6_000)
    assert "error" not in call(brokers, brokers[1], "STREAM.CREATE.s", {"name": "s", "num_replicas": 3})
    brokers.run(1_000)
    first = leader_of(brokers, "s")
    config = {"durable_name": "d", "ack_policy": "explicit", "ack_wait": 5 * S}
    other = next(one for one in brokers.all if one is not first)
    made = call(brokers, other, "CONSUMER.CREATE.s.d", {"stream_name": "s", "config": config})
    assert "error" not in made, made
    for number in range(4):
        first.publish("s", b"%d" % number)
    brokers.run(500)
    taken = pulled(brokers, first, 3)
    assert [one.value for one in taken] == [b"0", b"1", b"2"]
    first.deliver([(taken[0].reply.encode(), b"_INBOX.ack", None, b"")])
    brokers.run(500)
    assert first.answers["_INBOX.ack"] == b""
    brokers.kill(first.broker_id)
    brokers.run(10_000)
    second = leader_of(brokers, "s")
    assert second is not first
    told = call(brokers, second, "CONSUMER.INFO.s.d")
    assert (told["num_ack_pending"], told["num_pending"], told["ack_floor"]["stream_seq"]) in ((2, 1, 1), (0, 1, 1))
    brokers.run(6_000)
    again = [(one.value, one.deliveries) for one in pulled(brokers, second, 9) if one.stream_seq]
    assert again == [(b"1", 2), (b"2", 2), (b"3", 1)]


class LostAnswers(ApiBrokers):
    """A cluster in which answers about dead letters are lost, or the requests."""

    lost = ""

    def _take(self, to: Member, caller: Asked, request: PeerRequest) -> None:
        if isinstance(request.request, StoreLetterRequest) and self.lost:
            if self.lost == "request":
                return
            caller = caller._replace(era=-1)  # of a connection that is gone
        super()._take(to, caller, request)


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_dead_letter_is_stored_once_though_the_leader_dies_behind_it(lost: str) -> None:
    brokers = LostAnswers(1, 2, 3)
    brokers.run(6_000)
    made = {"num_replicas": 3}
    assert "error" not in call(brokers, brokers[1], "STREAM.CREATE.s", {"name": "s", **made})
    dead = {"name": "dead", "subjects": ["penstock.dead.dead.>"], **made}
    assert "error" not in call(brokers, brokers[1], "STREAM.CREATE.dead", dead)
    brokers.run(1_000)
    first = leader_of(brokers, "s")
    assert leader_of(brokers, "dead") is not first
    config: dict[str, Any] = {"durable_name": "d", "ack_policy": "explicit", "ack_wait": S, "max_deliver": 1}
    config["metadata"] = {"penstock.dead_letters": "dead"}
    assert "error" not in call(brokers, first, "CONSUMER.CREATE.s.d", {"stream_name": "s", "config": config})
    for number in range(3):
        first.publish("s", b"%d" % number)
    brokers.run(500)
    assert len(pulled(brokers, first, 3)) == 3
    brokers.lost = lost
    brokers.run(2_000)
    told = call(brokers, first, "CONSUMER.INFO.s.d")
    assert (told["num_ack_pending"], told["dead_letters"]["waiting"]) == (3, 3)
    state = call(brokers, first, "STREAM.INFO.dead")["state"]
    assert state["messages"] == (0 if lost == "request" else 1)
    brokers.lost = ""
    brokers.kill(first.broker_id)
    brokers.run(10_000)
    second = leader_of(brokers, "s")
    brokers.run(10_000)
    assert call(brokers, second, "CONSUMER.INFO.s.d")["num_ack_pending"] == 0
    assert call(brokers, second, "STREAM.INFO.dead")["state"]["messages"] == 3
