"""Leaders check values by the schemas of their streams: on one broker, and where another keeps the schemas."""

from __future__ import annotations

from typing import Any

from penstock.base import limits
from penstock.base.config import SchemaCheck, StreamConfig
from penstock.base.errors import ErrorCode
from penstock.ingest.value_check import SCHEMAS_UNKNOWN
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendRequest,
    AppendResponse,
    CreateStreamRequest,
    SchemasStreamRequest,
    SchemasStreamResponse,
)
from penstock.node.api.schema_checks import MakeCheck
from penstock.schemas.rows import SCHEMAS_STREAM
from tests.extent import each_change
from tests.unit.node.api.test_schema_registry import answer, asked, register
from tests.unit.node.harness import Broker, batch_of
from tests.unit.node.members import Brokers

SCHEMA = '{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}'
WIDER = '{"type":"object","properties":{"x":{"type":"integer"},"y":{"type":"string"}},"required":["x"]}'
GOOD, BAD = b'{"x":1}', b'{"x":"one"}'


def typed(broker: Broker, *, text: str = SCHEMA) -> Any:
    return answer(broker, register(broker, "orders.*", text=text, kind="json-schema"))


def with_check(schema_check: str, *, has_schema: bool = True) -> Broker:
    broker = Broker().start()
    broker.create("orders", subject="orders.>", schema_check=schema_check)
    if has_schema:
        broker.ask(SchemasStreamRequest(), SchemasStreamResponse)
        typed(broker)
        refresh(broker)
    return broker


def refresh(broker: Broker) -> None:
    for _ in range(2):
        broker.tick(limits.SCHEMA_CHECK_REFRESH_MS)


def told(broker: Broker) -> list[str]:
    """What the publishers were told: nothing for an ack."""
    return [ack.body.get("error", {}).get("description", "") for ack in broker.acks]


def test_a_value_that_does_not_fit_is_refused() -> None:
    broker = with_check("refuse")
    broker.publish("orders.a", GOOD, BAD, GOOD, reply="r")
    assert broker.values("orders") == [GOOD, GOOD]
    refusal = "the value does not fit its schema: it does not have the form that the schema asks for"
    assert sorted(told(broker)) == ["", "", refusal]
    broker.publish("orders.a.b", BAD, reply="r")  # no schema has that subject
    assert broker.values("orders") == [GOOD, GOOD, BAD]


def test_a_value_that_does_not_fit_is_counted() -> None:
    broker = with_check("count")
    broker.publish("orders.a", GOOD, BAD, BAD, reply="r")
    assert broker.values("orders") == [GOOD, BAD, BAD]
    assert broker.node.meters.counters["misfits"] == 2


def test_nothing_is_checked_without_schemas_and_soon_after_there_is_one() -> None:
    broker = with_check("refuse", has_schema=False)
    broker.publish("orders.a", BAD, reply="r")
    assert broker.values("orders") == [BAD]
    broker.ask(SchemasStreamRequest(), SchemasStreamResponse)
    typed(broker)
    refresh(broker)
    broker.publish("orders.a", BAD, GOOD, reply="r")
    assert broker.values("orders") == [BAD, GOOD]


def test_an_append_is_checked_whole() -> None:
    broker = with_check("refuse")
    place = {"stream_id": broker.stream_id("orders"), "partition": 0}
    batch = batch_of([("orders.a", None, GOOD, None), ("orders.a", None, BAD, None)])
    error = broker.refusal(AppendRequest(**place), batch)
    assert (error.code, error.details["row"]) == (ErrorCode.SCHEMA_MISMATCH, 1)
    assert "row 1, on 'orders.a', does not fit its schema: it does not have the form" in error.message
    broker.ask(AppendRequest(**place), AppendResponse, batch_of([("orders.a", None, GOOD, None)]))
    assert broker.values("orders") == [GOOD]


def test_the_check_begins_and_ends_with_the_config() -> None:
    broker = with_check("no")
    broker.publish("orders.a", BAD)
    broker.ask(AlterStreamRequest(name="orders", changes={"schema_check": "refuse"}), AlterStreamResponse)
    broker.publish("orders.a", BAD)
    refresh(broker)
    broker.publish("orders.a", BAD)
    assert broker.values("orders") == [BAD]
    broker.ask(AlterStreamRequest(name="orders", changes={"schema_check": "no"}), AlterStreamResponse)
    broker.publish("orders.a", BAD)
    assert broker.values("orders") == [BAD, BAD]


