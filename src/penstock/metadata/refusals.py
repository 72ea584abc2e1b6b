"""To whom NATS refuses the subscription of a partition: kept by the metadata leader alone, in memory.

Rules: who leads a partition says so again and again; what it said last is remembered for a while, so that the next
leader is another one, and none is asked for where NATS refuses it to all. What is over is forgotten, also of partitions
that nobody asks for again.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.ids import BrokerId, PartitionKey

_US = limits.NATS_REFUSED_MS * 1_000


class Refusals:
    """Who was refused what, and until when that is taken for so."""

    def __init__(self) -> None:
        self._until_us: dict[PartitionKey, dict[BrokerId, int]] = {}

    def __len__(self) -> int:
        """Of how many partitions something is remembered."""
        return len(self._until_us)

    def clear(self) -> None:
        """Begin anew."""
        self._until_us = {}

    def add(self, key: PartitionKey, broker_id: BrokerId, now_us: int) -> None:
        """A broker leads a partition, and NATS refuses it the subscription."""
        refused = self._until_us.pop(key, {})
        refused[broker_id] = now_us + _US
        self._until_us[key] = refused  # at the end: the one that was added to first, longest ago, comes first
        while max(self._until_us[first := next(iter(self._until_us))].values()) <= now_us:
            del self._until_us[first]

    def of(self, key: PartitionKey, now_us: int) -> frozenset[BrokerId]:
        """Who was refused that lately."""
        refused = {one: until_us for one, until_us in self._until_us.get(key, {}).items() if until_us > now_us}
        if not refused:
            self._until_us.pop(key, None)
        return frozenset(refused)
