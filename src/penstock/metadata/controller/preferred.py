"""Preferred leader election: preferred leaders lead again some time after they are back in sync, not all at once.

Theory: after a failover all partitions of a broker are led by others, and stay so when it is back. Placement spread the
preferred leaders evenly, so giving them their partitions back restores the balance.
"""

from __future__ import annotations

from collections.abc import Set

from penstock.base import limits
from penstock.base.ids import BrokerId, PartitionKey
from penstock.metadata import elections
from penstock.metadata.commands import Election, ElectionReason
from penstock.metadata.controller.subscription_refusals import SubscriptionRefusals
from penstock.metadata.image import ClusterImage


class PreferredLeaders:
    """Partitions that could be led by their first replica, and since when."""

    def __init__(self, steady_us: int) -> None:
        self._steady_us = steady_us
        self._since_us: dict[PartitionKey, int] = {}
        self._seen: ClusterImage | None = None
        self._unable: Set[BrokerId] = frozenset()
        self._next_look_us = 0

    def clear(self) -> None:
        self._since_us, self._seen, self._next_look_us = {}, None, 0

    def elections(
        self, image: ClusterImage, now_us: int, unable: Set[BrokerId], refusals: SubscriptionRefusals
    ) -> list[Election]:
        """Return the elections that are due; at intervals one pass over all partitions, if anything has changed.

        Excludes brokers that are `unable` to lead, or whose subscription of that partition NATS refused.
        """
        if now_us < self._next_look_us:
            return []
        self._next_look_us = now_us + limits.PREFERRED_LEADER_INTERVAL_MS * 1_000
        self._look(image, now_us, unable)
        steady = (key for key, since_us in self._since_us.items() if now_us - since_us >= self._steady_us)
        due = [key for key in steady if image.partition(*key).replicas[0] not in refusals.of(key, now_us)]
        return [
            Election(*key, image.partition(*key).leader_epoch, ElectionReason.PREFERRED)
            for key in due[: limits.PREFERRED_ELECTIONS_MAX]
        ]

    def _look(self, image: ClusterImage, now_us: int, unable: Set[BrokerId]) -> None:
        (seen, was_unable), (self._seen, self._unable) = (self._seen, self._unable), (image, unable)
        is_same = seen is not None and seen.streams is image.streams and seen.brokers is image.brokers
        if is_same and was_unable == unable:
            return
        live = image.live_brokers() - unable
        since_us = {}
        for state in image.streams.values():
            if all(partition.leader == partition.replicas[0] for partition in state.partitions):
                continue
            for key, partition in zip(state.partition_keys(), state.partitions, strict=True):
                if elections.preferred(partition, live) is not None:
                    since_us[key] = self._since_us.get(key, now_us)
        self._since_us = since_us
