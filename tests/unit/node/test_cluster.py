"""One broker is a cluster of one: it asks nobody, waits for nobody, and misses nobody."""

from __future__ import annotations

from penstock.base import limits
from tests.unit.node.harness import Broker


def test_a_broker_that_is_alone_is_not_missed_by_itself() -> None:
    """It sends itself no heartbeats; it took itself for dead after a session, and nobody led anything."""
    broker = Broker().start()
    broker.create("orders")
    for _ in range(20):
        broker.tick(limits.SESSION_MS / 2)
    assert broker.stream("orders").partitions[0].leader_epoch == 1
    broker.publish("orders.a", b"x", reply="r")
    assert broker.acked() == ["r"]
    broker.create("later")
    assert set(broker.streams()) == {"orders", "later"}
    assert broker.notices == []


def test_a_broker_that_is_alone_does_nothing_while_nothing_happens() -> None:
    broker = Broker().start()
    broker.create("orders")
    for _ in range(3):
        broker.tick(1_000)
    before = {path: broker.memory.open(path).size() for path in broker.memory.files()}
    steps = len(broker.steps)
    for _ in range(10):
        broker.clock.advance_ms((broker.node.next_wake_us - broker.clock.elapsed_us) / 1_000)
        broker.tick()
    assert broker.clock.elapsed_us >= 10_000_000
    assert len(broker.steps) == steps
    assert {path: broker.memory.open(path).size() for path in broker.memory.files()} == before
