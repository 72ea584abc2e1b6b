"""Cluster formation guard: no vote for a new cluster while an initial voter reports an existing one.

Rules: initial voters with empty disks would form a second cluster beside the rest of the first, and there the broker
with the only complete copy would be the foreign one. So a broker without metadata that learns from a peer hello, its
own or the peer's, that another initial voter belongs to a cluster waits to be admitted to that cluster. The last report
of an initial voter counts; that of one that connects to us counts only while we have no connection of our own to its
address.

| event while it waits                            | consequence                                                  |
|-------------------------------------------------|--------------------------------------------------------------|
| its election time-out                           | it does not become a candidate                               |
| vote request of an initial voter that reported  | dropped: that disk may be just as empty                      |
| no cluster                                      |                                                              |
| answers to its own requests                     | dropped: a leader without metadata stops leading             |
| a leader names another cluster than reported    | dropped                                                      |
| any other message                               | handled as usual                                             |

A broker that was connected before the cluster id was committed may still be elected with our vote: a cluster that is
just being formed continues if it loses a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.base.ids import BrokerId
from penstock.metadata.commands import FormCluster
from penstock.metadata.feature_levels import FIRST_LEVEL, FeatureLevel, level_of
from penstock.metadata.feature_versions import common_level
from penstock.node.context import Context
from penstock.node.quorum.metadata_entries import command_in
from penstock.raft import Entry, Message, RaftMembership
from penstock.raft.messages import FROM_MEMBERS, AppendEntriesRequest, VoteRequest

_FORMS = b"form_cluster"  # in every such command: the others need not be decoded


class ClusterFormation:
    """The formation state of one broker."""

    def __init__(self, context: Context, membership: Callable[[], RaftMembership]) -> None:
        self._context = context
        self._membership = membership
        self._is_in_log = False  # the cluster id, committed or not
        self._told: dict[BrokerId, str] = {}  # cluster ids reported by other voters; empty: the voter knows of none
        self._versions: dict[BrokerId, str] = {}  # of other voters, as they report them

    def note(self, entries: Iterable[Entry]) -> None:
        """Note the cluster id in entries of the log."""
        if not self._is_in_log:
            self._is_in_log = any(map(_name_in, entries))

    def cluster_id_reported(self, broker_id: BrokerId, cluster_id: str) -> None:
        """Note the cluster id that a broker reports."""
        if broker_id in self._membership().voters:
            self._told[broker_id] = cluster_id

    def version_reported(self, broker_id: BrokerId, broker_version: str) -> None:
        """Note the version that a broker reports."""
        if broker_id in self._membership().voters:
            self._versions[broker_id] = broker_version

    def first_level(self, own_version: str) -> FeatureLevel:
        """Return the feature level of the cluster that this broker forms: FIRST_LEVEL if one of it is older."""
        image, own = self._context.image, level_of(own_version)
        is_from_before = bool(image.streams or image.users)  # there were no cluster ids, or no Raft
        is_mixed = any(level_of(version) < own for version in self._versions.values())
        return FIRST_LEVEL if is_from_before or is_mixed else common_level(image.brokers.values(), own)

    @property
    def elder(self) -> tuple[BrokerId, str] | None:
        """An initial voter with its cluster, if this broker must not help to form a new one; else None."""
        if self._is_in_log or not self._told or self._context.image.cluster_id:
            return None
        return next(((one, name) for one, name in sorted(self._told.items()) if name), None)

    @property
    def obstacle(self) -> str:
        """Reason, for people, why no cluster is formed here; empty if one may be."""
        if (elder := self.elder) is None:
            return ""
        return (
            f"broker {elder[0]} belongs to cluster {elder[1]} already, and this data directory is empty: it is taken "
            "in by the metadata leader once most of the voters are there with their data directories"
        )

    def takes(self, message: Message) -> bool:
        """True if a peer's message is handled; see the module's table."""
        if self.elder is None:
            return True
        if isinstance(message, VoteRequest):
            return self._told.get(message.sender) != ""
        if isinstance(message, AppendEntriesRequest):
            names = {name for name in map(_name_in, message.entries) if name}
            return names <= set(self._told.values())
        return not isinstance(message, FROM_MEMBERS)


def _name_in(entry: Entry) -> str:
    """Return the cluster id in an entry; empty if it holds none."""
    command = command_in(entry) if _FORMS in entry.data else None
    return command.cluster_id if isinstance(command, FormCluster) else ""
