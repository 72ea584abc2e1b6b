"""Consumers with acks beside faults, and planted mistakes in them that are found.

Plans of their own, beside those of the seeds, so that each takes a few seconds.
"""

from __future__ import annotations

from random import Random

import pytest

from penstock.testing.simulation.planned_faults import Ill, PlannedFault
from tests.extent import code_seed, each_change, needs_time
from tests.sim.models.working import ACTS, DELETE_CREW_ACT, DELETION_ACT
from tests.sim.mutants import mutants
from tests.sim.mutants.planted import first_error
from tests.sim.plan.plan import Act, PlannedOperation, RunPlan
from tests.sim.run.run import plan_error, run_plan

END_US = 16_000_000
OPERATIONS = 260
FAULTS = 5
SEEDS = (1, 11)
NEW_SEEDS = 6
SHARE_OF_ACT = 0.05
MUTANT_SEEDS = range(1, 9)
QUICK = "the ack floor is told over messages in hand"
REQUIRED = (
    "messages of crews",
    "acks that were answered",
    "late acks",
    "workers that died",
    "infos of crews",
    "jobs deleted",
    "dead letters",
    "leader changes",
)
ILLS = (
    Ill.CRASH,
    Ill.CLEAN_RESTART,
    Ill.POWER_CUT,
    Ill.PAUSE,
    Ill.DEPOSED_AND_BACK,
    Ill.UNEVEN_FAILOVER,
    Ill.NATS_LOST,
    Ill.ACKS_LOST,
    Ill.PARTITION,
    Ill.CLOCK_STEP,
    Ill.SLOW_DISK,
)
# What shows a mistake soonest: faults, and an act that is done more often.
SHOWN_BY: dict[str, tuple[tuple[Ill, ...], int | None]] = {
    "a delivery of a consumer with max_deliver is sent before it is committed": ((Ill.DEPOSED_AND_BACK,), None),
    "messages are due by the time of day": ((Ill.CLOCK_STEP,), None),
    "messages that are gone stay in hand": ((Ill.CLEAN_RESTART,), DELETION_ACT),
    "slots of changes are used again before a snapshot": ((Ill.CLEAN_RESTART, Ill.DEPOSED_AND_BACK), None),
    "name and snapshot of a deleted consumer stay": ((Ill.CLEAN_RESTART, Ill.DEPOSED_AND_BACK), DELETE_CREW_ACT),
}


def plan(seed: int, ills: tuple[Ill, ...] = ILLS, act: int | None = None) -> RunPlan:
    """Jobs, workers, and a few faults; a share of all operations are the act that is given."""
    random = Random(f"{seed} of consumers")
    operations = []
    for _ in range(OPERATIONS):
        at_us, number = 1_000_000 + int(random.random() * (END_US - 1_000_000)), random.getrandbits(32)
        if act is not None and random.random() < SHARE_OF_ACT:
            number += act - number % ACTS
        operations.append(PlannedOperation(at_us, Act.WORK, 0, number))
    faults = []
    for number in range(FAULTS):
        at_us = int((0.25 + 0.7 * (number + random.random()) / FAULTS) * END_US)
        ill = ills[int(random.random() * len(ills))]
        lasts_us = int(200_000 + random.random() ** 2 * 5_000_000)
        faults.append(PlannedFault(at_us, ill, 1 + int(random.random() * 3), lasts_us, random.getrandbits(32)))
    return RunPlan(seed, 3, END_US, tuple(sorted(operations)), tuple(sorted(faults)))


@each_change
@pytest.mark.parametrize("seed", SEEDS)
def test_acks_hold_whatever_strikes(seed: int) -> None:
    result = run_plan(plan(seed))
    assert result.error == ""
    assert [name for name in REQUIRED if not result.counters.get(name)] == []


@needs_time
@pytest.mark.parametrize("number", range(NEW_SEEDS))
def test_it_holds_in_seeds_that_no_other_code_had(number: int) -> None:
    assert run_plan(plan(code_seed() + number)).error == ""


@each_change
@pytest.mark.parametrize(
    "mutant",
    [pytest.param(one.name, marks=() if one.name == QUICK else (needs_time,)) for one in mutants.MUTANTS_OF_ACKS],
)
def test_a_planted_mistake_is_found(mutant: str) -> None:
    ills, act = SHOWN_BY.get(mutant, (ILLS, None))
    error = first_error(mutant, plan_error, ((plan(seed, ills, act),) for seed in MUTANT_SEEDS))
    assert error.startswith("ViolationError: ")
