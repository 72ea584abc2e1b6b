"""Events of this broker's partitions: what has happened to one, for the other parts of the node to act on.

Rules: the part that changes a partition adds an event; it calls no other part. `Node.take` passes the events on, in
their order, once the acks of the step have gone out. An event may be about a partition that is closed by then.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

from penstock.base.errors import RemoteError
from penstock.node.partition.partition import Partition


class PartitionEventKind(Enum):
    """The kinds of events; `Node` has the table of what each leads to."""

    BEGAN = "this broker leads it now"
    RESIGNED = "this broker leads it no more"
    COMMITTED = "its high watermark (`committed_end`) has moved"
    FLUSHED = "its flushed offset (`flushed_end`) has moved"
    RETAINED = "its log start offset (`log_start`) has moved"
    ROLE_DUE = "it was cut to agree with its leader, and may have another role by now"
    FAILED = "its log takes no appends until a repair or a restart"
    IMPEDED = "its disk takes no writes; `impediment` says why"
    STALLED = "an fsync of it does not return; `stall` says so"
    RESUMED = "that fsync has returned"
    REPAIRED = "its log is whole again"
    SUBSCRIBED = "NATS has granted its subscription"
    SUBSCRIPTION_REFUSED = "NATS has refused its subscription; `reason` says why"
    CLOSED = "it was removed from this broker; `error` is for callers that wait"


class PartitionEvent(NamedTuple):
    """One event."""

    kind: PartitionEventKind
    partition: Partition
    error: RemoteError | None = None
    reason: str = ""


class PartitionEvents:
    """The queue of events. `is_heartbeat_due`: the metadata leader is to hear of a change now."""

    __slots__ = ("_queue", "is_heartbeat_due")

    def __init__(self) -> None:
        self._queue: deque[PartitionEvent] = deque()
        self.is_heartbeat_due = False

    def add(
        self, kind: PartitionEventKind, partition: Partition, error: RemoteError | None = None, reason: str = ""
    ) -> None:
        """Add an event behind all others."""
        self._queue.append(PartitionEvent(kind, partition, error, reason))

    def next(self) -> PartitionEvent | None:
        """Take the oldest event; None if there is none."""
        return self._queue.popleft() if self._queue else None

    def __bool__(self) -> bool:
        return bool(self._queue) or self.is_heartbeat_due