def test_a_new_version_decides_a_moment_later() -> None:
    broker = with_check("refuse")
    wide = b'{"x":1,"y":2}'
    broker.publish("orders.a", wide)
    typed(broker, text=WIDER)
    refresh(broker)
    broker.publish("orders.a", wide)
    assert broker.values("orders") == [wide]


def clustered() -> tuple[Brokers, int, int]:
    """A cluster, which broker leads the checked stream, and another that keeps the schemas."""
    brokers = Brokers(1, 2, 3)
    brokers.run(5_000)
    brokers[1].create("orders", subject="orders.>", schema_check="refuse", replicas=1)
    brokers.run(1_000)
    for _ in range(3):
        made = brokers[1].request(SchemasStreamRequest())
        brokers.run(1_000)
        brokers[1].answer(made, SchemasStreamResponse)
    keeper, leader = (brokers.partition(name).leader for name in (SCHEMAS_STREAM, "orders"))
    assert keeper is not None
    assert leader is not None
    return brokers, leader, keeper


@each_change
def test_schemas_come_from_the_broker_that_keeps_them() -> None:
    brokers, leader, keeper = clustered()
    asked(brokers, keeper, register(brokers[keeper], "orders.*", text=SCHEMA, kind="json-schema"))
    brokers.run(3_000)
    assert leader != keeper, "the story needs two brokers"
    brokers.publish("orders.a", BAD)
    brokers.publish("orders.a", GOOD)
    assert brokers[leader].values("orders") == [GOOD]
    brokers.kill(keeper)  # what is known goes on to count
    brokers.run(2_000)
    brokers.publish("orders.a", BAD)
    brokers.publish("orders.a", GOOD)
    assert brokers[leader].values("orders") == [GOOD, GOOD]


@each_change
def test_messages_wait_for_schemas_but_not_for_ever() -> None:
    brokers, leader, keeper = clustered()
    (third,) = {1, 2, 3} - {leader, keeper}
    assert brokers.leader.broker_id == leader, "the story needs a metadata leader that the two others reach"
    brokers.cut(third, keeper)
    brokers.run(100)
    config = StreamConfig(name="late", subject="late.>", schema_check=SchemaCheck.REFUSE, replicas=1)
    brokers.leader.request(CreateStreamRequest(config=config))
    brokers.run(1_000)
    late = brokers.led("late")
    assert late.broker_id == third, "the story needs a leader that does not reach the keeper of the schemas"
    brokers.publish("late.a", GOOD, reply="r")
    brokers.run(1_000)
    assert (late.values("late"), late.acks) == ([], [])
    brokers.run(limits.SCHEMA_CHECK_WAIT_MS + 2_000)
    assert [ack.body["error"]["description"] for ack in late.acks] == [f"temporarily unavailable: {SCHEMAS_UNKNOWN}"]
    brokers.publish("late.a", GOOD, reply="r")
    assert late.values("late") == []
    brokers.join(third, keeper)
    brokers.run(3_000)
    brokers.publish("late.a", GOOD, reply="r")
    assert late.values("late") == [GOOD]


def test_what_cannot_be_checked_is_not_stored() -> None:
    """Schemas that are too large for the check do not open the stream."""
    broker = with_check("refuse", has_schema=False)
    broker.ask(SchemasStreamRequest(), SchemasStreamResponse)
    for number in range(limits.SCHEMA_CHECK_BYTES_MAX // 700_000 + 2):
        text = SCHEMA.replace("{", f'{{"description":"{number}{"x" * 700_000}",', 1)
        answer(broker, register(broker, f"orders.{number}", text=text, kind="json-schema"))
    for _ in range(3):
        refresh(broker)
    broker.publish("orders.1", GOOD, reply="r")
    assert broker.values("orders") == []
    assert "the most by which values are checked" in told(broker)[-1]


def test_schemas_that_take_long_to_parse_are_parsed_once() -> None:
    broker = with_check("refuse", has_schema=False)
    broker.ask(SchemasStreamRequest(), SchemasStreamResponse)
    broker.hung = (MakeCheck,)
    typed(broker)
    for _ in range(3 * limits.SCHEMA_CHECK_WAIT_MS // limits.SCHEMA_CHECK_REFRESH_MS):
        refresh(broker)
    assert len(broker.disk) == 1
    broker.hung = ()
    broker.turn()
    refresh(broker)
    broker.publish("orders.a", BAD, GOOD)
    assert broker.values("orders") == [GOOD]
