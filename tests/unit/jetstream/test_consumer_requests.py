"""Consumers asked about over the socket API: what is answered, whose rights hold, and what hostile requests get."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.access import Operation, Rule
from penstock.base.errors import ErrorCode, RemoteError
from penstock.jetstream.gateway import ApiRights
from penstock.messages import (
    AlterStreamRequest,
    AskConsumersRequest,
    AskConsumersResponse,
    ChangeRulesRequest,
    ConsumerOperation,
)
from tests.unit.jetstream.readers.gateways import ReaderBroker
from tests.unit.node.harness import Broker
from tests.unit.node.security.test_access import allow, asking, user

S = 1_000_000_000  # ns
READ = Rule(Operation.READ, stream="orders")
_MADE = {"ack_policy": "none", "inactive_threshold": 3_600 * S}


def started(messages: int = 5) -> ReaderBroker:
    broker = ReaderBroker().start()
    broker.create("orders")
    fill(broker, messages)
    return broker


def fill(broker: ReaderBroker, messages: int) -> None:
    for number in range(messages):
        broker.publish(f"orders.{number % 2}", b"%d" % number)
    broker.tick(1)


def guarded(*rules: Rule, api_rules: tuple[Rule, ...] = (READ,)) -> ReaderBroker:
    """The API acts as `api`; bob has these rules."""
    broker = ReaderBroker(rights=ApiRights(user="api")).start()
    broker.create("orders")
    fill(broker, 5)
    broker.request(user("ann", Rule(Operation.ADMIN)))
    with asking(broker, "ann"):
        broker.request(user("api", *api_rules))
        broker.request(user("bob", *rules))
    return broker


def request(broker: Broker, operation: str, consumer: str = "", stream: str = "orders", **fields: Any) -> Any:
    if isinstance(fields.get("config"), dict):
        fields["config"] = json.dumps(fields["config"])
    stream_id = broker.node.image.by_name(stream).stream_id
    return AskConsumersRequest(stream_id=stream_id, operation=ConsumerOperation(operation), consumer=consumer, **fields)


def ask(broker: ReaderBroker, operation: str, consumer: str = "", **fields: Any) -> list[dict[str, Any]]:
    caller = broker.request(request(broker, operation, consumer, **fields))
    broker.answer(caller, AskConsumersResponse)
    found: list[dict[str, Any]] = json.loads(bytes(broker.payloads[caller]))
    return found


def refused(broker: ReaderBroker, operation: str, consumer: str = "", **fields: Any) -> RemoteError:
    return broker.refusal(request(broker, operation, consumer, **fields))


def test_what_is_answered_is_what_jetstreams_api_answers() -> None:
    broker = started()
    broker.consumer("orders", "c", inactive_threshold=60 * S)
    broker.send("CONSUMER.MSG.NEXT.orders.c", {"batch": 2})
    over_nats = broker.api("CONSUMER.INFO.orders.c")
    over_nats.pop("type")
    assert ask(broker, "info", "c") == [over_nats]
    assert ask(broker, "list") == [over_nats]
    assert over_nats["delivered"]["stream_seq"] == 2


def test_a_consumer_is_made_and_deleted() -> None:
    broker = started()
    (made,) = ask(broker, "create", "c", config={**_MADE, "filter_subject": "orders.1"})
    assert (made["name"], made["num_pending"]) == ("c", 2)
    assert [one["name"] for one in broker.api("CONSUMER.LIST.orders")["consumers"]] == ["c"]
    assert ask(broker, "delete", "c") == []
    assert ask(broker, "list") == []
    assert refused(broker, "info", "c").code == ErrorCode.CONSUMER_NOT_FOUND


def test_a_request_that_is_repeated_finds_the_same_consumer_and_no_other_config_replaces_it() -> None:
    broker = started()
    for _ in range(2):
        assert ask(broker, "create", "c", config=_MADE)[0]["name"] == "c"
    assert refused(broker, "create", "c", config={**_MADE, "description": "x"}).code == ErrorCode.CONSUMER_EXISTS


def test_a_paused_consumer_delivers_nothing_until_it_goes_on() -> None:
    broker = started()
    ask(broker, "create", "c", config=_MADE)
    (info,) = ask(broker, "pause", "c", until_us=broker.clock.now.wall_us + 60_000_000)
    assert info["paused"]
    inbox = broker.send("CONSUMER.MSG.NEXT.orders.c", {"batch": 2, "expires": 5 * S})
    assert broker.delivered(inbox) == []
    (info,) = ask(broker, "pause", "c")
    assert "paused" not in info
    broker.turn()
    assert [one.stream_seq for one in broker.delivered(inbox)] == [1, 2]


def test_a_reset_consumer_goes_on_at_that_offset() -> None:
    broker = started()
    ask(broker, "create", "c", config=_MADE)
    broker.send("CONSUMER.MSG.NEXT.orders.c", {"batch": 4})
    broker.delivered()
    (info,) = ask(broker, "reset", "c", next_offset=1)
    assert info["num_pending"] == 4
    inbox = broker.send("CONSUMER.MSG.NEXT.orders.c", {"batch": 1})
    assert [one.stream_seq for one in broker.delivered(inbox)] == [2]


def test_a_list_has_pages() -> None:
    broker = started(0)
    for number in range(300):
        broker.consumer("orders", f"c{number:03}", inactive_threshold=60 * S)
    caller = broker.request(request(broker, "list"))
    assert broker.answer(caller, AskConsumersResponse).skip_next == 256
    assert [one["name"] for one in json.loads(bytes(broker.payloads[caller]))[-1:]] == ["c255"]
    caller = broker.request(request(broker, "list", skip=256))
    assert broker.answer(caller, AskConsumersResponse).skip_next is None
    assert len(json.loads(bytes(broker.payloads[caller]))) == 44


def test_consumers_of_a_partition_are_asked_of_by_its_number() -> None:
    broker = ReaderBroker().start()
    broker.create("orders", "orders", partitions=2)
    ask(broker, "create", "c", partition=1, config=_MADE)
    assert [one["stream_name"] for one in ask(broker, "list", partition=1)] == ["orders-p1"]
    assert ask(broker, "list", partition=0) == []
    assert refused(broker, "list", partition=2).code == ErrorCode.BAD_REQUEST


def test_a_broker_without_the_api_says_what_to_do() -> None:
    broker = Broker().start()
    broker.create("orders")
    error = broker.refusal(request(broker, "list"))
    assert error.code == ErrorCode.JETSTREAM_OFF
    assert "--jetstream-api auto" in error.message


# Rights


def consumer_rule(pattern: str) -> Rule:
    return Rule(Operation.COMMIT_OFFSETS, stream="orders", group=pattern)


@pytest.mark.parametrize("operation", ["pause", "reset", "delete", "create"])
@pytest.mark.parametrize("pattern", ["consumer:bill*", "consumer:billing", "*"])
def test_a_consumer_is_changed_by_who_may_by_its_name(operation: str, pattern: str) -> None:
    broker = guarded(READ, consumer_rule(pattern))
    with asking(broker, "bob"):
        ask(broker, "create", "billing", config=_MADE)
        if operation != "create":
            ask(broker, operation, "billing")


@pytest.mark.parametrize("operation", ["pause", "reset", "delete", "create"])
@pytest.mark.parametrize("pattern", ["consumer:ship*", "billing", "bill*"])
def test_nobody_else_changes_it(operation: str, pattern: str) -> None:
    broker = guarded(READ, consumer_rule(pattern))
    with asking(broker, "ann"):
        ask(broker, "create", "billing", config=_MADE)
        before = ask(broker, "list")
    with asking(broker, "bob"):
        config = {"config": _MADE} if operation == "create" else {}
        assert refused(broker, operation, "billing", **config).code == ErrorCode.NOT_AUTHORIZED
    with asking(broker, "ann"):
        assert [one["name"] for one in ask(broker, "list")] == [one["name"] for one in before]


def test_a_list_has_the_consumers_that_the_asker_may_see() -> None:
    broker = guarded(consumer_rule("consumer:bill*"))
    with asking(broker, "ann"):
        for name in ("billing", "shipping"):
            ask(broker, "create", name, config=_MADE)
    with asking(broker, "bob"):
        assert [one["name"] for one in ask(broker, "list")] == ["billing"]
        assert ask(broker, "info", "billing")[0]["name"] == "billing"
        assert refused(broker, "info", "shipping").code == ErrorCode.NOT_AUTHORIZED
    allow(broker, READ)
    with asking(broker, "bob"):
        assert [one["name"] for one in ask(broker, "list")] == ["billing", "shipping"]


def test_who_may_read_some_subjects_makes_consumers_of_these() -> None:
    broker = guarded(Rule(Operation.READ, subject="orders.1"), consumer_rule("consumer:*"))
    with asking(broker, "bob"):
        assert refused(broker, "create", "c", config=_MADE).code == ErrorCode.NOT_AUTHORIZED
        config = {**_MADE, "filter_subject": "orders.0"}
        assert refused(broker, "create", "c", config=config).code == ErrorCode.NOT_AUTHORIZED
        config = {**_MADE, "filter_subjects": ["orders.1", "orders.0"]}
        assert refused(broker, "create", "c", config=config).code == ErrorCode.NOT_AUTHORIZED
        (made,) = ask(broker, "create", "c", config={**_MADE, "filter_subject": "orders.1"})
    assert made["num_pending"] == 2


def test_a_consumer_reads_as_the_apis_user_whoever_makes_it() -> None:
    broker = guarded(api_rules=(Rule(Operation.READ, subject="orders.1"),))
    with asking(broker, "ann"):
        assert ask(broker, "create", "c", config=_MADE)[0]["num_pending"] == 2
        config = {**_MADE, "filter_subject": "orders.0"}
        assert refused(broker, "create", "d", config=config).code == ErrorCode.NOT_AUTHORIZED


def test_a_stream_that_the_apis_user_may_not_see_has_no_consumers() -> None:
    broker = guarded(api_rules=())
    with asking(broker, "ann"):
        assert ask(broker, "list") == []
        error = refused(broker, "create", "c", config=_MADE)
    assert error.code == ErrorCode.NOT_AUTHORIZED
    assert "penstock acl add api read --stream orders" in error.message


def test_who_may_not_see_the_stream_is_told_of_none() -> None:
    broker = guarded(READ)
    with asking(broker, "bob"):
        assert ask(broker, "list") == []
    with asking(broker, "ann"):
        broker.request(ChangeRulesRequest(name="bob", drop=(READ,)))
    with asking(broker, "bob"):
        assert refused(broker, "list").code == ErrorCode.STREAM_CHANGED


def test_a_push_consumer_is_not_made_over_the_socket() -> None:
    broker = started()
    error = refused(broker, "create", "c", config={**_MADE, "deliver_subject": "others.cmd"})
    assert "deliver_subject" in error.message
    assert ask(broker, "list") == []


def test_no_consumer_is_made_of_a_stream_that_nats_may_not_carry() -> None:
    broker = started()
    broker.request(AlterStreamRequest(name="orders", changes={"nats_readable": False}))
    assert refused(broker, "create", "c", config=_MADE).code == ErrorCode.NOT_AUTHORIZED


# Hostile input


@pytest.mark.parametrize(
    "config",
    ["{", "[]", "7", '{"filter_subjects": 7}', '{"filter_subjects": [7]}', '{"filter_subject": {"a": []}}',
     "[" * 50_000, '{"metadata": {"a": 7}}', '{"ack_policy": "none", "backoff": "x"}', '{"durable_name": "other"}'],
)  # fmt: skip
def test_a_config_with_mistakes_is_refused(config: str) -> None:
    broker = started(1)
    assert refused(broker, "create", "c", config=config).code == ErrorCode.BAD_REQUEST
    assert ask(broker, "list") == []


@pytest.mark.parametrize("name", ["", "a.b", "*", ">", "a b", "é\n", "a/b", "\\"])
def test_a_name_that_no_consumer_has_is_refused(name: str) -> None:
    broker = started(1)
    assert refused(broker, "create", name, config=_MADE).code == ErrorCode.BAD_REQUEST
    for operation in ("info", "pause", "reset", "delete"):
        assert refused(broker, operation, name).code == ErrorCode.CONSUMER_NOT_FOUND


def test_places_beyond_all_are_refused_or_the_end() -> None:
    broker = started(3)
    ask(broker, "create", "c", config=_MADE)
    assert refused(broker, "reset", "c", next_offset=2**63 - 1).code == ErrorCode.BAD_REQUEST
    assert ask(broker, "pause", "c", until_us=253_402_300_799_999_999)[0]["paused"]
    assert ask(broker, "list", skip=2**31 - 1) == []
