"""What is told of when nobody listened, beside when nobody did: brokers that stop, are killed and hang, all of them."""

from __future__ import annotations

import errno
import os
import struct
from random import Random

import pytest

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.hot.crc import crc32c
from penstock.messages import GapInfo
from penstock.messages.streams import joined
from penstock.node.replicas.listened_file import LISTENED_PATH, ListenedTimes, read_listened
from penstock.node.subscriptions.gaps import GAPS_PATH
from penstock.vfs.faulty import FileFault
from penstock.vfs.memory import Keep, MemoryVfs
from tests.extent import each_change, needs_time
from tests.unit.node.harness import Broker
from tests.unit.node.members import Brokers
from tests.unit.node.test_members import with_stream

STEP_MS = 50
_STEP_US = STEP_MS * 1_000
NOW_US = 1 << 60  # nothing is noted of later times
HEARD_LATER_US = 4 * _STEP_US  # two steps to see it; who leads next hears of it some steps after who led before
# A note comes once a second, of what an answer of a long poll said; a leader that loses the majority of the metadata
# listens for a session more, which nobody hears of.
KNOWN_WITHIN_MS = 2_500 + limits.SESSION_MS


def told_of(brokers: Brokers, stream: str) -> tuple[GapInfo, ...]:
    """By all brokers together, as clients put it."""
    found: list[GapInfo] = []
    for member in brokers.members.values():
        for partition in member.node._partitions.values():
            if partition.stream.name == stream:
                found += member.node._listener.gaps_of(partition)
    return joined(found)


