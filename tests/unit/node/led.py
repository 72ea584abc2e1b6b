"""A partition that one broker leads alone, without a node around it."""

from __future__ import annotations

from penstock.base.config import StreamConfig
from penstock.base.ids import BrokerId, Incarnation, PartitionId, PartitionKey, StreamId
from penstock.commitlog import Log
from penstock.metadata.effects.streams import created_config
from penstock.metadata.image import PartitionState, StreamState
from penstock.node.partition.in_flight import InFlightBudget
from penstock.node.partition.partition import Partition
from penstock.replication.leader import Leadership, LogEndsAtStart
from penstock.replication.leadership_timers import LeadershipTimers
from penstock.vfs import Vfs
from tests.unit.node.harness import START_US

ONE = BrokerId(1)


def stream_state(stream_id: int, config: StreamConfig) -> StreamState:
    """A stream of one partition on one broker, as the image has it."""
    return StreamState(StreamId(stream_id), created_config(config, 1), START_US, (PartitionState.made((ONE,)),))


def led(state: StreamState, log: Log, vfs: Vfs) -> Partition:
    """Its partition, led; the log has the beginning of that once `Upkeep.lead` was called."""
    key = PartitionKey(state.stream_id, PartitionId(0))
    partition = Partition(state, key, log, vfs, InFlightBudget(10**9))
    ends = LogEndsAtStart(log.log_start, partition.committed_end, log.flushed_end, log.log_end)
    live = {ONE: Incarnation(1)}
    partition.lead(Leadership(key, ONE, state.partitions[0], live, ends, partition.terms, LeadershipTimers(), 0))
    return partition
