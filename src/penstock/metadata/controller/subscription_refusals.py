"""NATS subscription refusals, by partition and broker: kept by the metadata leader alone, in memory.

Rules: a partition's leader repeats the refusal; its last report is remembered for a while, so that another broker is
elected next, and none if NATS refuses all of them. Expired entries are removed, also of partitions that are not asked
for again.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.ids import BrokerId, PartitionKey

_US = limits.NATS_REFUSED_MS * 1_000


class SubscriptionRefusals:
    """Refused brokers per partition, with expiry times."""

    def __init__(self) -> None:
        self._until_us: dict[PartitionKey, dict[BrokerId, int]] = {}

    def __len__(self) -> int:
        """The number of partitions with refusals."""
        return len(self._until_us)

    def clear(self) -> None:
        self._until_us = {}

    def add(self, key: PartitionKey, broker_id: BrokerId, now_us: int) -> None:
        """NATS refused this partition's leader the subscription."""
        refused = self._until_us.pop(key, {})
        refused[broker_id] = now_us + _US
        self._until_us[key] = refused  # reinserted last, so the least recently added comes first
        while max(self._until_us[first := next(iter(self._until_us))].values()) <= now_us:
            del self._until_us[first]

    def of(self, key: PartitionKey, now_us: int) -> frozenset[BrokerId]:
        """The brokers that were refused the subscription lately."""
        refused = {one: until_us for one, until_us in self._until_us.get(key, {}).items() if until_us > now_us}
        if not refused:
            self._until_us.pop(key, None)
        return frozenset(refused)
