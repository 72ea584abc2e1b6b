"""Whom NATS refused a subscription: remembered for a while, partition by partition."""

from penstock.base import limits
from penstock.base.ids import BrokerId, PartitionId, PartitionKey, StreamId
from penstock.metadata.refusals import Refusals

KEY, OTHER = (PartitionKey(StreamId(1), PartitionId(number)) for number in range(2))
ONE, TWO = BrokerId(1), BrokerId(2)


def test_each_is_remembered_for_a_while_from_when_it_said_so_last() -> None:
    refusals = Refusals()
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
