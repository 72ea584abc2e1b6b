"""The stream that is compacted, in a world where nothing goes wrong: it is compacted, and what may not go is missed."""

from __future__ import annotations

import pytest

from penstock.base.errors import CorruptionError
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import SimBroker
from penstock.testing.simulation.checks.agreement import Agreement
from penstock.testing.simulation.checks.checks import PartitionHistory
from penstock.testing.simulation.checks.compacted import Compacted, CompactedRow
from tests.extent import each_change
from tests.sim.models.clients import KEYED_SLOT, SLOTS
from tests.sim.plan.plan import Act, PlannedOperation, make_plan
from tests.sim.run.world import World

SUBJECT = f"s{KEYED_SLOT}.g1.>"
QUIET = make_plan(2, 1, SLOTS)._replace(operations=(), faults=(), end_us=1_000_000)
KEYED = tuple(PlannedOperation(1_000_000 + 100_000 * n, Act.PUBLISH, KEYED_SLOT, 7 * n) for n in range(120))
READ = (PlannedOperation(90_000_000, Act.FETCH, KEYED_SLOT, 8), PlannedOperation(90_500_000, Act.GET, KEYED_SLOT, 0))


def ran() -> World:
    world = World(QUIET._replace(operations=KEYED + READ, end_us=91_000_000))
    result = world.run()
    assert result.error == ""
    assert result.counters["rows that compaction took"] > 100
    assert result.counters["tombstones that went"] > 0
    return world


@pytest.fixture(scope="module")
def world() -> World:
    return ran()


def seen(world: World) -> tuple[SimBroker, inspector.PartitionLook, PartitionHistory]:
    """The broker, what it has of the stream; and a history of it in which nothing is known yet."""
    broker = world.brokers[1]
    assert broker.node is not None
    look = next(one for one in inspector.partitions(broker.node) if one.subject == SUBJECT)
    config = world.checks.of(SUBJECT, 0).config
    return broker, look, PartitionHistory(config, 0, compacted=Compacted(config.tombstone_retention_ms * 1_000))


def rows(broker: SimBroker, look: inspector.PartitionLook) -> dict[int, CompactedRow]:
    found: dict[int, CompactedRow] = {}
    assert broker.node is not None
    inspector.batches(broker.node, look, look.log_start, look.committed_end, found)
    return found


def test_without_operations_of_its_own_there_is_no_such_stream() -> None:
    world = World(QUIET)
    assert world.run().error == ""
    assert (SUBJECT, 0) not in world.checks.histories


@each_change
def test_what_is_left_is_the_last_of_each_key_and_what_has_none(world: World) -> None:
    broker, look, _ = seen(world)
    there = rows(broker, look)
    keys = [row.key for row in there.values() if row.key is not None]
    assert None in {row.key for row in there.values()}
    assert len(set(keys)) < len(keys) < look.committed_end // 2  # the newest part stays as it is
    assert broker.node is not None
    assert inspector.written_anew(broker.node, look)


def test_what_may_not_go_is_missed(world: World) -> None:
    broker, look, history = seen(world)
    there = rows(broker, look)
    agreement = Agreement(world.brokers)
    agreement.compacted(history, broker, look)
    missing = next(offset for offset in range(look.log_start, look.committed_end) if offset not in there)
    assert history.compacted is not None
    history.compacted.know(missing, CompactedRow(None, is_tombstone=False))
    agreement.compacted(history, broker, look)  # nothing has changed in it
    history.compacted.replica(1, 1).files = ()
    with pytest.raises(ViolationError, match=f"on b1: {missing} has no key, and is gone"):
        agreement.compacted(history, broker, look)
    history.is_damaged = True
    agreement.compacted(history, broker, look)


def test_a_batch_that_reaches_beyond_what_is_committed_is_looked_at_later(world: World) -> None:
    """So it is after a start that knows less to be committed than was merged."""
    broker, look, history = seen(world)
    assert broker.node is not None
    batches = inspector.batches(broker.node, look, look.log_start, look.committed_end)
    header = next(header for header, _ in batches if header.end_offset - header.base_offset > 1)
    agreement = Agreement(world.brokers)
    agreement.compacted(history, broker, look)
    assert history.compacted is not None
    replica = history.compacted.replica(1, 1)
    replica.begin(9, look.log_end)
    replica.run = broker.run
    agreement.compacted(history, broker, look._replace(committed_end=header.base_offset + 1))
    assert replica.passed == header.base_offset
    agreement.compacted(history, broker, look)
    assert replica.passed == look.committed_end


@each_change
def test_a_broker_that_cannot_be_read_is_looked_at_anew() -> None:
    world = ran()
    broker, look, history = seen(world)
    agreement = Agreement(world.brokers)
    agreement.compacted(history, broker, look)
    assert history.compacted is not None
    replica = history.compacted.replica(1, 1)
    assert (replica.is_blind, replica.passed) == (False, look.committed_end)
    assert broker.node is not None
    path = inspector.written_anew(broker.node, look)[0]
    file = broker.disk.memory.open(path)
    file.write_at(file.size() - 8, b"\xff" * 8)
    file.close()
    replica.files = ()
    with pytest.raises(ViolationError, match="damage that nobody made"):
        agreement.compacted(history, broker, look)
    history.damaged.add((1, broker.disk.number))
    agreement.compacted(history, broker, look)
    assert replica.is_blind


@each_change
@pytest.mark.parametrize(
    "kept", [0, 165, -1], ids=["all is gone", "nothing of its batches is left", "a byte is missing"]
)
def test_a_segment_that_was_cut_short_cannot_be_read(kept: int) -> None:
    """Where nothing is left of a range there is nothing that could fail its check either."""
    world = ran()
    broker, look, _ = seen(world)
    directory = f"streams/{look.stream_id:08}-"
    first = min(one for one in broker.disk.memory.files() if one.startswith(directory) and one.endswith(".arrows"))
    file = broker.disk.memory.open(first)
    file.truncate(kept % file.size() if kept else 0)
    file.close()
    with pytest.raises(CorruptionError, match="bytes"):
        rows(broker, look)
    assert broker.node is not None
    with pytest.raises(CorruptionError):
        list(inspector.raw_batches(broker.node, look, look.log_start, look.committed_end))
