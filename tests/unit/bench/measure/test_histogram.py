"""Latencies: what a stall does to them, which percentiles may be said, and that they say what a sorted list says."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_bench.measure.histogram import (
    PERCENTILES,
    SAMPLES_BEYOND_MIN,
    Latencies,
    is_sayable,
    latencies_ns,
    samples_for,
)
from tests.extent import each_change, examples

MS = 1_000_000
INTERVAL_NS = 20 * MS  # 50 a second
SAMPLES = st.lists(st.integers(1, 10_000_000_000), min_size=1, max_size=400)


def served(due_ns: list[int], service_ns: int, stall: range) -> list[int]:
    """When a server is done that takes one message at a time, and none while it stalls."""
    free_ns, done = 0, []
    for due in due_ns:
        start = max(due, free_ns)
        if start in stall:
            start = stall.stop
        free_ns = start + service_ns
        done.append(free_ns)
    return done


def test_a_stall_counts_for_every_message_that_was_due_in_it() -> None:
    due = [number * INTERVAL_NS for number in range(1_000)]
    done = served(due, MS, range(100 * INTERVAL_NS, 150 * INTERVAL_NS))
    found = latencies_ns(due, done)
    # The first waits for the whole second and its own service; each later one 20 ms less, and for those before it.
    assert found[100] == 1_001 * MS
    assert found[101] == 1_001 * MS - 19 * MS
    assert sum(latency > MS for latency in found) == 53  # 50 in the stall, and those that its queue holds up
    latencies = Latencies(found)
    assert latencies.percentile_us("90") == pytest.approx(1_000, rel=1e-3)
    assert latencies.percentiles_us()["95"] > 40_000
    assert latencies.percentile_us("99") == pytest.approx(found[109] / 1_000, rel=0.03)


def test_who_waits_for_the_answer_would_see_one_slow_message() -> None:
    """The same stall, measured from the sending, as a closed loop does: what is left out is what the schedule adds."""
    closed = [MS] * 999 + [1_001 * MS]
    assert Latencies(closed).percentile_us("99") == pytest.approx(1_000, rel=1e-3)


@pytest.mark.parametrize(
    ("percentile", "least"),
    [("50", 20), ("90", 100), ("99", 1_000), ("99.9", 10_000), ("99.99", 100_000), ("99.9999", 10_000_000)],
)
def test_a_percentile_needs_ten_samples_beyond_it(percentile: str, least: int) -> None:
    assert is_sayable(percentile, least)
    assert not is_sayable(percentile, least - 1)


def test_thirty_seconds_at_fifty_a_second_say_the_99th_at_most() -> None:
    latencies = Latencies(range(1, 1_501))
    assert list(latencies.percentiles_us()) == ["50", "75", "90", "95", "99"]
    assert latencies.percentile_us("99.9") is None


@given(st.integers(0, 10**8))
def test_every_percentile_that_is_said_has_ten_samples_beyond_it(count: int) -> None:
    sayable = [one for one in PERCENTILES if is_sayable(one, count)]
    assert all(count - count * Fraction(one) / 100 >= SAMPLES_BEYOND_MIN for one in sayable)
    assert sayable == list(PERCENTILES[: len(sayable)])


@given(SAMPLES)
def test_percentiles_are_those_of_the_sorted_samples(samples: list[int]) -> None:
    latencies = Latencies(samples)
    ordered = sorted(samples)
    for name, value_us in latencies.percentiles_us().items():
        rank = max(1, int(len(ordered) * float(name) / 100 + 0.5))
        assert value_us * 1_000 == pytest.approx(ordered[rank - 1], rel=2e-3, abs=1)
    assert latencies.count == len(samples)
    assert latencies.max_us * 1_000 == pytest.approx(ordered[-1], rel=2e-3, abs=1)


@each_change
@given(SAMPLES)
@settings(max_examples=examples(25))  # the library takes its time
def test_the_library_says_the_same(samples: list[int]) -> None:
    latencies = Latencies(samples)
    library = latencies._histogram
    assert latencies.mean_us == pytest.approx(library.get_mean_value() / 1_000)
    for name, value_us in latencies.percentiles_us().items():
        assert value_us == library.get_value_at_percentile(float(name)) / 1_000


@given(SAMPLES, SAMPLES)
def test_together_is_as_if_measured_together(first: list[int], second: list[int]) -> None:
    together = Latencies(first)
    together.percentiles_us()  # what was added up for them holds no longer
    together.add(Latencies.decode(Latencies(second).encode()))
    assert together.percentiles_us() == Latencies([*first, *second]).percentiles_us()
    assert together.mean_us == pytest.approx(Latencies([*first, *second]).mean_us)
    assert together.count == len(first) + len(second)


@given(SAMPLES)
def test_a_curve_rises_and_ends_where_ten_samples_are_left(samples: list[int]) -> None:
    latencies = Latencies(samples)
    curve = latencies.curve_us()
    assert bool(curve) == (len(samples) >= 20)
    assert [place for place, _ in curve] == sorted(place for place, _ in curve)
    assert [value for _, value in curve] == sorted(value for _, value in curve)
    if curve:
        beyond = len(samples) * 10.0 ** -curve[-1][0]
        assert beyond == pytest.approx(SAMPLES_BEYOND_MIN)
        assert curve[0][1] == latencies.percentile_us("50")


def test_without_samples_nothing_is_said() -> None:
    nothing = Latencies()
    assert (nothing.count, nothing.mean_us, nothing.max_us) == (0, 0.0, 0.0)
    assert nothing.percentiles_us() == {}
    nothing.add(Latencies())
    assert nothing.curve_us() == []


def test_an_hour_and_more_counts_as_an_hour() -> None:
    assert Latencies([10**15]).max_us == pytest.approx(3.6e9, rel=1e-3)


def test_what_is_no_histogram_is_refused() -> None:
    with pytest.raises(ValueError, match="not a histogram"):
        Latencies.decode("nonsense")


@pytest.mark.parametrize(
    ("percentile", "count"), [("50", 20), ("99", 1_000), ("99.9", 10_000), ("99.9999", 10_000_000)]
)
def test_so_many_samples_say_a_percentile_and_one_less_does_not(percentile: str, count: int) -> None:
    assert samples_for(percentile) == count
    assert is_sayable(percentile, count)
    assert not is_sayable(percentile, count - 1)
