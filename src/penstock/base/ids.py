"""Types of ids and numbers. They are distinct, so that a mix-up is a type error.

All ranges in Penstock are half-open: a name that ends in `_end` is the first value outside.
"""

from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""Position of a message in its partition, from 0; dense when written, with gaps after compaction."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Leader epoch: counts the leaderships of one partition, from 1; raised at every leadership start."""

StreamId = NewType("StreamId", int)
"""Index of the metadata command that created the stream, from 1; never reused."""

PartitionId = NewType("PartitionId", int)
"""Number of a partition within its stream, from 0."""

BrokerId = NewType("BrokerId", int)
"""Number of a broker within its cluster, from 1."""

Incarnation = NewType("Incarnation", int)
"""Broker epoch: index of the metadata command that registered the broker's current run; higher for later runs."""

TimestampUs = NewType("TimestampUs", int)
"""Microseconds since 1970-01-01 UTC; message timestamps never decrease within a partition."""


def are_different_clusters(one: str, other: str) -> bool:
    """True if two cluster ids differ. The empty id, of a broker in no cluster yet, differs from none."""
    return bool(one and other) and one != other


class PartitionKey(NamedTuple):
    """A partition of a stream: the key of all state about one log."""

    stream_id: StreamId
    partition: PartitionId
