"""Limits by subject beside faults, and planted mistakes in decisions that are found.

Plans of their own, beside those of the seeds, so that each takes a few seconds: a third of the seeds have marks, and
few of their operations change the limit.
"""

from __future__ import annotations

from random import Random

import pytest

from penstock.testing.simulation.planned_faults import Ill, PlannedFault
from tests.extent import code_seed, each_change, needs_time
from tests.sim.models.marking import LIMIT_ACT, MARK_ACTS
from tests.sim.mutants.planted import first_error
from tests.sim.plan.plan import Act, PlannedOperation, RunPlan
from tests.sim.run.run import plan_error, run_plan

END_US = 16_000_000
OPERATIONS = 260
LIMITS = 0.08  # of all operations
FAULTS = 5
SEED = 1
NEW_SEEDS = 6
MUTANT_SEEDS = range(1, 7)
REQUIRED = (
    "marks",
    "decisions by a limit by subject",
    "reads of streams with a limit by subject",
    "last messages",
    "leader changes",
)
QUICK = "readers see what is not decided on"
MUTANTS = (
    QUICK,
    "what is not committed is decided on",
    "the last message is told before what was acked is decided on",
    "a lower limit is not applied to what was decided on",
)
ILLS = (
    Ill.CRASH,
    Ill.CLEAN_RESTART,
    Ill.POWER_CUT,
    Ill.PAUSE,
    Ill.DEPOSED_AND_BACK,
    Ill.UNEVEN_FAILOVER,
    Ill.NATS_LOST,
    Ill.PARTITION,
    Ill.CLOCK_STEP,
    Ill.SLOW_DISK,
)


def plan(seed: int) -> RunPlan:
    """Writers, deletions, readers, many changes of the limit, and a few faults."""
    random = Random(f"{seed} of limits")
    operations = []
    for _ in range(OPERATIONS):
        number = random.getrandbits(32)
        if random.random() < LIMITS:
            number += LIMIT_ACT - number % MARK_ACTS
        at_us = 1_000_000 + int(random.random() * (END_US - 1_000_000))
        operations.append(PlannedOperation(at_us, Act.MARK, 0, number))
    faults = []
    for number in range(FAULTS):
        at_us = int((0.25 + 0.7 * (number + random.random()) / FAULTS) * END_US)
        ill = ILLS[int(random.random() * len(ILLS))]
        lasts_us = int(200_000 + random.random() ** 2 * 5_000_000)
        faults.append(PlannedFault(at_us, ill, 1 + int(random.random() * 3), lasts_us, random.getrandbits(32)))
    return RunPlan(seed, 3, END_US, tuple(sorted(operations)), tuple(sorted(faults)))


@each_change
def test_a_limit_holds_whatever_strikes() -> None:
    result = run_plan(plan(SEED))
    assert result.error == ""
    assert [name for name in REQUIRED if not result.counters.get(name)] == []


@needs_time
@pytest.mark.parametrize("number", range(NEW_SEEDS))
def test_it_holds_in_seeds_that_no_other_code_had(number: int) -> None:
    assert run_plan(plan(code_seed() + number)).error == ""


@each_change
@pytest.mark.parametrize("mutant", [pytest.param(one, marks=() if one == QUICK else (needs_time,)) for one in MUTANTS])
def test_a_planted_mistake_is_found(mutant: str) -> None:
    error = first_error(mutant, plan_error, ((plan(seed),) for seed in MUTANT_SEEDS))
    assert error.startswith("ViolationError: ")
