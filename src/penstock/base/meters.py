"""What is counted where it happens, and told to whoever asks: histograms, and what a page of metrics is made of.

Rules: plain objects, without locks: the event loop alone counts and reads. Values are whole numbers in the unit of what
is measured (µs, bytes, rows); a metric's `scale` makes the unit that it is told in. What is counted only grows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

SHORT_US = (50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
            2_500_000, 5_000_000, 10_000_000)  # fmt: skip
"""Bounds for what takes microseconds, and seconds where something is wrong."""
ROWS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 65_536)
SIZES_BYTES = tuple(1 << power for power in range(10, 28, 2))  # 1 KiB to 64 MiB


class Histogram:
    """How many of what was measured came up to each bound, and the sum of all."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last one: what is over the last bound
        self.sum = 0

    def add(self, value: int, count: int = 1) -> None:
        """`count` times that value."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def cumulative(self) -> Iterator[int]:
        """For each bound how many came up to it; then how many there are."""
        total = 0
        for count in self.counts:
            total += count
            yield total


class Kind(Enum):
    """As Prometheus has them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One row of the table of metrics. What is counted times `scale` is what is told."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    scale: float = 1


Value = int | float | Histogram


class Sample(NamedTuple):
    """One value; `labels` in the order of its metric's."""

    labels: tuple[str, ...]
    value: Value


class Family(NamedTuple):
    """All that there is of one metric."""

    metric: Metric
    samples: Iterable[Sample]


Families = Iterator[Family | None]
"""None: a place where others may have their turn."""


def single(metric: Metric, value: Value) -> Family:
    """Of a metric without labels."""
    return Family(metric, (Sample((), value),))
