"""`__audit` tells each act once, whoever led meanwhile, and no secret."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.access import Operation, Rule
from penstock.access.handshake import Principal
from penstock.base.config import Intake
from penstock.messages import (
    AlterStreamRequest,
    AlterUserRequest,
    ChangeRulesRequest,
    DeleteStreamRequest,
    DeleteUserRequest,
    SetIntakeRequest,
    TruncateRequest,
)
from penstock.vfs.memory import Keep
from tests.unit.node.harness import Broker
from tests.unit.node.test_access import asking, credential, user

ADMIN = Rule(Operation.ADMIN)


def passes(broker: Broker, ms: int = 3_000) -> None:
    broker.clock.advance_ms(ms)
    for _ in range(3):
        broker.node.tick(broker.clock.now)
        broker.turn()
        broker.settle()


def told(broker: Broker) -> list[dict[str, Any]]:
    before, broker.who = broker.who, Principal("$broker")
    rows = broker.read("__audit")
    broker.who = before
    values = [json.loads(row.value or b"") for row in rows]
    assert [row.key for row in rows] == [str(value["index"]).encode() for value in values]
    return values


def acts(broker: Broker) -> list[str]:
    return [
        f"{one.get('by', '-')} {one['act']} {one.get('stream') or one.get('user') or ''}".strip()
        for one in told(broker)
    ]


@pytest.fixture
def broker() -> Broker:
    broker = Broker().start()
    broker.request(user("ann", ADMIN))
    passes(broker)
    passes(broker)
    return broker


def test_what_is_done_is_told_in_order_with_who_did_it(broker) -> None:
    with asking(broker, "ann"):
        broker.create("orders")
        broker.append("orders", b"1", b"2")
        broker.request(AlterStreamRequest(name="orders", changes={"max_messages": 9}))
        broker.request(SetIntakeRequest(name="orders", intake=Intake.PAUSED))
        broker.request(TruncateRequest(stream_id=broker.stream_id("orders"), before=1))
        broker.settle()
        broker.request(user("bob"))
        broker.request(ChangeRulesRequest(name="bob", add=(Rule(Operation.READ, stream="orders"),)))
        broker.request(AlterUserRequest(name="bob", add=(credential(),)))
        broker.request(DeleteUserRequest(name="bob"))
        broker.request(DeleteStreamRequest(name="orders"))
    passes(broker)
    assert acts(broker) == [
        "- create_user ann",
        "ann create_stream orders",
        "ann alter_stream orders",
        "ann set_intake orders",
        "ann truncate orders",
        "ann create_user bob",
        "ann change_rules bob",
        "ann delete_user bob",
        "ann delete_stream orders",
    ]
    assert all("time" in one for one in told(broker))


def test_what_was_refused_or_changed_nothing_is_not_told(broker) -> None:
    with asking(broker, "ann"):
        broker.request(DeleteUserRequest(name="ann"))
        broker.request(DeleteUserRequest(name="nobody"))
        broker.request(ChangeRulesRequest(name="ann", add=(ADMIN,)))
    passes(broker)
    assert acts(broker) == ["- create_user ann"]


def test_no_secret_and_nothing_that_checks_one_is_told(broker) -> None:
    with asking(broker, "ann"):
        broker.request(user("bob"))
    passes(broker)
    text = json.dumps(told(broker))
    for word in ("salt", "stored_key", "server_key"):
        assert word not in text


@pytest.mark.parametrize("keep", [Keep.SYNCED, Keep.ALL])
def test_each_act_is_told_once_through_crashes(broker, keep) -> None:
    for number in range(6):
        with asking(broker, "ann"):
            broker.create(f"s{number}")
        if number % 2:
            passes(broker)
        broker = broker.crash(keep).start()
        passes(broker)
    expected = ["- create_user ann", *(f"ann create_stream s{number}" for number in range(6))]
    assert acts(broker) == expected


def test_what_nobody_can_know_any_more_is_told_as_a_gap(broker) -> None:
    audit = broker.node._audit
    audit._acts.clear()
    with asking(broker, "ann"):
        broker.create("orders")
        image = broker.node.access._image()
    audit.begin(image)
    audit._acts.clear()
    passes(broker)
    gap = told(broker)[-1]
    assert (gap["act"], gap["index"]) == ("unknown", image.acted)
    assert gap["after"] == told(broker)[-2]["index"]
    passes(broker)
    assert told(broker)[-1] == gap


def test_there_is_no_audit_while_nobody_is_somebody() -> None:
    broker = Broker().start()
    broker.create("orders")
    passes(broker)
    assert set(broker.streams()) == {"orders"}
