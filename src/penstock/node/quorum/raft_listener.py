"""The listener of metadata changes, and the position of a command in the metadata log."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import Response
from penstock.metadata.commands import Command
from penstock.metadata.image import ClusterImage, CommandOutcome


class EntryPosition(NamedTuple):
    """Position of an entry; of two entries at one index only one can be committed."""

    log_index: int
    raft_term: int


class RaftListener(Protocol):
    """Is notified of metadata changes and of this broker's role in the quorum."""

    def applied(self, place: EntryPosition, command: Command, outcome: CommandOutcome | RemoteError) -> None:
        """Called after a command has changed the image, or was refused."""

    def replaced(self, before: ClusterImage) -> None:
        """Called after a snapshot replaced the image: any of it may differ."""

    def answered(self, broker_id: BrokerId, response: Response | RemoteError, raw: bytes | memoryview) -> None:
        """Called with the answer to a Raft message that was sent before this process was registered."""

    def metadata_leadership_gained(self) -> None:
        """Called when this broker is the metadata leader and has applied all earlier entries."""

    def metadata_leadership_lost(self) -> None:
        """Called when this broker is no longer the metadata leader."""

    def failed(self, reason: str) -> None:
        """Called when the disk failed, or its log contradicts the leader's: this broker has left the quorum."""
