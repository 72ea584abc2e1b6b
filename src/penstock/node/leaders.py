"""Who leads: what those hear who need the leader of a partition and have come to another broker."""

from __future__ import annotations

from penstock.base.errors import ErrorCode, RemoteError
from penstock.metadata.image import ClusterImage, StreamState
from penstock.node.partition import Partition, label


def not_led(image: ClusterImage, partition: Partition) -> RemoteError | None:
    """Why nobody gets an answer here that only the leader can give."""
    number = partition.key.partition
    if partition.leadership is None:
        return not_leader(image, partition.stream, number) if partition.is_replicated else None
    if not partition.is_mute:
        return None
    return RemoteError(
        ErrorCode.NOT_LEADER,
        f"{partition.label}: the metadata leader has not answered this broker lately, and another one may lead by now",
        leader=None,
        address="",
        leader_epoch=int(partition.leader_epoch),
    )


def not_leader(image: ClusterImage, state: StreamState, number: int) -> RemoteError:
    """not_leader; the details name the leader, its address and its epoch, as far as this broker has heard."""
    partition = state.partitions[number]
    known = None if partition.leader is None else image.brokers.get(partition.leader)
    who = "nobody leads it now" if known is None else f"broker {known.broker_id} leads it, at {known.address}"
    return RemoteError(
        ErrorCode.NOT_LEADER,
        f"{label(state, number)} is not led here; {who}",
        leader=None if known is None else int(known.broker_id),
        address="" if known is None else known.address,
        leader_epoch=int(partition.leader_epoch),
    )
