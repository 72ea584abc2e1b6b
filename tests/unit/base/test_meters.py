"""Histograms: what falls where."""

from __future__ import annotations

import pytest

from penstock.base.meters import Histogram


@pytest.mark.parametrize("is_time", [False, True])
def test_a_bound_holds_what_comes_up_to_it(is_time: bool) -> None:
    """A time is cut off to whole units: what has 3 of them may be just below 4."""
    histogram = Histogram(2, 4, is_time=is_time)
    for value in (0, 3, 4, 7, 8, 15, 16, 1000):
        histogram.add(value)
    histogram.add(5, 10)
    bounds = [4, 8, 16] if is_time else [3, 7, 15]
    assert list(histogram.cumulative()) == list(zip(bounds, [2, 14, 16], strict=True))
    assert (histogram.count, histogram.sum) == (18, 0 + 3 + 4 + 7 + 8 + 15 + 16 + 1000 + 50)
