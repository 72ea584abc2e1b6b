"""Virtual time and the clocks that run in it."""

from __future__ import annotations

from functools import partial

import pytest

from penstock.testing.simulation.scheduler import START_US, Clock, Scheduler


def test_events_happen_in_the_order_of_their_moments_then_of_their_planning() -> None:
    scheduler = Scheduler()
    seen: list[tuple[int, str]] = []

    def see(name: str) -> None:
        seen.append((scheduler.now_us, name))

    for at_us, name in ((20, "c"), (10, "a"), (10, "b")):
        scheduler.at(at_us, partial(see, name))
    scheduler.run_until(15)
    assert seen == [(10, "a"), (10, "b")]
    assert scheduler.now_us == 15
    scheduler.run_until(30)
    assert seen[2:] == [(20, "c")]


def test_what_is_taken_back_does_not_happen() -> None:
    scheduler = Scheduler()
    seen: list[int] = []
    timer = scheduler.after(5, lambda: seen.append(1))
    timer.cancel()
    timer.cancel()
    scheduler.run_until(10)
    assert not seen


def test_it_ends_early_once_it_is_over() -> None:
    scheduler = Scheduler()
    seen: list[int] = []
    for at_us in (1, 2, 3):
        scheduler.at(at_us, partial(seen.append, at_us))
    scheduler.run_until(10, lambda: len(seen) == 2)
    assert seen == [1, 2]
    assert scheduler.now_us == 2


@pytest.mark.parametrize("rate_ppm", [-200, 0, 137])
def test_a_clock_runs_at_its_own_rate_and_can_be_awaited(rate_ppm: int) -> None:
    scheduler = Scheduler()
    clock = Clock(scheduler, rate_ppm)
    for elapsed_us in (1, 999_983, 3_600_000_000):
        scheduler.run_until(clock.true_us(elapsed_us))
        assert elapsed_us <= clock.elapsed_us() <= elapsed_us + 1
    assert clock.elapsed_us() - scheduler.now_us == pytest.approx(3_600 * rate_ppm, abs=200)


def test_a_calendar_that_is_set_leaves_the_waits_alone() -> None:
    clock = Clock(Scheduler())
    clock.step(-7)
    assert clock.now().wall_us == START_US - 7
    assert clock.now().elapsed_us == 0
