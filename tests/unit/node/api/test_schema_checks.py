"""Leaders check values by the schemas of their streams: on one broker, and where another keeps the schemas."""

from __future__ import annotations

import gc
from collections import deque
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from penstock.base import limits
from penstock.base.config import Intake, SchemaCheck, StreamConfig
from penstock.base.errors import ErrorCode, PenstockError, RemoteError
from penstock.base.ids import BrokerId, PartitionId, PartitionKey, StreamId, TimestampUs
from penstock.ingest.value_check import SCHEMAS_UNKNOWN, VERSION_UNDECIDED
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendRequest,
    AppendResponse,
    CreateStreamRequest,
    GetSchemaTextRequest,
    GetSchemaTextResponse,
    ListSchemasResponse,
    PublishStagedResponse,
    RegisterSchemasResponse,
    SchemaInfo,
    SchemasStreamRequest,
    SchemasStreamResponse,
    SetIntakeRequest,
    SetIntakeResponse,
)
from penstock.node.api.schema_checks import MakeCheck, _Stream
from penstock.node.step import PeerRequest
from penstock.schemas.kinds import Schema, SchemaKind
from penstock.schemas.plans import Plan
from penstock.schemas.rows import SCHEMAS_STREAM, StoredText
from tests.extent import each_change
from tests.unit.node.api.test_schema_registry import answer, asked, register, text_of
from tests.unit.node.harness import Broker, Executed, batch_of
from tests.unit.node.members import Brokers
from tests.unit.node.staging import publishing, refused, staged, staged_stream

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
    refusal = "the value does not fit its schema: it does not have the form that the schema asks for "
    refusal += "(x: a whole number is expected, a string is found)"
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
    assert error.message.endswith("asks for (x: a whole number is expected, a string is found)")
    assert error.details["reason"].endswith("asks for (x: a whole number is expected, a string is found)")
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


def naming(schema_hash: str) -> bytes:
    return f"NATS/1.0\r\nPenstock-Schema: {schema_hash}\r\n\r\n".encode()


UNKNOWN = naming("0" * 64)


def hash_of(registered: Any) -> str:
    (one,) = registered.versions
    return str(one.version.hash)


def naming_publish(broker: Broker, headers: bytes, *values: bytes) -> None:
    broker.deliver([(b"orders.a", b"r", headers, value) for value in values])


def test_a_version_that_nobody_registered_is_refused_by_a_list_that_is_newer_than_the_message() -> None:
    broker = with_check("refuse")
    broker.clock.advance_ms(limits.SCHEMA_LOOKUP_INTERVAL_MS)
    naming_publish(broker, UNKNOWN, GOOD)
    assert broker.values("orders") == []
    (refusal,) = told(broker)
    assert "register that version first" in refusal


def test_a_version_registered_just_now_is_known_at_once() -> None:
    """The message waits for the list, and those behind it wait with it, in order."""
    broker = with_check("refuse")
    wide = b'{"x":1,"y":"z"}'
    broker.clock.advance_ms(1)
    made = hash_of(typed(broker, text=WIDER))
    naming_publish(broker, naming(made), wide)
    naming_publish(broker, UNKNOWN, GOOD)
    broker.publish("orders.a", GOOD, reply="r")
    assert (broker.values("orders"), broker.acks) == ([], [])
    broker.tick(limits.SCHEMA_LOOKUP_INTERVAL_MS)
    assert broker.values("orders") == [wide, GOOD]
    assert sorted(map(bool, told(broker))) == [False, False, True]


def test_versions_of_avro_are_known_at_once_too() -> None:
    broker = with_check("refuse", has_schema=False)
    broker.ask(SchemasStreamRequest(), SchemasStreamResponse)
    answer(broker, register(broker, "orders.*", text=text_of("id")))
    refresh(broker)
    broker.clock.advance_ms(limits.SCHEMA_LOOKUP_INTERVAL_MS)
    made = hash_of(answer(broker, register(broker, "orders.*", text=text_of("id", "more"))))
    naming_publish(broker, naming(made), b"\2\4")
    assert broker.values("orders") == [b"\2\4"]