class Watch:
    """Who is subscribed, looked at in each step."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.disks: dict[int, MemoryVfs] = {}
        self.is_hasty = False  # somebody was started, and had no time to hear of anybody before the next thing happened
        self.silent: list[tuple[int, int]] = []  # from and until when nobody was
        self._heard_us = brokers.clock.now.wall_us
        self._pass = brokers.run
        brokers.run = self.run  # type: ignore[method-assign]  # a stop lets time pass, too

    def run(self, ms: int) -> None:
        for _ in range(ms // STEP_MS):
            self._pass(STEP_MS)
            self.look()

    def look(self) -> None:
        now_us = self.brokers.clock.now.wall_us
        if any(member.nats.sids("s") for member in self.brokers._awake()):
            if now_us - self._heard_us > 2 * _STEP_US:
                self.silent.append((self._heard_us, now_us))
            self._heard_us = now_us

    def stop(self, broker_id: int) -> None:
        self.disks[broker_id] = self.brokers.stop(broker_id)
        self.look()

    def nats(self, broker_id: int, down_ms: int) -> None:
        """Its connection to NATS is lost for so long."""
        member = self.brokers[broker_id]
        member.nats_down()
        self.run(down_ms)
        member.nats_back()

    def hang(self, broker_id: int, for_ms: int) -> None:
        """It gets no turn for so long."""
        before = list(self.silent)
        self.brokers.hang(broker_id)
        self.run(for_ms)
        self.brokers.wake(broker_id)
        if self.brokers[broker_id].nats.sids("s"):  # it stores what has waited for it in the socket
            self.silent, self._heard_us = before, self.brokers.clock.now.wall_us

    def cut(self, broker_id: int, for_ms: int) -> None:
        """It reaches one of the others no more, for so long."""
        other = next(one for one in self.brokers.members if one != broker_id)
        self.brokers.cut(broker_id, other)
        self.run(for_ms)
        self.brokers.join(broker_id, other)

    def kill(self, broker_id: int) -> None:
        self.disks[broker_id] = self.brokers.kill(broker_id, Keep.ALL)

    def start(self, broker_id: int) -> None:
        self.brokers.start(broker_id, self.disks.pop(broker_id))

    @property
    def told(self) -> tuple[GapInfo, ...]:
        return told_of(self.brokers, "s")


def _common_us(silent: tuple[int, int], gap: GapInfo) -> int:
    assert gap.end_us is not None, f"it lasts: {gap}"
    return max(0, min(silent[1], gap.end_us) - max(silent[0], gap.start_us))


def check(watch: Watch) -> None:
    told = watch.told
    for start_us, end_us in watch.silent:
        told_us = sum(_common_us((start_us, end_us), gap) for gap in told)
        assert end_us - start_us - told_us <= HEARD_LATER_US, f"not told: {start_us} to {end_us}; told: {told}"
    for gap in told if not watch.is_hasty else ():
        assert gap.end_us is not None, gap
        inside = [both for silent in watch.silent if (both := _common_us(silent, gap))]
        over_ms = (gap.end_us - gap.start_us - sum(inside)) // 1_000
        assert over_ms <= KNOWN_WITHIN_MS * max(1, len(inside)), f"{over_ms} ms too long: {gap}; {watch.silent}"


def test_a_restart_of_all_tells_of_its_own_time_only() -> None:
    watch = Watch(with_stream())
    watch.run(20_000)  # idle: the last message is long ago
    for broker_id in (3, 2, 1):
        watch.stop(broker_id)
        if watch.brokers.members:
            watch.run(300)
    watch.brokers.clock.advance_ms(3_000)
    for broker_id in (3, 1, 2):
        watch.start(broker_id)
    watch.run(10_000)
    assert watch.silent
    check(watch)


def test_a_kill_of_an_idle_broker_is_no_long_gap() -> None:
    broker = Broker().start()
    broker.create("s", subject="s")
    for _ in range(600):
        broker.tick(1_000)
    killed_us = broker.clock.now.wall_us
    broker.clock.advance_ms(3_000)
    again = broker.crash(Keep.ALL).start()
    (partition,) = again.node._partitions.values()
    (gap,) = again.node._listener.gaps_of(partition)
    assert gap.end_us == again.clock.now.wall_us
    assert 0 <= killed_us - gap.start_us <= 1_000_000


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=needs_time) for seed in range(3, 200))])
def test_whatever_happens_to_brokers_their_gaps_are_those_that_there_were(seed: int) -> None:
    random = Random(seed)
    watch = Watch(with_stream())
    watch.run(5_000)
    if seed % 2:
        watch.brokers.publish("s", b"v")  # of a log that has nothing, leaders tell less
    for _ in range(random.randint(3, 12)):
        began_us = watch.brokers.clock.now.wall_us
        running = sorted(watch.brokers.members)
        stopped = sorted(watch.disks)
        what = random.choice(("stop", "kill", "start", "start", "nats", "hang", "cut", "run"))
        if what in ("stop", "kill") and running:
            getattr(watch, what)(random.choice(running))
        elif what == "start" and stopped:
            watch.start(random.choice(stopped))
        elif what in ("nats", "hang", "cut") and len(running) > (what == "cut"):
            getattr(watch, what)(random.choice(running), random.choice((200, 2_000, 8_000)))
        watch.run(random.choice((0, 100, 500, 3_000, 10_000)))
        watch.is_hasty |= what == "start" and watch.brokers.clock.now.wall_us - began_us < 2_000_000
    for broker_id in sorted(watch.disks):
        watch.start(broker_id)
    watch.run(15_000)
    check(watch)


def _noted() -> bytes:
    broker = Broker().start()
    broker.create("s", subject="s")
    broker.tick(1_000)
    assert read_listened(broker.memory, NOW_US).broker_us
    return bytes(broker.memory.open(LISTENED_PATH).read_at(0, 1_000))


def _with(content: bytes) -> MemoryVfs:
    vfs = MemoryVfs()
    vfs.open(LISTENED_PATH, create=True).write_at(0, content)
    return vfs


def test_a_file_that_was_not_written_whole_is_damaged_and_bytes_behind_it_are_none_of_it() -> None:
    content = _noted()
    for length in range(1, len(content)):
        with pytest.raises(CorruptionError, match="listened: at byte"):
            read_listened(_with(content[:length]), NOW_US)
    whole = read_listened(_with(content), NOW_US)
    assert read_listened(_with(content + b"of an earlier one"), NOW_US) == whole


@pytest.mark.parametrize("vfs", [MemoryVfs(), _with(b"")], ids=["missing", "empty"])
def test_without_a_file_there_is_nothing_to_tell(vfs: MemoryVfs) -> None:
    assert read_listened(vfs, NOW_US) == ListenedTimes()
    assert [one for one in Broker(vfs).start().notices if LISTENED_PATH in one] == []


_TORN = "It is overwritten in place without a sync, so a power loss may tear it; "
_CRC = crc32c(b"{")
_LENGTH_MAX = limits.LISTENED_BYTES_MAX
_LONGER = "gaps that began while this broker was down are reported longer"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"1234", "at byte 0: expected 8 bytes, found 4 bytes. "),
        (struct.pack("<II", 1, 1) + b"{", f"at byte 0: expected CRC-32C 00000001 of 1 bytes, found {_CRC:08x}. "),
        (struct.pack("<II", 1, 2**31), f"at byte 4: expected a length up to {_LENGTH_MAX}, found {2**31}. "),
        (bytes(64), "at byte 8: expected JSON with broker_us and until, found Input data was truncated. "),
    ],
)  # fmt: skip
def test_a_damaged_file_is_told_once_and_the_broker_starts(content: bytes, told: str) -> None:
    broker = Broker(_with(content)).start()
    assert [one for one in broker.notices if LISTENED_PATH in one] == [f"listened: {told}{_TORN}{_LONGER}"]
    broker.stop()
    again = broker.crash(Keep.ALL).start()
    assert [one for one in again.notices if LISTENED_PATH in one] == []


def test_a_file_that_the_disk_does_not_give_is_told() -> None:
    broker = Broker(_with(_noted()))
    broker.vfs.plan = lambda one: FileFault(errno.EIO) if one.path == LISTENED_PATH else None
    told = [one for one in broker.start().notices if LISTENED_PATH in one]
    assert told == [f"listened cannot be read: {os.strerror(errno.EIO)}; {_LONGER}"]


@each_change
@pytest.mark.parametrize("how", ["kill", "stop", "kill all"])
def test_a_stream_of_one_replica_in_a_cluster_has_the_gap_of_its_broker(how: str) -> None:
    brokers = with_stream()
    brokers.leader.create("v", subject="v", replicas=1)
    brokers.run(60_000)
    only = brokers.led("v").broker_id
    ended_us = brokers.clock.now.wall_us
    if how == "kill all":
        disks = {one: brokers.kill(one, Keep.ALL) for one in list(brokers.members)}
    else:
        disks = {only: brokers.kill(only, Keep.ALL) if how == "kill" else brokers.stop(only)}
        brokers.run(2_000)
    for one, disk in disks.items():
        brokers.start(one, disk)
    brokers.run(10_000)
    (gap,) = told_of(brokers, "v")
    assert ended_us - gap.start_us <= KNOWN_WITHIN_MS * 1_000


@each_change
def test_a_start_that_does_not_know_a_stream_yet_forgets_nothing_of_it() -> None:
    brokers = with_stream()
    brokers.run(60_000)
    killed_us = brokers.clock.now.wall_us
    disks = {one: brokers.kill(one, Keep.ALL) for one in list(brokers.members)}
    for one in list(disks):
        brokers.start(one, disks.pop(one))
        brokers.run(3_000)
        disks[one] = brokers.kill(one, Keep.ALL)
    for one, disk in disks.items():
        brokers.start(one, disk)
    brokers.run(10_000)
    (gap,) = told_of(brokers, "s")
    assert killed_us - gap.start_us <= KNOWN_WITHIN_MS * 1_000


def test_a_gap_of_its_own_that_no_disk_took_is_told_after_a_kill() -> None:
    broker = Broker().start()
    broker.create("s", subject="s")
    broker.tick(5_000)
    broker.vfs.plan = lambda one: FileFault(errno.ENOSPC) if one.path.startswith(GAPS_PATH) else None
    refused_us = broker.clock.now.wall_us
    broker.nats.forbid("s")
    broker.turn()
    for _ in range(60):
        broker.tick(1_000)
    again = broker.crash(Keep.ALL)
    again.nats.forbidden.clear()
    again.start()
    again.tick(1_000)
    (partition,) = again.node._partitions.values()
    (gap, *_) = again.node._listener.gaps_of(partition)
    assert gap.start_us <= refused_us


def test_a_note_of_a_calendar_that_was_ahead_says_nothing() -> None:
    broker = Broker().start()
    broker.create("s", subject="s")
    broker.tick(60_000)
    broker.clock.set_back_ms(-3_600_000)
    for _ in range(5):
        broker.tick(1_000)
    broker.clock.advance_ms(600_000)
    broker.clock.set_back_ms(3_600_000)
    again = broker.crash(Keep.ALL).start()
    again.tick(1_000)
    (partition,) = again.node._partitions.values()
    assert sum((gap.end_us or 0) - gap.start_us for gap in again.node._listener.gaps_of(partition)) >= 600_000_000


@each_change
def test_who_leads_again_in_a_session_that_lasts_tells_its_followers_where_it_is() -> None:
    brokers = with_stream()
    brokers.publish("s", b"x")
    brokers.run(3_000)
    first = brokers.led("s").broker_id
    led: list[int] = []
    while first not in led:
        now = brokers.led("s").broker_id
        brokers[now].nats_down()
        brokers.run(5_000)
        brokers[now].nats_back()
        brokers.run(2_000)
        led.append(brokers.led("s").broker_id)
        assert len(led) < 10
    brokers.run(20_000)
    for member in brokers.members.values():
        for partition in member.node._partitions.values():
            if partition.following is not None:
                as_of_us = partition.following.freshness.as_of_us
                assert as_of_us is not None
                assert brokers.clock.now.elapsed_us - as_of_us < 2_000_000
    killed_us = brokers.clock.now.wall_us
    brokers.kill(first)
    brokers.run(10_000)
    gap = told_of(brokers, "s")[-1]
    assert killed_us - gap.start_us <= KNOWN_WITHIN_MS * 1_000


@each_change
def test_a_leader_that_only_the_metadata_leader_does_not_reach_tells_no_gap_of_others() -> None:
    brokers = with_stream()
    while brokers.led("s") is brokers.leader:
        brokers.led("s").nats_down()
        brokers.run(5_000)
    for member in brokers.members.values():
        if not member.nats.is_up:
            member.nats_back()
    brokers.run(2_000)
    led, leader = brokers.led("s"), brokers.leader
    cut_us = brokers.clock.now.wall_us
    brokers.cut(led.broker_id, leader.broker_id)
    brokers.run(60_000)
    brokers.join(led.broker_id, leader.broker_id)
    brokers.run(5_000)
    later = [gap for gap in told_of(brokers, "s") if gap.start_us >= cut_us - 1_000_000]
    assert sum((gap.end_us or 0) - gap.start_us for gap in later) <= (KNOWN_WITHIN_MS + limits.SESSION_MS) * 1_000


def test_nats_that_did_not_confirm_the_end_was_there_as_long_as_it_was_known_to_be() -> None:
    broker = Broker().start()
    broker.create("s", subject="s")
    silent_us = broker.clock.now.wall_us
    broker.clock.advance_ms(7_000)
    broker.node.drain(broker.clock.now)
    broker.node.not_drained(silent_us)
    broker.stop()
    again = broker.crash(Keep.ALL).start()
    (partition,) = again.node._partitions.values()
    assert again.node._listener.gaps_of(partition)[0].start_us == silent_us
