"""Where logs end that nobody leads: what this broker tells of them while the longest is looked for.

Rules: it is told while the image has the partition in recovery (`penstock.metadata.elections`): at once, and then with
every heartbeat. What does not fit into one goes with the next, at once, those first that were not told yet, and then
all in turn, whether they can be opened or not. Told is only what stays so until somebody leads: nothing is fetched,
stored or cut then. Of a log that has failed its end is told if it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from itertools import chain, islice

from penstock.base import limits
from penstock.base.ids import BrokerId, LeaderEpoch, Offset, PartitionKey
from penstock.commitlog import LogState
from penstock.messages import LogEnd
from penstock.metadata import elections
from penstock.metadata.commands import ReplicaEnd
from penstock.metadata.image import ClusterImage
from penstock.node.partition import Partition


class LogEnds:
    """Those of one broker. `hurry`: a heartbeat is due now."""

    def __init__(
        self,
        partitions: Mapping[PartitionKey, Partition],
        image: Callable[[], ClusterImage],
        hurry: Callable[[], None],
        *,
        heartbeat_max: int = limits.LOG_ENDS_PER_HEARTBEAT_MAX,
    ) -> None:
        """`heartbeat_max`: of how many partitions one heartbeat tells."""
        self._heartbeat_max = heartbeat_max
        self._partitions = partitions
        self._image = image
        self._hurry = hurry
        self._new: dict[PartitionKey, None] = {}  # not told yet
        self._told: dict[PartitionKey, None] = {}  # the one that was told last comes last

    def nobody_leads(self, partition: Partition, live: Set[BrokerId]) -> None:
        """The image says so; perhaps the longest log is to lead."""
        key = partition.key
        if key in self._new or not elections.recovers(partition.stream.partitions[key.partition], live):
            return
        self._told.pop(key, None)
        if not self._new:
            self._hurry()
        self._new[key] = None

    def take(self, live: Set[BrokerId], failed: Collection[PartitionKey]) -> tuple[LogEnd, ...]:
        """What the next heartbeat tells. `failed`: partitions whose logs cannot be opened."""
        for key in failed:
            if key not in self._told and self._recovering(key, live) is not None:
                self._new[key] = None
        unopened = frozenset(failed)
        ends = []
        for key in list(islice(chain(self._new, self._told), self._heartbeat_max)):
            self._new.pop(key, None)
            self._told.pop(key, None)
            if (leader_epoch := self._recovering(key, live)) is None:
                continue
            if key not in unopened and key not in self._partitions:
                continue
            self._told[key] = None
            end = _unknown(key, leader_epoch) if key in unopened else _end_of(self._partitions[key], leader_epoch)
            if end is not None:
                ends.append(end)
        if self._new:
            self._hurry()
        return tuple(ends)

    def _recovering(self, key: PartitionKey, live: Set[BrokerId]) -> LeaderEpoch | None:
        state = self._image().streams.get(key.stream_id)
        if state is None or not elections.recovers(state.partitions[key.partition], live):
            return None
        return state.partitions[key.partition].leader_epoch


def _end_of(partition: Partition, leader_epoch: LeaderEpoch) -> LogEnd | None:
    log = partition.log
    if not (partition.leadership is None and partition.following is None and partition.cutting is None):
        return None
    has_failed = log.state is not LogState.WRITABLE
    if any(one.end_offset is None or one.end_offset >= log.log_end for one in log.damage):
        return _unknown(partition.key, leader_epoch)
    return LogEnd(*partition.key, leader_epoch, LeaderEpoch(log.last_epoch), Offset(log.log_end), has_failed)


def _unknown(key: PartitionKey, leader_epoch: LeaderEpoch) -> LogEnd:
    """That of a log which cannot be opened, or is damaged at its end."""
    return LogEnd(*key, leader_epoch, LeaderEpoch(0), Offset(0), has_failed=True)


def recovered_text(partition: Partition, ends: Iterable[ReplicaEnd]) -> str:
    """Which logs were compared, for people."""
    told = ", ".join(f"broker {one.broker_id} had {_length(one)}" for one in ends)
    return f"{partition.stream.name}/{partition.key.partition} ({told})"


def _length(end: ReplicaEnd) -> str:
    if end.has_failed:
        return "a log that has failed"
    return f"up to {end.log_end} of epoch {end.last_epoch}" if end.last_epoch else "nothing"
