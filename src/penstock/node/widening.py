"""Streams that Penstock keeps for itself get replicas as brokers join, as any stream has that is made then.

Rules: a cluster may begin with one broker, and what is made then (`__offsets`, `__audit`) has one replica. Step by step
it gets what it would be made with now: one replica more, and only when all that are there are in sync; `min_isr` when
as many are. Each step is a command, found in what is applied: whoever leads the metadata next goes on with the next
one. What is staged (`__staged-…`) stays where the stream is that it is for.
"""

from __future__ import annotations

from typing import Protocol

from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.base.errors import RemoteError
from penstock.base.ids import BrokerId
from penstock.base.subjects import AUDIT_STREAM
from penstock.groups.rows import OFFSETS_STREAM
from penstock.metadata.commands import AddReplicas, AlterStream
from penstock.metadata.image import ClusterImage, StreamState
from penstock.metadata.since import unknown_to


class Candidates(Protocol):
    """On whom something can be placed: what `Placing` knows."""

    def brokers(self) -> frozenset[BrokerId]:
        """All of the cluster, there or not."""

    def ready(self, config: StreamConfig) -> frozenset[BrokerId]:
        """On whom such a stream can be placed now; RemoteError."""

    def more(self, state: StreamState, ready: frozenset[BrokerId]) -> tuple[tuple[BrokerId, ...], ...] | None:
        """The replicas of each partition and one more, among these; None: there is none for some."""


def next_step(image: ClusterImage, candidates: Candidates) -> AddReplicas | AlterStream | None:
    """What is to be done next; None: nothing, or it is not time for it."""
    for name in (OFFSETS_STREAM, AUDIT_STREAM):
        state = image.by_name(name) if name in image.names else None
        if state is None or not state.config.is_internal:  # of that name there may be one that users made, long ago
            continue
        step = _step(image, state, candidates)
        if step is not None and unknown_to(image.brokers.values(), step) is None:
            return step
    return None


def _step(image: ClusterImage, state: StreamState, candidates: Candidates) -> AddReplicas | AlterStream | None:
    live = image.live_brokers()
    if not all(one.leader in live and live.intersection(one.replicas) <= set(one.isr) for one in state.partitions):
        return None
    replicas, min_isr = state.config.replicas, state.config.min_isr
    assert replicas is not None
    assert min_isr is not None
    usual = (replicas + 1) // 2
    if min_isr < usual <= min(len(one.isr) for one in state.partitions):
        return AlterStream(stream_id=state.stream_id, changes={"min_isr": usual})
    if replicas >= min(limits.REPLICAS_DEFAULT, len(candidates.brokers())):
        return None
    try:
        assignments = candidates.more(state, candidates.ready(state.config))
    except RemoteError:  # too few have keys for what is encrypted
        return None
    return None if assignments is None else AddReplicas(stream_id=state.stream_id, assignments=assignments)
