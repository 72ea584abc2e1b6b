"""Streams to which nothing happens cost nothing: not at a start, not afterwards, not at a stop."""

from __future__ import annotations

import errno

import pytest

from penstock.base import limits
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind
from penstock.vfs.memory import Keep
from tests.extent import each_change
from tests.unit.node.harness import Broker

STREAMS = 30


def stopped() -> Broker:
    """A broker with some streams of some messages, after a clean stop."""
    broker = Broker().start()
    for number in range(STREAMS):
        broker.create(f"s{number}")
        broker.publish(f"s{number}.x", b"1", b"2")
    broker.tick(1_000)
    broker.stop()
    return broker


class Watch:
    """What is done to the files of streams."""

    def __init__(self, broker: Broker) -> None:
        self.done: list[tuple[FileOperationKind, str]] = []
        broker.vfs.plan = self._plan

    def _plan(self, operation: FileOperation) -> FileFault | None:
        if operation.path.startswith("streams/"):
            self.done.append((operation.kind, operation.path))
        return None

    def changes(self) -> list[tuple[FileOperationKind, str]]:
        return [
            one
            for one in self.done
            if one[0]
            in {FileOperationKind.WRITE, FileOperationKind.SYNC, FileOperationKind.SYNC_DIR, FileOperationKind.TRUNCATE}
        ]


def test_a_start_changes_nothing_and_idle_streams_touch_no_file() -> None:
    broker = stopped().crash(Keep.ALL)
    watch = Watch(broker)
    broker.start()
    broker.tick(1_000)
    assert not watch.changes()
    assert {info.partitions[0].state for info in broker.streams().values()} == {"online"}
    assert {info.partitions[0].leader_epoch for info in broker.streams().values()} == {2}
    watch.done.clear()
    for _ in range(10):
        broker.tick(1_000)
    assert not watch.done
    broker.stop()
    assert not watch.done


def test_one_stream_that_is_written_to_wakes_no_other() -> None:
    broker = stopped().crash(Keep.ALL).start()
    broker.tick(1_000)
    watch = Watch(broker)
    broker.publish("s7.x", b"3", reply="r")
    for _ in range(limits.LOG_IDLE_MS // 1_000 + 3):
        broker.tick(1_000)
    assert broker.acked() == ["r"]
    assert {path.split("/")[1].partition("-")[2] for _, path in watch.done} == {"s7"}
    assert broker.values("s7") == [b"1", b"2", b"3"]
    again = broker.crash(Keep.SYNCED).start()
    assert again.values("s7") == [b"1", b"2", b"3"]


def test_many_that_are_due_at_once_are_visited_a_few_at_a_time() -> None:
    broker = Broker().start()
    for number in range(limits.MAINTENANCE_VISITS_MAX + 6):
        broker.create(f"s{number}", max_age_ms=500)
    for number in range(limits.MAINTENANCE_VISITS_MAX + 6):
        broker.publish(f"s{number}.x", b"1", b"2", b"3")
    broker.clock.advance_ms(1_000)
    looked = []
    while broker.node.next_wake_us <= broker.clock.elapsed_us + limits.MAINTENANCE_TURN_MS * 1_000:
        broker.tick(limits.MAINTENANCE_TURN_MS)
        looked.append(sum(info.partitions[0].log_start == 3 for info in broker.streams().values()))
    assert looked[0] == limits.MAINTENANCE_VISITS_MAX
    assert looked[-1] == limits.MAINTENANCE_VISITS_MAX + 6


@each_change
def test_many_that_cannot_roll_on_a_full_disk_are_tried_once_a_second() -> None:
    """More than are visited in one turn: the turns never ended, which took a whole core."""
    broker = Broker().start()
    for number in range(limits.MAINTENANCE_VISITS_MAX + 6):
        broker.create(f"s{number}", segment_age_ms=1_000)
        broker.publish(f"s{number}.x", b"1")
    broker.vfs.plan = lambda one: (
        FileFault(errno.ENOSPC) if one.kind is FileOperationKind.WRITE and one.path.startswith("streams") else None
    )
    for _ in range(10):
        broker.tick(1_000)
    end_us, turns = broker.clock.elapsed_us + 5_000_000, 0
    while broker.clock.elapsed_us < end_us:
        broker.tick(max(1, (broker.node.next_wake_us - broker.clock.elapsed_us) / 1_000))
        turns += 1
    assert turns <= 3 * 5


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_burst_over_more_streams_than_may_have_files_open_is_stored_in_order(durability: str) -> None:
    """What found no place was refused with 'store failed', on a disk that was well."""
    broker = Broker(log_files_max=3).start()
    for number in range(10):
        broker.create(f"s{number}", durability=durability)
    broker.disk_runs_at_once = False
    names = [f"s{number}" for number in range(10)]
    for turn in (b"1", b"2"):
        broker.deliver([(f"{name}.x".encode(), f"{name}.{turn.decode()}".encode(), None, turn) for name in names])
    assert broker.node.in_flight_bytes > 0
    while len(broker.acks) < 20 and broker.node.next_wake_us < broker.clock.elapsed_us + 10_000_000:
        broker.tick(1)
        broker.settle()
    assert sorted(broker.acked()) == sorted(f"{name}.{turn}" for name in names for turn in "12")
    assert {name: broker.values(name) for name in names} == {name: [b"1", b"2"] for name in names}
    assert broker.clock.elapsed_us < 1_000_000, "the disk is asked to catch up at once"
    broker.tick(1_000)
    broker.settle()
    assert broker.node.in_flight_bytes == 0
    broker.stop()


def test_who_waits_for_a_file_at_the_end_is_told_to_try_again() -> None:
    broker = Broker(log_files_max=1).start()
    broker.create("one", durability="os")
    broker.create("two", durability="os")
    broker.deliver([(b"one.x", b"r1", None, b"1"), (b"two.x", b"r2", None, b"2")])
    assert broker.acked() == ["r1"]
    broker.do(broker.node.stop(broker.clock.now))
    assert [(ack.reply, ack.err_code) for ack in broker.acks] == [("r1", 0), ("r2", 10008)]


def test_a_stream_that_is_deleted_while_its_messages_wait_for_a_file_holds_up_nobody() -> None:
    broker = Broker(log_files_max=1).start()
    for name in ("one", "two", "three"):
        broker.create(name, durability="os")
    broker.deliver([(f"{name}.x".encode(), name.encode(), None, b"1") for name in ("one", "two", "three")])
    broker.delete("two")
    broker.tick(1)
    broker.tick(1_000)
    assert broker.acked() == ["one", "three"]
    assert broker.node.in_flight_bytes == 0
