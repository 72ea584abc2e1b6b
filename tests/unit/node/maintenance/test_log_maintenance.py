"""What the disk is asked for beside appends, and in which order; and the end of a log."""

from __future__ import annotations

import errno

import pytest

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.commitlog import Log, LogConfig, LogFolder
from penstock.commitlog.files import checkpoint
from penstock.messages import AppendResponse
from penstock.node.api.partition_append import append
from penstock.node.maintenance.log_maintenance import LogMaintenance
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_events import PartitionEvents
from penstock.node.step import Step
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperationKind
from penstock.vfs.memory import Keep, MemoryVfs
from tests.unit.node.contexts import context_of
from tests.unit.node.harness import START_US, Broker, batch_of
from tests.unit.node.led import led, stream_state


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_killed_broker_leaves_no_flushed_row_that_its_checkpoint_does_not_name(durability: str) -> None:
    """A rotten byte in acked rows that no checkpoint named passed for a torn tail: all behind it was cut."""
    broker = Broker().start()
    broker.create("orders", durability=durability)
    (folder,) = broker.memory.list("streams")
    for number in range(1, 4):
        broker.publish("orders.a", b"x", reply=f"r{number}")
        if durability == "os":
            broker.tick(1_000)
        assert len(broker.acked()) == number
        found = checkpoint.read(broker.memory, f"streams/{folder}0").newest
        assert found is not None
        assert found.flushed_end == number


def test_a_sync_that_does_not_come_back_is_told_once_and_shown_until_it_does() -> None:
    broker = Broker().start()
    broker.create("orders")
    broker.create("flights")
    broker.syncs_hang = True
    broker.publish("orders.a", b"x", reply="r")
    broker.publish("flights.a", b"x", reply="s")
    until_us = broker.clock.elapsed_us + limits.FLUSH_STALL_MS * 1_000
    while broker.clock.elapsed_us < until_us:
        assert broker.stream("orders").partitions[0].state == "online"
        broker.tick((broker.node.next_wake_us - broker.clock.elapsed_us) / 1_000)
    assert broker.clock.elapsed_us == until_us
    assert {broker.stream(name).partitions[0].state for name in ("orders", "flights")} == {"impeded"}
    assert [notice for notice in broker.notices if "has not come back for 8 s" in notice] == broker.notices
    assert len(broker.notices) == 1
    assert broker.acked() == []
    broker.syncs_hang = False
    broker.turn()
    assert sorted(broker.acked()) == ["r", "s"]
    assert {broker.stream(name).partitions[0].state for name in ("orders", "flights")} == {"online"}
    assert len(broker.notices) == 2


def test_an_ack_does_not_wait_for_the_checkpoint() -> None:
    broker = Broker().start()
    broker.create("orders", durability="fsync")
    seen: list[int] = []
    broker.vfs.watcher = lambda one: seen.append(len(broker.acked())) if one.path.endswith("checkpoint") else None
    broker.publish("orders.a", b"x", reply="r")
    assert set(seen) == {1}


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_stop_leaves_the_syncing_of_each_log_to_the_disk_threads(durability: str) -> None:
    """10,000 of them, one after the other, took as long as a stop may take in all."""
    broker = Broker().start()
    broker.create("orders", durability=durability)
    broker.publish("orders.a", b"x", reply="r")
    for _ in range(2):
        broker.node.before_stop()
        broker.settle()
    synced: list[str] = []
    broker.vfs.watcher = lambda one: synced.append(one.path) if one.kind is FileOperationKind.SYNC else None
    broker.stop()
    assert [path for path in synced if path.startswith("streams/")] == []


def test_a_stop_leaves_a_log_whose_checkpoint_is_still_on_its_way_as_it_is() -> None:
    broker = Broker().start()
    broker.create("orders", durability="os")
    broker.publish("orders.a", b"x", reply="r")
    broker.node.before_stop()
    broker.settle()
    broker.disk_runs_at_once = False
    broker.node.before_stop()
    broker.turn()
    assert broker.disk
    broker.do(broker.node.stop(broker.clock.now))
    assert broker.crash(Keep.SYNCED).start().values("orders") == [b"x"]


def closed_with_an_append_on_its_way(vfs: FaultyVfs) -> tuple[Step, Partition]:
    """What the one hears who appended just before the end."""
    state = stream_state(2, StreamConfig(name="orders", subject="orders.>"))
    log = Log.open(LogFolder(vfs, "orders/0", 2, 0), LogConfig.of(state.config), now_us=START_US)
    partition = led(state, log, vfs)
    context = context_of(vfs)
    context.now, outbox = Now(START_US, 0), context.outbox
    upkeep = LogMaintenance(context, PartitionEvents())
    upkeep.lead(partition)
    append(partition, "c", batch_of([("orders.a", None, b"1", None)]), Now(START_US, 0), outbox.step)
    assert not outbox.step.replies
    upkeep.close(partition)
    return outbox.take(), partition


def test_a_written_append_is_answered_as_stored_once_it_is_synced() -> None:
    step, _ = closed_with_an_append_on_its_way(FaultyVfs(MemoryVfs()))
    (reply,) = step.replies
    assert isinstance(reply.response, AppendResponse)
    assert (reply.response.base_offset, reply.response.fsynced) == (0, True)


def test_a_written_append_whose_sync_fails_is_of_unknown_outcome() -> None:
    vfs = FaultyVfs(MemoryVfs())
    state = {"syncs": 0}
    vfs.plan = lambda one: FileFault(errno.EIO) if _is_last_sync(one.kind, one.path, state) else None
    step, _ = closed_with_an_append_on_its_way(vfs)
    (reply,) = step.replies
    assert isinstance(reply.response, RemoteError)
    assert reply.response.code == ErrorCode.STORAGE_FAILED
    assert "may or may not be stored" in reply.response.message


def _is_last_sync(kind: FileOperationKind, path: str, state: dict[str, int]) -> bool:
    if kind is FileOperationKind.SYNC and path.endswith(".arrows"):
        state["syncs"] += 1
    return state["syncs"] > 1


def test_a_replica_that_was_given_up_and_is_held_again_is_planned_beside_its_predecessor() -> None:
    """Both were due at the same time: the heap compared the two, and the broker ended with a TypeError."""
    vfs = MemoryVfs()
    state = stream_state(2, StreamConfig(name="orders", subject="orders.>"))
    log = Log.open(LogFolder(vfs, "orders/0", 2, 0), LogConfig.of(state.config), now_us=START_US)
    before, now = led(state, log, vfs), led(state, log, vfs)
    context = context_of(vfs)
    context.now = Now(START_US, 0)
    upkeep = LogMaintenance(context, PartitionEvents())
    upkeep.lead(before)
    append(before, "c", batch_of([("orders.a", None, b"1", None)]), Now(START_US, 0), context.outbox.step)
    for one in (before, now):
        upkeep.touch(one)
        upkeep.tick({now.key: now}, START_US)
    assert before.visit_us == now.visit_us
