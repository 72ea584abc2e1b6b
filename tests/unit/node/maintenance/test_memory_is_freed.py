"""A stream in memory waits for no sync; all the same, retention frees what is over its limit as fast as ever."""

from __future__ import annotations

from tests.unit.node.harness import Broker


def test_retention_frees_what_has_come_since_the_last_visit() -> None:
    broker = Broker().start()
    broker.create("s", storage="memory", max_bytes=10_000, segment_bytes=4_096)
    sizes = []
    for _ in range(5):
        for _ in range(100):
            broker.publish("s.x", b"x" * 1_000)
        broker.tick(1_000)
        sizes.append(broker.stream("s").partitions[0].size_bytes)
    assert max(sizes) < 30_000, "at a visit only the limit and the active segment are left"
