"""The schedule of a latency run: fixed moments, values that tell which message they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_bench.load.schedule import INDEX_BYTES, Contents, SchedulePlan, index_of
from tests.extent import each_change


def plan_of(**changes: object) -> SchedulePlan:
    fields = {"size": 256, "rate_per_s": 50.0, "measured": 1_500, "warm_up": 50, "seed": 1}
    return SchedulePlan(**{**fields, **changes})


def test_messages_are_due_at_a_fixed_rate() -> None:
    plan = plan_of()
    assert [plan.due_ns(index) for index in (0, 1, 50)] == [0, 20_000_000, 1_000_000_000]
    assert plan.count == 1_550
    assert plan.duration_s == 31.0


@given(st.floats(0.5, 100_000), st.integers(0, 10_000_000))
def test_moments_do_not_drift(rate: float, index: int) -> None:
    assert plan_of(rate_per_s=rate).due_ns(index) == pytest.approx(index / rate * 1e9, abs=1, rel=1e-15)


@given(st.integers(INDEX_BYTES, 5_000), st.integers(0, 10_000), st.integers(0, 100))
def test_a_value_has_its_size_and_tells_its_message(size: int, index: int, seed: int) -> None:
    contents = Contents(plan_of(size=size, seed=seed))
    value = contents.value(index)
    assert len(value) == size
    assert index_of(value) == index
    assert b"".join(contents.parts(index)) == value


@each_change
def test_values_are_random_and_the_same_again() -> None:
    contents = Contents(plan_of(size=5_000))
    values = [contents.value(index) for index in range(20)]
    assert len({value[INDEX_BYTES:] for value in values}) == 20
    assert values == [Contents(plan_of(size=5_000)).value(index) for index in range(20)]
    assert values[0] != Contents(plan_of(size=5_000, seed=2)).value(0)


def test_what_is_too_short_for_a_number_is_no_message_of_ours() -> None:
    with pytest.raises(ValueError, match="7 bytes"):
        index_of(b"1234567")
