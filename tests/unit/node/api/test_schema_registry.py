"""The registry of schemas on one broker and on several: what is kept, what is refused, what survives."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionId
from penstock.messages import (
    AppendRequest,
    DeleteStreamRequest,
    ForgetSchemasRequest,
    ForgetSchemasResponse,
    GetSchemaTextRequest,
    GetSchemaTextResponse,
    ListSchemasRequest,
    ListSchemasResponse,
    RegisterSchemasRequest,
    RegisterSchemasResponse,
    Request,
    SchemaEntry,
    SchemasStreamRequest,
    SchemasStreamResponse,
)
from penstock.schemas.rows import SCHEMAS_STREAM
from tests.extent import each_change
from tests.unit.node.harness import Broker
from tests.unit.node.members import Brokers

PART = PartitionId(0)


def text_of(*fields: str) -> str:
    listed = ",".join(f'{{"name":"{name}","type":"long","default":0}}' for name in fields)
    return f'{{"type":"record","name":"Order","fields":[{listed}]}}'


def register(broker: Broker, *subjects: str, text: str = "", stream: str = "orders", **more: Any) -> Request:
    return RegisterSchemasRequest(
        stream_id=broker.stream_id(SCHEMAS_STREAM),
        partition=PART,
        of_stream_id=broker.stream_id(stream),
        kind=more.pop("kind", "avro"),
        text=text or text_of("id"),
        entries=tuple(SchemaEntry(subject=one) for one in subjects or (f"{stream}.>",)),
        **more,
    )


def listing(broker: Broker, stream: str = "orders", **after: Any) -> ListSchemasRequest:
    kept, of = broker.stream_id(SCHEMAS_STREAM), broker.stream_id(stream)
    return ListSchemasRequest(stream_id=kept, partition=PART, of_stream_id=of, **after)


def answer(broker: Broker, request: Request) -> object:
    """The answer as a client gets it, which asks again while it is not yet time."""
    for _ in range(5):
        response = broker.replies[broker.request(request)].response
        if not isinstance(response, RemoteError) or response.code != ErrorCode.NOT_YET:
            return response
    raise AssertionError(response)


def registered(broker: Broker, *subjects: str, **more: Any) -> list[tuple[str, int, bool]]:
    response = answer(broker, register(broker, *subjects, **more))
    assert isinstance(response, RegisterSchemasResponse), response
    return [(one.version.subject, one.version.number, one.is_new) for one in response.versions]


def refused(broker: Broker, request: Request) -> tuple[str, str]:
    response = answer(broker, request)
    assert isinstance(response, RemoteError), response
    return response.code, response.message


def listed(broker: Broker, stream: str = "orders") -> list[tuple[str, int]]:
    response = answer(broker, listing(broker, stream))
    assert isinstance(response, ListSchemasResponse), response
    return [(one.subject, one.number) for one in response.versions]


def with_schemas() -> Broker:
    broker = Broker().start()
    broker.create("orders", subject="orders.>")
    broker.ask(SchemasStreamRequest(), SchemasStreamResponse)
    return broker


def keys(broker: Broker) -> list[bytes]:
    """The keys that are there, once those with tombstones are gone."""
    found: dict[bytes, bytes | None] = {}
    for row in broker.read(SCHEMAS_STREAM):
        assert row.key is not None
        found[row.key] = row.value
    return [key for key, value in found.items() if value is not None]


def test_the_stream_is_created_when_it_is_first_requested() -> None:
    broker = Broker().start()
    assert SCHEMAS_STREAM not in broker.streams()
    made = broker.ask(SchemasStreamRequest(), SchemasStreamResponse).stream
    assert (made.name, len(made.partitions), made.config.compact) == (SCHEMAS_STREAM, 1, True)
    assert broker.ask(SchemasStreamRequest(), SchemasStreamResponse).stream.stream_id == made.stream_id
    assert broker.nats.wanted == {}
    assert broker.refusal(DeleteStreamRequest(name=SCHEMAS_STREAM)).code == ErrorCode.READ_ONLY
    assert broker.refusal(AppendRequest(stream_id=made.stream_id)).code == ErrorCode.READ_ONLY


def test_versions_and_texts_are_rows_that_survive_a_crash() -> None:
    broker = with_schemas()
    assert registered(broker) == [("orders.>", 1, True)]
    assert registered(broker) == [("orders.>", 1, False)]
    assert registered(broker, text=text_of("id", "x")) == [("orders.>", 2, True)]
    assert registered(broker) == [("orders.>", 1, False)]  # the same as an older one
    after = broker.crash().start()
    assert listed(after) == [("orders.>", 1), ("orders.>", 2)]
    assert len(keys(after)) == 4
    response = answer(after, listing(after))
    assert isinstance(response, ListSchemasResponse)
    request = GetSchemaTextRequest(
        stream_id=after.stream_id(SCHEMAS_STREAM),
        partition=PART,
        of_stream_id=after.stream_id("orders"),
        text_hash=response.versions[1].text_hash,
    )
    assert after.ask(request, GetSchemaTextResponse).text == text_of("id", "x")


def test_one_text_is_kept_once_for_all_entries_and_with_the_last_version_it_goes() -> None:
    broker = with_schemas()
    assert registered(broker, "orders.a", "orders.b") == [("orders.a", 1, True), ("orders.b", 1, True)]
    assert [key[:7] for key in keys(broker)] == [b"v1/text", b"v1/vers", b"v1/vers"]
    for left, subject in ((2, "orders.a"), (0, "orders.b")):
        request = ForgetSchemasRequest(
            stream_id=broker.stream_id(SCHEMAS_STREAM),
            partition=PART,
            of_stream_id=broker.stream_id("orders"),
            subject=subject,
        )
        assert broker.ask(request, ForgetSchemasResponse).versions == 1
        assert len(keys(broker)) == left
        assert refused(broker, request)[0] == ErrorCode.SCHEMA_NOT_FOUND
    assert registered(broker, "orders.a") == [("orders.a", 1, True)]


def test_all_entries_are_registered_or_none() -> None:
    broker = with_schemas()
    registered(broker, "orders.a")
    changed = text_of("id").replace("long", "string").replace("0", '""')
    code, message = refused(broker, register(broker, "orders.new", "orders.a", text=changed))
    assert code == ErrorCode.INCOMPATIBLE_SCHEMA
    assert "orders.a: version 1: " in message
    assert listed(broker) == [("orders.a", 1)]
    assert registered(broker, "orders.new", "orders.a", text=changed, force=True) == [
        ("orders.new", 1, True),
        ("orders.a", 2, True),
    ]
    response = answer(broker, listing(broker))
    assert isinstance(response, ListSchemasResponse)
    assert [one.is_forced for one in response.versions] == [False, True, False]
    assert registered(broker, "orders.a", force=True) == [("orders.a", 3, True)]  # the first one is on top again


def test_a_pattern_beside_the_subject_of_the_stream_is_forced() -> None:
    """Rows of a copy, and what a JetStream consumer delivers, have subjects of their own."""
    broker = with_schemas()
    code, message = refused(broker, register(broker, "others.x"))
    assert code == ErrorCode.INVALID_SCHEMA
    assert "which 'others.x' does not match; force it if rows have other subjects" in message
    assert registered(broker, "others.x", force=True) == [("others.x", 1, True)]
    response = answer(broker, listing(broker))
    assert isinstance(response, ListSchemasResponse)
    assert [(one.subject, one.is_forced) for one in response.versions] == [("others.x", False)]


@pytest.mark.parametrize(
    ("subjects", "more", "told"),
    [
        (("orders..x",), {}, "orders..x"),
        (("orders.*", "orders.a"), {}, "match the same subjects"),
        (("orders.a", "orders.a"), {}, "named twice"),
        (("orders.kept.>",), {}, "match the same subjects"),
        (("orders.x",), {"text": "{"}, "no JSON"),
        (("orders.x",), {"text": "struct", "kind": "frugal"}, "mistakes"),
        (("orders.x",), {"text": "[" * 200_000}, "registered"),
    ],
)
def test_what_is_invalid_is_refused_also_by_force(subjects: tuple[str, ...], more: dict[str, Any], told: str) -> None:
    broker = with_schemas()
    registered(broker, "orders.kept.x")
    for force in (False, True):
        code, message = refused(broker, register(broker, *subjects, force=force, **more))
        assert code == ErrorCode.INVALID_SCHEMA
        assert told in message
    assert listed(broker) == [("orders.kept.x", 1)]


def test_a_check_writes_nothing() -> None:
    broker = with_schemas()
    assert registered(broker, check_only=True) == [("orders.>", 1, True)]
    assert keys(broker) == []


def test_how_values_are_written_is_part_of_the_version() -> None:
    broker = with_schemas()
    registered(broker)
    entry = SchemaEntry(subject="orders.>", framing="confluent")
    request = msgspec.structs.replace(register(broker), entries=(entry,))
    code, message = refused(broker, request)
    assert (code, "its framing was 'bare', and is 'confluent'" in message) == (ErrorCode.INCOMPATIBLE_SCHEMA, True)


def test_changes_are_made_one_at_a_time_and_each_sees_those_before_it() -> None:
    broker = with_schemas()
    listed(broker)
    broker.disk_runs_at_once = False
    callers = [broker.request(register(broker, text=text_of(*"abc"[: count + 1]))) for count in range(3)]
    assert len(broker.disk) == 1
    broker.disk_runs_at_once = True
    broker.settle()
    numbers = [broker.answer(one, RegisterSchemasResponse).versions[0].version.number for one in callers]
    assert numbers == [1, 2, 3]


def test_waiting_changes_are_bounded_and_end_with_their_callers() -> None:
    broker = with_schemas()
    listed(broker)
    broker.disk_runs_at_once = False
    callers = [broker.request(register(broker)) for _ in range(limits.SCHEMA_REGISTRATIONS_WAITING_MAX)]
    assert broker.refusal(register(broker)).code == ErrorCode.OVERLOADED
    broker.node.callers_disconnected(callers[1:])
    last = broker.request(register(broker))
    broker.disk_runs_at_once = True
    broker.settle()
    assert broker.answer(callers[0], RegisterSchemasResponse).versions[0].is_new
    assert not broker.answer(last, RegisterSchemasResponse).versions[0].is_new
    assert not set(callers[1:]) & set(broker.replies)


def test_a_registration_is_answered_when_it_is_on_the_disk() -> None:
    broker = with_schemas()
    listed(broker)
    broker.syncs_hang = True
    waiting = broker.request(register(broker))
    assert waiting in broker.open_requests
    assert listed(broker) == []
    lost = broker.crash()
    broker.syncs_hang = False
    broker.settle()
    broker.answer(waiting, RegisterSchemasResponse)
    assert listed(broker) == [("orders.>", 1)]
    assert listed(lost.start()) == []


def test_schemas_of_a_deleted_stream_go_also_those_of_a_registration_under_way() -> None:
    broker = with_schemas()
    broker.create("others", subject="others.>")
    registered(broker, stream="others")
    registered(broker)
    broker.disk_runs_at_once = False
    waiting = broker.request(register(broker, text=text_of("id", "x")))
    (judging,) = broker.disk
    broker.disk.clear()
    broker.disk_runs_at_once = True
    broker.delete("orders")
    judging.run()
    broker.node.complete(judging, None, broker.clock.now)
    broker.turn()
    response = broker.replies[waiting].response
    assert isinstance(response, RemoteError)
    assert response.code == ErrorCode.STREAM_CHANGED
    broker.create("orders", subject="orders.>")
    assert listed(broker) == []
    broker.settle()
    assert [key.split(b"/")[1] for key in keys(broker)] == [b"text", b"version"]
    assert listed(broker, "others") == [("others.>", 1)]


def test_a_list_comes_in_pages() -> None:
    broker = with_schemas()
    count = limits.SCHEMA_ENTRIES_MAX
    names = [f"orders.{number:03}" for number in range(3 * count)]
    for begin in range(0, 3 * count, count):
        registered(broker, *names[begin : begin + count])
    page = broker.ask(listing(broker), ListSchemasResponse)
    assert (len(page.versions), page.has_more) == (limits.SCHEMAS_PER_ANSWER_MAX, True)
    last = page.versions[-1]
    rest = broker.ask(listing(broker, after_subject=last.subject, after_number=last.number), ListSchemasResponse)
    assert ([one.subject for one in (*page.versions, *rest.versions)], rest.has_more) == (names, False)
    code, message = refused(broker, register(broker, *(f"orders.x{number}" for number in range(count))))
    assert (code, "would have 1024 versions" in message) == (ErrorCode.TOO_LARGE, True)


def test_limits_of_a_text() -> None:
    broker = with_schemas()
    half = "x" * (limits.SCHEMA_BYTES_MAX // 2)
    closure = (("a.frugal", f"// {half}"), ("b.frugal", f"// {half}"))
    code, _ = refused(broker, register(broker, text="struct A { }", kind="frugal", closure=closure))
    assert code == ErrorCode.TOO_LARGE


def test_a_lower_level_keeps_the_registry_from_being_created() -> None:
    broker = Broker(broker_version="0.3.1").start()
    error = broker.refusal(SchemasStreamRequest())
    assert error.code == ErrorCode.UNSUPPORTED_VERSION
    assert error.message.startswith("the registry of schemas needs feature level 0.4; the cluster is at 0.3: run ")
    assert SCHEMAS_STREAM not in broker.streams()


@each_change
def test_no_version_is_lost_when_leaders_are_killed() -> None:
    brokers = Brokers(1, 2, 3)
    brokers.run(5_000)
    brokers[1].create("orders", subject="orders.>")
    brokers.run(1_000)
    made = brokers[1].request(SchemasStreamRequest())
    brokers.run(1_000)
    brokers[1].answer(made, SchemasStreamResponse)
    names = ["a"]
    for number in range(1, 4):
        leader = int(brokers.leader.image.by_name(SCHEMAS_STREAM).partitions[0].leader)
        response = asked(brokers, leader, register(brokers[leader], text=text_of(*names)))
        assert isinstance(response, RegisterSchemasResponse), response
        assert response.versions[0].version.number == number
        names.append(f"b{number}")
        disk = brokers.kill(leader)
        brokers.run(10_000)
        brokers.start(leader, disk)
        brokers.run(10_000)
    leader = int(brokers.leader.image.by_name(SCHEMAS_STREAM).partitions[0].leader)
    response = asked(brokers, leader, listing(brokers[leader]))
    assert isinstance(response, ListSchemasResponse)
    assert [one.number for one in response.versions] == [1, 2, 3]


def asked(brokers: Brokers, broker_id: int, request: Request) -> object:
    member = brokers[broker_id]
    for _ in range(20):
        caller = member.request(request)
        brokers.run(200)
        response = member.replies[caller].response
        if not isinstance(response, RemoteError) or response.code != ErrorCode.NOT_YET:
            return response
    raise AssertionError(response)
