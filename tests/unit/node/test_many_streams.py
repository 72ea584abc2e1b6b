"""Streams to which nothing happens cost nothing: not at a start, not afterwards, not at a stop."""

from __future__ import annotations

from penstock.base import limits
from penstock.vfs.faulty import Fault, Kind, Operation
from penstock.vfs.memory import Keep
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
        self.done: list[tuple[Kind, str]] = []
        broker.vfs.plan = self._plan

    def _plan(self, operation: Operation) -> Fault | None:
        if operation.path.startswith("streams/"):
            self.done.append((operation.kind, operation.path))
        return None

    def changes(self) -> list[tuple[Kind, str]]:
        return [one for one in self.done if one[0] in {Kind.WRITE, Kind.SYNC, Kind.SYNC_DIR, Kind.TRUNCATE}]


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
    for _ in range(limits.LOG_REST_MS // 1_000 + 3):
        broker.tick(1_000)
    assert broker.acked() == ["r"]
    assert {path.split("/")[1].partition("-")[2] for _, path in watch.done} == {"s7"}
    assert broker.values("s7") == [b"1", b"2", b"3"]
    again = broker.crash(Keep.SYNCED).start()
    assert again.values("s7") == [b"1", b"2", b"3"]


def test_many_that_are_due_at_once_are_visited_a_few_at_a_time() -> None:
    broker = Broker().start()
    for number in range(limits.UPKEEP_VISITS_MAX + 6):
        broker.create(f"s{number}", max_messages=1)
    for number in range(limits.UPKEEP_VISITS_MAX + 6):
        broker.publish(f"s{number}.x", b"1", b"2", b"3")
    broker.clock.advance_ms(1_000)
    looked = []
    while broker.node.next_wake_us <= broker.clock.elapsed_us + limits.UPKEEP_TURN_MS * 1_000:
        broker.tick(limits.UPKEEP_TURN_MS)
        looked.append(sum(info.partitions[0].log_start == 2 for info in broker.streams().values()))
    assert looked[0] == limits.UPKEEP_VISITS_MAX
    assert looked[-1] == limits.UPKEEP_VISITS_MAX + 6
