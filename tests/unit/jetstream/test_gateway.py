"""The gateway of one broker: limits, time, rights and hostile requests."""

from __future__ import annotations

import json

import msgspec
import pytest

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.commitlog.files.files import holds_messages
from penstock.jetstream import open_conversations, stream_state, streams
from penstock.jetstream.api_call import _OPERATIONS, HOPS_MAX, ApiCall
from penstock.jetstream.errors import NOT_SERVED
from penstock.jetstream.gateway import ApiRights
from penstock.jetstream.stream_config import REQUEST_BYTES_MAX
from penstock.vfs.encrypted import EncryptedVfs
from penstock.vfs.memory import MemoryVfs
from tests.encryption import encryption_keys
from tests.unit.jetstream.api_broker import ApiBroker


def test_a_stream_is_made_changed_shown_and_deleted() -> None:
    broker = ApiBroker().start()
    assert broker.call("STREAM.CREATE.orders", {"name": "orders", "subjects": ["orders.>"]})["did_create"]
    broker.publish("orders.a", b"x", count=3)
    state = broker.call("STREAM.INFO.orders", {"subjects_filter": ">"})["state"]
    assert (state["messages"], state["subjects"]) == (3, {"orders.a": 3})
    changed = broker.call("STREAM.UPDATE.orders", {"name": "orders", "subjects": ["orders.>"], "max_msgs": 2})
    assert changed["config"]["max_msgs"] == 2
    assert broker.call("STREAM.DELETE.orders")["success"]
    assert broker.call("STREAM.INFO.orders")["error"]["err_code"] == 10059
    assert broker.gateway.requests["STREAM.INFO"] == 2
    assert broker.gateway.errors == {("STREAM.INFO", 10059): 1}
    assert broker.gateway.seconds["STREAM.INFO"].count == 2


def state_of(broker: ApiBroker, name: str) -> tuple[int, int, int]:
    """Messages, first and last sequence."""
    state = broker.call(f"STREAM.INFO.{name}")["state"]
    return state["messages"], state["first_seq"], state["last_seq"]


def test_a_stream_begins_at_the_first_sequence_that_is_asked_for() -> None:
    broker = ApiBroker().start()
    wanted = {"name": "s", "first_seq": 1000}
    made = broker.call("STREAM.CREATE.s", wanted)
    assert (made["config"]["first_seq"], state_of(broker, "s")) == (1000, (0, 1000, 999))
    assert "error" not in broker.call("STREAM.CREATE.s", wanted)  # the same stream
    assert broker.call("STREAM.CREATE.s", {"name": "s"})["error"]["err_code"] == 10058
    broker.publish("s", b"x", count=3)
    assert broker.call("STREAM.MSG.GET.s", {"seq": 1002})["message"]["seq"] == 1002
    assert broker.call("STREAM.MSG.GET.s", {"seq": 1})["error"]["err_code"] == 10037
    assert broker.call("STREAM.MSG.DELETE.s", {"seq": 1001})["success"]
    assert broker.call("STREAM.PURGE.s", {"seq": 1001})["purged"] == 1
    assert state_of(broker, "s") == (1, 1002, 1002)
    assert broker.call("STREAM.PURGE.s")["purged"] == 1
    assert state_of(broker, "s") == (0, 1003, 1002)


def test_a_stream_is_as_old_as_the_request_for_it() -> None:
    broker = ApiBroker().start()
    broker.tick(100)
    broker.clock.advance_ms(900)  # nothing happened meanwhile
    asked_us = broker.clock.wall_us
    answer = broker.call("STREAM.CREATE.s", {"name": "s"})
    assert answer["created"] == stream_state.api_time(asked_us)


def test_the_first_sequence_cannot_be_changed() -> None:
    broker = ApiBroker().start()
    broker.call("STREAM.CREATE.s", {"name": "s", "first_seq": 1000})
    for update in ({}, {"first_seq": 1000}):
        assert broker.call("STREAM.UPDATE.s", {"name": "s", **update})["config"]["first_seq"] == 1000
    refused = broker.call("STREAM.UPDATE.s", {"name": "s", "first_seq": 7})["error"]
    assert (refused["err_code"], "first_seq: it is 1000" in refused["description"]) == (10052, True)


