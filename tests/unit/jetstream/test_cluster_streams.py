"""Streams that are made through JetStream's API at several brokers at once."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from penstock.base.config import StreamConfig
from penstock.base.errors import RemoteError
from penstock.jetstream.api_call import HOPS_MAX, ApiCall
from penstock.messages import CreateStreamRequest, PassApiCallsRequest
from tests.groups import group_of
from tests.unit.jetstream.api_broker import ApiBrokers, ApiMember


@pytest.fixture(scope="module")
def brokers() -> ApiBrokers:
    made = ApiBrokers(1, 2, 3)
    made.run(6_000)
    assert made.serving() == [1, 2, 3]
    return made


def ask(member: ApiMember, operation: str, config: dict[str, Any]) -> None:
    """Have NATS give a call to this broker; nothing is carried to others yet."""
    member.answers.pop("_INBOX.caller", None)
    call = (f"$JS.API.{operation}.{config['name']}".encode(), b"_INBOX.caller", None, json.dumps(config).encode())
    member.gateway.messages_received(group_of([call]), member.clock.now)


def at_once(brokers: ApiBrokers, operation: str, *configs: dict[str, Any]) -> list[int]:
    """Send each config to another broker before any hears of the others; the error of each, 0 for none."""
    asked = brokers.all[: len(configs)]
    for member, config in zip(asked, configs, strict=True):
        ask(member, operation, config)
    brokers.settle()
    brokers.run(1_000)
    answers = [json.loads(member.answers["_INBOX.caller"]) for member in asked]
    return [answer.get("error", {}).get("err_code", 0) for answer in answers]


def test_of_two_creates_with_overlapping_subjects_one_wins(brokers: ApiBrokers) -> None:
    errors = at_once(
        brokers,
        "STREAM.CREATE",
        {"name": "one", "subjects": ["a.>"]},
        {"name": "two", "subjects": ["a.b"]},
        {"name": "three", "subjects": ["a.*"]},
    )
    assert sorted(errors) == [0, 10065, 10065]
    assert len(brokers[1].image.streams) == 1


def test_of_two_updates_with_overlapping_subjects_one_wins(brokers: ApiBrokers) -> None:
    assert at_once(brokers, "STREAM.CREATE", *({"name": f"u{n}", "subjects": [f"u{n}"]} for n in (1, 2))) == [0, 0]
    errors = at_once(
        brokers,
        "STREAM.UPDATE",
        {"name": "u1", "subjects": ["u1", "more.*"]},
        {"name": "u2", "subjects": ["u2", "more.x"]},
    )
    assert sorted(errors) == [0, 10065]


def test_of_a_stream_and_a_partition_with_its_name_one_wins(brokers: ApiBrokers) -> None:
    own = msgspec.convert({"name": "parts", "subject": "parts", "partitions": 2}, StreamConfig)
    brokers[1].node.request("whole", CreateStreamRequest(config=own), b"", brokers.clock.now)
    brokers[1].open_requests.add("whole")
    (error,) = at_once(brokers, "STREAM.CREATE", {"name": "parts-p1", "subjects": ["part"]})
    refused = brokers[1].replies["whole"].response
    assert (error, isinstance(refused, RemoteError)) in ((0, True), (10058, False))
    assert ("parts" in brokers[3].image.names) is not ("parts-p1" in brokers[3].image.names)


def test_penstocks_own_client_may_make_streams_that_overlap(brokers: ApiBrokers) -> None:
    assert at_once(brokers, "STREAM.CREATE", {"name": "api", "subjects": ["both"]}) == [0]
    brokers[2].create("own", subject="both")
    brokers.run(1_000)
    assert "own" in brokers[1].image.names
    assert at_once(brokers, "STREAM.UPDATE", {"name": "api", "subjects": ["both"], "max_msgs": 7}) == [0]


def test_a_purge_reaches_the_partitions_of_all_brokers_and_goes_on_where_it_stopped(brokers: ApiBrokers) -> None:
    def fill() -> None:
        for number, leader in enumerate(leaders):
            brokers[leader].append("wide", b"x", b"y", subject=f"wide.{number}" if number else "wide", partition=number)
        brokers.run(500)

    def purge(waits_ms: int) -> dict[str, Any]:
        for member in brokers.all:
            member.answers.clear()
        call = (b"$JS.API.STREAM.PURGE.wide", b"_INBOX.caller", None, b"")
        brokers[1].gateway.messages_received(group_of([call]), brokers.clock.now)
        brokers.settle()
        brokers.run(waits_ms)
        (answer,) = [one.answers["_INBOX.caller"] for one in brokers.all if "_INBOX.caller" in one.answers]
        return dict(json.loads(answer))

    brokers[1].create("wide", "wide", partitions=3, replicas=1)
    brokers.run(2_000)
    leaders = [int(one.leader or 0) for one in brokers[1].image.by_name("wide").partitions]
    assert sorted(leaders) == [1, 2, 3]
    fill()
    assert purge(1_000)["purged"] == 6
    fill()
    brokers.hang(leaders[2])
    assert purge(5_000)["error"]["err_code"] == 10008
    brokers.wake(leaders[2])
    brokers.run(20_000)
    assert purge(1_000)["purged"] == 2
    assert purge(1_000)["purged"] == 0


def test_calls_that_were_passed_on_once_are_passed_on_again_whatever_came_with_them(brokers: ApiBrokers) -> None:
    """The leader may have changed while they were on their way."""
    assert at_once(brokers, "STREAM.CREATE", {"name": "moved", "subjects": ["moved"]}) == [0]
    leader = brokers[brokers.led("moved").broker_id]
    asked = next(one for one in brokers.all if one is not leader)
    before = brokers.asked[PassApiCallsRequest]
    calls = [ApiCall("$JS.API.STREAM.INFO.moved", b"hop.%d" % hops, None, b"", hops) for hops in (1, HOPS_MAX)]
    asked.gateway.passed_on(msgspec.msgpack.encode(calls), brokers.clock.now)
    brokers.settle()
    assert brokers.asked[PassApiCallsRequest] == before + 1
    brokers.run(500)
    assert json.loads(leader.answers["hop.1"])["config"]["name"] == "moved"
    assert "no leader" in json.loads(asked.answers[f"hop.{HOPS_MAX}"])["error"]["description"]
