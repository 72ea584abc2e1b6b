"""The config of a consumer: what is accepted, what is refused, with which error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.consumers.config import ACK_PENDING_MAX
from penstock.jetstream.readers.config.reader_config import reader_config
from tests.unit.jetstream.readers.gateways import ReaderBroker

S = 1_000_000_000  # ns

MS = 1_000_000  # ns

PUSH = {"deliver_subject": "inbox"}
REFUSED: tuple[tuple[dict[str, Any], int], ...] = (
    ({"name": "a.b"}, 10052),
    ({"num_replicas": -1}, 10133),
    ({"num_replicas": 3}, 10126),
    ({"ack_wait": -1}, 10183),
    ({"description": "x" * 5_000}, 10107),
    ({"deliver_subject": "in.*"}, 10079),
    ({"deliver_subject": "in..box"}, 10112),
    ({"deliver_subject": "s.x"}, 10081),
    ({"deliver_subject": "other.x"}, 10081),
    ({"deliver_subject": "forbidden.x"}, 10112),
    ({**PUSH, "max_waiting": 5}, 10080),
    ({**PUSH, "max_ack_pending": 5}, 10082),
    ({**PUSH, "idle_heartbeat": 50 * MS}, 10083),
    ({**PUSH, "flow_control": True}, 10108),
    ({"rate_limit_bps": 1_000}, 10086),
    ({"idle_heartbeat": 500 * MS}, 10088),
    ({"flow_control": True}, 10089),
    ({"max_expires": 10}, 10115),
    ({"filter_subject": "s.a", "filter_subjects": ["s.b"]}, 10136),
    ({"filter_subjects": [""]}, 10139),
    ({"filter_subjects": ["s.>", "s.a"]}, 10138),
    ({"filter_subjects": [f"s.{number}" for number in range(65)]}, 10052),
    ({"filter_subject": "a..b"}, 10052),
    ({"opt_start_seq": 4}, 10094),
    ({"opt_start_time": "2026-01-01T00:00:00Z"}, 10094),
    ({"deliver_policy": "by_start_sequence"}, 10094),
    ({"deliver_policy": "by_start_time"}, 10094),
    ({"deliver_policy": "by_start_time", "opt_start_time": "yesterday"}, 10025),
    ({"deliver_policy": "by_start_time", "opt_start_time": "2026-13-01T00:00:00Z"}, 10025),
    ({"deliver_policy": "last_per_subject"}, 10094),
    ({"deliver_policy": "sometimes"}, 10025),
    ({"sample_freq": "x"}, 10095),
    ({"metadata": {"x": "y" * 20_000}}, 10135),
    ({"metadata": {"x": 1}}, 10025),
    ({"priority_groups": ["a"]}, 10196),
    ({"priority_timeout": 5}, 10197),
    ({"unheard_of": 1}, 10025),
    ({"max_deliver": "x"}, 10025),
    ({"max_waiting": 100_000}, 10052),
)
UNSUPPORTED: tuple[tuple[str, Any], ...] = (
    ("ack_policy", "flow_control"),
    ("direct", True),
    ("sourcing", True),
)


@pytest.fixture
def broker() -> ReaderBroker:
    broker = ReaderBroker().start()
    broker.create("s")
    broker.create("other")
    return broker


@pytest.mark.parametrize(("config", "err_code"), REFUSED, ids=[str(config)[:60] for config, _ in REFUSED])
def test_mistakes_are_refused_as_nats_server_refuses_them(
    broker: ReaderBroker, config: dict[str, Any], err_code: int
) -> None:
    answer = broker.api("CONSUMER.CREATE.s", {"stream_name": "s", "config": config})
    assert answer["error"]["err_code"] == err_code, answer
    assert broker.api("CONSUMER.NAMES.s")["consumers"] == []


@pytest.mark.parametrize(("field", "value"), UNSUPPORTED, ids=[field for field, _ in UNSUPPORTED])
def test_what_is_not_supported_is_refused_by_name(broker: ReaderBroker, field: str, value: Any) -> None:
    error = broker.consumer("s", "c", **{field: value, "max_deliver": 5})["error"]
    assert error["err_code"] == 10052
    assert error["description"].startswith(f"{field}: ")


ACKED = {"durable_name": "c", "ack_policy": "explicit"}
REFUSED_WITH_ACKS: tuple[tuple[dict[str, Any], int], ...] = (
    ({"backoff": [-1]}, 10184),
    ({"backoff": [1, 2, 3], "max_deliver": 2}, 10116),
    ({"backoff": [1] * 65, "max_deliver": 70}, 10052),
    ({"num_replicas": 2}, 10126),
    ({"priority_policy": "overflow"}, 10159),
    ({"priority_policy": "overflow", "priority_groups": [""]}, 10161),
    ({"priority_policy": "overflow", "priority_groups": ["a b"]}, 10162),
    ({"priority_policy": "overflow", "priority_groups": ["a"], "deliver_subject": "inbox"}, 10178),
)


@pytest.mark.parametrize(("config", "err_code"), REFUSED_WITH_ACKS, ids=[str(one)[:60] for one, _ in REFUSED_WITH_ACKS])
def test_mistakes_with_acks_are_refused_as_nats_server_refuses_them(
    broker: ReaderBroker, config: dict[str, Any], err_code: int
) -> None:
    answer = broker.api("CONSUMER.CREATE.s.c", {"stream_name": "s", "config": {**ACKED, **config}})
    assert answer["error"]["err_code"] == err_code, answer
    assert broker.api("CONSUMER.NAMES.s")["consumers"] == []


def test_config_of_acks_is_completed(broker: ReaderBroker) -> None:
    request = {"stream_name": "s", "config": {**ACKED, "backoff": [2 * S, 5 * S], "max_deliver": 9}}
    for operation in ("CONSUMER.DURABLE.CREATE.s.c", "CONSUMER.CREATE.s.c"):
        told = broker.api(operation, request)["config"]
        assert (told["ack_wait"], told["backoff"], told["max_ack_pending"]) == (2 * S, [2 * S, 5 * S], 1_000)
    pinned = {"priority_policy": "pinned_client", "priority_groups": ["g"]}
    assert broker.durable("s", "p", **pinned)["config"]["priority_timeout"] == 120 * S
    assert broker.consumer("s", "e", ack_policy="explicit")["config"]["inactive_threshold"] == 5 * S


DEFAULTS = {
    "ack_policy": "none",
    "ack_wait": 30_000 * MS,
    "max_deliver": -1,
    "sample_freq": "100%",
    "mem_storage": True,
    "num_replicas": 1,
    "backoff": None,
    "direct": False,
    "priority_policy": "none",
    "deliver_group": "",
    "max_ack_pending": 1_000,
}


def test_what_acks_alone_would_use_is_accepted_and_told(broker: ReaderBroker) -> None:
    told = broker.consumer("s", "c", **DEFAULTS)["config"]
    assert {name: told[name] for name in ("ack_wait", "sample_freq", "mem_storage", "max_ack_pending")} == {
        "ack_wait": 30_000 * MS,
        "sample_freq": "100%",
        "mem_storage": True,
        "max_ack_pending": 1_000,
    }
    assert (told["max_waiting"], told["inactive_threshold"]) == (512, 5_000 * MS)
    assert "durable_name" not in told


def test_names_come_from_the_subject_or_are_drawn(broker: ReaderBroker) -> None:
    assert broker.consumer("s")["name"] == "reader1"
    request = {"stream_name": "s", "config": {"filter_subject": "s.a.b"}}
    answer = broker.api("CONSUMER.CREATE.s.own.s.a.b", request)
    assert (answer["name"], answer["config"]["filter_subject"]) == ("own", "s.a.b")
    assert broker.api("CONSUMER.CREATE.s.own.s.a", request)["error"]["err_code"] == 10131
    several = {"stream_name": "s", "config": {"filter_subjects": ["s.a"]}}
    assert broker.api("CONSUMER.CREATE.s.own.s.a", several)["error"]["err_code"] == 10137
    assert broker.api("CONSUMER.CREATE.s.own", {"stream_name": "t", "config": {}})["error"]["err_code"] == 10056
    assert broker.api("CONSUMER.CREATE.none", {"stream_name": "none", "config": {}})["error"]["err_code"] == 10059
    assert broker.api("CONSUMER.NAMES.s")["consumers"] == ["own", "reader1"]


def test_an_existing_consumer_is_told_updated_or_refused(broker: ReaderBroker) -> None:
    first = broker.consumer("s", "c", description="one", inactive_threshold=9_000 * MS)
    again = broker.api(
        "CONSUMER.CREATE.s.c",
        {
            "stream_name": "s",
            "config": {"name": "c", "description": "one", "inactive_threshold": 9_000 * MS},
            "action": "create",
        },
    )
    assert again["created"] == first["created"]
    other = {"stream_name": "s", "config": {"name": "c", "description": "two"}}
    assert broker.api("CONSUMER.CREATE.s.c", {**other, "action": "create"})["error"]["err_code"] == 10148
    assert broker.api("CONSUMER.CREATE.s.c", {**other, "action": "update"})["config"]["description"] == "two"
    none = {"stream_name": "s", "config": {"name": "d"}, "action": "update"}
    assert broker.api("CONSUMER.CREATE.s.d", none)["error"]["err_code"] == 10149
    for change, text in (
        ({"deliver_policy": "new"}, "deliver policy can not be updated"),
        ({"max_waiting": 7}, "max waiting can not be updated"),
        ({"deliver_subject": "inbox"}, "can not update pull consumer to push based"),
    ):
        error = broker.consumer("s", "c", **change)["error"]
        assert (error["err_code"], error["description"]) == (10012, text)


def test_a_stream_with_several_partitions_is_refused_with_its_reason(broker: ReaderBroker) -> None:
    broker.create("many", partitions=3, partition_by="key")
    error = broker.consumer("many", "c")["error"]
    assert "has 3 partitions" in error["description"]


def test_nothing_is_made_while_nothing_can_be_delivered(broker: ReaderBroker) -> None:
    broker.leaf.is_up = False
    error = broker.consumer("s", "c")["error"]
    assert error["code"] == 503
    assert "leaf connection" in error["description"]


def test_a_consumer_waits_for_the_leaf_connection_of_a_broker_that_has_just_started(broker: ReaderBroker) -> None:
    broker.leaf.is_up = False
    inbox = broker.send("CONSUMER.CREATE.s.c", {"stream_name": "s", "config": {"name": "c"}})
    broker.tick(50)
    assert inbox not in broker.answers
    broker.leaf.is_up = True
    broker.tick(200)
    assert json.loads(broker.answers[inbox])["name"] == "c"


@pytest.mark.parametrize("asked", [-1, 5_000_000])
def test_more_in_hand_than_may_be_is_told_as_asked_for_and_bounded(broker: ReaderBroker, asked: int) -> None:
    assert broker.durable("s", "c", max_ack_pending=asked)["config"]["max_ack_pending"] == asked
    given = {"durable_name": "c", "ack_policy": "explicit", "max_ack_pending": asked}
    assert reader_config(broker.node.image.by_name("s"), given, pedantic=False).max_ack_pending == ACK_PENDING_MAX


def test_internal_streams_are_not_there(broker: ReaderBroker) -> None:
    assert broker.consumer("__audit", "c")["error"]["err_code"] == 10059


def test_lists_come_in_pages(broker: ReaderBroker) -> None:
    for number in range(260):
        assert "error" not in broker.consumer("s", f"c{number:03}")
    names = broker.api("CONSUMER.NAMES.s", {"offset": 250})
    assert (names["total"], names["offset"], names["limit"]) == (260, 250, 1_024)
    assert names["consumers"] == [f"c{number}" for number in range(250, 260)]
    infos = broker.api("CONSUMER.LIST.s")
    assert (infos["total"], infos["limit"], len(infos["consumers"])) == (260, 256, 256)
    assert [one["name"] for one in broker.api("CONSUMER.LIST.s", {"offset": 256})["consumers"]] == [
        "c256", "c257", "c258", "c259",
    ]  # fmt: skip


HOSTILE = (
    b"", b"{", b"[]", b"null", b"7", b"\xff", b'{"stream_name":"s","config":[]}', b'{"stream_name":7}',
    b'{"stream_name":"s","config":{"filter_subject":7}}', b"[" * 100_000, b'{"config":' + b"[" * 50_000,
    b'{"stream_name":"s","config":{"opt_start_seq":99999999999999999999999}}',
    b'{"stream_name":"s","config":{"opt_start_seq":18446744073709551615,"deliver_policy":"by_start_sequence"}}',
    b'{"stream_name":"s","config":{"inactive_threshold":9223372036854775807}}',
    b'{"stream_name":"s","config":{"rate_limit_bps":18446744073709551615,"deliver_subject":"x"}}',
    b'{"stream_name":"s","config":{"pause_until":"9999-12-31T23:59:59Z"}}',
    b'{"stream_name":"s","config":{"opt_start_time":"0001-01-01T00:00:00Z","deliver_policy":"by_start_time"}}',
    b'{"stream_name":"s","config":{"opt_start_time":"9999-12-31T23:59:59Z","deliver_policy":"by_start_time"}}',
    b'{"batch":99999999999999999999}', b'{"batch":-5,"expires":-7}', b'{"expires":9223372036854775807}',
    b'{"seq":-1}', b'{"seq":9223372036854775807}', b'{"pause_until":"x"}', b'{"pause_until":7}', b'{"offset":"x"}',
    b'{"offset":-9}', b'{"group":7}', b'{"group":"\x00"}', b"9" * 5_000, b'{"no_wait":"x"}', b'{"max_bytes":-1}',
)  # fmt: skip


def test_no_request_crashes_or_stalls_a_broker(broker: ReaderBroker) -> None:
    operations = ("CREATE", "DURABLE.CREATE", "INFO", "NAMES", "LIST", "DELETE", "MSG.NEXT", "PAUSE", "RESET", "UNPIN")
    for payload in HOSTILE:
        for operation in operations:
            broker.consumer("s", "c")
            for rest in ("s", "s.c", "s.c.d.*.>", "none.c", "s.", "s.\xff", "s.c..d"):
                broker.send(f"CONSUMER.{operation}.{rest}", payload)
            broker.tick(1)
    broker.publish("s.a", b"v")
    broker.tick(2_000)
    broker.api("CONSUMER.DELETE.s.c")
    broker.consumer("s", "last", deliver_subject="inbox")
    assert [one.value for one in broker.delivered("inbox")][-1:] == [b"v"]


def test_the_stream_limits_its_consumers() -> None:
    broker = ReaderBroker().start()
    limited = {"inactive_threshold": 60 * S, "max_ack_pending": 10}
    config = {"name": "s", "subjects": ["s.>"], "max_consumers": 2, "consumer_limits": limited}
    made = broker.api("STREAM.CREATE.s", config)["config"]
    assert (made["max_consumers"], made["consumer_limits"]) == (2, limited)
    assert broker.consumer("s", "a")["config"]["inactive_threshold"] == 60 * S
    assert broker.consumer("s", "b", inactive_threshold=61 * S)["error"]["err_code"] == 10153
    assert broker.consumer("s", "b", max_ack_pending=11)["error"]["err_code"] == 10121
    assert broker.consumer("s", "b", inactive_threshold=7 * S)["config"]["inactive_threshold"] == 7 * S
    assert broker.consumer("s", "c")["error"]["err_code"] == 10026
    assert "error" not in broker.consumer("s", "a")  # it is there already
    more = broker.api("STREAM.UPDATE.s", {**made, "max_consumers": 3, "consumer_limits": {}})["config"]
    assert (more["max_consumers"], more["consumer_limits"]) == (3, {})
    assert broker.consumer("s", "c")["config"]["inactive_threshold"] == 5 * S


@pytest.mark.parametrize("wrong", [{"inactive_threshold": -1}, {"max_ack_pending": "3"}, {"later": 1}])
def test_limits_of_consumers_that_cannot_be_honoured_are_refused(wrong: dict[str, Any]) -> None:
    broker = ReaderBroker().start()
    error = broker.api("STREAM.CREATE.s", {"name": "s", "consumer_limits": wrong})["error"]
    assert (error["err_code"], "consumer_limits" in error["description"]) == (10052, True)
