"""Counters that a node updates while it works: per partition, and for the whole broker.

Rules: one call per batch or group, never per message, with as little work as possible: a lone message pays for all of
it. The counters of a partition end with it, and a recreated one starts at zero; those of the broker continue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.base.ids import PartitionKey
from penstock.base.meters import Histogram
from penstock.node.partition.tracing import Tracer
from penstock.node.step import NatsAnswers


class PartitionCounters:
    """Counters of one partition, made at its first traffic."""

    __slots__ = ("_rows", "_sizes", "bytes_in", "bytes_out", "messages_in", "offsets_out")

    def __init__(self, rows: Histogram, sizes: Histogram) -> None:
        """`rows` and `sizes`: the broker's histograms, updated too."""
        self.messages_in = self.bytes_in = self.offsets_out = self.bytes_out = 0
        self._rows = rows
        self._sizes = sizes

    def stored(self, rows: int, size_bytes: int) -> None:
        """Count a batch written by its leader."""
        self.messages_in += rows
        self.bytes_in += size_bytes
        histogram = self._rows
        histogram.counts[rows.bit_length()] += 1
        histogram.sum += rows
        histogram = self._sizes
        histogram.counts[size_bytes.bit_length()] += 1
        histogram.sum += size_bytes


class NodeCounters:
    """The counters of one broker."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()  # events that are not per message
        self.traffic: dict[PartitionKey, PartitionCounters] = {}  # of partitions with traffic
        self.batch_rows = Histogram.of_rows()
        self.batch_bytes = Histogram.of_sizes()
        self.tracer: Tracer | None = None
        self.acks_made = 0
        self.ack_us = Histogram.of_times()  # from a message's arrival until its ack was handed to the link
        self.sync_us = Histogram.of_times()  # fsync durations of partition logs, measured in the disk thread

    def totals(self) -> dict[str, int]:
        """Return all counters that are not zero, deleted streams included."""
        totals = {
            "messages_in": self.batch_rows.sum,
            "bytes_in": self.batch_bytes.sum,
            "acks_made": self.acks_made,
        }
        return {name: count for name, count in (totals | self.counters).items() if count}

    def of(self, key: PartitionKey) -> PartitionCounters:
        """Return the counters of a partition."""
        if (traffic := self.traffic.get(key)) is None:
            traffic = self.traffic[key] = PartitionCounters(self.batch_rows, self.batch_bytes)
        return traffic

    def sent(self, key: PartitionKey, offsets: int, size_bytes: int) -> None:
        """Count a fetch answer to a client; `offsets` is the length of its offset range."""
        self.counters["fetched_bytes"] += size_bytes
        traffic = self.of(key)
        traffic.offsets_out += offsets
        traffic.bytes_out += size_bytes

    def acked(self, published: Iterable[NatsAnswers], now_us: int) -> None:
        """Count acks handed to the link, with the latency since their messages' arrival."""
        histogram = self.ack_us
        for answers in published:
            if acks := answers.acks:
                took_us = now_us - answers.arrived_us
                histogram.counts[took_us.bit_length()] += acks
                histogram.sum += took_us * acks

    def forget(self, key: PartitionKey) -> None:
        """Forget a partition that is removed from this broker."""
        self.traffic.pop(key, None)
