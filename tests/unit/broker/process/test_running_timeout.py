"""A process that was suspended does not take that for the slowness of what it waits for."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.process.running_timeout import STEP_S_MAX, RunningTimeout


class Clock:
    """Goes on by so much at each look."""

    def __init__(self, *steps_s: float) -> None:
        self.now_s = 1_000.0
        self.steps_s = list(steps_s)
        self.has_passed = asyncio.Event()  # all of them

    def __call__(self) -> float:
        if self.steps_s:
            self.now_s += self.steps_s.pop(0)
        if not self.steps_s:
            self.has_passed.set()
        return self.now_s


def test_what_passes_while_it_runs_counts_and_a_suspension_as_one_step() -> None:
    patience = RunningTimeout(Clock(0, 0.25, 3_600, 0.25), 2.0)
    assert [patience.remaining_s() for _ in range(3)] == [1.75, 1.75 - STEP_S_MAX, 1.5 - STEP_S_MAX]


def test_it_runs_out() -> None:
    patience = RunningTimeout(Clock(0, *[0.5] * 5), 2.0)
    assert [patience.remaining_s() for _ in range(5)] == [1.5, 1.0, 0.5, 0.0, 0.0]


async def test_what_ends_after_a_suspension_has_ended_in_time() -> None:
    clock = Clock(0, 0.1, 3_600, 0.1)
    assert await RunningTimeout(clock, 2.0).waits_for(clock.has_passed.wait())


async def test_what_does_not_end_is_cancelled_and_the_rest_is_kept() -> None:
    never = asyncio.Event()
    was_cancelled = []

    async def hang() -> None:
        try:
            await never.wait()
        except asyncio.CancelledError:
            was_cancelled.append(True)
            raise

    patience = RunningTimeout(Clock(0, *[0.25] * 20), 2.0)
    assert not await patience.waits_for(hang(), keep_s=1.0)
    assert was_cancelled == [True]
    assert patience.left_s == 1.0
    assert await patience.waits_for(asyncio.sleep(0), keep_s=0.5)


async def test_an_error_of_what_is_waited_for_is_raised() -> None:
    async def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await RunningTimeout(Clock(), 2.0).waits_for(fail())


async def test_it_is_looked_at_while_something_else_is_waited_for() -> None:
    clock = Clock(0, 0.25, 0.25, 0.25)
    async with RunningTimeout(clock, 2.0).running() as patience:
        await clock.has_passed.wait()
    assert patience.left_s <= 1.5


async def test_what_has_ended_already_has_ended_in_time_where_nothing_is_left() -> None:
    done = asyncio.Event()
    assert not await RunningTimeout(Clock(), 0.0).waits_for(done.wait())
    done.set()
    assert await RunningTimeout(Clock(), 0.0).waits_for(done.wait())
