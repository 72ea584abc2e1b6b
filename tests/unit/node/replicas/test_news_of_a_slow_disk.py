"""A leader whose own sync comes last: its followers hear of the new high watermark within REPLICA_NEWS_DELAY_MS."""

from __future__ import annotations

from penstock.base import limits
from tests.unit.node.members import formed


def test_the_next_deadline_is_near_once_a_slow_sync_has_raised_the_high_watermark() -> None:
    brokers = formed()
    caller = brokers.leader.create("s", subject="s", replicas=3, durability="fsync")
    brokers.run(500)
    leader = brokers.led("s")
    assert caller not in leader.open_requests
    brokers.publish("s", b"one")
    brokers.run(200)
    leader.syncs_hang = True
    brokers.publish("s", b"two", reply="r")
    assert not leader.acks
    leader.syncs_hang = False
    leader.turn()
    assert len(leader.acks) == 1
    news_us = leader.node.next_wake_us - brokers.clock.now.elapsed_us
    assert news_us <= limits.REPLICA_NEWS_DELAY_MS * 1_000
    assert leader.node.has_next_turn, "else the driver looks for it after 50 ms"
    brokers.clock.advance_ms(limits.REPLICA_NEWS_DELAY_MS)
    leader.tick_node()
    leader.turn()
    assert not leader.node.has_next_turn
