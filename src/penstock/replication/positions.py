"""What a leader knows of its followers' brokers: a session of each, and in it a position of each partition.

Rules: nothing is decided here. A position is what a follower has named, and what it was told since; a session holds the
positions, and who of them stands in which line.
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


class Found(Protocol):
    """Whole batches that follow one another."""

    @property
    def length(self) -> int:
        """In bytes."""


class Look(NamedTuple):
    """What a disk thread is to look up; `Sessions.found` takes what it finds."""

    broker_id: BrokerId
    key: PartitionKey
    leader_epoch: LeaderEpoch
    offset: int
    bytes_max: int
    verifies: bool = False  # what is found: the follower has refused it


class Position:
    """What a follower has said of one partition, and has been told of it."""

    __slots__ = ("diverging", "error", "found", "is_owed", "is_refused", "leader_epoch", "log_end", "look",
                 "replica_start", "told_committed_end", "told_start")  # fmt: skip

    def __init__(self, leader_epoch: LeaderEpoch, log_end: int) -> None:
        self.leader_epoch = leader_epoch
        self.log_end = log_end
        self.is_owed = True  # an answer, since it was named
        self.is_refused = False  # it got the batches from its end on before, and names that again
        self.look: Look | None = None  # a disk thread is at it
        self.error = ""
        self.diverging: rules.EpochEnd | None = None
        self.replica_start = 0  # where it has to begin anew
        self.found: Found | None = None  # by a disk thread
        self.told_committed_end = 0
        self.told_start = 0

    @property
    def agrees(self) -> bool:
        """Whether it counts."""
        return not self.error and self.diverging is None and not self.replica_start

    def is_behind(self, leadership: Leadership) -> bool:
        """Whether an end or a start has moved since it was told."""
        return leadership.committed_end > self.told_committed_end or leadership.log_start > self.told_start

    def refused(self, error: RemoteError) -> None:
        """There are no batches from its end on; perhaps elsewhere."""
        replica_start = error.details.get("replica_start")
        if isinstance(replica_start, int) and replica_start > self.log_end:
            self.replica_start = replica_start
        else:
            self.error = error.code


Line = OrderedDict[PartitionKey, None]


class FetchSession:
    """One follower's broker."""

    __slots__ = ("broker_id", "bytes_max", "caller", "catching_up", "deadline_us", "ends", "heard_us", "impeded",
                 "in_sync", "incarnation", "number", "positions", "refused")  # fmt: skip

    def __init__(self, broker_id: BrokerId, incarnation: Incarnation, number: int) -> None:
        self.broker_id = broker_id
        self.incarnation = incarnation
        self.number = number
        self.positions: dict[PartitionKey, Position] = {}
        self.impeded: set[PartitionKey] = set()  # whose logs take nothing, named or not
        self.refused: Line = OrderedDict()  # do not agree, and are to hear of it first
        self.in_sync: Line = OrderedDict()  # have news: in line
        self.catching_up: Line = OrderedDict()
        self.ends: dict[PartitionKey, int] = {}  # only ends are news; since when
        self.caller: Hashable | None = None  # of the fetch that waits
        self.bytes_max = 0
        self.deadline_us = 0
        self.heard_us = 0  # when the fetch that waits was asked

    def forget(self, key: PartitionKey) -> None:
        """It is named no more."""
        self.positions.pop(key, None)
        self.refused.pop(key, None)
        self.in_sync.pop(key, None)
        self.catching_up.pop(key, None)
        self.ends.pop(key, None)

    @property
    def ready_us(self) -> int:
        """When the fetch that waits is to be answered."""
        if self.refused or self.in_sync or self.catching_up:
            return 0
        if self.ends:
            return min(next(iter(self.ends.values())) + limits.REPLICA_NEWS_DELAY_MS * 1_000, self.deadline_us)
        return self.deadline_us


def without_batches(key: PartitionKey, position: Position, leadership: Leadership | None) -> ReplicaNews:
    """What is said of a position that does not agree."""
    # An error is told in the follower's own epoch, so that it knows what is meant.
    epoch = position.leader_epoch
    if position.error or leadership is None:
        return ReplicaNews(*key, epoch, error=position.error or ErrorCode.NOT_LEADER)
    if position.diverging is None:
        return ReplicaNews(*key, epoch, replica_start=Offset(position.replica_start))
    diverging = Divergence(LeaderEpoch(position.diverging.leader_epoch), Offset(position.diverging.end_offset))
    return ReplicaNews(*key, epoch, log_start=Offset(leadership.log_start), diverging=diverging)
