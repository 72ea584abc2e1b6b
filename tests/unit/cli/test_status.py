"""What `penstock status` says of a broker."""

from __future__ import annotations

from penstock.base.ids import BrokerId, TimestampUs
from penstock.cli.status import broker_pairs
from penstock.messages import NatsStatus, StatusResponse


def _shown(nats: NatsStatus, waits_for: str = "") -> dict[str, str]:
    return broker_pairs(
        StatusResponse(
            broker_id=BrokerId(1),
            broker_version="1.2.3",
            cluster_id="c",
            address="127.0.0.1:7422",
            started_us=TimestampUs(1_700_000_000_000_000),
            uptime_ms=1_000,
            nats=nats,
            waits_for=waits_for,
            counters={"messages_in": 1_200, "acks_made": 1_200},
        )
    )


def test_acks_that_were_dropped_are_told_beside_those_that_were_made() -> None:
    shown = _shown(NatsStatus(state="connected", answers_dropped=1_000))
    assert shown["since start"] == "messages in 1,200, acks made 1,200"
    assert shown["answers dropped"].startswith("1,000 of the acks and refusals made: ")
    assert "answers dropped" not in _shown(NatsStatus(state="connected"))


def test_a_broker_that_is_not_ready_says_what_it_waits_for() -> None:
    connected = NatsStatus(state="connected")
    assert _shown(connected, "waiting for a majority")["not ready"] == "waiting for a majority"
    assert "not ready" not in _shown(connected)
