"""Errors for requests that need a partition's leader and reached another broker."""

from __future__ import annotations

from penstock.base.errors import ErrorCode, RemoteError
from penstock.metadata import elections
from penstock.metadata.image import ClusterImage, StreamState
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import partition_label


def no_leader_error(image: ClusterImage, partition: Partition) -> RemoteError | None:
    """Return why this broker cannot give a leader's answer; None if it can."""
    number = partition.key.partition
    if partition.leadership is None:
        return not_leader(image, partition.stream, number) if partition.is_copied else None
    if not partition.is_mute:
        return None
    return RemoteError(
        ErrorCode.NOT_LEADER,
        f"{partition.label}: the metadata leader has not answered this broker lately, and another one may lead by now",
        leader=None,
        address="",
        leader_epoch=int(partition.leader_epoch),
    )


def no_leader_reason(image: ClusterImage, state: StreamState, number: int) -> str:
    """Return why a partition has no leader, and what ends that."""
    partition = state.partitions[number]
    live = image.live_brokers()
    having = elections.holders(partition)
    if elections.recovers(partition, live):
        who = " and ".join(map(str, sorted(having)))
        return (
            "it has no leader now: all brokers with every acked message stopped uncleanly, so the longest log is "
            f"searched; if that lasts, a log of broker {who} has failed and may be the longest: repair its disk, or "
            "start that broker with an empty one, or let the stream have an unclean election (allow_unclean_election): "
            "what only that log held is lost then"
        )
    away = [str(one) for one in sorted(having - live)]
    if partition.awaited_data_dir_id is not None:
        (last,) = partition.isr
        others = f", or broker {' and '.join(away)}" if away else ""
        return (
            f"it has no leader: its last in-sync copy was on broker {last}'s old disk; start broker {last} with that "
            f"disk{others}, or let the stream have an unclean election (allow_unclean_election): what only that disk "
            "held is lost then"
        )
    if not away:
        return "it has no leader now"
    if partition.unsure:
        who = " and ".join(away)
        return f"it has no leader: it waits for broker {who}: the others stopped uncleanly, and may lack acked messages"
    return f"it has no leader: it waits for broker {' or '.join(away)}: no other broker has all acked messages"


def not_leader(image: ClusterImage, state: StreamState, number: int) -> RemoteError:
    """Return not_leader; its details name the leader, its address and epoch, as far as this broker knows."""
    partition = state.partitions[number]
    known = None if partition.leader is None else image.brokers.get(partition.leader)
    if known is None:
        who = no_leader_reason(image, state, number)
    else:
        who = f"broker {known.broker_id} leads it, at {known.address}"
    return RemoteError(
        ErrorCode.NOT_LEADER,
        f"{partition_label(state, number)} is not led here; {who}",
        leader=None if known is None else int(known.broker_id),
        address="" if known is None else known.address,
        leader_epoch=int(partition.leader_epoch),
    )
