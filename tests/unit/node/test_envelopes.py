"""Who published in an envelope is acked when others are, and hears of every failure that others hear of."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from penstock.base import limits
from penstock.messages import CreateStreamResponse
from penstock.vfs.faulty import FileFault, FileOperationKind, nth
from tests.envelopes import enveloped, message
from tests.unit.node.harness import START_US, Broker

LEADER, ALL, NONE = range(3)


def with_orders(**config: Any) -> Broker:
    broker = Broker().start()
    broker.answer(broker.create("orders", **config), CreateStreamResponse)
    return broker


def deliver(broker: Broker, *policies: int, correlation: str = "c") -> None:
    """One read of the NATS connection, with a message in an envelope for each policy."""
    values = [
        enveloped(message({"value": b"v", "correlation_id": f"{correlation}{n}".encode(), "ack_policy": policy}))
        for n, policy in enumerate(policies)
    ]
    broker.deliver([(b"orders.a", b"r", None, value) for value in values])


def heard(broker: Broker) -> list[tuple[str, int]]:
    """Correlation ids and error codes, in the order of the acks."""
    return [(ack.body["correlation_id"], ack.err_code) for ack in broker.acks]


def test_acks_come_at_once_or_when_it_is_durable() -> None:
    broker = with_orders()
    broker.disk_runs_at_once = False
    deliver(broker, LEADER, ALL, NONE, LEADER)
    assert heard(broker) == [("c0", 0), ("c3", 0)]
    assert [ack.body.get("offset", 0) for ack in broker.acks] == [0, 3]
    assert all("got_fsynced" not in ack.body for ack in broker.acks)
    broker.settle()
    assert heard(broker)[2:] == [("c1", 0)]
    assert broker.acks[2].body == {
        "stream": "orders",
        "partition_subject": "orders.>",
        "msg_subject": "orders.a",
        "offset": 1,
        "correlation_id": "c1",
        "ack_policy": ALL,
        "reception_timestamp": START_US * 1_000,
        "got_leader_epoch": 1,
        "got_replicas": 1,
        "got_fsynced": 1,
    }
    assert broker.values("orders") == [b"v"] * 4


def test_where_written_is_all_that_is_promised_the_ack_waits_for_nothing() -> None:
    broker = with_orders(durability="os")
    broker.disk_runs_at_once = False
    deliver(broker, ALL, LEADER)
    assert sorted(heard(broker)) == [("c0", 0), ("c1", 0)]


def test_offsets_in_acks_are_those_of_the_log_in_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_ROWS_MAX", 2)
    broker = with_orders()
    deliver(broker, ALL, LEADER, ALL, NONE, ALL)
    found = sorted((ack.body["correlation_id"], ack.body.get("offset", 0)) for ack in broker.acks)
    assert found == [("c0", 0), ("c1", 1), ("c2", 2), ("c4", 4)]


def test_a_disk_that_takes_nothing_is_told() -> None:
    broker = with_orders()
    broker.vfs.plan = nth(0, FileFault(errno.ENOSPC, 50), FileOperationKind.WRITE, path_end=".arrows")
    deliver(broker, ALL, LEADER, NONE)
    assert sorted(heard(broker)) == [("c0", 10077), ("c1", 10077)]
    assert {ack.body["ack_error"] for ack in broker.acks} == {1}
    assert broker.stream("orders").partitions[0].dropped == {"store_failed": 3}


def test_what_waits_for_a_sync_that_fails_is_told_that_nobody_knows() -> None:
    broker = with_orders()
    broker.disk_runs_at_once = False
    deliver(broker, ALL)
    assert broker.node.in_flight_bytes > 0
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.SYNC)
    broker.settle()
    assert heard(broker) == [("c0", 10077)]
    assert broker.acks[0].body["reason"] == "outcome_unknown"
    assert broker.node.in_flight_bytes == 0
    deliver(broker, ALL, correlation="later")
    assert heard(broker)[1:] == [("later0", 10077)]


def test_who_waits_with_an_envelope_counts_as_in_flight() -> None:
    sizes = []
    for correlation in ("", "c" * 1_000):
        broker = with_orders()
        broker.disk_runs_at_once = False
        deliver(broker, ALL, correlation=correlation)
        sizes.append(broker.node.in_flight_bytes)
        broker.settle()
        assert broker.node.in_flight_bytes == 0
    assert sizes[1] == sizes[0] + 1_000


def test_over_the_budget_it_is_refused() -> None:
    broker = Broker(partition_in_flight_bytes_max=500).start()
    broker.create("orders")
    broker.disk_runs_at_once = False
    deliver(broker, ALL)
    deliver(broker, ALL, NONE, correlation="over")
    assert heard(broker) == [("over0", 10008)]
    assert broker.stream("orders").partitions[0].dropped == {"over_budget": 2}
