"""Companion logs: a second log of each partition of a stream, for marks that hide rows of the first one.

Rules: the image holds one fact, `StreamState.has_companion`; all else is derived from the target stream by
`companion_of`, so that the two cannot diverge: partitions, replicas, observers, leaders, leader epochs and ISRs are the
target's. A companion is written to the disks of all in-sync replicas before its rows are committed. No retention goes
for it: its leader removes marks that snapshots hold (`penstock.node.api.mark_snapshots`). It takes no offsets of the
target's log.

Its stream id is the target's with one bit more: no index of a metadata command is as large.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import msgspec

from penstock.base import limits
from penstock.base.config import Acks, Durability, Encryption, Intake, Storage, StreamConfig
from penstock.base.ids import PartitionKey, StreamId
from penstock.base.subjects import INTERNAL_NAME_PREFIX, INTERNAL_SUBJECT_PREFIX
from penstock.metadata.image import ClusterImage, StreamState

_BIT = 1 << 40


def is_companion(stream_id: int) -> bool:
    """True if this is the id of a companion."""
    return stream_id >= _BIT


def target_id(stream_id: int) -> StreamId:
    """Return the id of the stream that a companion belongs to; of any other stream its own id."""
    return StreamId(stream_id & ~_BIT)


def companion_key(key: PartitionKey) -> PartitionKey:
    """Return the key of a partition's companion."""
    return PartitionKey(StreamId(key.stream_id | _BIT), key.partition)


def target_key(key: PartitionKey) -> PartitionKey:
    """Return the key of the partition that a companion belongs to; of any other partition its own key."""
    return PartitionKey(target_id(key.stream_id), key.partition) if is_companion(key.stream_id) else key


@lru_cache(limits.SHARED_COMPANION_CONFIGS_MAX)
def _config(
    stream_id: StreamId,
    target: str,
    storage: Storage,
    segment_bytes: int,
    partitions: int,
    replicas: int | None,
    min_isr: int | None,
    allow_unclean_election: bool,
    observers: int,
    encryption: Encryption | msgspec.UnsetType,
) -> StreamConfig:
    """The config of a companion, by what it has of its target's; the whole one has no hash where it has metadata."""
    return StreamConfig(
        name=f"{INTERNAL_NAME_PREFIX}marks-{stream_id}",
        subject=f"{INTERNAL_SUBJECT_PREFIX}marks.{stream_id}",
        description=target,
        acks=Acks.NEVER,
        durability=Durability.FSYNC,
        storage=storage,
        max_message_bytes=limits.MARK_BYTES_MAX,
        segment_bytes=min(limits.COMPANION_SEGMENT_BYTES, segment_bytes),
        segment_age_ms=None,
        partitions=partitions,
        replicas=replicas,
        min_isr=min_isr,
        allow_unclean_election=allow_unclean_election,
        dedup_window_ms=None,
        observers=observers,
        encryption=encryption,
    )


def name_for_users(state: StreamState) -> str:
    """Return the name of a stream for texts; of a companion, what it is to users, who do not know its name."""
    if not is_companion(state.stream_id):
        return f"stream {state.name!r}"
    return f"the log of deletions of stream {state.config.description!r}"


def companion_of(state: StreamState) -> StreamState:
    """Return the companion of a stream that has one."""
    assert state.has_companion, state.stream_id
    # It takes rows also while the target takes none, unless that is final.
    intake = Intake.SEALED if state.intake is Intake.SEALED else Intake.OPEN
    target = state.config
    config = _config(
        state.stream_id,
        target.name,
        target.storage,
        target.segment_bytes,
        target.partitions,
        target.replicas,
        target.min_isr,
        target.allow_unclean_election,
        target.observers,
        target.encryption,
    )
    stream_id = StreamId(state.stream_id | _BIT)
    return StreamState(stream_id, config, state.created_us, state.partitions, intake=intake)


def find_stream(image: ClusterImage, stream_id: StreamId) -> StreamState | None:
    """Return the stream or companion with that id; None if there is none."""
    state = image.streams.get(target_id(stream_id))
    if state is None or not is_companion(stream_id):
        return state
    return companion_of(state) if state.has_companion else None


def with_companion(state: StreamState) -> Iterator[StreamState]:
    """Yield the stream's companion, if it has one, and then the stream: its logs are opened in this order."""
    if state.has_companion:
        yield companion_of(state)
    yield state