@pytest.mark.parametrize(("first_seq", "told"), [(0, None), (1, None), (2, 2)])
def test_a_stream_begins_at_1_unless_told_otherwise(first_seq: int, told: int | None) -> None:
    broker = ApiBroker().start()
    assert broker.call("STREAM.CREATE.s", {"name": "s", "first_seq": first_seq})["config"].get("first_seq") == told
    broker.publish("s", b"x")
    assert state_of(broker, "s") == (1, told or 1, told or 1)


def test_a_first_sequence_beyond_the_limit_is_refused() -> None:
    broker = ApiBroker().start()
    most = limits.FIRST_OFFSET_MAX + 1
    assert "did_create" in broker.call("STREAM.CREATE.s", {"name": "s", "first_seq": most})
    refused = broker.call("STREAM.CREATE.t", {"name": "t", "first_seq": most + 1})["error"]
    assert (refused["err_code"], refused["description"].startswith("first_seq:")) == (10052, True)


def test_a_long_value_that_is_refused_is_told_as_its_beginning() -> None:
    broker = ApiBroker().start()
    refused = broker.call("STREAM.CREATE.s", {"name": "s", "sources": [{"name": "a" * 300}]})["error"]
    assert refused["description"] == f'sources: [{{"name": "{"a" * 52}… is not supported'


def test_a_request_may_be_an_empty_object_where_it_has_to_be_empty() -> None:
    broker = ApiBroker().start()
    for body in (b"null", b" ", b"[]", b'{"a":1}', b"x"):
        broker.call("STREAM.CREATE.s", {"name": "s"})
        assert broker.call("STREAM.DELETE.s", body)["error"]["err_code"] == 10038
    for body in (b"", b"{}", b" {\n} "):
        broker.call("STREAM.CREATE.s", {"name": "s"})
        assert broker.call("STREAM.DELETE.s", body)["success"]


def test_the_account_tells_how_many_requests_there_were_before() -> None:
    broker = ApiBroker().start()
    assert [broker.call("INFO")["api"]["total"] for _ in range(3)] == [0, 1, 2]


def test_requests_beyond_the_limit_are_refused_and_late_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_conversations, "CONVERSATIONS_MAX", 1)
    broker = ApiBroker().start()
    broker.call("STREAM.CREATE.s", {"name": "s"})
    broker.publish("s", b"x")
    broker.disk_runs_at_once = False
    assert broker.call("STREAM.INFO.s", waits_ms=0) is None  # it waits for the disk
    refused = broker.call("STREAM.INFO.s", waits_ms=0)
    assert "too many requests" in refused["error"]["description"]
    assert broker.gateway.next_deadline_us is not None
    broker.answers.clear()
    broker.gateway_tick(5_000)
    assert "no answer in time" in json.loads(broker.answers["_INBOX.caller"])["error"]["description"]
    broker.disk_runs_at_once = True
    broker.turn()
    assert broker.call("STREAM.INFO.s")["state"]["messages"] == 1


@pytest.mark.parametrize(
    ("subject", "streams"),
    [("*", ["one"]), ("*.*", ["two"]), ("a.*", ["two"]), (">", ["one", "two"]), ("x", ["one"]), ("x.0", None)],
)
def test_streams_are_found_by_their_subjects(subject: str, streams: list[str] | None) -> None:
    broker = ApiBroker().start()
    for name, of_stream in (("one", "x"), ("two", "a.b")):
        assert broker.call(f"STREAM.CREATE.{name}", {"name": name, "subjects": [of_stream]})["did_create"]
    assert broker.call("STREAM.NAMES", {"subject": subject})["streams"] == streams


def test_an_info_without_the_number_of_subjects_is_better_than_none() -> None:
    broker = ApiBroker().start()
    broker.call("STREAM.CREATE.s", {"name": "s"})
    broker.publish("s", b"x")
    broker.disk_runs_at_once = False
    assert broker.call("STREAM.INFO.s", waits_ms=0) is None
    broker.run_disk()  # the counts
    broker.turn()
    assert broker.gateway.under_way == 1
    broker.gateway_tick(4_600)
    state = json.loads(broker.answers["_INBOX.caller"])["state"]
    assert (state["messages"], "num_subjects" in state) == (1, False)
    broker.settle()
    broker.disk_runs_at_once = True
    assert broker.call("STREAM.INFO.s")["state"]["num_subjects"] == 1


