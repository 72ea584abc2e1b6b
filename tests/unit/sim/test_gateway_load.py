"""The end of the model of the gateway's clients: which streams it waits for."""

from __future__ import annotations

from tests.sim.models.clients import SLOTS
from tests.sim.models.gateway_load import PLAIN
from tests.sim.plan.plan import Act, PlannedOperation, make_plan
from tests.sim.run.world import World

API = PlannedOperation(2_000_000, Act.API, 0, 0)  # after the end: it only has the clients made


def test_a_stream_that_is_made_anew_has_to_store_one_message_not_as_many_as_the_one_before() -> None:
    world = World(make_plan(1, 1, SLOTS)._replace(end_us=1_000_000, operations=(API,), faults=()))
    assert not world.run().error
    load = world._guests._gateway
    assert load is not None, "this plan has clients of the gateway"
    stream = load._streams[PLAIN]
    stream.is_made, stream.history.acks = True, 178
    left = load.waits_for(lambda _: False)
    assert "plain stores nothing" in left()
    load._recreate()
    load._create(PLAIN)
    again = load._streams[PLAIN]
    again.is_made = True
    assert "plain stores nothing" in left()
    again.history.acks = 1
    assert "plain stores nothing" not in left()
