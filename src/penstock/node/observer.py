"""Who hears what becomes of the metadata, and where a command stands in them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId
from penstock.messages import Response
from penstock.metadata.commands import Command
from penstock.metadata.image import ClusterImage, Outcome


class Place(NamedTuple):
    """Where an entry stands; of two entries at one index only one can come to be committed."""

    log_index: int
    raft_term: int


class Observer(Protocol):
    """Who hears what becomes of the metadata."""

    def applied(self, place: Place, command: Command, outcome: Outcome | RemoteError) -> None:
        """A command was applied: the image is another one now."""

    def replaced(self, before: ClusterImage) -> None:
        """A snapshot took the place of the image: any of it may be different."""

    def answered(self, broker_id: BrokerId, response: Response | RemoteError, raw: bytes | memoryview) -> None:
        """What came of a Raft message that went out before this process was registered."""

    def leads(self) -> None:
        """This broker is the metadata leader, and has applied all that was committed before."""

    def leads_no_more(self) -> None:
        """It was, until now."""

    def failed(self, reason: str) -> None:
        """The disk has failed, or what is on it contradicts the leader: this broker takes no part any more."""
