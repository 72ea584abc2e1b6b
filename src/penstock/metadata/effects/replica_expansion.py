"""Adding replicas to a stream.

Rules: replicas are only added, after the existing ones, the same number to each partition. An added replica is not in
sync: it fetches like a follower that was away, and joins the ISR like one. So no commit and no election depends on it
before it has everything. `min_isr` stays as it was; alter the stream to raise it once enough replicas are in sync.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.metadata import elections
from penstock.metadata.commands import AddReplicas
from penstock.metadata.image import ClusterImage, CommandOutcome, PartitionState, StreamState


def add_replicas(image: ClusterImage, index: int, command: AddReplicas) -> tuple[ClusterImage, CommandOutcome]:
    """Add replicas. Raise RemoteError as `ClusterImage.by_id`, or stream_changed if the replicas differ by now."""
    state = image.by_id(command.stream_id)
    count = _checked(image, state, command.assignments)
    partitions = tuple(
        elections.after(before, msgspec.structs.replace(before, replicas=replicas))
        for before, replicas in zip(state.partitions, command.assignments, strict=True)
    )
    changed = msgspec.structs.replace(
        state, config=msgspec.structs.replace(state.config, replicas=count), partitions=partitions
    )
    return image.with_placed(changed), CommandOutcome(stream=changed, changed=True, partitions=changed.partition_keys())


def _checked(image: ClusterImage, state: StreamState, assignments: Sequence[tuple[BrokerId, ...]]) -> int:
    """Return the number of replicas each partition will have. Raise RemoteError (stream_changed, bad_request)."""
    before = state.config.replicas
    known = [one.replicas for one in state.partitions]
    if [replicas[:before] for replicas in assignments] != known:
        text = f"stream {state.name!r} has replicas {known[0]} … by now: more were added meanwhile"
        raise RemoteError(ErrorCode.STREAM_CHANGED, text)
    counts = {len(replicas) for replicas in assignments}
    pairs = zip(state.partitions, assignments, strict=True)
    if len(counts) != 1 or counts == {before} or not all(_is_sound(image, *pair) for pair in pairs):
        raise RemoteError(ErrorCode.BAD_REQUEST, f"{assignments[0]} … are invalid replicas for stream {state.name!r}")
    return counts.pop()


def _is_sound(image: ClusterImage, partition: PartitionState, replicas: tuple[BrokerId, ...]) -> bool:
    having = (*replicas, *partition.observers)
    return len(set(having)) == len(having) and all(one in image.brokers for one in replicas[len(partition.replicas) :])
