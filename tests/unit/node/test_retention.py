"""Retention as the node runs it: looked up on the disk, acted on by the owner, removed on the disk."""

from __future__ import annotations

import errno

from penstock.base import limits
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind, nth
from tests.extent import each_change
from tests.unit.node.harness import Broker

FOLDER = "streams/00000004-orders/0"


def with_old_messages(**settings: int) -> Broker:
    broker = Broker(**settings).start()
    broker.create("orders", segment_bytes=4096, max_messages=3)
    for number in range(12):
        broker.publish("orders.a", b"%d" % number + b"." * 900, reply="r")
    return broker


def segments(broker: Broker) -> int:
    return sum(path.startswith(FOLDER) and path.endswith(".arrows") for path in broker.memory.files())


def test_messages_over_the_limit_go_with_the_tick() -> None:
    broker = with_old_messages()
    before = segments(broker)
    broker.tick(2_000)
    assert broker.stream("orders").partitions[0].log_start == 9
    assert segments(broker) < before
    assert broker.notices == []


def test_a_stream_that_is_deleted_while_retention_looks_up_takes_no_harm() -> None:
    broker = with_old_messages()
    broker.disk_runs_at_once = False
    broker.tick(2_000)
    lookup = broker.execute()
    broker.delete("orders")
    broker.settle()
    broker.complete(lookup)
    broker.settle()
    assert broker.streams() == {}
    assert not any(path.startswith("streams/") for path in broker.memory.files())
    assert broker.notices == []


def test_a_removal_that_fails_is_told_once_and_tried_again() -> None:
    broker = with_old_messages()
    before = segments(broker)
    broker.vfs.plan = nth(0, FileFault(errno.EIO), FileOperationKind.REMOVE)
    broker.tick(2_000)
    assert segments(broker) == before
    assert len(broker.notices) == 1
    assert "cannot remove old segments" in broker.notices[0]
    broker.tick(2_000)
    assert segments(broker) < before
    assert len(broker.notices) == 1


def removals(broker: Broker, ms: int, fault: FileFault | None) -> int:
    """How often the first segment was to be removed while so much time has passed."""
    count = 0

    def plan(operation: FileOperation) -> FileFault | None:
        nonlocal count
        if operation.kind is not FileOperationKind.REMOVE or not operation.path.endswith(f"{0:020d}.arrows"):
            return None
        count += 1
        return fault

    broker.vfs.plan = plan
    for _ in range(0, ms, 100):
        broker.tick(100)
    return count


@each_change
def test_a_removal_that_goes_on_failing_is_tried_less_and_less_often_and_done_at_last() -> None:
    broker = with_old_messages(cleaner_bytes_per_s=0)
    before = segments(broker)
    assert 4 <= removals(broker, 30_000, FileFault(errno.EIO)) <= 6
    assert removals(broker, 300_000, FileFault(errno.EIO)) <= 5
    assert segments(broker) == before
    assert removals(broker, 600_000, None) == 1
    assert segments(broker) < before
    assert len(broker.notices) == 1


def test_retention_goes_on_after_a_lookup_that_came_back_while_the_log_was_to_be_cut() -> None:
    broker = with_old_messages()
    (partition,) = broker.node._partitions.values()
    before = segments(broker)
    broker.disk_runs_at_once = False
    broker.tick(2_000)
    number = next(n for n, work in enumerate(broker.disk) if "Retention" in repr(work.run))
    broker.node._replicas.log_maintenance.cut(partition, lambda: None)
    broker.run_disk(number)
    broker.settle()
    assert segments(broker) == before
    broker.node._replicas.log_maintenance.cut_done(partition)  # nothing was to be cut, after all
    broker.disk_runs_at_once = True
    for _ in range(limits.RETENTION_INTERVAL_MS // 1_000 + 2):
        broker.tick(1_000)
    assert segments(broker) < before
