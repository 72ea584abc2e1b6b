"""What is counted where it happens, and told to whoever asks: histograms, and what a page of metrics is made of.

Rules: plain objects, without locks: the event loop alone counts and reads. Values are whole numbers in the unit of what
is measured (µs, bytes, rows); a metric's `scale` makes the unit that it is told in. What is counted only grows.
Whoever counts for every batch may add to `counts` and `sum` itself: a call costs more than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import NamedTuple

_BITS_MAX = 64


class Histogram:
    """How many of what was measured have so many bits, and the sum of all; told from `first` bits up to `last`.

    What has n bits is below 2**n. As a time, of which the fraction of a microsecond is cut off, it is at most that; as
    a number at most 2**n - 1, and so it is told.
    """

    __slots__ = ("_first", "_is_time", "_last", "counts", "sum")

    def __init__(self, first: int, last: int, *, is_time: bool = False) -> None:
        self.counts = [0] * (_BITS_MAX + 1)  # by the number of bits
        self.sum = 0
        self._first, self._last, self._is_time = first, last, is_time

    @classmethod
    def of_times(cls) -> Histogram:
        """In µs: from 64 µs to 17 s."""
        return cls(6, 24, is_time=True)

    @classmethod
    def of_rows(cls) -> Histogram:
        """From 1 to 65,535, and one bound more."""
        return cls(1, 17)

    @classmethod
    def of_sizes(cls) -> Histogram:
        """In bytes: from 1 KiB to 128 MiB."""
        return cls(10, 27)

    def add(self, value: int, count: int = 1) -> None:
        """`count` times that value, which is not negative."""
        self.counts[value.bit_length()] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[int, int]]:
        """Each bound, and how many came up to it."""
        total = sum(self.counts[: self._first])
        for bits in range(self._first, self._last + 1):
            total += self.counts[bits]
            yield (1 << bits) - (not self._is_time), total


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