def test_an_append_of_a_version_registered_just_now_is_checked_again() -> None:
    broker = with_check("refuse")
    place = {"stream_id": broker.stream_id("orders"), "partition": 0}
    broker.clock.advance_ms(1)
    made = hash_of(typed(broker, text=WIDER))
    good = broker.request(AppendRequest(**place), batch_of([("orders.a", None, GOOD, naming(made))]))
    bad = broker.request(AppendRequest(**place), batch_of([("orders.a", None, GOOD, UNKNOWN)]))
    after = broker.request(AppendRequest(**place), batch_of([("orders.a", None, GOOD, None)]))
    assert not broker.replies.keys() & {good, bad, after}
    broker.tick(limits.SCHEMA_LOOKUP_INTERVAL_MS)
    broker.tick(limits.SCHEMA_LOOKUP_INTERVAL_MS)
    assert isinstance(broker.replies[good].response, AppendResponse)
    refused = broker.replies[bad].response
    assert isinstance(refused, RemoteError)
    assert refused.code == ErrorCode.SCHEMA_MISMATCH
    assert "register that version first" in refused.message
    assert isinstance(broker.replies[after].response, AppendResponse)


def test_staged_rows_of_a_version_registered_just_now_are_published() -> None:
    broker = with_check("refuse")
    broker.clock.advance_ms(1)
    made = hash_of(typed(broker, text=WIDER))
    good, bad = (staged(broker, GOOD, headers=one) for one in (naming(made), UNKNOWN))
    callers = publishing(broker, 0, good), publishing(broker, 1, bad)
    assert not broker.replies.keys() & set(callers)
    for _ in range(2):
        broker.tick(limits.SCHEMA_LOOKUP_INTERVAL_MS)
    broker.answer(callers[0], PublishStagedResponse)
    assert refused(broker, callers[1]) == ErrorCode.SCHEMA_MISMATCH
    assert broker.values("orders") == [GOOD]


def test_staged_rows_that_are_cut_while_they_wait_for_schemas_are_waited_for_again() -> None:
    """The broker asked for them again and again in one step, and did nothing else any more."""
    broker = with_check("refuse")
    broker.clock.advance_ms(1)
    made = hash_of(typed(broker, text=WIDER))
    caller = publishing(broker, 0, staged(broker, GOOD, headers=naming(made)))
    replica = broker.node._partitions[PartitionKey(staged_stream(broker).stream_id, PartitionId(0))]
    end, replica.committed_end = replica.committed_end, 0  # as after a cut, before the leader's epoch is known here
    for _ in range(2):
        broker.tick(limits.SCHEMA_LOOKUP_INTERVAL_MS)
    assert caller not in broker.replies
    replica.committed_end = end
    refresh(broker)
    broker.answer(caller, PublishStagedResponse)
    assert broker.values("orders") == [GOOD]


def test_a_hostile_publisher_does_not_have_the_list_asked_for_with_each_message() -> None:
    broker = with_check("refuse")
    asked = broker.node.meters.counters["schema_refreshes"]
    for _ in range(50):
        broker.clock.advance_ms(1)
        naming_publish(broker, UNKNOWN, GOOD)
    broker.tick(limits.SCHEMA_LOOKUP_INTERVAL_MS)
    assert len(told(broker)) == 50
    assert broker.node.meters.counters["schema_refreshes"] - asked <= 2


def metrics_of(broker: Broker) -> dict[str, object]:
    """What is not zero, without the common beginning of the names."""
    families = [one for one in broker.node.families(broker.clock.now) if one is not None]
    values = {one.metric.name: sample.value for one in families for sample in one.samples if not sample.labels}
    prefix = "penstock_schema_"
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix) and value}


def test_what_is_checked_and_refused_is_counted_wherever_it_comes_from() -> None:
    broker = with_check("refuse")
    broker.publish("orders.a", GOOD, BAD, BAD)
    broker.publish("orders.a.b", BAD)
    place = {"stream_id": broker.stream_id("orders"), "partition": 0}
    broker.ask(AppendRequest(**place), AppendResponse, batch_of([("orders.a", None, GOOD, None)] * 10))
    broker.refusal(AppendRequest(**place), batch_of([("orders.a", None, BAD, None)] * 10))
    broker.answer(publishing(broker, 0, staged(broker, *[GOOD] * 100)), PublishStagedResponse)
    publishing(broker, 1, staged(broker, BAD))
    counted = metrics_of(broker)
    assert counted.pop("refreshes_total")
    assert counted == {
        "checked_total": 4 + 10 + 100,
        "refused_total": 2 + 1 + 1,
        "registered_total": 1,
        "versions": 1,
    }
    broker.ask(SetIntakeRequest(name="orders", intake=Intake.SEALED), SetIntakeResponse)
    broker.publish("orders.a", GOOD, BAD)
    assert metrics_of(broker)["checked_total"] == 114, "what is refused without a look at it is not checked"
    counting = with_check("count")
    counting.publish("orders.a", GOOD, BAD)
    assert {name: metrics_of(counting)[name] for name in ("checked_total", "misfits_total")} == {
        "checked_total": 2,
        "misfits_total": 1,
    }


