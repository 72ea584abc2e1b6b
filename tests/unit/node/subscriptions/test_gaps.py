"""The list of gaps: a file that cannot be read stops no broker, and is not overwritten."""

from __future__ import annotations

import errno
from pathlib import Path

from penstock.base.clock import Now
from penstock.base.config import StreamConfig
from penstock.base.ids import TimestampUs
from penstock.commitlog import Log, LogConfig, LogFolder
from penstock.messages import GapInfo, joined
from penstock.node.partition.partition_events import PartitionEvents
from penstock.node.step import Outbox
from penstock.node.subscriptions.gaps import GAPS_PATH, Gaps
from penstock.node.subscriptions.nats_listener import NatsListener
from penstock.vfs.faulty import FaultyVfs, FileFault, FileOperationKind
from penstock.vfs.memory import MemoryVfs
from penstock.vfs.real import RealVfs
from tests.unit.node.harness import START_US, Broker
from tests.unit.node.led import led, stream_state


def test_a_folder_in_place_of_the_list_is_moved_aside(tmp_path: Path) -> None:
    (tmp_path / GAPS_PATH / "notes").mkdir(parents=True)
    gaps = Gaps(RealVfs(tmp_path))
    note = gaps.load(last_sign_of_life_us=1, now_us=2)
    assert note == (
        f"cannot read {GAPS_PATH} (Is a directory): earlier gaps are not shown; it was moved to {GAPS_PATH}.unread-1"
    )
    gaps.save().run()
    assert (tmp_path / GAPS_PATH).read_bytes().count(b"\n") == 1
    assert (tmp_path / f"{GAPS_PATH}.unread-1" / "notes").is_dir()


def test_a_list_that_the_disk_cannot_read_is_kept_and_the_broker_starts() -> None:
    broker = Broker().start()
    broker.stop()
    content = broker.memory.open(GAPS_PATH).read_at(0, 10_000)
    broker.memory.open(f"{GAPS_PATH}.unread-1", create=True)
    broker.memory.sync_dir("")
    again = broker.crash()
    again.vfs.plan = lambda operation: (
        FileFault(errno.EIO) if operation.kind is FileOperationKind.READ and operation.path == GAPS_PATH else None
    )
    again.start()
    assert f"it was moved to {GAPS_PATH}.unread-2" in again.notices[0]
    assert again.memory.open(f"{GAPS_PATH}.unread-2").read_at(0, 10_000) == content


def test_a_list_that_can_be_neither_read_nor_moved_is_told_of() -> None:
    vfs = FaultyVfs(MemoryVfs())
    vfs.open(GAPS_PATH, create=True)
    vfs.plan = lambda operation: FileFault(errno.EACCES) if operation.path == GAPS_PATH else None
    note = Gaps(vfs).load(last_sign_of_life_us=0, now_us=2)
    assert note is not None
    assert note.endswith("new ones cannot be kept (Permission denied)")


def test_a_follower_tells_nothing_of_a_time_without_a_leader_once_another_one_leads() -> None:
    """As one that was suspended: it hears of the past, entry by entry."""
    vfs, outbox = MemoryVfs(), Outbox()
    listening = NatsListener(vfs, outbox, PartitionEvents())
    state = stream_state(4, StreamConfig(name="s", subject="s"))
    (key,) = state.partition_keys()
    partition = led(state, Log.open(LogFolder(vfs, "s", *key), LogConfig.of(state.config), now_us=START_US), vfs)
    listening.nobody(partition, Now(START_US + 60_000_000, 60_000_000))
    (gap,) = listening.gaps.of(partition.key, 0, with_broker=False, with_open=False)
    assert gap.end_us is None
    listening.led_elsewhere(partition, Now(START_US + 60_000_001, 60_000_001))
    assert listening.gaps.of(partition.key, 0, with_broker=False, with_open=False) == ()


def test_what_several_brokers_tell_of_one_time_is_one_gap() -> None:
    def gap(start_us: int, end_us: int | None, reason: str) -> GapInfo:
        end = None if end_us is None else TimestampUs(end_us)
        return GapInfo(start_us=TimestampUs(start_us), end_us=end, reason=reason)

    overlap = (gap(50, 70, "b"), gap(10, 60, "a"), gap(10, 20, "c"))
    told = (*overlap, gap(70, 80, "d"), gap(90, None, "e"), gap(95, 99, "f"))
    assert joined(told) == (gap(10, 70, "a"), gap(70, 80, "d"), gap(90, None, "e"))
    assert joined(()) == ()


def test_a_second_kill_makes_the_gap_of_the_first_no_shorter() -> None:
    broker = Broker().start()
    broker.create("s", "s")
    broker.publish("s", b"v", reply="r")
    broker.tick(100)
    killed_us = broker.clock.now.wall_us
    for _ in range(3):  # it registers each time, and NATS is away
        broker = broker.crash()
        broker.clock.advance_ms(10_000)
        broker.nats.disconnect()
        broker.start().tick(100)
    broker.nats_back()
    (gap,) = broker.stream("s").partitions[0].gaps
    assert gap.start_us <= killed_us
    assert gap.end_us == broker.clock.now.wall_us


def test_a_gap_in_which_the_calendar_was_set_back_is_told() -> None:
    broker = Broker().start()
    broker.create("s", "s")
    broker.tick(1_000)
    broker.nats_down()
    broker.clock.set_back_ms(60_000)
    broker.clock.advance_ms(500)
    broker.nats_back()
    (gap,) = broker.stream("s").partitions[0].gaps
    assert gap.end_us is not None
    assert gap.end_us - gap.start_us >= 500_000


def test_a_connection_that_is_lost_at_once_begins_another_gap_where_the_last_one_ended() -> None:
    gaps = Gaps(MemoryVfs())
    gaps.begin(1_000, "lost")
    gaps.end(5_000)
    gaps.begin(4_990, "lost again")  # the last question that was answered was asked before the gap had ended
    gaps.end(7_000)
    gaps.begin(6_000_000, "and again")
    assert [(gap.start_us, gap.end_us) for gap in gaps.since(0)] == [(1_000, 5_000), (5_000, 7_000), (6_000_000, None)]
