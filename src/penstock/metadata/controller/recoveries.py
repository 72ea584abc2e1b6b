"""Unclean recovery (KIP-966): collects log ends of partitions in recovery until the longest log can lead.

Rules: a partition is in recovery while it has no leader, and all replicas that had every acked message are back from
unclean stops (`elections.recovers`). Nothing is written to it then, so an incarnation's reported log end stays valid.
All replicas that had every acked message are waited for, and the other live replicas for a while: the longest log is as
good on any of them. All state is in memory; brokers repeat their reports, so a new metadata leader gets them, too.

Of a partition with marks, a replica leads only if it has the longest log of them, too: in the command the others count
as failed. A committed mark is on the disks of all that counted, but one of them may have returned with an older copy of
its disk, and the ends of the messages need not show that. Of those with the most messages, the one with the longest log
of consumers leads: its rows are as durable as the messages, so a power loss may have left the most of the one on a
replica, and the most of the other on another. Messages come first then, and some of them are delivered once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec.structs import replace

from penstock.base import limits
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionKey
from penstock.messages.peers import LogEnd
from penstock.metadata import elections
from penstock.metadata.commands import PartitionRecovery, ReplicaEnd
from penstock.metadata.elections import ElectionRules
from penstock.metadata.image import ClusterImage, PartitionState

_NEVER_US = 2**63
_BELOW_ALL = LeaderEpoch(-1)  # epoch 0 of a failed log would say that its end is unknown
_WAIT_US = limits.RECOVERY_WAIT_MS * 1_000
_End: TypeAlias = tuple[LeaderEpoch, Offset]


@dataclass(slots=True)
class _Told:
    """Reports on one partition since its last leadership."""

    leader_epoch: LeaderEpoch
    since_us: int
    ends: dict[BrokerId, ReplicaEnd] = field(default_factory=dict)
    marks: dict[BrokerId, _End] = field(default_factory=dict)  # ends of logs of marks
    consumers: dict[BrokerId, _End] = field(default_factory=dict)  # ends of logs of consumers


class Recoveries:
    """The reported log ends, and the recoveries that they allow."""

    def __init__(self) -> None:
        self._told: dict[PartitionKey, _Told] = {}
        # the image of the last full pass, if nothing was reported since, and nothing was due
        self._seen: ClusterImage | None = None
        self._next_us = 0  # no wait ends before then

    def __bool__(self) -> bool:
        """True if any partition is in recovery, by the reports."""
        return bool(self._told)

    def clear(self) -> None:
        """Forget everything: meanwhile another metadata leader got the reports."""
        self._told = {}
        self._seen = None

    def add_log_ends(
        self,
        image: ClusterImage,
        broker_id: BrokerId,
        incarnation: Incarnation,
        log_ends: Iterable[LogEnd],
        now_us: int,
    ) -> list[PartitionKey]:
        """Take the log ends of a broker's live incarnation; return the partitions for which they are new."""
        news: dict[PartitionKey, None] = {}
        for end in log_ends:
            key = PartitionKey(end.stream_id, end.partition)
            partition = _partition(image, key, end.leader_epoch)
            if partition is None or broker_id not in partition.replicas:
                continue
            told = self._told.get(key)
            if told is None or told.leader_epoch != end.leader_epoch:
                told = self._told[key] = _Told(end.leader_epoch, now_us)
            replica_end = ReplicaEnd(broker_id, incarnation, end.last_epoch, end.log_end, end.has_failed)
            marks, consumers = (end.marks_epoch, end.marks_end), (end.consumers_epoch, end.consumers_end)
            before = told.ends.get(broker_id), told.marks.get(broker_id), told.consumers.get(broker_id)
            if before != (replica_end, marks, consumers):
                told.ends[broker_id], told.marks[broker_id], told.consumers[broker_id] = replica_end, marks, consumers
                news[key] = None
        if news:
            self._seen = None
        return list(news)

    def due(
        self, image: ClusterImage, now_us: int, among: Iterable[PartitionKey] | None = None
    ) -> list[PartitionRecovery]:
        """Return the partitions that can be led now, `among` these or all; at most as many as fit into a command."""
        if among is None:
            seen = self._seen
            is_same = seen is not None and seen.streams is image.streams and seen.brokers is image.brokers
            if is_same and now_us < self._next_us:
                return []
            self._next_us = _NEVER_US
        live = {one.broker_id: one.incarnation for one in image.brokers.values() if one.is_live}
        found: list[PartitionRecovery] = []
        for key in list(self._told) if among is None else among:
            if (recovery := self._due(image, key, live, now_us)) is not None:
                found.append(recovery)
                if len(found) == limits.RECOVERIES_PER_COMMAND_MAX:
                    break
        if among is None:
            self._seen = None if found else image
        return found

    def _due(
        self, image: ClusterImage, key: PartitionKey, live: Mapping[BrokerId, Incarnation], now_us: int
    ) -> PartitionRecovery | None:
        told = self._told[key]
        partition = _partition(image, key, told.leader_epoch)
        if partition is None:
            del self._told[key]
            return None
        if not elections.recovers(partition, live.keys()):
            told.since_us = now_us
            return None
        ends = _counting(partition, told, live)
        missing = [one for one in partition.replicas if one in live and one not in ends]
        rules = ElectionRules.of(image.streams[key.stream_id])
        holders = elections.holders(partition)
        if rules.has_marks:
            ends = _with_longest_marks(holders, ends, told)
        if rules.has_consumers:
            ends = _with_longest_consumers(holders, ends, told)
        if not (holders.isdisjoint(missing) or rules.allow_unclean_election):
            return None
        if missing and now_us < told.since_us + _WAIT_US:
            self._next_us = min(self._next_us, told.since_us + _WAIT_US)
            return None
        if elections.recovered(partition, ends, live.keys(), rules) is None:
            return None
        return PartitionRecovery(*key, told.leader_epoch, tuple(ends.values()))


