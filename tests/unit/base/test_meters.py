"""Histograms: what falls where."""

from __future__ import annotations

from penstock.base.meters import Histogram


def test_a_bound_holds_what_comes_up_to_it_and_the_last_place_what_is_over() -> None:
    histogram = Histogram((10, 20))
    for value in (0, 10, 11, 20, 21):
        histogram.add(value)
    histogram.add(15, 3)
    assert list(histogram.cumulative()) == [2, 7, 8]
    assert histogram.sum == 0 + 10 + 11 + 20 + 21 + 3 * 15
