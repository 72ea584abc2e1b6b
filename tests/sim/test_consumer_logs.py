"""Logs of consumers beside faults, and planted mistakes that are found.

Plans of their own, beside those of the seeds, so that each takes a few seconds.
"""

from __future__ import annotations

from random import Random

import pytest

from penstock.testing.simulation.planned_faults import Ill, PlannedFault
from tests.extent import code_seed, each_change, needs_time
from tests.sim.mutants import mutants
from tests.sim.mutants.planted import first_error
from tests.sim.plan.plan import Act, PlannedOperation, RunPlan
from tests.sim.run.run import plan_error, run_plan

END_US = 16_000_000
OPERATIONS = 300
FAULTS = 6
SEED = 1
NEW_SEEDS = 6
MUTANT_SEEDS = range(1, 13)
REQUIRED = ("rows of consumers", "logs of consumers taken over", "refused rows of consumers", "leader changes")
QUICK = "what an earlier leadership was given appends to a log of consumers"
ILLS = (
    Ill.CRASH,
    Ill.CLEAN_RESTART,
    Ill.POWER_CUT,
    Ill.PAUSE,
    Ill.DEPOSED_AND_BACK,
    Ill.UNEVEN_FAILOVER,
    Ill.PARTITION,
    Ill.CLOCK_STEP,
    Ill.SLOW_DISK,
)


def plan(seed: int) -> RunPlan:
    """Rows and messages, and a few faults."""
    random = Random(f"{seed} of logs of consumers")
    operations = [
        PlannedOperation(
            1_000_000 + int(random.random() * (END_US - 1_000_000)), Act.CONSUME, 0, random.getrandbits(32)
        )
        for _ in range(OPERATIONS)
    ]
    faults = []
    for number in range(FAULTS):
        at_us = int((0.2 + 0.75 * (number + random.random()) / FAULTS) * END_US)
        ill = ILLS[int(random.random() * len(ILLS))]
        lasts_us = int(200_000 + random.random() ** 2 * 5_000_000)
        faults.append(PlannedFault(at_us, ill, 1 + int(random.random() * 3), lasts_us, random.getrandbits(32)))
    return RunPlan(seed, 3, END_US, tuple(sorted(operations)), tuple(sorted(faults)))


@each_change
def test_consumers_keep_what_was_answered_whatever_strikes() -> None:
    result = run_plan(plan(SEED))
    assert result.error == ""
    assert [name for name in REQUIRED if not result.counters.get(name)] == []


@needs_time
@pytest.mark.parametrize("number", range(NEW_SEEDS))
def test_they_keep_it_in_seeds_that_no_other_code_had(number: int) -> None:
    assert run_plan(plan(code_seed() + number)).error == ""


@each_change
@pytest.mark.parametrize(
    "mutant",
    [pytest.param(one.name, marks=() if one.name == QUICK else (needs_time,)) for one in mutants.MUTANTS_OF_CONSUMERS],
)
def test_a_planted_mistake_is_found(mutant: str) -> None:
    error = first_error(mutant, plan_error, ((plan(seed),) for seed in MUTANT_SEEDS))
    assert error.startswith("ViolationError: ")
