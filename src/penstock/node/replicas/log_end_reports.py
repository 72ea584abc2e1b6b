"""Reports the ends of leaderless logs to the metadata leader while it looks for the longest log.

The ends of companion logs are reported, too. A replica whose log of marks has failed cannot lead, whatever its own end;
one whose log of consumers has failed leads if no other replica has more of it.

Rules: ends are reported while the image has the partition in recovery (`penstock.metadata.elections`): at once, and
then with every heartbeat. If they do not fit into one heartbeat, the next one is sent at once; new ones go first, then
all in turn, whether they can be opened or not. A reported end stays valid until there is a leader: nothing is fetched,
stored or truncated meanwhile. The end of a failed log is reported if it is known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from itertools import chain, islice

import msgspec

from penstock.base import limits
from penstock.base.ids import BrokerId, LeaderEpoch, Offset, PartitionKey
from penstock.commitlog import LogState
from penstock.messages import LogEnd
from penstock.metadata import elections
from penstock.metadata.commands import ReplicaEnd
from penstock.metadata.companions import consumers_key, marks_key
from penstock.node.context import Context
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_events import PartitionEvents


class LogEndReports:
    """The log ends of one broker."""

    def __init__(
        self,
        context: Context,
        partitions: Mapping[PartitionKey, Partition],
        events: PartitionEvents,
        *,
        heartbeat_max: int = limits.LOG_ENDS_PER_HEARTBEAT_MAX,
    ) -> None:
        """`heartbeat_max`: number of partitions per heartbeat."""
        self._heartbeat_max = heartbeat_max
        self._partitions = partitions
        self._context = context
        self._events = events
        self._new: dict[PartitionKey, None] = {}  # not reported yet
        self._told: dict[PartitionKey, None] = {}  # the last reported comes last

    def nobody_leads(self, partition: Partition, live: Set[BrokerId]) -> None:
        """Report the partition's log end if the longest log is to lead."""
        key = partition.key
        if key in self._new or not elections.recovers(partition.stream.partitions[key.partition], live):
            return
        self._told.pop(key, None)
        if not self._new:
            self._events.is_heartbeat_due = True
        self._new[key] = None

    def take(self, live: Set[BrokerId], failed: Collection[PartitionKey]) -> tuple[LogEnd, ...]:
        """Return the ends for the next heartbeat. `failed`: partitions whose logs cannot be opened."""
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
            end = _unknown(key, leader_epoch) if key in unopened else self._end_of(self._partitions[key], leader_epoch)
            if end is not None:
                ends.append(end)
        if self._new:
            self._events.is_heartbeat_due = True
        return tuple(ends)

    def _recovering(self, key: PartitionKey, live: Set[BrokerId]) -> LeaderEpoch | None:
        state = self._context.image.streams.get(key.stream_id)
        if state is None or not elections.recovers(state.partitions[key.partition], live):
            return None
        return state.partitions[key.partition].leader_epoch

    def _end_of(self, partition: Partition, leader_epoch: LeaderEpoch) -> LogEnd | None:
        end = _end_of(partition, leader_epoch)
        if end is not None and partition.stream.has_marks:
            end = self._with_marks(partition, end)
        if end is not None and partition.stream.has_consumers:
            end = self._with_consumers(partition, end)
        return end

    def _with_marks(self, partition: Partition, end: LogEnd) -> LogEnd | None:
        marks = self._partitions.get(marks_key(partition.key))
        if marks is None or marks.closed:
            return _unknown(partition.key, end.leader_epoch)
        of_marks = _end_of(marks, end.leader_epoch)
        if of_marks is None or of_marks.is_unknown:
            return of_marks and _unknown(partition.key, end.leader_epoch)
        return msgspec.structs.replace(
            end,
            has_failed=end.has_failed or of_marks.has_failed,
            marks_epoch=of_marks.last_epoch,
            marks_end=of_marks.log_end,
        )

    def _with_consumers(self, partition: Partition, end: LogEnd) -> LogEnd | None:
        consumers = self._partitions.get(consumers_key(partition.key))
        if consumers is None or consumers.closed:
            return end  # it leads all the same if no other replica has more
        found = _end_of(consumers, end.leader_epoch)
        if found is None:
            return None
        return msgspec.structs.replace(end, consumers_epoch=found.last_epoch, consumers_end=found.log_end)


def _end_of(partition: Partition, leader_epoch: LeaderEpoch) -> LogEnd | None:
    log = partition.log
    if not (partition.leadership is None and partition.following is None and partition.cutting is None):
        return None
    has_failed = log.state is not LogState.WRITABLE
    if any(one.end_offset is None or one.end_offset >= log.log_end for one in log.damage):
        return _unknown(partition.key, leader_epoch)
    return LogEnd(*partition.key, leader_epoch, LeaderEpoch(log.last_epoch), Offset(log.log_end), has_failed)


def _unknown(key: PartitionKey, leader_epoch: LeaderEpoch) -> LogEnd:
    """Return the entry of a log that cannot be opened, or is corrupt at its end."""
    return LogEnd(*key, leader_epoch, LeaderEpoch(0), Offset(0), has_failed=True)


def recovered_text(partition: Partition, ends: Iterable[ReplicaEnd]) -> str:
    """Return a text that names the compared logs."""
    told = ", ".join(f"broker {one.broker_id} had {_length(one)}" for one in ends)
    return f"{partition.stream.name}/{partition.key.partition} ({told})"


def _length(end: ReplicaEnd) -> str:
    if end.has_failed:
        return "a log that has failed"
    return f"up to {end.log_end} of epoch {end.last_epoch}" if end.last_epoch else "nothing"
