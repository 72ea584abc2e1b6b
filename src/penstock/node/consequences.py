"""What follows from what the cluster agrees on, and what its metadata leader is to hear: the other half of a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.base.errors import RemoteError
from penstock.base.ids import Incarnation, StreamId
from penstock.messages import LogEnd, ResignedLeadership, StreamInfo, UnreachableLeader
from penstock.metadata.image import ClusterImage, Outcome, StreamState
from penstock.node.confirmations import ANYHOW, Awaited


class Consequences(Protocol):
    """What becomes of the image on this broker."""

    def applied(self, outcome: Outcome) -> None:
        """A command has changed it."""

    def replaced(self, before: ClusterImage) -> None:
        """It is another one altogether."""

    def standing_changed(self, incarnation: Incarnation | None) -> None:
        """Who is there has changed, or the run in which this broker leads and follows."""

    def wait_for(
        self,
        stream_id: StreamId,
        deadline_us: int,
        done: Callable[[RemoteError | None], None],
        awaited: Awaited = ANYHOW,
    ) -> None:
        """`done` hears None once this broker has its part of the stream, or why it has not."""

    def heard(self, awake_us: int, *, is_heard: bool) -> None:
        """The metadata leader has stopped answering this broker, or answers again.

        `awake_us`: when this process is last known to have run, by the wall clock; it may have been suspended since.
        """

    def unreachable(self) -> tuple[UnreachableLeader, ...]:
        """Leaders that do not answer."""

    def resigned(self) -> tuple[ResignedLeadership, ...]:
        """What this broker leads and cannot serve."""

    def log_ends(self) -> tuple[LogEnd, ...]:
        """Where logs end of partitions that the longest is to lead."""

    def has_nats(self) -> bool:
        """Whether it is connected to NATS."""


class Told(Protocol):
    """What clients are told; there once the broker is open."""

    def stream(self, state: StreamState) -> StreamInfo:
        """Of one stream."""