def test_an_answer_beyond_max_payload_becomes_an_error() -> None:
    broker = ApiBroker().start()
    broker.gateway.payload_max = 512
    answer = broker.call("STREAM.CREATE.s", {"name": "s"})
    assert "max_payload is 512" in answer["error"]["description"]


def test_who_may_only_read_changes_nothing() -> None:
    broker = ApiBroker(rights=ApiRights(may_manage=False)).start()
    broker.create("s")
    for operation in ("CREATE.new", "UPDATE.s", "DELETE.s", "PURGE.s", "MSG.DELETE.s"):
        assert broker.call(f"STREAM.{operation}", {"name": "s"})["error"]["code"] == 403
    assert broker.call("STREAM.INFO.s")["config"]["name"] == "s"


@pytest.mark.parametrize(
    ("operation", "rest"),
    [
        ("STREAM.MSG.GET", ""),
        ("DIRECT.GET", ""),
        ("DIRECT.GET", ".secret"),
        ("CONSUMER.CREATE", ""),
        ("CONSUMER.CREATE", ".c.secret"),
        ("CONSUMER.DURABLE.CREATE", ".c"),
        ("CONSUMER.MSG.NEXT", ".c"),
    ],
)
def test_messages_of_an_encrypted_stream_are_not_sent_over_nats(operation: str, rest: str) -> None:
    memory = MemoryVfs()
    broker = ApiBroker(encrypted=EncryptedVfs(memory, encryption_keys("first"), holds_messages)).start()
    broker.create("secret", "secret", encryption="aes-256-gcm")
    broker.publish("secret", b"classified")
    answer = broker.call(f"{operation}.secret{rest}", {"seq": 1})
    told = json.dumps(answer) + broker.blocks.get("_INBOX.caller", b"").decode()
    assert "stream secret is encrypted" in told
    assert "classified" not in told
    assert broker.call("STREAM.INFO.secret")["state"]["messages"] == 1


def test_a_higher_api_level_is_refused() -> None:
    broker = ApiBroker().start()
    headers = b"NATS/1.0\r\nNats-Required-Api-Level: %d\r\n\r\n"
    assert broker.call("STREAM.NAMES", headers=headers % 3)["error"]["err_code"] == 10185
    assert "error" not in broker.call("STREAM.NAMES", headers=headers % 2)


def test_calls_that_a_peer_passes_on_are_checked() -> None:
    broker = ApiBroker().start()
    injected = ApiCall("$JS.API.INFO", b"a 0\r\n\r\nPUB b", None, b"")
    for raw in (
        msgspec.msgpack.encode([injected]),
        b"",
        b"\xff",
        msgspec.msgpack.encode([1]),
        msgspec.msgpack.encode([["s", b"r", None]]),
    ):
        with pytest.raises(RemoteError):
            broker.gateway.passed_on(raw, broker.clock.now)
    calls = [ApiCall("$JS.API.STREAM.NAMES", b"_INBOX.a", None, b"", HOPS_MAX), ApiCall("elsewhere", b"b", None, b"")]
    broker.gateway.passed_on(msgspec.msgpack.encode(calls), broker.clock.now)
    broker.turn()
    assert [*broker.answers] == ["_INBOX.a"]


def test_deep_and_large_json_is_refused() -> None:
    broker = ApiBroker().start()
    for request in (b"[" * 100_000, b'{"metadata":' * 50_000, b'{"name":"' + b"x" * 300_000, b'{"a":\xff}', b"{\x00"):
        answer = broker.call("STREAM.CREATE.s", request)
        assert answer["error"]["err_code"] == 10025
        assert len(answer["error"]["description"]) < 500
    assert broker.call("STREAM.NAMES", b"[" * 100_000)["error"]["err_code"] == 10025


