"""What is looked up in a node: what follows from it is decided elsewhere."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from penstock.testing.simulation import inspector
from tests.sim.models.clients import SLOTS
from tests.sim.plan.plan import make_plan
from tests.sim.run.world import World


@pytest.mark.parametrize(
    ("eligible", "unsure", "is_awaited"),
    [((), (), True), ((1,), (), False), ((), (1,), False)],
    ids=["nobody else counts", "another one is eligible", "another one is unsure"],
)
def test_a_disk_is_awaited_where_nobody_else_counts(
    eligible: tuple[int, ...], unsure: tuple[int, ...], is_awaited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(make_plan(2, 3, SLOTS)._replace(operations=(), faults=(), end_us=1_000_000))
    assert world.run().error == ""
    node = world.brokers[2].node
    assert node is not None
    assert list(inspector.awaited(node)) == []
    quorum = node._cluster.quorum
    stream = next(one for one in quorum.image.streams.values() if one.name == "s0")
    partition = replace(
        stream.partitions[0], isr=(3,), eligible=eligible, unsure=unsure, leader=None, awaited_data_dir_id="gone"
    )
    streams = {stream.stream_id: replace(stream, partitions=(partition,))}
    monkeypatch.setattr(node._context, "image", dataclasses.replace(quorum.image, streams=streams))
    assert list(inspector.awaited(node)) == ([(stream.stream_id, 0, "gone")] if is_awaited else [])