def _partition(image: ClusterImage, key: PartitionKey, leader_epoch: LeaderEpoch) -> PartitionState | None:
    """Return the partition, if it had no leader since that epoch."""
    state = image.streams.get(key.stream_id)
    if state is None or key.partition >= len(state.partitions):
        return None
    partition = state.partitions[key.partition]
    return partition if partition.leader is None and partition.leader_epoch == leader_epoch else None


def _with_longest_marks(
    holders: frozenset[BrokerId], ends: dict[BrokerId, ReplicaEnd], told: _Told
) -> dict[BrokerId, ReplicaEnd]:
    """Return the ends; those of replicas whose log of marks lacks what that of a holder has count as failed."""
    longest = max((told.marks[one] for one in ends if one in holders), default=(0, 0))
    return {one: end if told.marks[one] >= longest else _outdone(end) for one, end in ends.items()}


def _with_longest_consumers(
    holders: frozenset[BrokerId], ends: dict[BrokerId, ReplicaEnd], told: _Told
) -> dict[BrokerId, ReplicaEnd]:
    """Return the ends; of the holders with the most messages, those with a shorter log of consumers count as failed."""
    may_lead = {one: end.length for one, end in ends.items() if one in holders and not end.has_failed}
    most = [one for one, length in may_lead.items() if length == max(may_lead.values())]
    longest = max((told.consumers[one] for one in most), default=(0, 0))
    outdone = [one for one in most if told.consumers[one] < longest]
    return {one: _outdone(end) if one in outdone else end for one, end in ends.items()}


def _outdone(end: ReplicaEnd) -> ReplicaEnd:
    """Return the end as that of a log which cannot lead, and whose end is known, also if it is empty."""
    return replace(end, has_failed=True, last_epoch=end.last_epoch or _BELOW_ALL)


def _counting(
    partition: PartitionState, told: _Told, live: Mapping[BrokerId, Incarnation]
) -> dict[BrokerId, ReplicaEnd]:
    """Return the reports of incarnations that are still live, in the order of the replicas."""
    ends = {}
    for broker_id in partition.replicas:
        end = told.ends.get(broker_id)
        if end is not None and live.get(broker_id) == end.incarnation:
            ends[broker_id] = end
    return ends
