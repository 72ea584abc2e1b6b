"""A purge of a stream of several partitions, whose leaders are different brokers."""

from __future__ import annotations

from typing import Any

from penstock.access import Credential, CredentialKind, Operation, Rule
from penstock.access.handshake import Principal
from penstock.base.ids import BrokerId
from penstock.jetstream.gateway import ApiRights
from penstock.messages import CreateUserRequest
from tests.unit.jetstream.api_broker import ApiBrokers, ApiMember
from tests.unit.jetstream.test_confirmation import ProvenBrokers, ask, told
from tests.unit.node.controller.test_audit import told as audited

KEY = Credential("password", CredentialKind.PASSWORD, 1, None, b"s" * 16, 600_000, bytes(32), bytes(32))


def leaders(brokers: ApiBrokers) -> list[BrokerId | None]:
    return [one.leader for one in brokers.leader.image.by_name("s").partitions]


def filled(brokers: ApiBrokers, **config: Any) -> None:
    """A stream `s` of three partitions, each with a leader of its own and one message."""
    brokers.run(6_000)
    brokers.leader.create("s", "s", partitions=3, **config)
    brokers.run(2_000)
    for number, leader in enumerate(leaders(brokers)):
        assert leader is not None
        brokers[int(leader)].append("s", b"x", subject=f"s.{number}" if number else "s", partition=number)
    brokers.run(1_000)
    assert len(set(leaders(brokers))) == 3


def of_first(brokers: ApiBrokers) -> ApiMember:
    """The broker that answers for the whole."""
    (leader, *_) = leaders(brokers)
    assert leader is not None
    return brokers[int(leader)]


def test_each_partition_is_purged_at_its_leader_in_the_name_of_the_apis_user() -> None:
    brokers = ProvenBrokers(1, 2, 3, rights=ApiRights(user="nats"))
    filled(brokers, replicas=1)
    lead = brokers.leader
    lead.request(CreateUserRequest(name="ann", credentials=(KEY,), rules=(Rule(Operation.ADMIN),)))
    brokers.run(500)
    ann = lead.node.image.user("ann")
    lead.who = Principal("ann", ann.made_index, "password", ann.credentials[0].mark)
    lead.request(CreateUserRequest(name="nats", credentials=(KEY,), rules=(Rule(Operation.ADMIN),)))
    brokers.run(5_000)
    ask(of_first(brokers), "STREAM.PURGE.s")
    brokers.run(3_000)
    assert told(of_first(brokers)) == {
        "type": "io.nats.jetstream.api.v1.stream_purge_response",
        "success": True,
        "purged": 3,
    }
    brokers.run(3_000)
    acts = [one for one in audited(brokers.led("__audit")) if one["act"] == "truncate"]
    assert sorted((one["partition"], one.get("by")) for one in acts) == [(0, "nats"), (1, "nats"), (2, "nats")]


def test_a_partition_without_a_leader_keeps_no_other_one_from_its_purge() -> None:
    brokers = ApiBrokers(1, 2, 3)
    filled(brokers, replicas=1)
    asked = of_first(brokers)
    gone = next(one for one in leaders(brokers) if one not in (asked.broker_id, brokers.leader.broker_id))
    assert gone is not None
    brokers.kill(int(gone))
    brokers.run(20_000)
    assert None in leaders(brokers)
    ask(asked, "STREAM.PURGE.s")
    brokers.run(6_000)
    assert told(asked)["error"]["code"] == 503
    stream = asked.image.by_name("s")
    is_purged = [stream.truncated_at(number) is not None for number in range(3)]
    assert is_purged == [one is not None for one in leaders(brokers)]
