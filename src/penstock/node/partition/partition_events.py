"""Events of this broker's partitions: what has happened to one, for the other parts of the node to act on.

Rules: the part that changes a partition adds an event; it calls no other part. `Node.take` passes the events on, in
their order, once the acks of the step have gone out. An event may be about a partition that is closed by then. The
driver tells the node of several things before it takes a step, and what one of them has ended must not be found by the
next one, in any part of the node: so the end of a role, a subscription or a partition is passed on before that
(`is_pressing`).
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import NamedTuple

from penstock.base.errors import RemoteError
from penstock.node.partition.partition import Partition


class PartitionEventKind(Enum):
    """The kinds of events; `Node` has the table of what each leads to."""

    OPENED = "its log was opened"
    BEGAN = "this broker leads it now"
    RESIGNED = "this broker leads it no more"
    COMMITTED = "its high watermark (`committed_end`) has advanced"
    SHOWN = "its limit by subject was applied to more of it, or changed: readers may be shown more (`visible_end`)"
    FLUSHED = "its flushed offset (`flushed_end`) has advanced"
    LOG_START_RAISED = "its log start offset (`log_start`) was raised"
    ROLE_DUE = "it was cut to agree with its leader, and may have another role by now"
    FAILED = "its log takes no appends until a repair or a restart"
    IMPEDED = "its disk takes no writes; `impediment` says why"
    STALLED = "an fsync of it does not return; `stall` says so"
    RESUMED = "that fsync has returned"
    REPAIRED = "its log is whole again"
    SUBSCRIBED = "NATS has granted its subscription"
    SUBSCRIPTION_REFUSED = "NATS has refused its subscription to `subject`; `reason` says why"
    SURVEYED = "a survey of its log has found rows to be hidden (`Log.found`)"
    CLOSED = "it was removed from this broker; `error` is for callers that wait"


_PRESSING = (  # compared by identity, which is quicker than to hash
    PartitionEventKind.OPENED,
    PartitionEventKind.RESIGNED,
    PartitionEventKind.ROLE_DUE,
    PartitionEventKind.SUBSCRIPTION_REFUSED,
    PartitionEventKind.CLOSED,
)


class PartitionEvent(NamedTuple):
    """One event."""

    kind: PartitionEventKind
    partition: Partition
    error: RemoteError | None = None
    reason: str = ""
    subject: str = ""


class PartitionEvents:
    """The queue of events.

    `is_heartbeat_due`: the metadata leader is to hear of a change now. `is_pressing`: an event waits that must be
    passed on before the node handles anything else.
    """

    __slots__ = ("_queue", "is_heartbeat_due", "is_pressing")

    def __init__(self) -> None:
        self._queue: deque[PartitionEvent] = deque()
        self.is_heartbeat_due = self.is_pressing = False

    def add(
        self,
        kind: PartitionEventKind,
        partition: Partition,
        error: RemoteError | None = None,
        reason: str = "",
        subject: str = "",
    ) -> None:
        """Add an event behind all others."""
        self._queue.append(PartitionEvent(kind, partition, error, reason, subject))
        if kind in _PRESSING:
            self.is_pressing = True

    def next(self) -> PartitionEvent | None:
        """Take the oldest event; None if there is none."""
        if self._queue:
            return self._queue.popleft()
        self.is_pressing = False
        return None

    def __bool__(self) -> bool:
        return bool(self._queue) or self.is_heartbeat_due
