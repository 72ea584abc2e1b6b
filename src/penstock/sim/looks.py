"""The one place that looks into a node: what it has of its partitions. It changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.node.node import Node


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
    leads: bool
    is_damaged: bool
    is_writable: bool


def partitions(node: Node) -> Iterator[Look]:
    """All partitions that the broker has open."""
    for key, partition in node._partitions.items():  # noqa: SLF001 (see the module)
        log = partition.log
        yield Look(
            key.stream_id,
            partition.stream.config.subject,
            key.partition,
            log.log_start,
            partition.committed_end,
            log.log_end,
            log.flushed_end,
            partition.leader_epoch,
            partition.leads,
            bool(log.damage),
            partition.is_writable,
        )


def failed(node: Node) -> int:
    """How many logs could not be opened."""
    return len(node._replicas.streams.failures)  # noqa: SLF001


def stream_ids(node: Node) -> frozenset[int]:
    """The streams that this broker knows of."""
    return frozenset(node._cluster.image.streams)  # noqa: SLF001
