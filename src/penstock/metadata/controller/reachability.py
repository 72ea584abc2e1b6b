"""Unreachability reports of followers, and the leader elections that they cause.

Rules: a report concerns one incarnation of a broker; it counts for a while, and no longer than its reporter repeats it.
A partition gets another leader when most of the other members of its ISR cannot fetch from the present one, and one of
them may lead. A single reporter elects no leader, unless it is the only other member: then nothing can be acked without
it either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.base.ids import BrokerId, Incarnation
from penstock.messages.peers import UnreachableLeader
from penstock.metadata import elections
from penstock.metadata.commands import Election, ElectionReason
from penstock.metadata.elections import ElectionRules
from penstock.metadata.image import ClusterImage, PartitionState


class ReachabilityReports:
    """The reports that count now."""

    def __init__(self, window_us: int) -> None:
        self._window_us = window_us
        self._reported_us: dict[tuple[BrokerId, Incarnation], dict[BrokerId, int]] = {}
        # The last pass: its image, its reports and its result. `elections` is called with every tick.
        self._passed: tuple[ClusterImage, Mapping[BrokerId | None, set[BrokerId]], list[Election]] | None = None

    def clear(self) -> None:
        """Forget everything: meanwhile another metadata leader got the reports."""
        self._reported_us = {}

    def replace_report(
        self, image: ClusterImage, reporter: BrokerId, unreachable: Iterable[UnreachableLeader], now_us: int
    ) -> bool:
        """Replace `reporter`'s unreachable leaders. Return True if one of them is new."""
        accused = {
            (one.broker_id, one.incarnation)
            for one in unreachable
            if one.broker_id != reporter and _is_live(image, one.broker_id, one.incarnation)
        }
        has_news = False
        for run, reporters in self._reported_us.items():
            if run not in accused:
                reporters.pop(reporter, None)
        for run in sorted(accused):
            reporters = self._reported_us.setdefault(run, {})
            has_news = has_news or reporter not in reporters
            reporters[reporter] = now_us
        self._reported_us = {run: reporters for run, reporters in self._reported_us.items() if reporters}
        return has_news

    def elections(self, image: ClusterImage, now_us: int) -> list[Election]:
        """Return the elections that the reports require; one pass over all partitions after a change."""
        by_leader = self._fresh(image, now_us)
        if not by_leader:
            self._passed = None
            return []
        if self._passed is not None and self._passed[0] is image and self._passed[1] == by_leader:
            return list(self._passed[2])
        live = image.live_brokers()
        wanted = []
        for state in image.streams.values():
            for key, partition in zip(state.partition_keys(), state.partitions, strict=True):
                if partition.leader not in by_leader or not _is_accused(partition, by_leader[partition.leader]):
                    continue
                if elections.leader_changed(partition, live, ElectionRules.of(state), resigned=False) is not None:
                    wanted.append(Election(*key, partition.leader_epoch, ElectionReason.UNREACHABLE))
        self._passed = image, by_leader, wanted
        return list(wanted)

    def _fresh(self, image: ClusterImage, now_us: int) -> dict[BrokerId | None, set[BrokerId]]:
        since_us = now_us - self._window_us
        fresh: dict[BrokerId | None, set[BrokerId]] = {}
        for (broker_id, incarnation), reporters in list(self._reported_us.items()):
            counting = {one for one, reported_us in reporters.items() if reported_us > since_us}
            if counting and _is_live(image, broker_id, incarnation):
                fresh[broker_id] = counting
            else:
                del self._reported_us[broker_id, incarnation]
        return fresh


def _is_live(image: ClusterImage, broker_id: BrokerId, incarnation: Incarnation) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.is_live and broker.incarnation == incarnation


def _is_accused(partition: PartitionState, reporters: set[BrokerId]) -> bool:
    others = [broker_id for broker_id in partition.isr if broker_id != partition.leader]
    return 2 * sum(broker_id in reporters for broker_id in others) > len(others)
