"""Streams whose messages find their partitions by themselves, in worlds where nothing goes wrong: all of it is used."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.extent import each_change
from tests.sim.models.clients import SLOTS, SPLIT_SLOT
from tests.sim.models.streams import PARTITIONS, WAYS
from tests.sim.plan.plan import Act, PlannedOperation, make_plan
from tests.sim.run import world as worlds
from tests.sim.run.world import World

SUBJECT = f"s{SPLIT_SLOT}.g1.>"
QUIET = make_plan(2, 1, SLOTS)._replace(operations=(), faults=(), end_us=8_000_000)
CHANCE = Random(1)
PUBLISHED = tuple(
    PlannedOperation(1_000_000 + 10_000 * n, Act.PUBLISH, SPLIT_SLOT, CHANCE.getrandbits(32)) for n in range(200)
)
APPENDED = tuple(PlannedOperation(4_000_000 + 10_000 * n, Act.APPEND, SPLIT_SLOT, n) for n in range(30))


def ran(way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(worlds, "WAYS", (way,))
    world = World(QUIET._replace(operations=PUBLISHED + APPENDED))
    result = world.run()
    assert result.error == ""
    assert result.counters.get("refused messages", 0) == 0
    assert result.counters["appends"] > 0
    return world


@each_change
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way["partition_by"])
def test_every_partition_gets_messages(way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    world = ran(way, monkeypatch)
    acks = [world.checks.of(SUBJECT, partition).acks for partition in range(PARTITIONS)]
    assert min(acks) > 20
    split = world.checks.of(SUBJECT, 0).split
    assert split is not None
    assert all(world.checks.of(SUBJECT, partition).split is split for partition in range(PARTITIONS))
    if way["partition_by"] != "group":
        assert max(len(line) for line in split._lines.values()) > 5


def test_without_operations_of_its_own_there_is_no_such_stream() -> None:
    world = World(QUIET)
    assert world.run().error == ""
    assert (SUBJECT, 0) not in world.checks.histories


@each_change
@pytest.mark.parametrize("way", [WAYS[0], WAYS[2]], ids=lambda way: way["partition_by"])
def test_some_messages_have_no_key(way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    world = ran(way, monkeypatch)
    keyed = [name for name in world.checks.sent if name in world.checks.keyed]
    keyless = [name for name, subject in world.checks.sent.items() if subject == SUBJECT and name not in keyed]
    assert len(keyed) > len(keyless) > 5
