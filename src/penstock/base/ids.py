"""The numbers that name things. Distinct types, so that a mix-up is a type error.

All ranges in Penstock are half-open: a name that ends in `_end` is the first value outside.
"""

from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""Position of a message in its partition, from 0; dense when written, with gaps after compaction."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Counts the leaderships of one partition, from 1; raised at every leadership start."""

StreamId = NewType("StreamId", int)
"""Index of the metadata command that created the stream, from 1; never used again."""

PartitionId = NewType("PartitionId", int)
"""Number of a partition within its stream, from 0."""

BrokerId = NewType("BrokerId", int)
"""Number of a broker within its cluster, from 1."""

Incarnation = NewType("Incarnation", int)
"""Index of the metadata command that registered a broker's present run: a later run has a higher one."""

TimestampUs = NewType("TimestampUs", int)
"""Microseconds since 1970-01-01 UTC; message timestamps never decrease within a partition."""


def are_different_clusters(one: str, other: str) -> bool:
    """Whether two cluster ids name two clusters. The empty id names none: its broker has not joined a cluster yet."""
    return bool(one and other) and one != other


class PartitionKey(NamedTuple):
    """Which partition of which stream: what everything about one log is kept under."""

    stream_id: StreamId
    partition: PartitionId