def test_a_subject_of_a_kind_of_a_later_version_is_not_checked_and_the_log_says_so() -> None:
    known = SchemaInfo(
        subject="orders.a",
        number=1,
        kind="json-schema",
        text_hash="0" * 64,
        hash="1" * 64,
        registered_us=TimestampUs(0),
    )
    later = msgspec.structs.replace(known, subject="orders.b", kind="later")
    text = StoredText("json-schema", SCHEMA)
    making = MakeCheck(StreamId(1), [(known, text), (later, text)], None)
    making.run()
    assert making.unchecked == {"orders.b"}
    assert making.check is not None
    nothing = MakeCheck(StreamId(1), [(later, text)], None)
    with pytest.raises(PenstockError, match="does not know their kinds"):
        nothing.run()


class _Slow(Brokers):
    """Requests for texts are carried one by one, when the test says so."""

    def __init__(self, *ids: int) -> None:
        self.late: deque[tuple[BrokerId, PeerRequest]] = deque()
        self.texts_asked = 0
        super().__init__(*ids)

    def _ask(self, sender: BrokerId, request: PeerRequest) -> None:
        if isinstance(request.request, GetSchemaTextRequest):
            self.late.append((sender, request))
        else:
            super()._ask(sender, request)

    def carry_text(self) -> None:
        self.texts_asked += 1
        super()._ask(*self.late.popleft())
        self.settle()


def clustered(brokers: Brokers | None = None) -> tuple[Brokers, int, int]:
    """A cluster, which broker leads the checked stream, and another that keeps the schemas."""
    brokers = brokers or Brokers(1, 2, 3)
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
def test_a_version_registered_with_another_broker_is_known_at_once() -> None:
    brokers, leader, keeper = clustered()
    asked(brokers, keeper, register(brokers[keeper], "orders.*", text=SCHEMA, kind="json-schema"))
    brokers.run(3_000)
    made = asked(brokers, keeper, register(brokers[keeper], "orders.*", text=WIDER, kind="json-schema"))
    assert isinstance(made, RegisterSchemasResponse)
    at = brokers[leader]
    brokers.clock.advance_ms(1)
    wide = b'{"x":1,"y":"z"}'
    at.deliver([(b"orders.a", b"r", naming(hash_of(made)), wide), (b"orders.a", b"r", UNKNOWN, GOOD)])
    assert at.acks == []
    brokers.run(2 * limits.SCHEMA_LOOKUP_INTERVAL_MS)
    assert at.values("orders") == [wide]
    assert sorted(map(bool, told(at))) == [False, True]


@each_change
def test_a_version_is_refused_for_the_time_being_while_the_keeper_does_not_answer() -> None:
    brokers, leader, keeper = clustered()
    asked(brokers, keeper, register(brokers[keeper], "orders.*", text=SCHEMA, kind="json-schema"))
    brokers.run(3_000)
    brokers.cut(leader, keeper)
    brokers.run(100)
    at = brokers[leader]
    at.clock.advance_ms(1)
    at.deliver([(b"orders.a", b"r", UNKNOWN, GOOD), (b"orders.a", b"r", None, GOOD)])
    brokers.run(limits.SCHEMA_LOOKUP_WAIT_MS)
    assert sorted(told(at)) == ["", f"temporarily unavailable: {VERSION_UNDECIDED}"]
    place = {"stream_id": at.stream_id("orders"), "partition": 0}
    error = at.refusal(AppendRequest(**place), batch_of([("orders.a", None, GOOD, UNKNOWN)]))
    assert (error.code, VERSION_UNDECIDED in error.message) == (ErrorCode.NOT_YET, True)
    assert at.node.meters.counters["schema_refused"] == 0
    brokers.join(leader, keeper)
    brokers.run(3_000)
    at.deliver([(b"orders.a", b"r", UNKNOWN, GOOD)])
    brokers.run(limits.SCHEMA_LOOKUP_WAIT_MS)
    assert "register that version first" in told(at)[-1]
    assert at.node.meters.counters["schema_refused"] == 1


