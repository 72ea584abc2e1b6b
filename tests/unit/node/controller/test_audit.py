"""`__audit` tells each act once, whoever led meanwhile, and no secret."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.access import Operation, Rule
from penstock.access.handshake import Principal
from penstock.base import limits
from penstock.base.config import Intake, StreamConfig
from penstock.messages import (
    AlterStreamRequest,
    AlterUserRequest,
    ChangeRulesRequest,
    DeleteMessagesRequest,
    DeleteStreamRequest,
    DeleteUserRequest,
    ExportUsersRequest,
    ExportUsersResponse,
    PurgeSubjectRequest,
    SetIntakeRequest,
    TruncateRequest,
)
from penstock.metadata.commands import CreateStream
from penstock.vfs.memory import Keep
from tests.unit.node.harness import Broker
from tests.unit.node.security.test_access import asking, credential, user

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


def test_deletions_are_told_with_what_they_delete_and_dry_runs_are_not(broker) -> None:
    with asking(broker, "ann"):
        broker.create("orders")
        broker.append("orders", *(b"%d" % number for number in range(100)))
        stream_id = broker.stream_id("orders")
        broker.request(DeleteMessagesRequest(stream_id=stream_id, offsets=(3, 5, 6, 7, 1_000)))
        broker.tick(1_000)
        broker.request(DeleteMessagesRequest(stream_id=stream_id, offsets=(3, 1_000)))
        broker.request(DeleteMessagesRequest(stream_id=stream_id, offsets=tuple(range(10, 90, 2))))
        broker.tick(1_000)
        broker.request(PurgeSubjectRequest(stream_id=stream_id, subject="orders.>", is_dry_run=True))
        broker.request(PurgeSubjectRequest(stream_id=stream_id, subject="orders.>", keep=5))
        broker.tick(1_000)
        assert [row.offset for row in broker.read("orders")] == [95, 96, 97, 98, 99]
        broker.request(DeleteMessagesRequest(stream_id=stream_id, offsets=(96,), is_secure=True))
        broker.tick(1_000)
        broker.request(PurgeSubjectRequest(stream_id=stream_id, subject="orders.>", keep=3, is_secure=True))
        broker.tick(1_000)
    passes(broker)
    few, many, purge, one_erased, all_erased = told(broker)[2:]
    place = {"by": "ann", "stream": "orders", "partition": 0}
    assert all_erased["subject"] == "?", "the subject is to be in no file"
    assert [one.get("secure") for one in (few, many, purge, one_erased, all_erased)] == [None, None, None, True, True]
    for one in (few, many, purge, one_erased, all_erased):
        assert {name: one[name] for name in place} == place
        assert one["time"]
    assert (few["act"], few["messages"], few["offsets"]) == ("delete_messages", 4, ["3", "5 to 7"])
    assert (many["messages"], many["offsets"]) == (40, [str(number) for number in range(10, 50, 2)])
    assert (purge["act"], purge["subject"], purge["keep"], purge["messages"]) == ("purge_subject", "orders.>", 5, 51)


def test_a_suspension_that_stays_is_not_told_as_altered(broker) -> None:
    with asking(broker, "ann"):
        broker.create("orders")
        broker.request(AlterStreamRequest(name="orders", changes={"suspend_deletion": "yes"}))
        changes = {"suspend_deletion": "no", "max_messages": 9}
        broker.request(AlterStreamRequest(name="orders", changes=changes, keep_suspended=True))
    passes(broker)
    assert [one["changes"] for one in told(broker) if "changes" in one] == [
        {"suspend_deletion": "yes"},
        {"max_messages": 9},
    ]


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
        image = broker.node.image
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


def test_who_has_exported_users_is_told_before_he_has_them(broker) -> None:
    with asking(broker, "ann"):
        broker.disk_runs_at_once = False
        caller = broker.request(ExportUsersRequest())
        assert caller not in broker.replies  # it is not on the disk yet that he asked
        broker.disk_runs_at_once = True
        broker.settle()
        found = broker.replies[caller].response
        assert isinstance(found, ExportUsersResponse)
        assert [one.name for one in found.users] == ["ann"]
        broker.request(ExportUsersRequest(after="ann"))
    passes(broker)
    assert acts(broker) == ["- create_user ann", "ann export_users", "ann export_users"]
    assert told(broker)[-1]["after"] == "ann"
    assert "time" in told(broker)[-1]


def test_what_was_done_before_anybody_wrote_is_told_as_a_gap_too(broker) -> None:
    audit = broker.node._audit
    with asking(broker, "ann"):
        broker.create("orders")
    audit._acts.clear()
    audit.begin(broker.node.image)
    audit._written = 0  # as where `__audit` is empty
    passes(broker)
    gap = told(broker)[-1]
    assert (gap["act"], gap["index"], gap["after"]) == ("unknown", broker.node.image.acted, 0)


def test_what_has_aged_out_is_not_told_anew(broker) -> None:
    with asking(broker, "ann"):
        broker.create("orders")
    passes(broker)
    assert acts(broker)[-1] == "ann create_stream orders"
    broker.clock.advance_ms(limits.AUDIT_SEGMENT_AGE_MS + 1_000)
    passes(broker, 60_000)
    broker.clock.advance_ms(limits.AUDIT_AGE_MS)
    for _ in range(3):
        passes(broker, 600_000)
    assert told(broker) == []
    broker.node._audit._writing = None  # as when it leads anew
    passes(broker)
    with asking(broker, "ann"):
        broker.create("later")
    passes(broker)
    assert acts(broker) == ["ann create_stream later"]


def test_a_stream_of_that_name_that_users_made_is_left_alone() -> None:
    broker = Broker().start()
    config = StreamConfig(name="__audit", subject="audit.>", replicas=1, min_isr=1)  # of an earlier version
    command = CreateStream(config=config, created_us=1, assignments=((broker.node._settings.broker_id,),))
    broker.node._cluster.quorum.propose(command, lambda outcome: None)
    passes(broker)
    broker.request(user("ann", ADMIN))
    with asking(broker, "ann"):
        broker.create("orders")
    passes(broker)
    passes(broker)
    assert told(broker) == []
    assert sum("__audit" in notice for notice in broker.notices) == 1
