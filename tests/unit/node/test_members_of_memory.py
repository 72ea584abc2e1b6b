"""Streams in memory with several replicas."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.base.config import Durability
from penstock.base.errors import OperationalError
from penstock.node.partition.partition import Partition
from penstock.replication.leader import terms_of
from tests.unit.node.members import Brokers, Member, formed


def with_stream(**config: object) -> Brokers:
    brokers = formed()
    caller = brokers.leader.create("s", subject="s", **{"replicas": 3, "storage": "memory", **config})
    brokers.run(500)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]
    return brokers


def partition_of(member: Member) -> Partition:
    (partition,) = (one for one in member.node._partitions.values() if one.stream.name == "s")
    return partition


def make_old(member: Member) -> None:
    """Have it lead as 0.3.0 does: by the stream's durability."""
    partition = partition_of(member)
    assert partition.leadership is not None
    config = partition.stream.config
    partition.leadership.reconfigured(terms_of(config.durability, config.min_isr or 1))


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("gap_ms", [0, 3_000])
def test_a_leader_of_0_3_acks_what_its_upgraded_followers_have(durability: Durability, gap_ms: int) -> None:
    brokers = with_stream(durability=durability)
    leader = brokers.led("s")
    make_old(leader)
    for number in range(1, 4):
        leader.publish("s", b"%d" % number, reply="r")
        brokers.run(limits.FLUSH_INTERVAL_MS + 50)
        assert [ack.body.get("replicas") for ack in leader.acks] == [3] * number
        brokers.run(gap_ms)


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("min_isr", [1, 2])
def test_one_that_is_left_acks_alone_if_it_may_and_those_that_come_back_have_it(
    monkeypatch: pytest.MonkeyPatch, durability: Durability, min_isr: int
) -> None:
    brokers = with_stream(durability=durability, min_isr=min_isr)
    leader = brokers.led("s")
    leader.publish("s", b"1", reply="r")
    brokers.run(200)

    def refuse(_partition: Partition, _data: memoryview) -> None:
        raise OperationalError("it takes nothing")

    with monkeypatch.context() as patches:
        patches.setattr(Partition, "append_fetched", refuse)
        leader.publish("s", b"2", reply="r")
        brokers.run(2 * limits.REPLICA_LAG_MS_MAX)
        assert len(brokers.partition("s").isr) == 1
        leader.publish("s", b"3", reply="r")
        brokers.run(200)
        replicas = [ack.body.get("replicas") for ack in leader.acks]
        assert replicas == ([3, 1, 1] if min_isr == 1 else [3, None])
    brokers.run(2 * limits.REPLICA_LAG_MS_MAX)
    assert len(brokers.partition("s").isr) == 3
    leader.publish("s", b"4", reply="r")
    brokers.run(500)
    assert leader.acks[-1].body["replicas"] == 3
    brokers.kill(leader.broker_id)
    brokers.run(2 * limits.REPLICA_LAG_MS_MAX)
    assert brokers.led("s") is not leader
    stored = [b"1", b"2", b"3", b"4"] if min_isr == 1 else [b"1", b"2", b"4"]
    assert brokers.led("s").values("s") == stored
