"""What nobody reads is looked through all the same: damage is found, told, and mended."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.commitlog import LogState
from penstock.commitlog.verify.verifying import verify_log
from tests.damage import flip
from tests.extent import each_change
from tests.unit.node.harness import Broker
from tests.unit.node.members import Brokers
from tests.unit.node.replicas.test_repairs import ROWS, damage, grown, others, replica, values

SEALED_BYTES = 1 << 20
FIRST_MS = limits.SCRUB_FIRST_MS
MINUTE_MS = 60_000
DAY_MS = limits.SCRUB_INTERVAL_MS_DEFAULT


def filled(messages: int = 8, **settings: int) -> Broker:
    """A broker alone, with a stream of several segments on its disk."""
    broker = Broker(**settings).start()
    broker.create("s", subject="s", segment_bytes=SEALED_BYTES)
    for _ in range(messages):
        broker.publish("s", b"." * (SEALED_BYTES // 3))
    broker.tick(1_000)
    return broker


def scrubbed(broker: Broker) -> int:
    return int(broker.node._budget.counters["scrubbed_bytes"])


def passes(broker: Broker) -> int:
    return int(broker.node._budget.counters["scrub_passes"])


def wait(broker: Broker, ms: int, step_ms: int = 50) -> None:
    for _ in range(ms // step_ms):
        broker.tick(step_ms)


def run_coarsely(brokers: Brokers, ms: int) -> None:
    """As `brokers.run`, in ticks of a second."""
    for _ in range(ms // 1_000):
        brokers.clock.advance_ms(950)
        brokers.run(50)


@each_change
def test_everything_is_read_once_in_the_interval() -> None:
    broker = filled()
    size_bytes = broker.node._replicas.partitions[next(iter(broker.node._partitions))].log.size_bytes
    wait(broker, FIRST_MS + 10_000, 1_000)
    assert passes(broker) == 1
    once = scrubbed(broker)
    assert 0.9 * size_bytes < once <= 1.5 * size_bytes  # a batch may be read from both sides of where it began
    wait(broker, DAY_MS // 2, 60_000)
    assert (passes(broker), scrubbed(broker)) == (1, once)
    wait(broker, DAY_MS // 2 + 60_000, 60_000)
    wait(broker, 10_000)
    assert passes(broker) == 2


def test_no_faster_than_the_rate() -> None:
    broker = filled(scrub_bytes_per_s=SEALED_BYTES // 4, scrub_interval_ms=1_000)
    wait(broker, 1_000)  # it has begun
    before = scrubbed(broker)
    wait(broker, 4_000)
    assert SEALED_BYTES // 3 <= scrubbed(broker) - before <= 1.7 * SEALED_BYTES


def test_turned_off_it_reads_nothing() -> None:
    broker = filled(scrub_bytes_per_s=0)
    wait(broker, DAY_MS + FIRST_MS, 60_000)
    assert (passes(broker), scrubbed(broker)) == (0, 0)


def test_what_is_damaged_on_the_only_replica_is_found_and_told() -> None:
    broker = filled()
    path = damage(broker.memory, 0)
    wait(broker, FIRST_MS + 10_000, 1_000)
    (partition,) = broker.node._partitions.values()
    assert partition.log.state is LogState.READ_ONLY
    (found,) = partition.log.damage
    assert found.file == path
    assert partition.counters["scrubbed_damage"] == 1
    assert any("read-only" in notice and path in notice for notice in broker.notices)


@pytest.mark.parametrize("name", ["index", "checkpoint", "lineage"])
def test_what_is_wrong_beside_the_segments_is_found_told_and_written_anew(name: str) -> None:
    broker = filled()
    (path, *_) = [path for path in broker.memory.files() if path.endswith(name) and "-s/" in path]
    flip(broker.memory, path, 17)
    wait(broker, FIRST_MS + 10_000, 1_000)
    (partition,) = broker.node._partitions.values()
    assert partition.log.state is LogState.WRITABLE
    assert partition.counters["scrubbed_damage"] == 1
    assert [notice for notice in broker.notices if f"{path} was wrong at byte" in notice]
    assert verify_log(broker.memory, path.rpartition("/")[0], is_made=True).is_sound


def test_a_log_without_a_message_is_looked_at_too() -> None:
    broker = filled(messages=0)
    (path,) = [path for path in broker.memory.files() if path.endswith("checkpoint") and "-s/" in path]
    flip(broker.memory, path, 100)
    wait(broker, FIRST_MS + 10_000, 1_000)
    assert verify_log(broker.memory, path.rpartition("/")[0], is_made=True).is_sound
    assert passes(broker) == 1


def test_a_stream_that_goes_meanwhile_ends_nothing() -> None:
    broker = filled(scrub_bytes_per_s=SEALED_BYTES // 4, scrub_interval_ms=1_000)
    wait(broker, 2_000)
    broker.delete("s")
    wait(broker, 10_000)
    assert not broker.memory.list("streams")
    broker.create("t", subject="t")
    broker.publish("t", b"one")
    wait(broker, 10_000)
    assert passes(broker) > 1


@each_change
def test_damage_that_nobody_came_upon_is_mended() -> None:
    brokers = grown(scrub_interval_ms=MINUTE_MS)
    for number, member in enumerate(brokers.members.values()):
        damage(member.memory, number)  # each in another place, where a pass may just have been
    run_coarsely(brokers, 3 * MINUTE_MS)
    for member in brokers.members.values():
        assert replica(member).log.state is LogState.WRITABLE, member.notices
        assert replica(member).counters["repaired_ranges"] == 1
        assert values(member) == tuple(range(ROWS))
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]


@each_change
def test_a_log_that_was_mended_is_looked_through_at_once() -> None:
    """It has damage in another segment, which nobody has come upon; the next pass would come to it in a day."""
    brokers = grown()
    follower = others(brokers, brokers.led("s"))[0]
    run_coarsely(brokers, FIRST_MS + 30_000)
    assert all(member.node._budget.counters["scrub_passes"] == 1 for member in brokers.members.values())
    damage(follower.memory, 0)
    damage(follower.memory, 1)
    view = replica(follower).view()
    with pytest.raises(RemoteError, match="damaged"):
        list(view.batches(view.log_start, ROWS))  # as far as the first one
    brokers.run(60_000)
    assert replica(follower).counters["repaired_ranges"] == 2
    assert values(follower) == tuple(range(ROWS))
    assert follower.node._budget.counters["scrub_passes"] == 1


def test_a_pass_over_many_small_logs_leaves_room_between_them() -> None:
    broker = Broker().start()
    for number in range(20):
        broker.create(f"s{number}", subject=f"s{number}")
        broker.publish(f"s{number}", b".")
    broker.tick(1_000)
    scrubber = broker.node._replicas.scrubber
    assert scrubber.next_deadline_us is not None
    broker.tick((scrubber.next_deadline_us - broker.clock.now.elapsed_us) // 1_000 + 1)  # the pass begins
    looks = 0
    while passes(broker) == 0:
        assert scrubber.next_deadline_us > broker.clock.now.elapsed_us
        broker.tick(limits.SCRUB_PAUSE_MS)
        looks += 1
    assert looks >= 20
