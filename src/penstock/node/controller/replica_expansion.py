"""Adds replicas to Penstock's internal streams as brokers join, up to the default of a new stream.

Rules: a cluster may begin with one broker, and then its internal streams (`__offsets`, `__schemas`, `__audit`) have one
replica. They get the defaults of a new stream step by step: one more replica, only when all live ones are in sync; then
`min_isr`, when as many are. Each step is a command that follows from the applied image: a new metadata leader continues
with the next one. Staged rows (`__staged-…`) stay with their target stream.
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
from penstock.metadata.feature_versions import unsupported_reason
from penstock.metadata.image import ClusterImage, StreamState
from penstock.schemas.rows import SCHEMAS_STREAM


class ExpansionCandidates(Protocol):
    """Placement queries that `StreamPlacement` answers."""

    def brokers(self) -> frozenset[BrokerId]:
        """Return all brokers of the cluster, live or not."""

    def ready(self, config: StreamConfig) -> frozenset[BrokerId]:
        """Return the brokers for a stream with this config. Raise RemoteError."""

    def more(self, state: StreamState, ready: frozenset[BrokerId]) -> tuple[tuple[BrokerId, ...], ...] | None:
        """Return each partition's replicas with one more of `ready`; None if there is none for some partition."""


def next_step(image: ClusterImage, candidates: ExpansionCandidates) -> AddReplicas | AlterStream | None:
    """Return the next command; None if there is nothing to do now."""
    for name in (OFFSETS_STREAM, SCHEMAS_STREAM, AUDIT_STREAM):
        state = image.by_name(name) if name in image.names else None
        if state is None or not state.config.is_internal:  # a user may have created a stream of that name long ago
            continue
        step = _step(image, state, candidates)
        if step is not None and unsupported_reason(image, step) is None:
            return step
    return None


def _step(image: ClusterImage, state: StreamState, candidates: ExpansionCandidates) -> AddReplicas | AlterStream | None:
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
    except RemoteError:  # too few have encryption keys
        return None
    return None if assignments is None else AddReplicas(stream_id=state.stream_id, assignments=assignments)
