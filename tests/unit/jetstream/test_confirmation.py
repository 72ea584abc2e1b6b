"""Answers about what there is in the cluster: they wait until this broker's image is confirmed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.access import Credential, CredentialKind, Operation, Rule
from penstock.access.handshake import Principal
from penstock.base import limits
from penstock.jetstream import gateway
from penstock.jetstream.gateway import ApiRights
from penstock.jetstream.stream_config import REQUEST_BYTES_MAX
from penstock.messages import CreateUserRequest
from tests.groups import group_of
from tests.unit.jetstream.api_broker import ApiBroker, ApiBrokers, ApiMember

INBOX = "_INBOX.caller"


class ProvenBrokers(ApiBrokers):
    """They have the secret of their cluster, as users need it."""

    prove = True


def ask(member: ApiMember | ApiBroker, operation: str, request: Any = None) -> None:
    """Have NATS give a call to this broker; nothing is carried to others yet."""
    member.answers.pop(INBOX, None)
    payload = b"" if request is None else json.dumps(request).encode()
    call = (f"$JS.API.{operation}".encode(), INBOX.encode(), None, payload)
    member.gateway.messages_received(group_of([call]), member.clock.now)
    member.turn()


def told(member: ApiMember) -> Any:
    return json.loads(member.answers[INBOX])


def stale() -> tuple[ApiBrokers, ApiMember]:
    """A cluster, and a broker that has not heard that stream `old` was deleted and `new` was made."""
    brokers = ApiBrokers(1, 2, 3)
    brokers.run(6_000)
    brokers.leader.create("old", subject="old")
    brokers.run(1_000)
    behind = next(one for one in brokers.all if one is not brokers.leader)
    for one in brokers.ids:
        if one != behind.broker_id:
            brokers.cut(int(behind.broker_id), one)
    brokers.leader.delete("old")
    brokers.leader.create("new", subject="new")
    brokers.run(50)
    assert ("old" in behind.image.names, "new" in behind.image.names) == (True, False)
    assert "$JS.API.>" in behind.served
    return brokers, behind


def heard(brokers: ApiBrokers, behind: ApiMember) -> None:
    """It reaches the others again."""
    brokers.join(int(behind.broker_id), *(one for one in brokers.ids if one != behind.broker_id))
    brokers.run(2_000)


@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        ("STREAM.NAMES", None),
        ("STREAM.LIST", None),
        ("INFO", None),
        ("STREAM.CREATE.old", {"name": "old", "subjects": ["other"]}),
        ("STREAM.CREATE.old", {"name": "old", "subjects": ["old"]}),
        ("STREAM.UPDATE.old", {"name": "old", "subjects": ["old"]}),
    ],
)
def test_a_broker_with_an_old_image_says_nothing_of_what_there_is(operation: str, request_: Any) -> None:
    brokers, behind = stale()
    ask(behind, operation, request_)
    brokers.run(100)
    assert INBOX not in behind.answers
    heard(brokers, behind)
    answer = told(behind)
    if operation == "STREAM.NAMES":
        assert answer["streams"] == ["new"]
    elif operation == "STREAM.LIST":
        assert [one["config"]["name"] for one in answer["streams"]] == ["new"]
    elif operation == "INFO":
        assert answer["streams"] == 1
    elif "CREATE" in operation:
        assert answer["did_create"]
        assert answer["state"]["messages"] == 0
    else:
        assert answer["error"]["err_code"] == 10059


def test_the_image_is_confirmed_by_a_heartbeat_of_its_own() -> None:
    """The regular ones are half a second apart."""
    brokers = ApiBrokers(1, 2, 3)
    brokers.run(6_000)
    for member in brokers.all:
        brokers.clock.advance_ms(20)
        ask(member, "STREAM.INFO.none")
        brokers.settle()
        assert told(member)["error"]["err_code"] == 10059
        brokers.clock.advance_ms(1)
        ask(member, "STREAM.NAMES")
        brokers.settle()
        assert INBOX not in member.answers  # heartbeats are not that frequent
        due_us = member.gateway.next_deadline_us
        assert due_us is not None
        assert due_us - brokers.clock.elapsed_us <= limits.REFUSALS_CONFIRM_MS * 1_000
        brokers.run(50)
        assert told(member)["streams"] is None


def test_a_broker_that_is_alone_waits_for_nobody() -> None:
    broker = ApiBroker().start()
    for operation in ("STREAM.INFO.none", "STREAM.NAMES", "INFO"):
        broker.clock.advance_ms(10)
        ask(broker, operation)
        assert INBOX in broker.answers


def test_too_many_that_wait_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "UNCONFIRMED_MAX", 1)
    _, behind = stale()
    ask(behind, "STREAM.NAMES")
    assert INBOX not in behind.answers
    ask(behind, "STREAM.NAMES")
    assert "too many requests" in told(behind)["error"]["description"]


def test_what_is_refused_anyway_does_not_wait_with_its_payload() -> None:
    _, behind = stale()
    ask(behind, "STREAM.NAMES", "x" * REQUEST_BYTES_MAX)
    assert told(behind)["error"]["err_code"] == 10025


def test_a_stream_that_may_not_be_seen_is_as_none() -> None:
    """Also in how long it takes to say so."""
    brokers = ProvenBrokers(1, 2, 3, rights=ApiRights(user="nats"))
    brokers.run(6_000)
    brokers.leader.create("hidden", subject="hidden")
    brokers.leader.create("open", subject="open")
    brokers.run(1_000)
    key = Credential("password", CredentialKind.PASSWORD, 1, None, b"s" * 16, 600_000, bytes(32), bytes(32))
    lead = brokers.leader
    lead.request(CreateUserRequest(name="ann", credentials=(key,), rules=(Rule(Operation.ADMIN),)))
    brokers.run(500)
    ann = lead.node.image.user("ann")
    lead.who = Principal("ann", ann.made_index, "password", ann.credentials[0].mark)
    lead.request(CreateUserRequest(name="nats", credentials=(key,), rules=(Rule(Operation.READ, stream="open"),)))
    brokers.run(500)
    behind = next(one for one in brokers.all if one is not brokers.leader)
    for one in brokers.ids:
        if one != behind.broker_id:
            brokers.cut(int(behind.broker_id), one)
    answers = []
    for name in ("hidden", "none"):
        brokers.clock.advance_ms(10)
        ask(behind, f"STREAM.INFO.{name}")
        answers.append(INBOX in behind.answers)
    assert answers == [False, False]