@each_change
def test_a_round_that_takes_long_comes_to_its_end_and_what_it_has_fetched_is_kept() -> None:
    slow = _Slow(1, 2, 3)
    _, leader, keeper = clustered(slow)
    for number in range(6):
        text = SCHEMA.replace("{", f'{{"description":"{number}",', 1)
        asked(slow, keeper, register(slow[keeper], f"orders.{number}", text=text, kind="json-schema"))
    slow.run(2_000)
    for _ in range(4):
        slow.run(limits.SCHEMA_CHECK_WAIT_MS // 2)
        slow.carry_text()
    slow.cut(leader, keeper)
    slow.late.clear()
    slow.run(1_000)
    slow.join(leader, keeper)
    slow.run(3_000)
    for _ in range(2):
        slow.carry_text()
    slow.run(1_000)
    assert slow.texts_asked == 6
    assert not slow.late
    slow.publish("orders.5", BAD)
    slow.publish("orders.5", GOOD)
    assert slow[leader].values("orders") == [GOOD]


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


def test_a_check_that_could_not_be_made_is_made_again_less_and_less_often() -> None:
    broker = with_check("refuse", has_schema=False)
    broker.ask(SchemasStreamRequest(), SchemasStreamResponse)
    broker.hung = (MakeCheck,)
    typed(broker)
    tries = []
    for second in range(20):
        broker.tick(limits.SCHEMA_CHECK_REFRESH_MS)
        if broker.disk:
            tries.append(second)
            broker.complete(Executed(broker.disk.pop(), MemoryError("there was no memory")))
    assert [after - before for before, after in pairwise(tries)] == [1, 2, 4, 8]
    broker.publish("orders.a", GOOD, reply="r")
    assert "cannot be used to check values: there was no memory" in told(broker)[-1]
    assert metrics_of(broker)["refresh_failures_total"] == len(tries)
    broker.hung = ()
    for _ in range(16):
        refresh(broker)
    broker.publish("orders.a", BAD, GOOD)
    assert broker.values("orders") == [GOOD]


def test_no_collection_stops_all_threads_while_a_check_is_made() -> None:
    structs = "".join(f"struct S{number} {{ 1: i64 a, 2: optional string b }} " for number in range(500))
    schema = Schema(SchemaKind.FRUGAL, f"{structs} struct Order {{ 1: S1 x, 2: optional S2 y }}", (), "Order")
    info = SchemaInfo(
        subject="orders.*",
        number=1,
        kind="frugal",
        type_name="Order",
        text_hash="0" * 64,
        hash=schema.hash(),
        registered_us=TimestampUs(0),
    )
    making = MakeCheck(StreamId(1), [(info, StoredText("frugal", f"{schema.text} "))], None)
    collections: list[str] = []

    def note(phase: str, _: dict[str, int]) -> None:
        collections.append(phase)

    gc.callbacks.append(note)
    try:
        making.run()
    finally:
        gc.callbacks.remove(note)
    assert making.check is not None
    assert collections.count("start") <= 1, "one is due as soon as collections go on"
    assert gc.isenabled()


def test_plans_of_all_versions_are_there_before_the_first_message() -> None:
    """Planning a large contract takes long, and the first message is checked on the event loop."""
    broker = with_check("refuse")
    typed(broker, text=WIDER)
    refresh(broker)
    (partition,) = [one for one in broker.node._partitions.values() if one.stream.name == "orders"]
    assert partition.value_check is not None
    planned = partition.value_check.planned
    assert sorted(one.text for one in planned) == sorted([SCHEMA, WIDER])
    assert all(isinstance(one.planned, Plan) for one in planned.values())


def test_the_newest_texts_have_room_whatever_was_fetched_before() -> None:
    def info(number: int) -> SchemaInfo:
        text_hash = f"{number:064d}"
        return SchemaInfo(
            subject="a", number=number, kind="json-schema", text_hash=text_hash, hash=text_hash,
            registered_us=TimestampUs(0),
        )  # fmt: skip

    stream, key = _Stream(StreamId(1)), PartitionKey(StreamId(2), PartitionId(0))
    padding = "x" * 700_000
    count = limits.SCHEMA_CHECK_BYTES_MAX // 700_000 + 5

    def fetched(versions: int) -> list[int]:
        """One round; the numbers of the versions whose texts it asks for."""
        stream.begin(0)
        stream.take(ListSchemasResponse(versions=tuple(map(info, range(1, versions + 1)))))
        asked = []
        while isinstance(request := stream.missing(key), GetSchemaTextRequest):
            asked.append(int(request.text_hash))
            stream.take(GetSchemaTextResponse(kind="json-schema", text=f"{request.text_hash}{padding}"))
        return asked

    assert fetched(count) == list(range(count, 4, -1))
    assert fetched(count) == []
    assert fetched(count + 2) == [count + 2, count + 1]
    assert info(count + 2).text_hash in stream.texts
    assert len(stream.texts) * 700_000 < limits.SCHEMA_CHECK_BYTES_MAX + 2 * 700_000


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
