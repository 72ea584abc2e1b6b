"""Latencies as a histogram, and which percentiles of it may be said.

Rules: a latency counts from the moment at which the message *should* have been sent, never from the one at which it
was. A percentile is said only where at least SAMPLES_BEYOND_MIN samples lie beyond it: what fewer of them say is
chance. Times are nanoseconds of the monotonic clock, which all processes of one machine share.

Whoever sends the next message only when the last one was acked leaves out the very messages that a stall would have
hit ("coordinated omission"): one stall of a second counts once, where a publisher who keeps to a schedule of 50
messages a second counts 50 of them, the first 1,000 ms late, the last 20 ms. The sender here keeps to its schedule, so
nothing has to be added afterwards.

| samples        | highest percentile that is said |
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

from penstock.bench.extras import imported

PERCENTILES = ("50", "75", "90", "95", "99", "99.9", "99.99", "99.999", "99.9999")
SAMPLES_BEYOND_MIN = 10
_HIGHEST_NS = 3_600_000_000_000  # an hour: no run is that long
_SIGNIFICANT_DIGITS = 3
_CURVE_POINTS_PER_DECADE = 24
_CURVE_DECADES_MAX = 6  # 99.9999


def is_sayable(percentile: str, count: int) -> bool:
    """Whether at least SAMPLES_BEYOND_MIN of `count` samples lie beyond this percentile."""
    return count * (1 - Fraction(percentile) / 100) >= SAMPLES_BEYOND_MIN


def samples_for(percentile: str) -> int:
    """The least number of samples that can say this percentile."""
    return math.ceil(SAMPLES_BEYOND_MIN / (1 - Fraction(percentile) / 100))


def sayable(count: int) -> tuple[str, ...]:
    """The percentiles that `count` samples can say something about."""
    return tuple(one for one in PERCENTILES if is_sayable(one, count))


def latencies_ns(intended_ns: Sequence[int], arrived_ns: Sequence[int]) -> list[int]:
    """From the intended moment of each message to its arrival. Both sequences go by message."""
    return [max(arrived - intended, 0) for intended, arrived in zip(intended_ns, arrived_ns, strict=True)]


class Latencies:
    """A histogram of latencies with three significant digits."""

    def __init__(self, samples_ns: Iterable[int] = ()) -> None:
        self._histogram = _empty()
        self._ranks: list[int] = []  # by place among the counts: how many samples are up to there; empty: not added up
        for sample in samples_ns:
            # A sample beyond the histogram's range counts as its highest value: it is never left out.
            self._histogram.record_value(min(max(sample, 1), _HIGHEST_NS))

    @classmethod
    def decode(cls, encoded: str) -> Latencies:
        """What `encode` gave. ValueError for other text."""
        made = cls()
        try:
            made._histogram.decode_and_add(encoded.encode())
        except Exception as error:
            raise ValueError(f"not a histogram: {error}") from error
        return made

    def encode(self) -> str:
        """HdrHistogram's own compressed form, in base64: other tools read it too."""
        return bytes(self._histogram.encode()).decode()

    def add(self, other: Latencies) -> None:
        """Take the samples of another one in."""
        if other.count:
            self._histogram.add(other._histogram)
            self._ranks = []

    @property
    def count(self) -> int:
        """How many samples."""
        return int(self._histogram.get_total_count())

    @property
    def mean_us(self) -> float:
        """Their mean; 0.0 without any."""
        if not self.count:
            return 0.0
        # HdrHistogram's own mean looks at every place in interpreted Python; it too takes the middle of a place.
        counted = [(self._range(place), count) for place, count in enumerate(self._histogram.counts[:]) if count]
        total = sum(count * (first + (last + 1 - first) // 2) for (first, last), count in counted)
        return float(total) / self.count / 1000

    @property
    def max_us(self) -> float:
        """The largest; 0.0 without any."""
        return float(self._histogram.get_max_value()) / 1000 if self.count else 0.0

    def percentile_us(self, percentile: str) -> float | None:
        """The value that this share of the samples does not pass; None where too few lie beyond it."""
        if not is_sayable(percentile, self.count):
            return None
        return self._at(float(percentile))

    def percentiles_us(self) -> dict[str, float]:
        """Every percentile of PERCENTILES that may be said."""
        found = {one: self.percentile_us(one) for one in PERCENTILES}
        return {name: value for name, value in found.items() if value is not None}

    def curve_us(self) -> list[tuple[float, float]]:
        """(decades, value) for a plot, from 50 to the last sayable; decades count nines: 1 is 90, 2 is 99."""
        if not is_sayable("50", self.count):
            return []
        first, last = math.log10(2), min(math.log10(self.count / SAMPLES_BEYOND_MIN), _CURVE_DECADES_MAX)
        steps = math.ceil((last - first) * _CURVE_POINTS_PER_DECADE)
        places = [first + (last - first) * step / max(steps, 1) for step in range(steps + 1)]
        return [(place, self._at(100 * (1 - 10.0**-place))) for place in places]

    def _at(self, percentile: float) -> float:
        """As HdrHistogram's own look-up, which counts from the first place each time, in interpreted Python."""
        if not self._ranks:
            self._ranks = list(accumulate(self._histogram.counts[:]))
        place = bisect_left(self._ranks, self._histogram.get_target_count_at_percentile(percentile))
        return self._range(place)[1] / 1000

    def _range(self, place: int) -> tuple[int, int]:
        """The first and the last value that count at this place."""
        first = int(self._histogram.get_value_from_index(place))
        return first, int(self._histogram.get_highest_equivalent_value(first))


def _empty() -> Any:
    return imported("hdrh.histogram").HdrHistogram(1, _HIGHEST_NS, _SIGNIFICANT_DIGITS)
