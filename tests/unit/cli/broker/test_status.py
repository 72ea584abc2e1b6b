"""What `penstock status` says of a broker."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from penstock.base.config import StreamConfig, SuspendDeletion
from penstock.base.ids import BrokerId, StreamId, TimestampUs
from penstock.cli.broker.status import broker_pairs, suspended_text, without_leader
from penstock.messages import NatsStatus, StatusResponse, StreamInfo


def state_of(**more: Any) -> StatusResponse:
    known: dict[str, Any] = {
        "broker_id": BrokerId(1),
        "broker_version": "1.2.3",
        "cluster_id": "c",
        "address": "127.0.0.1:7422",
        "started_us": TimestampUs(1_700_000_000_000_000),
        "uptime_ms": 1_000,
        "nats": NatsStatus(state="connected"),
        "counters": {"messages_in": 1_200, "acks_made": 1_200},
    }
    return StatusResponse(**{**known, **more})


def _shown(nats: NatsStatus, waits_for: str = "") -> dict[str, str]:
    return broker_pairs(state_of(nats=nats, waits_for=waits_for))


def test_acks_that_were_dropped_are_told_beside_those_that_were_made() -> None:
    shown = _shown(NatsStatus(state="connected", answers_dropped=1_000))
    assert shown["since start"] == "messages in 1,200, acks made 1,200"
    assert shown["answers dropped"].startswith("1,000 of the acks and refusals made: ")
    assert "answers dropped" not in _shown(NatsStatus(state="connected"))


def test_what_is_skipped_and_not_answered_is_shown() -> None:
    shown = _shown(NatsStatus(state="connected", messages_skipped=2, unanswerable=3))
    assert shown["messages skipped"].startswith("2 unknown messages from nats-server")
    assert shown["without an ack"].startswith("3 messages")
    assert not {"messages skipped", "without an ack"} & set(_shown(NatsStatus(state="connected")))


def test_deliveries_are_shown_where_there_is_a_leaf_connection() -> None:
    up = NatsStatus(state="connected", leaf_state="connected", leaf_url="nats://a:7423", leaf_subjects=2, undelivered=3)
    shown = _shown(up)
    assert shown["deliveries"] == "over nats://a:7423; 2 subjects with interest"
    assert shown["not delivered"].startswith("3 batches")
    down = _shown(NatsStatus(state="connected", leaf_state="connecting", leaf_error="nats://a:7423: refused"))
    assert down["deliveries"] == "none: nats://a:7423: refused"
    assert not {"deliveries", "not delivered"} & set(_shown(NatsStatus(state="connected")))


def test_an_api_that_is_not_served_here_is_told() -> None:
    down = _shown(NatsStatus(state="connected", api_state="connecting", api_error="nats://a:4222: refused"))
    assert down["API connection"] == "none, so requests go to other brokers: nats://a:4222: refused"
    silent = _shown(NatsStatus(state="connected", api_state="connected", api_unknown=("$JS.API.>: nothing answers",)))
    assert silent["API unknown"] == "$JS.API.>: nothing answers"
    assert "API connection" not in silent


def test_some_of_the_announced_servers_are_shown() -> None:
    assert "NATS announces" not in _shown(NatsStatus(state="connected"))
    two = _shown(NatsStatus(state="connected", announced=("nats://a:1", "nats://b:1")))
    assert two["NATS announces"] == "nats://a:1, nats://b:1"
    many = _shown(NatsStatus(state="connected", announced=tuple(f"nats://a:{port}" for port in range(1, 21))))
    assert many["NATS announces"].endswith("nats://a:8 and 12 more")


def test_a_broker_that_is_not_ready_says_what_it_waits_for() -> None:
    connected = NatsStatus(state="connected")
    assert _shown(connected, "waiting for a majority")["not ready"] == "waiting for a majority"
    assert "not ready" not in _shown(connected)


@pytest.mark.parametrize(
    ("heard_ms", "heard"), [(12_345, "12s ago"), (None, "before the broker started"), (900, "1s ago")]
)
def test_without_a_metadata_leader_it_is_said_how_old_the_answer_is(heard_ms: int | None, heard: str) -> None:
    state = state_of(metadata_heard_ms=heard_ms, voters=5, voters_reachable=2)
    assert without_leader(state) == (
        f"no metadata leader: the following is the state last received, {heard}; 2 of 5 voters reachable"
    )


def test_where_somebody_leads_the_metadata_or_nobody_else_is_there_nothing_is_said_of_it() -> None:
    assert not without_leader(state_of(metadata_leader=BrokerId(2), voters=3, voters_reachable=2))
    assert not without_leader(state_of(voters=1, voters_reachable=1))


def test_streams_whose_deletion_is_suspended_are_named() -> None:
    infos = [
        StreamInfo(stream_id=StreamId(n + 1), config=StreamConfig(name=f"s{n}", subject="a", suspend_deletion=one))
        for n, one in enumerate([UNSET, *[SuspendDeletion.YES] * 5, SuspendDeletion.COPYING])
    ]
    assert suspended_text(infos[:1]) == ""
    text = "Deletion is suspended in s1, s2, s3, s4, s5 and 1 more: `penstock doctor` says how to resume it"
    assert suspended_text(infos) == text


def test_what_is_counted_is_named() -> None:
    shown = broker_pairs(
        state_of(streams=9, partitions_by_state={"online": 14, "no_leader": 2}, counters={"dropped": 3})
    )
    assert shown["streams"] == "9"
    assert shown["partitions"] == "16 (14 online, 2 no leader)"
    assert shown["since start"] == "messages that matched and were not stored 3"
    assert broker_pairs(state_of(cluster_id=""))["cluster"] == "not known yet"


def test_one_connection_is_no_connections() -> None:
    assert broker_pairs(state_of(connections=1))["clients"] == "1 connection, 0 requests in flight"
    assert (
        broker_pairs(state_of(connections=2, requests_in_flight=1))["clients"] == "2 connections, 1 request in flight"
    )
