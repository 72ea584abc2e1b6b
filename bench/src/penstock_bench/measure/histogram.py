"""Latencies as a histogram, and the percentiles that have enough samples.

Rules: A latency counts from the message's due time, never from the time at which it was sent. A percentile is reported
only if at least SAMPLES_BEYOND_MIN samples lie beyond it: fewer are dominated by chance. Times are nanoseconds of the
monotonic clock, which all processes of a machine share.

A sender that waits for each ack before the next message leaves out the very messages that a stall would have hit
("coordinated omission"): a stall of one second counts once, whereas a publisher with a schedule of 50 messages a second
counts 50 of them, the first 1,000 ms late, the last 20 ms. The sender here keeps to its schedule, so nothing has to be
corrected afterwards.

| samples        | highest percentile reported     |
|----------------|---------------------------------|
| 20             | 50                              |
| 1,000 to 9,999 | 99                              |
| 10,000         | 99.9                            |
| 10,000,000     | 99.9999                         |
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

from penstock_bench.extras import imported

PERCENTILES = ("50", "75", "90", "95", "99", "99.9", "99.99", "99.999", "99.9999")
SAMPLES_BEYOND_MIN = 10
_HIGHEST_NS = 3_600_000_000_000  # an hour: no run is that long
_SIGNIFICANT_DIGITS = 3
_CURVE_POINTS_PER_DECADE = 24
_CURVE_DECADES_MAX = 6  # 99.9999


def is_sayable(percentile: str, count: int) -> bool:
    """True if at least SAMPLES_BEYOND_MIN of `count` samples lie beyond this percentile."""
    return count * (1 - Fraction(percentile) / 100) >= SAMPLES_BEYOND_MIN


def samples_for(percentile: str) -> int:
    """Return the minimum number of samples for this percentile."""
    return math.ceil(SAMPLES_BEYOND_MIN / (1 - Fraction(percentile) / 100))


def latencies_ns(intended_ns: Sequence[int], arrived_ns: Sequence[int]) -> list[int]:
    """Return the latency of each message, from its due time to its arrival; 0 if it seems to arrive before."""
    return [max(arrived - intended, 0) for intended, arrived in zip(intended_ns, arrived_ns, strict=True)]


class Latencies:
    """A histogram of latencies with three significant digits."""

    def __init__(self, samples_ns: Iterable[int] = ()) -> None:
        self._histogram = _empty()
        self._ranks: list[int] = []  # cumulative counts by bucket; empty: not computed
        for sample in samples_ns:
            # A sample beyond the histogram's range counts as its highest value: it is never left out.
            self._histogram.record_value(min(max(sample, 1), _HIGHEST_NS))

    @classmethod
    def decode(cls, encoded: str) -> Latencies:
        """Decode the text of `encode`. Raise ValueError for other text."""
        made = cls()
        try:
            made._histogram.decode_and_add(encoded.encode())
        except Exception as error:
            raise ValueError(f"not a histogram: {error}") from error
        return made

    def encode(self) -> str:
        """Encode in HdrHistogram's own compressed form, in base64: other tools read it, too."""
        return bytes(self._histogram.encode()).decode()

    def add(self, other: Latencies) -> None:
        """Add the samples of another histogram."""
        if other.count:
            self._histogram.add(other._histogram)
            self._ranks = []

    @property
    def count(self) -> int:
        """Number of samples."""
        return int(self._histogram.get_total_count())

    @property
    def mean_us(self) -> float:
        """Mean in µs; 0.0 without samples."""
        if not self.count:
            return 0.0
        # HdrHistogram's own mean iterates over all buckets in interpreted Python; the formula is the same.
        counted = [(self._range(place), count) for place, count in enumerate(self._histogram.counts[:]) if count]
        total = sum(count * (first + (last + 1 - first) // 2) for (first, last), count in counted)
        return float(total) / self.count / 1000

    @property
    def max_us(self) -> float:
        """Maximum in µs; 0.0 without samples."""
        return float(self._histogram.get_max_value()) / 1000 if self.count else 0.0

    def percentile_us(self, percentile: str) -> float | None:
        """Return the percentile in µs; None if too few samples lie beyond it."""
        if not is_sayable(percentile, self.count):
            return None
        return self._at(float(percentile))

    def percentiles_us(self) -> dict[str, float]:
        """Return every percentile of PERCENTILES that has enough samples."""
        found = {one: self.percentile_us(one) for one in PERCENTILES}
        return {name: value for name, value in found.items() if value is not None}

    def curve_us(self) -> list[tuple[float, float]]:
        """Return (decades, value) points for a plot, from 50 to the last percentile; decades: 1 is 90, 2 is 99."""
        if not is_sayable("50", self.count):
            return []
        first, last = math.log10(2), min(math.log10(self.count / SAMPLES_BEYOND_MIN), _CURVE_DECADES_MAX)
        steps = math.ceil((last - first) * _CURVE_POINTS_PER_DECADE)
        places = [first + (last - first) * step / max(steps, 1) for step in range(steps + 1)]
        return [(place, self._at(100 * (1 - 10.0**-place))) for place in places]

    def _at(self, percentile: float) -> float:
        """Return a percentile in µs. HdrHistogram's look-up is slower: it counts from the first bucket each time."""
        if not self._ranks:
            self._ranks = list(accumulate(self._histogram.counts[:]))
        place = bisect_left(self._ranks, self._histogram.get_target_count_at_percentile(percentile))
        return self._range(place)[1] / 1000

    def _range(self, place: int) -> tuple[int, int]:
        """Return the lowest and the highest value of a bucket, in nanoseconds."""
        first = int(self._histogram.get_value_from_index(place))
        return first, int(self._histogram.get_highest_equivalent_value(first))


def _empty() -> Any:
    return imported("hdrh.histogram").HdrHistogram(1, _HIGHEST_NS, _SIGNIFICANT_DIGITS)
