"""Retention as the node runs it: looked up on the disk, acted on by the owner, removed on the disk."""

from __future__ import annotations

import errno

from penstock.vfs.faulty import Fault, Kind, nth
from tests.unit.node.harness import Broker

FOLDER = "streams/00000004-orders/0"


def with_old_messages() -> Broker:
    broker = Broker().start()
    broker.create("orders", segment_bytes=4096, max_messages=3)
    for number in range(12):
        broker.publish("orders.a", b"%d" % number + b"." * 900, reply="r")
    return broker


def segments(broker: Broker) -> int:
    return sum(path.startswith(FOLDER) and path.endswith(".arrows") for path in broker.memory.files())


def test_messages_over_the_limit_go_with_the_tick() -> None:
    broker = with_old_messages()
    before = segments(broker)
    broker.tick(2_000)
    assert broker.stream("orders").partitions[0].log_start == 9
    assert segments(broker) < before
    assert broker.notices == []


def test_a_stream_that_is_deleted_while_retention_looks_up_takes_no_harm() -> None:
    broker = with_old_messages()
    broker.disk_runs_at_once = False
    broker.tick(2_000)
    lookup = broker.execute()
    broker.delete("orders")
    broker.settle()
    broker.complete(lookup)
    broker.settle()
    assert broker.streams() == {}
    assert not any(path.startswith("streams/") for path in broker.memory.files())
    assert broker.notices == []


def test_a_removal_that_fails_is_told_once_and_tried_again() -> None:
    broker = with_old_messages()
    before = segments(broker)
    broker.vfs.plan = nth(0, Fault(errno.EIO), Kind.REMOVE)
    broker.tick(2_000)
    assert segments(broker) == before
    assert len(broker.notices) == 1
    assert "cannot remove old segments" in broker.notices[0]
    broker.tick(2_000)
    assert segments(broker) < before
    assert len(broker.notices) == 1
