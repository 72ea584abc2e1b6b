"""A broker that spins is told of; one that is woken when something is due is not."""

import pytest

from penstock.testing.errors import ViolationError
from penstock.testing.simulation.broker.wakeups import HURRIED_MAX, Wakes


def test_a_broker_that_spins_is_told_of() -> None:
    wakes = Wakes("b1")
    for at_us in range(HURRIED_MAX):
        wakes.planned(0, 5_000_000 + at_us)
    with pytest.raises(ViolationError, match="b1 wakes itself"):
        wakes.planned(0, 5_900_000)


def test_a_second_begins_anew_and_what_is_due_later_is_no_haste() -> None:
    wakes = Wakes("b1")
    for second in range(3):
        for at_us in range(HURRIED_MAX):
            wakes.planned(0, second * 1_000_000 + at_us)
    for at_us in range(2 * HURRIED_MAX):
        wakes.planned(2_500_001 + at_us, 2_500_000 + at_us)
