"""JetStream's API beside faults: look-ups, ordered readers, and planted mistakes in them that are found.

Plans of their own, beside those of the seeds, so that each takes a second or two.
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
OPERATIONS = 260
FAULTS = 5
MANY_FAULTS = 10
SEEDS = (1, 15)
NEW_SEEDS = 6
MUTANT_SEEDS = range(1, 9)
MORE_SEEDS = range(7, 27)
AN_OLD_IMAGE = "a broker denies streams that it does not know yet"
A_LEASE = "a deposed leader answers look-ups"
QUICK = (
    "a reader skips the message behind a chunk",
    "num_pending counts what is deleted",
    "a deleted reader is sent what comes later",
    A_LEASE,
)
MUTANTS = (*mutants.MUTANTS_OF_GATEWAY, mutants.named(A_LEASE))
DEPOSED = (Ill.DEPOSED_AND_ASKED,)
RESTARTS = (Ill.CLEAN_RESTART, Ill.CRASH)  # brokers are asked that have just begun
REQUIRED = (
    "look-ups answered",
    "batch look-ups",
    "messages of ordered readers",
    "counts in quiet times",
    "deleted readers",
    "cut leaf connections",
    "missing heartbeats",
    "messages deleted through the API",
    "writers that won",
    "writers that lost",
    "leader changes",
)
ILLS = (
    Ill.CRASH,
    Ill.CLEAN_RESTART,
    Ill.PAUSE,
    Ill.DEPOSED_AND_ASKED,
    Ill.DEPOSED_AND_ASKED,
    Ill.NATS_LOST,
    Ill.ACKS_LOST,
    Ill.PARTITION,
    Ill.CLOCK_STEP,
    Ill.SLOW_DISK,
)


def plan(seed: int, ills: tuple[Ill, ...] = ILLS, count: int = FAULTS) -> RunPlan:
    """Clients of the API, and a few faults."""
    random = Random(f"{seed} of the gateway")
    operations = [
        PlannedOperation(1_000_000 + int(random.random() * (END_US - 1_000_000)), Act.API, 0, random.getrandbits(32))
        for _ in range(OPERATIONS)
    ]
    faults = []
    for number in range(count):
        at_us = int((0.25 + 0.7 * (number + random.random()) / count) * END_US)
        ill = ills[int(random.random() * len(ills))]
        lasts_us = int(200_000 + random.random() ** 2 * 5_000_000)
        faults.append(PlannedFault(at_us, ill, 1 + int(random.random() * 3), lasts_us, random.getrandbits(32)))
    return RunPlan(seed, 3, END_US, tuple(sorted(operations)), tuple(faults))


def marks_of(mutant: str) -> tuple[pytest.MarkDecorator, ...]:
    """What the change tier leaves out."""
    return () if mutant in QUICK else (needs_time,)


@each_change
@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_api_answers_and_delivers_holds_whatever_strikes(seed: int) -> None:
    result = run_plan(plan(seed))
    assert result.error == ""
    assert [name for name in REQUIRED if not result.counters.get(name)] == []


@needs_time
@pytest.mark.parametrize("number", range(NEW_SEEDS))
def test_it_holds_in_seeds_that_no_other_code_had(number: int) -> None:
    assert run_plan(plan(code_seed() + number)).error == ""


@each_change
@pytest.mark.parametrize("mutant", [pytest.param(one.name, marks=marks_of(one.name)) for one in MUTANTS])
def test_a_planted_mistake_is_found(mutant: str) -> None:
    ills = {A_LEASE: DEPOSED, AN_OLD_IMAGE: RESTARTS}.get(mutant, ILLS)
    # A broker that has just begun is asked at the right moment by chance: the more begin, the sooner it is.
    seeds, count = (MORE_SEEDS, MANY_FAULTS) if mutant == AN_OLD_IMAGE else (MUTANT_SEEDS, FAULTS)
    error = first_error(mutant, plan_error, ((plan(seed, ills, count),) for seed in seeds))
    assert error.startswith("ViolationError: ")


@each_change
@pytest.mark.parametrize(
    ("ills", "happens"),
    [(DEPOSED, f"struck: {Ill.DEPOSED_AND_ASKED}"), (RESTARTS, f"fault: {Ill.CLEAN_RESTART}")],
    ids=["deposed leaders", "restarts"],
)
def test_brokers_that_know_less_than_others_answer_nothing_old(ills: tuple[Ill, ...], happens: str) -> None:
    result = run_plan(plan(1, ills))
    assert result.error == ""
    assert result.counters[happens] > 0
