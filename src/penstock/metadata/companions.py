"""Companion logs: logs of each partition of a stream beside that of its messages.

| kind      | its rows                       | who waits for it      | committed                    | removed   |
|-----------|--------------------------------|-----------------------|------------------------------|-----------|
| marks     | hide messages                  | reads of the messages | on the disks of all in sync  | see below |
| consumers | changes of consumers with acks | these consumers       | as the stream's messages are | by key    |

Rules: the image holds one fact for each kind (`StreamState.companions`); all else is derived from the target stream by
`companion_of`, so that they cannot diverge: partitions, replicas, observers, leaders, leader epochs and ISRs are the
target's. They take no offsets of the target's log. No retention goes for marks: their leader removes those that
snapshots hold (`penstock.node.api.mark_snapshots`). Each replica's cleaner compacts its log of consumers.

The stream id of a companion is the target's with one bit more, by its kind: no index of a metadata command is as large.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import msgspec

from penstock.base import limits
from penstock.base.companion_kinds import CompanionKind
from penstock.base.config import Acks, Durability, Encryption, Intake, Storage, StreamConfig
from penstock.base.ids import PartitionKey, StreamId
from penstock.base.subjects import INTERNAL_NAME_PREFIX, INTERNAL_SUBJECT_PREFIX
from penstock.metadata.image import ClusterImage, StreamState

_BITS = {CompanionKind.MARKS: 1 << 40, CompanionKind.CONSUMERS: 1 << 41}
_KINDS = {bit: kind for kind, bit in _BITS.items()}
_TARGETS_END = min(_KINDS)
_FOR_USERS = {CompanionKind.MARKS: "log of deletions", CompanionKind.CONSUMERS: "log of consumers"}


def is_companion(stream_id: int) -> bool:
    """True if this is the id of a companion."""
    return stream_id >= _TARGETS_END


def kind_of(stream_id: int) -> CompanionKind | None:
    """Return the kind of a companion by its id; None: it is that of a stream, or of no kind that there is."""
    return _KINDS.get(stream_id & -_TARGETS_END)


def is_marks(stream_id: int) -> bool:
    """True if this is the id of logs of marks."""
    return kind_of(stream_id) is CompanionKind.MARKS


def is_consumers(stream_id: int) -> bool:
    """True if this is the id of logs of consumers."""
    return kind_of(stream_id) is CompanionKind.CONSUMERS


def target_id(stream_id: int) -> StreamId:
    """Return the id of the stream that a companion belongs to; of any other stream its own id."""
    return StreamId(stream_id & (_TARGETS_END - 1))


def companion_key(key: PartitionKey, kind: CompanionKind) -> PartitionKey:
    """Return the key of a companion of a partition, or of one of its companions."""
    return PartitionKey(StreamId(target_id(key.stream_id) | _BITS[kind]), key.partition)


def marks_key(key: PartitionKey) -> PartitionKey:
    """Return the key of a partition's log of marks."""
    return companion_key(key, CompanionKind.MARKS)


def consumers_key(key: PartitionKey) -> PartitionKey:
    """Return the key of a partition's log of consumers."""
    return companion_key(key, CompanionKind.CONSUMERS)


def target_key(key: PartitionKey) -> PartitionKey:
    """Return the key of the partition that a companion belongs to; of any other partition its own key."""
    return PartitionKey(target_id(key.stream_id), key.partition) if is_companion(key.stream_id) else key


@lru_cache(limits.SHARED_COMPANION_CONFIGS_MAX)
def _config(
    kind: CompanionKind,
    stream_id: StreamId,
    target: str,
    durability: Durability,
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
    is_marks = kind is CompanionKind.MARKS
    most_bytes = limits.MARKS_SEGMENT_BYTES if is_marks else limits.CONSUMERS_SEGMENT_BYTES
    return StreamConfig(
        name=f"{INTERNAL_NAME_PREFIX}{kind}-{stream_id}",
        subject=f"{INTERNAL_SUBJECT_PREFIX}{kind}.{stream_id}",
        description=target,
        acks=Acks.NEVER,
        durability=Durability.FSYNC if is_marks else durability,
        storage=storage,
        max_message_bytes=limits.MARK_BYTES_MAX if is_marks else limits.CONSUMER_ROW_BYTES_MAX,
        segment_bytes=min(most_bytes, segment_bytes),
        segment_age_ms=None,
        compact=not is_marks,
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
    if (kind := kind_of(state.stream_id)) is None:
        return f"stream {state.name!r}"
    return f"the {_FOR_USERS[kind]} of stream {state.config.description!r}"


def companion_of(state: StreamState, kind: CompanionKind) -> StreamState:
    """Return the companion of a stream that has one of this kind."""
    assert kind in state.companions, (state.stream_id, kind)
    # It takes rows also while the target takes none. Nothing more is hidden once that is final; consumers go on.
    is_final = state.intake is Intake.SEALED and kind is CompanionKind.MARKS
    target = state.config
    config = _config(
        kind,
        state.stream_id,
        target.name,
        target.durability,
        target.storage,
        target.segment_bytes,
        target.partitions,
        target.replicas,
        target.min_isr,
        target.allow_unclean_election,
        target.observers,
        target.encryption,
    )
    stream_id = StreamId(state.stream_id | _BITS[kind])
    intake = Intake.SEALED if is_final else Intake.OPEN
    return StreamState(stream_id, config, state.created_us, state.partitions, intake=intake)


def find_stream(image: ClusterImage, stream_id: StreamId) -> StreamState | None:
    """Return the stream or companion with that id; None if there is none."""
    state = image.streams.get(target_id(stream_id))
    if state is None or not is_companion(stream_id):
        return state
    kind = kind_of(stream_id)
    return None if kind is None or kind not in state.companions else companion_of(state, kind)


def companions_of(state: StreamState) -> Iterator[StreamState]:
    """Yield the stream's companions."""
    return (companion_of(state, kind) for kind in state.companions)


def with_companions(state: StreamState) -> Iterator[StreamState]:
    """Yield the stream's companions, and then the stream: its logs are opened in this order."""
    yield from companions_of(state)
    yield state
