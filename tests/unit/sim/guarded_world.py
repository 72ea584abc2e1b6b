"""A simulated world in which everybody logs in."""

from __future__ import annotations

from functools import cache

from tests.sim.models.clients import SLOTS
from tests.sim.plan.plan import Act, PlannedOperation, make_plan
from tests.sim.run.world import World


@cache
def world() -> World:
    """One that has run for a while, and has read `__audit`."""
    operations = (PlannedOperation(1, Act.RULE, 0, 3),)
    made = World(make_plan(1, 1, SLOTS)._replace(end_us=4_000_000, operations=operations, faults=()))
    assert not made.run().error
    return made
