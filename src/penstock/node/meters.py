"""What a node counts while it works: by partition, and for the whole broker.

Rules: one call for a batch or a group, never one for a message, and as little as can be in each: a lone message pays
for all of it. What a partition counts begins anew when it is made again, and goes with it; what the broker counts
stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.base.ids import PartitionKey
from penstock.base.meters import Histogram
from penstock.node.step import Answers
from penstock.node.tracing import Tracer


class Traffic:
    """Of one partition, from the first on that there is."""

    __slots__ = ("_rows", "_sizes", "bytes_in", "bytes_out", "messages_in", "offsets_out")

    def __init__(self, rows: Histogram, sizes: Histogram) -> None:
        """What is stored is added to those, too."""
        self.messages_in = self.bytes_in = self.offsets_out = self.bytes_out = 0
        self._rows = rows
        self._sizes = sizes

    def stored(self, rows: int, size_bytes: int) -> None:
        """A batch was written by its leader."""
        self.messages_in += rows
        self.bytes_in += size_bytes
        histogram = self._rows
        histogram.counts[rows.bit_length()] += 1
        histogram.sum += rows
        histogram = self._sizes
        histogram.counts[size_bytes.bit_length()] += 1
        histogram.sum += size_bytes


class Meters:
    """Of one broker."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()  # what happens now and then
        self.traffic: dict[PartitionKey, Traffic] = {}  # of those that had any
        self.batch_rows = Histogram.of_rows()
        self.batch_bytes = Histogram.of_sizes()
        self.tracer: Tracer | None = None
        self.acks_made = 0
        self.ack_us = Histogram.of_times()  # from the arrival of a message until its ack was handed to the link
        self.sync_us = Histogram.of_times()  # of the log of a partition, in the disk thread

    def told(self) -> dict[str, int]:
        """All that is counted, of deleted streams, too; not what has not happened."""
        totals = {
            "messages_in": self.batch_rows.sum,
            "bytes_in": self.batch_bytes.sum,
            "acks_made": self.acks_made,
        }
        return {name: count for name, count in (totals | self.counters).items() if count}

    def of(self, key: PartitionKey) -> Traffic:
        """What is counted of a partition."""
        if (traffic := self.traffic.get(key)) is None:
            traffic = self.traffic[key] = Traffic(self.batch_rows, self.batch_bytes)
        return traffic

    def sent(self, key: PartitionKey, offsets: int, size_bytes: int) -> None:
        """A client was given what lies at so many offsets."""
        self.counters["fetched_bytes"] += size_bytes
        traffic = self.of(key)
        traffic.offsets_out += offsets
        traffic.bytes_out += size_bytes

    def acked(self, published: Iterable[Answers], now_us: int) -> None:
        """The link has been handed these; of each group, when it came, and how many of it are acked."""
        histogram = self.ack_us
        for answers in published:
            if acks := answers.acks:
                took_us = now_us - answers.arrived_us
                histogram.counts[took_us.bit_length()] += acks
                histogram.sum += took_us * acks

    def forget(self, key: PartitionKey) -> None:
        """The partition is gone from here."""
        self.traffic.pop(key, None)
