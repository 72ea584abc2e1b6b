"""Most replicas of a partition are damaged, and the leader is sound: in a world where nothing else goes wrong."""

from __future__ import annotations

import pytest

from penstock.node.partition.partition import Partition
from penstock.node.replicas.repairs import Repairs
from penstock.testing.errors import ViolationError
from penstock.testing.simulation.checks.checks import PartitionHistory
from tests.extent import each_change
from tests.sim.models.clients import SLOTS
from tests.sim.plan.plan import Act, PlannedOperation, make_plan
from tests.sim.run.world import World

SUBJECT = "s0.g1.>"
PUBLISHED = tuple(PlannedOperation(2_000_000 + 30_000 * n, Act.PUBLISH, 0, 7 * n) for n in range(400))
QUIET = make_plan(2, 3, SLOTS)._replace(operations=PUBLISHED, faults=(), end_us=16_000_000)


@pytest.fixture
def world() -> World:
    world = World(QUIET)
    assert world.run().error == ""
    return world


def damage_followers(world: World) -> PartitionHistory:
    """A bit of the oldest segment is turned over on all who do not lead."""
    history = world.checks.of(SUBJECT, 0)
    leader, _ = history.leaders[max(history.leaders)]
    assert sorted(history.isr) == [1, 2, 3]
    for broker in world.brokers.values():
        if broker.broker_id == leader:
            continue
        folder = f"streams/{history.stream_id:08}-"
        segments = [one for one in broker.disk.memory.files() if one.startswith(folder) and one.endswith(".arrows")]
        assert len(segments) > 1
        path = min(segments)
        file = broker.disk.memory.open(path)
        byte = file.read_at(file.size() // 2, 1)
        file.write_at(file.size() // 2, bytes([byte[0] ^ 1]))
        file.sync()
        file.close()
        world._damaged(broker, path)
    return history


@each_change
def test_they_are_mended(world: World) -> None:
    history = damage_followers(world)
    world._live_again()
    assert len(history.damaged) == len(history.mended) == 2


@each_change
def test_it_is_missed_where_they_are_not(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_self: Repairs, _partition: Partition) -> str:
        return "it is never mended"

    monkeypatch.setattr(Repairs, "_waits_for", never)
    damage_followers(world)
    with pytest.raises(ViolationError, match=r"is not mended on b\d, b\d"):
        world._live_again()
