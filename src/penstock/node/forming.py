"""Whether this broker may help to form a cluster: not while a first voter tells that there is one already.

Rules: first voters with empty disks would form a second cluster beside what is left of the first, and the broker with
the only complete copy would be the stranger there. So a broker without metadata that hears in a peer hello, asked or
asking, that another first voter belongs to a cluster, waits to be taken in by that. What a first voter has said last
counts; what one says who connects to us counts only while we have no connection of our own to where it should be.

| while it waits                                  | then                                                        |
|-------------------------------------------------|-------------------------------------------------------------|
| it would stand for election                     | it does not                                                 |
| a first voter that told of no cluster asks for  | that is dropped: its disk may be as empty                   |
| a vote                                          |                                                             |
| its own requests are answered                   | that is dropped: a leader without metadata leads no longer  |
| a leader names the cluster, and not as was told | that is dropped                                             |
| anything else comes                             | it is taken as ever                                         |

Whoever was there before its name was agreed on may still be elected with our vote: a cluster that is just being formed
goes on when it loses a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.base.ids import BrokerId
from penstock.metadata.commands import FormCluster
from penstock.metadata.image import ClusterImage
from penstock.node.entries import command_in
from penstock.raft import Entry, Membership, Message
from penstock.raft.messages import FROM_MEMBERS, AppendRequest, VoteRequest

_FORMS = b"form_cluster"  # in every such command: the others need not be decoded


class Forming:
    """What one broker knows of it."""

    def __init__(self, image: Callable[[], ClusterImage], membership: Callable[[], Membership]) -> None:
        self._image = image
        self._membership = membership
        self._is_in_log = False  # the cluster's name, committed or not
        self._told: dict[BrokerId, str] = {}  # by other voters: their cluster; empty: they know of none

    def note(self, entries: Iterable[Entry]) -> None:
        """These are in the log."""
        if not self._is_in_log:
            self._is_in_log = any(map(_name_in, entries))

    def told(self, broker_id: BrokerId, cluster_id: str) -> None:
        """A broker has said of which cluster it is."""
        if broker_id in self._membership().voters:
            self._told[broker_id] = cluster_id

    @property
    def elder(self) -> tuple[BrokerId, str] | None:
        """A first voter, and the cluster of which it is, where this broker must not help to form one."""
        if self._is_in_log or not self._told or self._image().cluster_id:
            return None
        return next(((one, name) for one, name in sorted(self._told.items()) if name), None)

    @property
    def obstacle(self) -> str:
        """Why no cluster is formed here, for people; empty: one may be."""
        if (elder := self.elder) is None:
            return ""
        return (
            f"broker {elder[0]} belongs to cluster {elder[1]} already, and this data directory is empty: it is taken "
            "in by the metadata leader once most of the voters are there with their data directories"
        )

    def takes(self, message: Message) -> bool:
        """Whether the message of a peer may have consequences; see the module's table."""
        if self.elder is None:
            return True
        if isinstance(message, VoteRequest):
            return self._told.get(message.sender) != ""
        if isinstance(message, AppendRequest):
            names = {name for name in map(_name_in, message.entries) if name}
            return names <= set(self._told.values())
        return not isinstance(message, FROM_MEMBERS)


def _name_in(entry: Entry) -> str:
    """The name that an entry gives to the cluster; empty: none."""
    command = command_in(entry) if _FORMS in entry.data else None
    return command.cluster_id if isinstance(command, FormCluster) else ""
