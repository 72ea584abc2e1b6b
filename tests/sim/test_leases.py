"""Look-ups at leaders that do not hear of their successors: none is older than an ack given before it was asked.

A plan of its own, beside those of the seeds, so that it takes a second: a stream that is published to and looked up,
and leaders that are cut off from the other brokers, not from clients.
"""

from __future__ import annotations

from random import Random

import pytest

from penstock.testing.simulation.planned_faults import Ill, PlannedFault
from tests.extent import each_change
from tests.sim.mutants.planted import first_error
from tests.sim.plan.plan import Act, PlannedOperation, RunPlan
from tests.sim.run.run import plan_error, run_plan

END_US = 12_000_000
FAULTS = 3
SEEDS = range(2, 10)


def plan(seed: int) -> RunPlan:
    """One stream under load, and leaders that are deposed while they are asked."""
    random = Random(seed)
    operations = [
        PlannedOperation(int(random.random() * END_US), act, 0, random.getrandbits(32))
        for act, count in ((Act.LATEST, 40), (Act.PUBLISH, 60))
        for _ in range(count)
    ]
    faults = [
        PlannedFault(3_000_000 * (1 + number), Ill.DEPOSED_AND_ASKED, 1, 0, random.getrandbits(32))
        for number in range(FAULTS)
    ]
    return RunPlan(seed, 3, END_US, tuple(sorted(operations)), tuple(faults))


@each_change
def test_no_look_up_is_older_than_an_ack_given_before() -> None:
    result = run_plan(plan(7))
    assert result.error == ""
    assert result.counters[f"struck: {Ill.DEPOSED_AND_ASKED}"] == FAULTS
    assert result.counters["look-ups answered by deposed leaders"] > 0  # while their leases lasted


@each_change
@pytest.mark.parametrize(
    "mutant",
    [
        "a deposed leader answers look-ups",
        "promises to leaders are not kept",
        "a leader counts on promises for longer than they last",
    ],
)
def test_a_planted_mistake_is_found(mutant: str) -> None:
    error = first_error(mutant, plan_error, ((plan(seed),) for seed in SEEDS))
    assert error.startswith("ViolationError: ")
    assert "was promised" in error
