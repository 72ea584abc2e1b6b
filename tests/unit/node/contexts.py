"""A node's context for tests of its parts."""

from __future__ import annotations

from random import Random
from typing import Any

from penstock.base.ids import BrokerId
from penstock.messages import LogEnd, ResignedLeadership, UnreachableLeader
from penstock.metadata.image import ClusterImage
from penstock.node.context import Context
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.quorum.session import ClusterSession
from penstock.node.security.access import Access
from penstock.node.security.auth_markers import AuthMarkers
from penstock.node.settings import Settings
from penstock.vfs import Vfs
from penstock.vfs.memory import MemoryVfs


def context_of(
    vfs: Vfs | None = None, *, broker_id: int = 1, image: ClusterImage | None = None, **settings: Any
) -> Context:
    """Return a context of broker `broker_id` at time 0."""
    own = Settings(broker_id=BrokerId(broker_id), data_dir="/data", **settings)
    context = Context(MemoryVfs() if vfs is None else vfs, own, Random(1))
    if image is not None:
        context.image = image
    return context


class SetSession(ClusterSession):
    """A session that is as current as the test says."""

    is_current = True  # type: ignore[assignment]


def access_of(context: Context, peers: PeerClient | None = None) -> Access:
    """Return the authorization of a broker whose session is current."""
    session = SetSession(context)
    peers = PeerClient(context.outbox) if peers is None else peers
    return Access(context, session, AuthMarkers(context, session, peers))


class NothingToReport:
    """The reports of a broker without replicas."""

    def unreachable(self) -> tuple[UnreachableLeader, ...]:
        return ()

    def resigned(self) -> tuple[ResignedLeadership, ...]:
        return ()

    def log_ends(self) -> tuple[LogEnd, ...]:
        return ()

    def has_nats(self) -> bool:
        return True


class NothingApplied:
    """The metadata of a broker that has applied nothing."""

    applied = 0
    missed = ""
