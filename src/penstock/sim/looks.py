"""The one place that looks into a node: what it has of its partitions, and of the metadata. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.batch.header import BatchHeader
from penstock.metadata.snapshot import encode_image
from penstock.node.node import Node

# ruff: noqa: SLF001 (see the module)


class Look(NamedTuple):
    """One partition on one broker."""

    stream_id: int
    subject: str  # of its stream
    partition: int
    log_start: int
    committed_end: int
    log_end: int
    flushed_end: int
    leader_epoch: int
    is_leader: bool
    leads: bool  # and has written in this epoch
    follows: bool
    is_in_sync: bool  # as it knows
    isr: tuple[int, ...]
    min_isr: int
    is_damaged: bool
    is_failing: bool  # takes nothing until a restart


class StandingLook(NamedTuple):
    """What one broker is in the cluster."""

    raft_term: int  # in which it was told that it leads
    applied: int
    is_metadata_leader: bool
    incarnation: int  # 0: none
    is_failing: bool  # takes no part in the metadata until a restart


def partitions(node: Node) -> Iterator[Look]:
    """All partitions that the broker has open."""
    broker_id = node._settings.broker_id
    for key, partition in node._partitions.items():
        log = partition.log
        state = partition.stream.partitions[key.partition]
        yield Look(
            key.stream_id,
            partition.stream.config.subject,
            key.partition,
            log.log_start,
            partition.committed_end,
            log.log_end,
            log.flushed_end,
            partition.leader_epoch,
            partition.leadership is not None,
            partition.leads,
            partition.following is not None,
            broker_id in state.isr,
            state.isr,
            partition.terms.min_isr,
            bool(log.damage),
            log.state.value == "fenced",
        )


def failed(node: Node) -> int:
    """How many logs could not be opened."""
    return len(node._replicas.streams.failures)


def stream_ids(node: Node) -> frozenset[int]:
    """The streams that this broker knows of."""
    return frozenset(node._cluster.image.streams)


def standing(node: Node) -> StandingLook:
    """What the broker is in the cluster now."""
    quorum = node._cluster.quorum
    incarnation = node._cluster.standing.incarnation or 0
    return StandingLook(quorum._told_term, quorum.applied, quorum.is_leader, incarnation, bool(quorum.trouble))


def awaited(node: Node) -> Iterator[tuple[int, int, str]]:
    """Stream, partition and disk, where nobody leads because the last who was in sync has come without its disk."""
    for state in node._cluster.image.streams.values():
        for number, partition in enumerate(state.partitions):
            if partition.leader is None and partition.awaited_data_dir_id is not None:
                yield state.stream_id, number, partition.awaited_data_dir_id


def image_digest(node: Node) -> str:
    """The image, in few letters."""
    return sha256(encode_image(node._cluster.image)).hexdigest()[:16]


def batches(node: Node, look: Look, start: int, end: int) -> Iterator[BatchHeader]:
    """The headers of the batches from `start` to `end`. What the log raises."""
    partition = node._partitions[PartitionKey(StreamId(look.stream_id), PartitionId(look.partition))]
    for header, _ in partition.log.view().batches(start, end):
        yield header
