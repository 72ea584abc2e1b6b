"""What a node counts while it works: by partition, and for the whole broker.

Rules: one call for a batch or a group, never one for a message. What a partition counts begins anew when it is made
again, and goes with it; what the broker counts stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.base.ids import PartitionKey
from penstock.base.meters import ROWS, SHORT_US, SIZES_BYTES, Histogram
from penstock.node.step import Answers


class Traffic:
    """Of one partition."""

    __slots__ = ("bytes_in", "bytes_out", "messages_in", "offsets_out")

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.offsets_out = self.bytes_out = 0


class Meters:
    """Of one broker. `counters` are those that its status shows."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()  # of deleted streams, too
        self.traffic: dict[PartitionKey, Traffic] = {}  # of those that had any
        self.batch_rows = Histogram(ROWS)
        self.batch_bytes = Histogram(SIZES_BYTES)
        self.ack_us = Histogram(SHORT_US)  # from the arrival of a message until its ack was handed to the link
        self.sync_us = Histogram(SHORT_US)  # of the log of a partition, in the disk thread

    def of(self, key: PartitionKey) -> Traffic:
        """What is counted of a partition."""
        if (traffic := self.traffic.get(key)) is None:
            traffic = self.traffic[key] = Traffic()
        return traffic

    def stored(self, key: PartitionKey, rows: int, size_bytes: int) -> None:
        """A batch was written by its leader."""
        self.counters["messages_in"] += rows
        self.counters["bytes_in"] += size_bytes
        traffic = self.of(key)
        traffic.messages_in += rows
        traffic.bytes_in += size_bytes
        self.batch_rows.add(rows)
        self.batch_bytes.add(size_bytes)

    def sent(self, key: PartitionKey, offsets: int, size_bytes: int) -> None:
        """A client was given what lies at so many offsets."""
        self.counters["fetched_bytes"] += size_bytes
        traffic = self.of(key)
        traffic.offsets_out += offsets
        traffic.bytes_out += size_bytes

    def acked(self, published: Iterable[Answers], now_us: int) -> None:
        """The link has been handed these; of each group, when it came, and how many of it are acked."""
        for answers in published:
            if answers.acks:
                self.ack_us.add(now_us - answers.arrived_us, answers.acks)

    def forget(self, key: PartitionKey) -> None:
        """The partition is gone from here."""
        self.traffic.pop(key, None)