def test_large_requests_are_refused_before_anything_waits_with_them() -> None:
    broker = ApiBroker().start()
    broker.create("s")
    for operation in ("STREAM.INFO.s", "STREAM.NAMES", "CONSUMER.NAMES.s", "STREAM.MSG.GET.s"):
        answer = broker.call(operation, b"x" * (REQUEST_BYTES_MAX + 1))
        assert answer["error"]["err_code"] == 10025
    assert broker.call("STREAM.INFO.s", b"", headers=b"NATS/1.0\r\nX: %b\r\n\r\n" % (b"x" * REQUEST_BYTES_MAX))["error"]


def test_the_info_of_an_empty_stream_waits_for_no_disk() -> None:
    broker = ApiBroker().start()
    broker.call("STREAM.CREATE.s", {"name": "s"})
    broker.disk_runs_at_once = False
    assert broker.call("STREAM.INFO.s", waits_ms=0)["state"]["messages"] == 0


def test_a_list_asks_for_the_counts_of_a_few_streams_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PARTS_AT_ONCE", 2)
    broker = ApiBroker().start()
    for name in "abcde":
        broker.call(f"STREAM.CREATE.{name}", {"name": name})
        broker.publish(name, b"x")
    broker.disk_runs_at_once = False
    assert broker.call("STREAM.LIST", waits_ms=0) is None
    (waiting,) = broker.gateway.conversations.open
    assert len(waiting.questions) == 2
    broker.disk_runs_at_once = True
    broker.turn()
    listed = broker.call("STREAM.LIST")
    assert [(one["config"]["name"], one["state"]["messages"]) for one in listed["streams"]] == [
        (one, 1) for one in "abcde"
    ]
    assert "missing" not in listed


def test_a_page_of_subjects_has_what_the_connection_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client asks for the rest; each look at the index is small."""
    monkeypatch.setattr(stream_state, "SUBJECTS_AT_ONCE", 3)
    broker = ApiBroker().start()
    broker.call("STREAM.CREATE.s", {"name": "s", "subjects": ["s.>"]})
    names = [f"s.{'x' * 100}.{number:02}" for number in range(20)]
    for name in names:
        broker.publish(name, b"x")
    whole = broker.call("STREAM.INFO.s", {"subjects_filter": ">"})
    assert (whole["total"], whole["offset"], whole["limit"]) == (20, 0, 100_000)
    assert whole["state"]["subjects"] == dict.fromkeys(names, 1)
    broker.gateway.payload_max = 2_400
    found: dict[str, int] = {}
    while len(found) < 20:
        page = broker.call("STREAM.INFO.s", {"subjects_filter": ">", "offset": len(found)})
        assert "error" not in page
        assert (page["total"], page["offset"]) == (20, len(found))
        assert 0 < len(page["state"]["subjects"]) < 20
        assert page["limit"] == len(page["state"]["subjects"]) or len(found) + len(page["state"]["subjects"]) == 20
        found |= page["state"]["subjects"]
    assert found == dict.fromkeys(names, 1)
    beyond = broker.call("STREAM.INFO.s", {"subjects_filter": ">", "offset": 20})
    assert beyond["total"] == 20
    assert "subjects" not in beyond["state"]


@pytest.mark.parametrize("operation", sorted(NOT_SERVED))
def test_an_operation_that_is_not_served_is_refused_with_what_to_do_instead(operation: str) -> None:
    broker = ApiBroker().start()
    broker.create("s")
    error = broker.call(f"{operation}.s", b"{}")["error"]
    assert (error["code"], error["err_code"]) == (501, 10003)
    assert error["description"] == f"{operation} is not served by Penstock: {NOT_SERVED[operation]}"
    assert broker.gateway.errors == {(operation, 10003): 1}


def test_each_operation_is_served_or_refused_and_any_other_is_not_answered() -> None:
    broker = ApiBroker().start()
    assert set(_OPERATIONS) == broker.gateway.handlers.keys() | NOT_SERVED.keys()
    assert not broker.gateway.handlers.keys() & NOT_SERVED.keys()
    assert broker.call("STREAM.DANCE.s", b"{}", waits_ms=0) is None


def test_a_deletion_without_a_sequence_is_a_bad_request() -> None:
    broker = ApiBroker().start()
    broker.create("s")
    for body in (b"", b"{}", b" { } "):
        error = broker.call("STREAM.MSG.DELETE.s", body)["error"]
        assert (error["code"], error["err_code"]) == (400, 10003)
