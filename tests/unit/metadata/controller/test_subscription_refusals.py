"""Whom NATS refused a subscription: remembered for a while, partition by partition."""

from penstock.base import limits
from penstock.base.ids import BrokerId, PartitionId, PartitionKey, StreamId
from penstock.metadata.controller.subscription_refusals import SubscriptionRefusals

KEY, OTHER = (PartitionKey(StreamId(1), PartitionId(number)) for number in range(2))
ONE, TWO = BrokerId(1), BrokerId(2)


def test_each_is_remembered_for_a_while_from_when_it_said_so_last() -> None:
    refusals = SubscriptionRefusals()
    refusals.add(KEY, ONE, 0)
    refusals.add(KEY, TWO, 1_000)
    assert refusals.of(KEY, 1_000) == {ONE, TWO}
    assert refusals.of(OTHER, 1_000) == frozenset()
    end_us = limits.NATS_REFUSED_MS * 1_000
    assert refusals.of(KEY, end_us) == {TWO}
    refusals.add(KEY, TWO, end_us)
    assert refusals.of(KEY, end_us + 1_000) == {TWO}
    refusals.clear()
    assert refusals.of(KEY, end_us) == frozenset()


def test_what_is_over_is_forgotten_also_where_nobody_asks() -> None:
    refusals = SubscriptionRefusals()
    for number in range(100):
        refusals.add(PartitionKey(StreamId(number), PartitionId(0)), ONE, number)
    refusals.add(PartitionKey(StreamId(0), PartitionId(0)), ONE, 100)
    assert len(refusals) == 100
    refusals.add(KEY, ONE, limits.NATS_REFUSED_MS * 1_000 + 98)
    assert len(refusals) == 3  # the one that was refused again, the last of the others, and this one
