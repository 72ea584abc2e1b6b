"""Drivers in a world where nothing goes wrong: they publish each batch once; and what may not be is found."""

from __future__ import annotations

import pytest

from penstock.base.errors import ErrorCode, RemoteError
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.checks.checks import PartitionHistory
from tests.extent import each_change
from tests.sim.models.clients import SHARED_SLOT, SLOTS
from tests.sim.models.publishing import Publishing, _Attempt, _Query
from tests.sim.plan.plan import Act, PlannedOperation, make_plan
from tests.sim.run.world import World

QUIET = make_plan(3, 1, SLOTS)._replace(faults=(), end_us=20_000_000)
RUNS = tuple(
    PlannedOperation(2_000_000 + 100_000 * n, Act.RUN, SHARED_SLOT, n * 2_654_435_761 % 2**32) for n in range(90)
)


@pytest.fixture(scope="module")
def world() -> World:
    world = World(QUIET._replace(operations=RUNS))
    result = world.run()
    assert result.error == ""
    return world


def drivers_of(world: World) -> Publishing:
    return world._clients.publishing


def history_of(world: World) -> PartitionHistory:
    return drivers_of(world)._history(0, staged=False)


def value(batch: int, attempt: int, piece: int, row: int) -> bytes:
    return b"s4.g1/r/0/1/%d/%d/%d/%d" % (batch, attempt, piece, row)


def test_without_operations_of_theirs_nothing_is_staged() -> None:
    world = World(QUIET._replace(operations=()))
    assert world.run().error == ""
    assert not [subject for subject, _ in world.checks.histories if subject.startswith("$PENSTOCK.staged")]


@each_change
def test_each_batch_is_published_once_whoever_else_attempts_it(world: World) -> None:
    counters = world._around.counters
    assert counters["published pieces"] > 20
    assert counters["pieces that were there"] > 20
    assert counters["killed drivers"] > 5
    assert counters["batches that were looked at"] > 10
    assert counters["times that staged rows went"] > 10
    assert "staged rows that were lost" not in counters


@pytest.mark.parametrize(
    ("rows", "mistake"),
    [
        ([(900, 1, 0, 0), (900, 1, 0, 1), (900, 2, 1, 0), (900, 2, 1, 1)], "several attempts"),
        ([(900, 1, 0, 0), (900, 1, 0, 1), (900, 1, 2, 0), (900, 1, 2, 1)], "do not follow each other"),
        ([(900, 1, 1, 0), (900, 1, 1, 1)], "do not follow each other"),
        ([(900, 1, 0, 0)], "not whole"),
    ],
)
def test_a_batch_that_is_not_as_it_should_be_is_found(
    world: World, rows: list[tuple[int, int, int, int]], mistake: str
) -> None:
    history = history_of(world)
    drivers_of(world).check()
    known = dict(history.known)
    history.known.update({10_000 + number: value(*row) for number, row in enumerate(rows)})
    with pytest.raises(ViolationError, match=mistake):
        drivers_of(world).check()
    history.known.clear()
    history.known.update(known)


def test_a_batch_that_was_answered_is_to_be_there(world: World) -> None:
    drivers_of(world)._complete.add((0, 1, 901))
    with pytest.raises(ViolationError, match="batch 901 of its query was published, and is not there"):
        drivers_of(world).check()
    drivers_of(world)._complete.discard((0, 1, 901))


def test_staged_rows_that_go_before_their_batch_is_published_are_found(world: World) -> None:
    drivers, broker = drivers_of(world), world.brokers[1]
    assert broker.node is not None
    look = inspector.partition(broker.node, drivers._stream_id, 0)
    assert look is not None
    end = look.log_end
    drivers._staged[0] = {end: (1, 900), end + 1: (1, 0)}
    look = look._replace(is_leader=True, log_start=end)
    history = drivers._history(0, staged=True)
    assert history.began is not None
    history.began(broker, look)
    history.began(broker, look._replace(is_leader=False, log_start=end + 5))
    with pytest.raises(ViolationError, match=f"staged at {end} is for batch 900; batch"):
        history.began(broker, look._replace(log_start=end + 1))
    drivers._staged[0] = {end + 1: (1, 0)}
    history.began(broker, look._replace(log_start=end + 2))


def test_nothing_is_said_to_be_lost_that_was_not(world: World) -> None:
    query = _Query(0)
    attempt = _Attempt(query, query.era, query.batch, 1, 1, 1, -1, twice=False)
    with pytest.raises(ViolationError, match="nothing was lost"):
        drivers_of(world)._lost(attempt, RemoteError(ErrorCode.STAGED_LOST, "gone"))
