"""JetStream's API beside another service that comes and goes: brokers never serve by a decision that was replaced.

A plan of its own, beside those of the seeds, without clients: brokers are cut off, paused and killed, metadata leaders
first, while the other service is heard by some of them.
"""

from __future__ import annotations

from contextlib import closing

import pytest

from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import SimBroker
from tests.extent import each_change
from tests.sim.models.api_owners import ApiOwners
from tests.sim.mutants.planted import results_of
from tests.sim.plan.plan import RunPlan
from tests.sim.run.world import RunResult, World

END_US = 60_000_000
SEEDS = range(1, 9)


class OwnersWorld(World):
    """A run in which brokers also decide who serves JetStream's API."""

    def __init__(self, plan: RunPlan) -> None:
        super().__init__(plan)
        self.owners = ApiOwners(self._scheduler, self.brokers, self._random("owners"))
        self._chance = self._random("trouble")
        self.owners.start()
        at_us = 5_000_000
        while at_us < END_US:
            self._scheduler.at(at_us, self._trouble)
            at_us += 4_000_000 + int(self._chance.random() * 4_000_000)

    def _trouble(self) -> None:
        """Cut a broker off, pause it or kill it, the metadata leader in two of three cases; then another one comes."""
        brokers = [one for one in self.brokers.values() if one.node is not None]
        leaders = [one for one in brokers if one.node is not None and inspector.standing(one.node).is_metadata_leader]
        among = leaders if leaders and self._chance.random() < 2 / 3 else brokers
        if not among:
            return
        victim = among[int(self._chance.random() * len(among))]
        lasts_us = 500_000 + int(self._chance.random() * 9_000_000)
        way = self._chance.random()
        if way < 0.5:
            for other in self.brokers.values():
                for sender, receiver in ((victim, other), (other, victim)):
                    if other is not victim:
                        self._scheduler.after(lasts_us, self._network.block(sender.name, receiver.name))
        elif way < 0.8:
            victim.pause()
            self._scheduler.after(lasts_us, victim.resume)
        else:
            victim.crash()
        others = [one.broker_id for one in self.brokers.values() if one is not victim]
        self.owners.heard_by = frozenset({others[int(self._chance.random() * len(others))]})
        self._scheduler.after(500_000 + int(self._chance.random() * 3_000_000), self._go)

    def _go(self) -> None:
        self.owners.heard_by = frozenset()

    def _acted(self, broker: SimBroker) -> None:
        super()._acted(broker)
        self.owners.acted(broker)


def run_owners(seed: int) -> tuple[RunResult, tuple[int, int, int]]:
    """Run a seed; its result, and how often the API was served, taken and withdrawn."""
    world = OwnersWorld(RunPlan(seed, 3, END_US, (), ()))
    result = world.run()
    return result, (world.owners.served, world.owners.taken, world.owners.withdrawn)


@each_change
def test_no_broker_serves_by_a_decision_that_was_replaced() -> None:
    served = taken = withdrawn = 0
    for seed in SEEDS:
        result, counts = run_owners(seed)
        assert result.error == ""
        served, taken, withdrawn = served + counts[0], taken + counts[1], withdrawn + counts[2]
    assert served > 100
    assert min(taken, withdrawn) > 8


@each_change
@pytest.mark.parametrize(
    ("mutant", "found"),
    [
        ("the lease of JetStream's API never ends", "which was replaced"),
        ("a metadata leader that was deposed confirms heartbeats", "which was replaced"),
        ("JetStream's API is taken without the evidence of all", "without the evidence of broker"),
        ("evidence from before a decision counts", "without the evidence of broker"),
    ],
)
def test_a_planted_mistake_is_found(mutant: str, found: str) -> None:
    with closing(results_of(mutant, run_owners, ((seed,) for seed in SEEDS))) as results:
        error = next(filter(None, (result.error for result, *_ in results)), "")
    assert error.startswith("ViolationError: ")
    assert found in error
