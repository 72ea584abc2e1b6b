"""Streams of several partitions: each partition is read as a stream of its own, and the whole is told and changed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from penstock.access import Credential, CredentialKind, Operation, Rule
from penstock.access.handshake import Principal
from penstock.base.ids import StreamId
from penstock.jetstream import streams
from penstock.jetstream.gateway import ApiRights
from penstock.jetstream.partition_streams import parsed_name, real_ids
from penstock.messages import ChangeRulesRequest, CreateUserRequest
from tests.unit.jetstream.readers.gateways import ReaderBroker

S = 1_000_000_000  # ns


def started(**config: Any) -> ReaderBroker:
    """A stream `s` of two partitions: three messages in partition 0, one in partition 1."""
    broker = ReaderBroker().start()
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
    [("STREAM.PURGE.s", {}, "purge"), ("STREAM.MSG.DELETE.s", {"seq": 1}, "delete-message")],
)
def test_a_removal_from_the_whole_is_refused_with_the_command_that_does_it(
    operation: str, request_: dict[str, Any], command: str
) -> None:
    broker = started()
    error = broker.call(operation, request_)["error"]
    assert (error["err_code"], f"use `penstock stream {command}`" in error["description"]) == (10052, True)
    assert "s-p0" not in error["description"]
    assert sequences(broker.call("STREAM.INFO.s"))[0] == 4


@pytest.mark.parametrize("operation", ["STREAM.UPDATE", "STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.DELETE"])
def test_a_partition_is_not_changed(operation: str) -> None:
    broker = started()
    request = b"" if operation == "STREAM.DELETE" else b'{"name": "s-p1", "seq": 1}'
    error = broker.call(f"{operation}.s-p1", request)["error"]
    assert (error["err_code"], "can only be read" in error["description"]) == (10052, True)
    assert sequences(broker.call("STREAM.INFO.s"))[0] == 4


def test_a_stream_of_that_name_comes_first() -> None:
    broker = started()
    assert broker.call("STREAM.CREATE.s-p1", {"name": "s-p1", "subjects": ["other"]})["did_create"]
    assert sequences(broker.call("STREAM.INFO.s-p1")) == (0, 0, 0)
    assert sequences(broker.call("STREAM.INFO.s-p0")) == (3, 1, 3)
    assert broker.call("STREAM.NAMES")["streams"] == ["s", "s-p1"]
    told = "s-p0 to s-p1, but s-p1 is another stream, which hides the partition from NATS clients"
    assert broker.call("STREAM.INFO.s")["config"]["metadata"]["_penstock.partitions"] == told
    for operation in ("STREAM.MSG.GET.s", "CONSUMER.NAMES.s"):
        assert told in broker.call(operation, {"seq": 1})["error"]["description"]
    broker.create("s-p0", "another")
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
    assert parsed_name("a-p1-p2") == ("a-p1", 2)
    assert parsed_name(json.dumps("a")) is None
