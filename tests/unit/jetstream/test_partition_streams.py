"""Streams of several partitions: each partition is read as a stream of its own, and the whole is told and changed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.access import Credential, CredentialKind, Operation, Rule
from penstock.access.handshake import Principal
from penstock.base.config import Intake
from penstock.base.errors import ErrorCode
from penstock.base.ids import StreamId
from penstock.jetstream import streams
from penstock.jetstream.gateway import ApiRights
from penstock.jetstream.partition_streams import real_ids
from penstock.messages import (
    AlterStreamRequest,
    ChangeRulesRequest,
    CreateUserRequest,
    RaiseFeatureLevelRequest,
    RaiseFeatureLevelResponse,
    Request,
    SetIntakeRequest,
)
from tests.unit.jetstream.readers.gateways import ReaderBroker

S = 1_000_000_000  # ns


def started(broker: ReaderBroker | None = None, **config: Any) -> ReaderBroker:
    """A stream `s` of two partitions: three messages in partition 0, one in partition 1."""
    broker = (ReaderBroker() if broker is None else broker).start()
    broker.create("s", "s", partitions=2, **config)
    broker.append("s", b"a", b"b", b"c", subject="s", partition=0)
    broker.append("s", b"d", subject="s.1", partition=1)
    broker.tick(1)
    return broker


def sequences(found: dict[str, Any]) -> tuple[int, int, int]:
    state = found["state"]
    return state["messages"], state["first_seq"], state["last_seq"]


def test_a_partition_has_its_own_sequences() -> None:
    broker = started()
    first, second = broker.call("STREAM.INFO.s-p0"), broker.call("STREAM.INFO.s-p1", {"subjects_filter": ">"})
    assert (sequences(first), sequences(second)) == ((3, 1, 3), (1, 1, 1))
    assert first["config"]["name"] == "s-p0"
    assert first["config"]["metadata"]["_penstock.partition_of"] == "s"
    assert second["state"]["subjects"] == {"s.1": 1}
    message = broker.call("STREAM.MSG.GET.s-p0", {"seq": 3})["message"]
    assert (message["subject"], message["seq"], message["data"]) == ("s", 3, "Yw==")
    assert broker.call("STREAM.MSG.GET.s-p1", {"last_by_subj": "s.1"})["message"]["data"] == "ZA=="
    assert broker.call("STREAM.MSG.GET.s-p1", {"seq": 2})["error"]["err_code"] == 10037
    direct = broker.send("DIRECT.GET.s-p1.s.1")
    assert broker.answers[direct] == b"d"
    assert b"\r\nNats-Stream: s-p1\r\n" in broker.blocks[direct]
    assert broker.answers[broker.send("DIRECT.GET.s-p1.s")] == b""


def test_readers_of_two_partitions_do_not_meet() -> None:
    broker = started()
    for name in ("s-p0", "s-p1"):
        assert "error" not in broker.consumer(name, "c")
    inboxes = [broker.send(f"CONSUMER.MSG.NEXT.{name}.c", {"batch": 9, "expires": 5 * S}) for name in ("s-p0", "s-p1")]
    found = broker.delivered()
    got = {inbox: [(one.stream_seq, one.value) for one in found if one.inbox == inbox] for inbox in inboxes}
    assert list(got.values()) == [[(1, b"a"), (2, b"b"), (3, b"c")], [(1, b"d")]]
    broker.append("s", b"e", subject="s.1", partition=1)
    broker.tick(1)
    (one,) = broker.delivered()
    assert (one.inbox, one.stream_seq, one.value, one.reply.startswith("$JS.ACK.s-p1.c.")) == (
        inboxes[1],
        2,
        b"e",
        True,
    )
    assert broker.call("CONSUMER.NAMES.s-p0")["total"] == 1
    broker.delete("s")
    broker.tick(1)
    assert {one.status for one in broker.delivered()} == {"409 Consumer Deleted"}
    assert broker.call("CONSUMER.NAMES.s-p0")["error"]["err_code"] == 10059


def test_the_whole_is_counted_listed_and_changed() -> None:
    broker = started()
    info = broker.call("STREAM.INFO.s")
    assert sequences(info) == (4, 0, 0)
    assert info["state"]["first_ts"] <= info["state"]["last_ts"] != "0001-01-01T00:00:00Z"
    assert info["config"]["metadata"]["_penstock.partitions"] == "s-p0 to s-p1"
    (listed,) = broker.call("STREAM.LIST")["streams"]
    assert sequences(listed) == (4, 0, 0)
    for asked in ({}, {"subject": "s.1"}):
        assert broker.call("STREAM.NAMES", asked)["streams"] == ["s"]
    changed = broker.call("STREAM.UPDATE.s", {**info["config"], "max_msgs": 100})
    assert (changed["config"]["max_msgs"], sequences(changed)) == (100, (4, 0, 0))
    kept = broker.stream("s").config.metadata
    assert kept is msgspec.UNSET or not [key for key in kept if key.startswith("_penstock")]
    assert broker.call("STREAM.DELETE.s")["success"]
    assert broker.call("STREAM.INFO.s-p0")["error"]["err_code"] == 10059


@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        ("STREAM.MSG.GET.s", {"seq": 1}),
        ("STREAM.INFO.s", {"subjects_filter": ">"}),
        ("STREAM.INFO.s", {"deleted_details": True}),
        ("CONSUMER.NAMES.s", {}),
        ("CONSUMER.LIST.s", {}),
        ("CONSUMER.CREATE.s.c", {"stream_name": "s", "config": {"name": "c"}}),
    ],
)
def test_what_needs_one_order_is_refused_for_the_whole(operation: str, request_: dict[str, Any]) -> None:
    error = started().call(operation, request_)["error"]
    assert error["err_code"] == 10052
    assert "read them as the streams s-p0 to s-p1" in error["description"]


@pytest.mark.parametrize(
    ("operation", "request_", "command"),
    [
        *(("STREAM.PURGE.s", some, "purge") for some in ({"filter": "s"}, {"seq": 2}, {"keep": 1})),
        ("STREAM.MSG.DELETE.s", {"seq": 1}, "delete-message"),
    ],
)
def test_a_removal_of_some_from_the_whole_is_refused_with_the_command_that_does_it(
    operation: str, request_: dict[str, Any], command: str
) -> None:
    broker = started()
    error = broker.call(operation, request_)["error"]
    assert (error["err_code"], f"use `penstock stream {command}`" in error["description"]) == (10052, True)
    assert "s-p0" not in error["description"]
    assert sequences(broker.call("STREAM.INFO.s"))[0] == 4


def test_a_purge_of_the_whole_purges_each_partition() -> None:
    broker = started()
    assert broker.call("STREAM.PURGE.s")["purged"] == 4
    assert sequences(broker.call("STREAM.INFO.s"))[0] == 0
    assert [sequences(broker.call(f"STREAM.INFO.s-p{number}")) for number in (0, 1)] == [(0, 4, 3), (0, 2, 1)]
    broker.append("s", b"e", subject="s.1", partition=1)
    assert [broker.call("STREAM.PURGE.s", {})["purged"] for _ in range(2)] == [1, 0]


@pytest.mark.parametrize(
    ("change", "err_code"),
    [
        (AlterStreamRequest(name="s", changes={"deny_purge": True}), 10110),
        (SetIntakeRequest(name="s", intake=Intake.SEALED), 10109),
    ],
)
def test_a_purge_of_the_whole_is_refused_where_nothing_may_be_purged(change: Request, err_code: int) -> None:
    broker = started()
    broker.request(change)
    assert broker.call("STREAM.PURGE.s")["error"]["err_code"] == err_code
    assert sequences(broker.call("STREAM.INFO.s"))[0] == 4


@pytest.mark.parametrize("operation", ["STREAM.UPDATE", "STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.DELETE"])
def test_a_partition_is_not_changed(operation: str) -> None:
    broker = started()
    request = b"" if operation == "STREAM.DELETE" else b'{"name": "s-p1", "seq": 1}'
    error = broker.call(f"{operation}.s-p1", request)["error"]
    assert (error["err_code"], "can only be read" in error["description"]) == (10052, True)
    assert sequences(broker.call("STREAM.INFO.s"))[0] == 4


def test_no_stream_takes_the_name_of_a_partition() -> None:
    broker = started()
    error = broker.call("STREAM.CREATE.s-p1", {"name": "s-p1", "subjects": ["other"]})["error"]
    assert error["err_code"] == 10058
    assert broker.call("STREAM.CREATE.s-p2", {"name": "s-p2", "subjects": ["other"]})["did_create"]
    refused = broker.refusal(AlterStreamRequest(name="s", changes={"partitions": 3}))
    assert (refused.code, "partition 2 would be 's-p2'" in str(refused)) == (ErrorCode.STREAM_EXISTS, True)


def raised(*names: str) -> ReaderBroker:
    """A broker whose streams have these names from below the level of the API."""
    broker = started(ReaderBroker(broker_version="0.3.0"))
    for name in names:
        broker.create(name, f"other.{name}")
    broker.settings["broker_version"] = "0.4.0"
    broker = broker.crash().start()
    broker.ask(RaiseFeatureLevelRequest(), RaiseFeatureLevelResponse)
    for _ in range(20):  # brokers look again whether they may serve the API
        broker.gateway_tick(500)
    return broker


def test_a_stream_that_has_that_name_from_below_the_level_comes_first() -> None:
    broker = raised("s-p1")
    assert sequences(broker.call("STREAM.INFO.s-p1")) == (0, 0, 0)
    assert sequences(broker.call("STREAM.INFO.s-p0")) == (3, 1, 3)
    assert broker.call("STREAM.NAMES")["streams"] == ["s", "s-p1"]
    told = "s-p0 to s-p1, but s-p1 is another stream, which hides the partition from NATS clients"
    assert broker.call("STREAM.INFO.s")["config"]["metadata"]["_penstock.partitions"] == told
    for operation in ("STREAM.MSG.GET.s", "CONSUMER.NAMES.s"):
        assert told in broker.call(operation, {"seq": 1})["error"]["description"]
    broker = raised("s-p0", "s-p1")
    assert "but 2 such as s-p0 are other streams" in broker.call("STREAM.MSG.GET.s", {"seq": 1})["error"]["description"]


@pytest.mark.parametrize("name", ["s-p2", "s-p", "s-p00", "s-p-1", "one-p0", "none-p0", "-p0", "__offsets-p0"])
def test_other_names_are_none(name: str) -> None:
    broker = started()
    broker.create("one", "one")
    assert broker.call(f"STREAM.INFO.{name}")["error"]["err_code"] == 10059


def test_the_rights_are_those_on_the_real_stream() -> None:
    broker = ReaderBroker(rights=ApiRights(user="nats")).start()
    broker.create("s", "s", partitions=2)
    key = Credential("password", CredentialKind.PASSWORD, 1, None, b"s" * 16, 600_000, bytes(32), bytes(32))
    broker.request(CreateUserRequest(name="ann", credentials=(key,), rules=(Rule(Operation.ADMIN),)))
    ann = broker.node.image.user("ann")
    broker.who = Principal("ann", ann.made_index, "password", ann.credentials[0].mark)
    broker.request(CreateUserRequest(name="nats", credentials=(key,), rules=(Rule(Operation.READ, stream="s-p0"),)))
    assert broker.call("STREAM.INFO.s-p0")["error"]["err_code"] == 10059
    rule = ChangeRulesRequest(name="nats", add=(Rule(Operation.READ, stream="s"),))
    broker.request(rule)
    assert sequences(broker.call("STREAM.INFO.s-p0")) == (0, 0, 0)
    assert broker.call("STREAM.MSG.GET.s-p1", {"seq": 1})["error"]["err_code"] == 10037


def test_a_page_of_the_list_asks_a_bounded_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LISTED_PARTITIONS_MAX", 5)
    broker = started()
    for name in ("t", "u"):
        broker.create(name, name, partitions=3)
    names: list[str] = []
    while len(names) < 3:
        page = broker.call("STREAM.LIST", {"offset": len(names)})
        assert page["total"] == 3
        names += [one["config"]["name"] for one in page["streams"]]
        assert len(page["streams"]) < 3
    assert names == ["s", "t", "u"]


def test_ids_in_the_gateway_lead_back() -> None:
    assert real_ids(7) == (7, 0)
    assert real_ids(StreamId((3 + 1) << 48 | 1 << 40 | 7)) == (1 << 40 | 7, 3)
