"""Interfaces from the metadata to the other half of a node: effects of the image, and reports for the heartbeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.base.errors import RemoteError
from penstock.base.ids import Incarnation, StreamId
from penstock.messages import StreamInfo
from penstock.metadata.image import ClusterImage, CommandOutcome, StreamState
from penstock.node.quorum.registration import HeartbeatReports
from penstock.node.quorum.stream_waiters import ANYHOW, ExpectedStream


class MetadataListener(HeartbeatReports, Protocol):
    """Applies the image on this broker and reports back for heartbeats."""

    def applied(self, outcome: CommandOutcome) -> None:
        """Apply a change by one command."""

    def replaced(self, before: ClusterImage) -> None:
        """Apply an image that a snapshot has replaced."""

    def live_brokers_changed(self, incarnation: Incarnation | None) -> None:
        """Apply a change of the live brokers, or of the incarnation in which this broker leads and follows."""

    def wait_for(
        self,
        stream_id: StreamId,
        deadline_us: int,
        done: Callable[[RemoteError | None], None],
        awaited: ExpectedStream = ANYHOW,
    ) -> None:
        """Call `done` with None once this broker has its part of the stream, or with the reason why it has not."""

    def metadata_contact_changed(self, awake_us: int, *, is_heard: bool) -> None:
        """Note that the metadata leader has stopped answering this broker, or answers again.

        `awake_us`: wall clock when this process is last known to have run; it may have been suspended since.
        """


class StreamDescriber(Protocol):
    """Descriptions for clients; available once the broker is open."""

    def stream(self, state: StreamState) -> StreamInfo:
        """Describe one stream."""
