"""Metrics: counters and histograms, counted at the source and read on request.

Rules: plain objects without locks: only the event loop counts and reads. Values are whole numbers in the unit of
measurement (µs, bytes, rows); a metric's `scale` converts to the exported unit. Counters only grow. Code that counts
for every batch may add to `counts` and `sum` directly, as a method call costs more than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

_BITS_MAX = 64


class Histogram:
    """Counts measured values by their number of bits, with their sum; exported with bounds from `first` to `last` bits.

    A value of n bits is below 2**n. For times, cut to whole microseconds, the exported bound is 2**n; for numbers 2**n
    - 1.
    """

    __slots__ = ("_first", "_is_time", "_last", "counts", "sum")

    def __init__(self, first: int, last: int, *, is_time: bool = False) -> None:
        self.counts = [0] * (_BITS_MAX + 1)  # index: number of bits
        self.sum = 0
        self._first, self._last, self._is_time = first, last, is_time

    @classmethod
    def of_times(cls) -> Histogram:
        """Create a histogram for µs: from 64 µs to 17 s."""
        return cls(6, 24, is_time=True)

    @classmethod
    def of_rows(cls) -> Histogram:
        """Create a histogram for rows: from 1 to 65,535, and one bound more."""
        return cls(1, 17)

    @classmethod
    def of_sizes(cls) -> Histogram:
        """Create a histogram for bytes: from 1 KiB to 128 MiB."""
        return cls(10, 27)

    def add(self, value: int, count: int = 1) -> None:
        """Add `value`, which is not negative, `count` times."""
        self.counts[value.bit_length()] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[int, int]]:
        """Yield each bound with the number of values up to it."""
        total = sum(self.counts[: self._first])
        for bits in range(self._first, self._last + 1):
            total += self.counts[bits]
            yield (1 << bits) - (not self._is_time), total


class MetricKind(Enum):
    """Metric types of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric. Exported values are multiplied by `scale`."""

    name: str
    kind: MetricKind
    meaning: str
    labels: tuple[str, ...] = ()
    scale: float = 1


Value = int | float | Histogram


class Sample(NamedTuple):
    """One value; `labels` in the order of its metric's labels."""

    labels: tuple[str, ...]
    value: Value


class Family(NamedTuple):
    """All samples of one metric."""

    metric: Metric
    samples: Iterable[Sample]


Families = Iterator[Family | None]
"""None: a point at which the event loop may run other work."""


def single(metric: Metric, value: Value) -> Family:
    """Return the family of a metric without labels."""
    return Family(metric, (Sample((), value),))
