"""Leader's records of its followers' brokers: one fetch session each, with a position per partition.

Rules: no decisions in here. A position is what a follower named, and what it was told since; a session holds the
positions and the lines in which they wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple, Protocol

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionKey
from penstock.messages import Divergence, ReplicaNews
from penstock.replication import rules
from penstock.replication.leader import Leadership


class FoundBatches(Protocol):
    """Consecutive whole batches."""

    @property
    def length(self) -> int:
        """The size in bytes."""


class BatchLookup(NamedTuple):
    """A read for a disk thread; `Sessions.found` takes the result."""

    broker_id: BrokerId
    key: PartitionKey
    leader_epoch: LeaderEpoch
    offset: int
    bytes_max: int
    verifies: bool = False  # also verify the batches: the follower has refused them


class FollowerPosition:
    """A follower's position in one partition, and what it has been told of it."""

    __slots__ = ("diverging", "error", "found", "is_owed", "is_refused", "leader_epoch", "log_end", "look",
                 "replica_start", "told_committed_end", "told_start")  # fmt: skip

    def __init__(self, leader_epoch: LeaderEpoch, log_end: int) -> None:
        self.leader_epoch = leader_epoch
        self.log_end = log_end
        self.is_owed = True  # an answer is owed since it was named
        self.is_refused = False  # it was sent the batches from its end on, and names the same end again
        self.look: BatchLookup | None = None  # a disk thread is reading
        self.error = ""
        self.diverging: rules.EpochEnd | None = None
        self.replica_start = 0  # where it has to start over
        self.found: FoundBatches | None = None  # by a disk thread
        self.told_committed_end = 0
        self.told_start = 0

    @property
    def agrees(self) -> bool:
        """True if the position agrees with the leader's log."""
        return not self.error and self.diverging is None and not self.replica_start

    def is_behind(self, leadership: Leadership) -> bool:
        """True if an end or a start has moved since it was told."""
        return leadership.committed_end > self.told_committed_end or leadership.log_start > self.told_start

    def refused(self, error: RemoteError) -> None:
        """Record that no batches follow its end; the error may name another start."""
        replica_start = error.details.get("replica_start")
        if isinstance(replica_start, int) and replica_start > self.log_end:
            self.replica_start = replica_start
        else:
            self.error = error.code


Line = OrderedDict[PartitionKey, None]


class FetchSession:
    """The fetch session of one follower's broker."""

    __slots__ = ("broker_id", "bytes_max", "caller", "catching_up", "deadline_us", "ends", "heard_us", "impeded",
                 "in_sync", "incarnation", "number", "positions", "refused")  # fmt: skip

    def __init__(self, broker_id: BrokerId, incarnation: Incarnation, number: int) -> None:
        self.broker_id = broker_id
        self.incarnation = incarnation
        self.number = number
        self.positions: dict[PartitionKey, FollowerPosition] = {}
        self.impeded: set[PartitionKey] = set()  # partitions whose logs accept nothing, named or not
        self.refused: Line = OrderedDict()  # positions that do not agree; answered first
        self.in_sync: Line = OrderedDict()  # positions with news, in order
        self.catching_up: Line = OrderedDict()
        self.ends: dict[PartitionKey, int] = {}  # only ends moved; since when
        self.caller: Hashable | None = None  # of the waiting fetch
        self.bytes_max = 0
        self.deadline_us = 0
        self.heard_us = 0  # when the waiting fetch arrived

    def forget(self, key: PartitionKey) -> None:
        """Forget the partition's position."""
        self.positions.pop(key, None)
        self.refused.pop(key, None)
        self.in_sync.pop(key, None)
        self.catching_up.pop(key, None)
        self.ends.pop(key, None)

    @property
    def ready_us(self) -> int:
        """The time at which the waiting fetch is to be answered."""
        if self.refused or self.in_sync or self.catching_up:
            return 0
        if self.ends:
            return min(next(iter(self.ends.values())) + limits.REPLICA_NEWS_DELAY_MS * 1_000, self.deadline_us)
        return self.deadline_us


def without_batches(key: PartitionKey, position: FollowerPosition, leadership: Leadership | None) -> ReplicaNews:
    """Return the answer for a position that does not agree."""
    # An error carries the follower's own epoch, so that the follower can match it.
    epoch = position.leader_epoch
    if position.error or leadership is None:
        return ReplicaNews(*key, epoch, error=position.error or ErrorCode.NOT_LEADER)
    if position.diverging is None:
        return ReplicaNews(*key, epoch, replica_start=Offset(position.replica_start))
    diverging = Divergence(LeaderEpoch(position.diverging.leader_epoch), Offset(position.diverging.end_offset))
    return ReplicaNews(*key, epoch, log_start=Offset(leadership.log_start), diverging=diverging)
