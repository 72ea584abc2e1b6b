"""What heartbeats tell of logs while the longest is looked for."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from penstock.base.companion_kinds import CompanionKind
from penstock.base.config import StreamConfig
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, PartitionKey, StreamId
from penstock.commitlog import Log, LogConfig, LogFolder
from penstock.messages import LogEnd
from penstock.metadata.commands import ReplicaEnd
from penstock.metadata.companions import companion_of, consumers_key
from penstock.metadata.effects.streams import created_config
from penstock.metadata.image import PartitionState, StreamState
from penstock.node.partition.in_flight import InFlightBudget
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_events import PartitionEvents
from penstock.node.replicas.log_end_reports import LogEndReports, recovered_text
from penstock.vfs.memory import MemoryVfs
from tests.extent import each_change
from tests.logs import append
from tests.unit.node.contexts import context_of
from tests.unit.node.harness import START_US
from tests.unit.node.test_members import with_stream

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
LIVE = {ONE, TWO}
ENDED = PartitionState((ONE, TWO), (ONE,), (), None, LeaderEpoch(3), 7, unsure=(ONE,))


class Told:
    """Broker 1 holds so many partitions that nobody leads, and tells of two with one heartbeat."""

    def __init__(self, count: int) -> None:
        self.context = context_of()
        self.partitions: dict[PartitionKey, Partition] = {}
        self._hurries, self.events = 0, PartitionEvents()
        self.log_ends = LogEndReports(self.context, self.partitions, self.events, heartbeat_max=2)
        vfs = MemoryVfs()
        for number in range(1, count + 1):
            config = created_config(StreamConfig(name=f"s{number}", subject=f"s{number}"), 2)
            state = StreamState(StreamId(number), config, START_US, (ENDED,))
            self.context.image = self.context.image.with_stream(state)
            (key,) = state.partition_keys()
            log = Log.open(LogFolder(vfs, f"s{number}", *key), LogConfig.of(config), now_us=START_US)
            self.partitions[key] = Partition(state, key, log, vfs, InFlightBudget(10**9))

    @property
    def hurries(self) -> int:
        """How often a heartbeat was wanted at once."""
        self._hurries += self.events.is_heartbeat_due
        self.events.is_heartbeat_due = False
        return self._hurries

    def nobody_leads(self) -> None:
        for partition in self.partitions.values():
            self.log_ends.nobody_leads(partition, LIVE)

    def told(self, *failed: PartitionKey) -> list[int]:
        """Of which streams the next heartbeat tells."""
        return [one.stream_id for one in self.log_ends.take(LIVE, failed)]

    def led(self, stream_id: int) -> None:
        state = self.context.image.streams[StreamId(stream_id)]
        led = msgspec.structs.replace(ENDED, leader=TWO)
        state = msgspec.structs.replace(state, partitions=(led,))
        self.context.image = replace(
            self.context.image, streams=self.context.image.streams.with_item(state.stream_id, state)
        )


def test_what_does_not_fit_goes_with_the_next_heartbeat_at_once_and_then_all_in_turn() -> None:
    told = Told(5)
    told.nobody_leads()
    assert told.hurries == 1
    assert (told.told(), told.hurries) == ([1, 2], 2)
    assert (told.told(), told.hurries) == ([3, 4], 3)
    assert (told.told(), told.hurries) == ([5, 1], 3)
    assert (told.told(), told.hurries) == ([2, 3], 3)


def test_what_somebody_leads_is_told_no_more() -> None:
    told = Told(3)
    told.nobody_leads()
    told.led(1)
    assert told.told() == [2]
    told.led(2)
    del told.partitions[PartitionKey(StreamId(3), PartitionId(0))]
    assert told.told() == []
    assert told.told() == []


def test_nothing_is_told_while_one_is_away_that_may_have_all() -> None:
    told = Told(1)
    (partition,) = told.partitions.values()
    told.log_ends.nobody_leads(partition, {TWO})
    assert (told.told(), told.hurries) == ([], 0)


def test_a_log_that_cannot_be_opened_or_written_has_failed() -> None:
    told = Told(2)
    first, second = told.partitions
    log = told.partitions[second].log
    log._fence("its disk is gone")
    del told.partitions[first]
    told.nobody_leads()
    failed = {LogEnd(*key, LeaderEpoch(3), LeaderEpoch(0), Offset(0), has_failed=True) for key in (first, second)}
    assert set(told.log_ends.take(LIVE, [first])) == failed


def test_of_a_failed_log_its_end_is_told_if_it_is_known() -> None:
    told = Told(2)
    first, second = (partition.log for partition in told.partitions.values())
    for log in (first, second):
        log.start_epoch(2)
        append(log)
    first._fence("its disk is gone")
    second.damage_found(second.view().segments[0].path, 400, "flipped")
    told.nobody_leads()
    assert [(one.last_epoch, one.log_end, one.has_failed) for one in told.log_ends.take(LIVE, [])] == [
        (2, 1, True),
        (0, 0, True),
    ]


def test_the_end_of_the_consumers_is_told_once_their_log_is_open_and_one_that_cannot_be_opened_holds_nothing_up() -> (
    None
):
    """Told as empty while it is being opened, it would let a replica lead that has less of it."""
    told = Told(1)
    ((key, partition),) = told.partitions.items()
    state = msgspec.structs.replace(partition.stream, has_consumers=True)
    told.context.image = told.context.image.with_changed(state)
    partition.reconfigure(state, 9)
    told.nobody_leads()
    assert told.told() == [], "it is being opened"
    (one,) = told.log_ends.take(LIVE, [], [consumers_key(key)])
    assert (one.consumers_epoch, one.consumers_end, one.has_failed) == (0, 0, False)
    of_consumers = companion_of(state, CompanionKind.CONSUMERS)
    folder = LogFolder(partition.vfs, "consumers", *consumers_key(key))
    log = Log.open(folder, LogConfig.of(of_consumers.config), now_us=START_US)
    log.start_epoch(2)
    append(log)
    there = Partition(of_consumers, consumers_key(key), log, partition.vfs, InFlightBudget(10**9))
    told.partitions[consumers_key(key)] = there
    (one,) = told.log_ends.take(LIVE, [])
    assert (one.log_end, one.consumers_epoch, one.consumers_end, one.has_failed) == (0, 2, 1, False)
    log.damage_found(log.view().segments[0].path, 400, "flipped")
    (one,) = told.log_ends.take(LIVE, [])
    assert (one.consumers_end, one.has_failed, one.is_unknown) == (0, False, False), "messages do not wait for it"


def test_logs_that_cannot_be_opened_leave_room_for_the_others() -> None:
    told = Told(5)
    failed = [key for key in told.partitions if key.stream_id <= 3]
    told.nobody_leads()
    heard = [one for _ in range(5) for one in told.told(*failed)]
    assert set(heard[:5]) == {1, 2, 3, 4, 5}
    assert set(heard[5:]) == {1, 2, 3, 4, 5}
    told.led(1)
    assert 1 not in {one for _ in range(5) for one in told.told(*failed)}


def test_a_log_that_is_being_cut_is_told_when_that_is_done() -> None:
    told = Told(1)
    (partition,) = told.partitions.values()
    partition.cutting = lambda: None
    told.nobody_leads()
    assert told.told() == []
    partition.cutting = None
    assert told.told() == [1]


def test_all_replicas_of_what_is_compared_are_named() -> None:
    (partition,) = Told(1).partitions.values()
    ends = (
        ReplicaEnd(ONE, Incarnation(4), LeaderEpoch(3), Offset(70)),
        ReplicaEnd(TWO, Incarnation(5), LeaderEpoch(0), Offset(0)),
        ReplicaEnd(BrokerId(3), Incarnation(6), LeaderEpoch(0), Offset(0), has_failed=True),
    )
    assert recovered_text(partition, ends) == (
        "s1/0 (broker 1 had up to 70 of epoch 3, broker 2 had nothing, broker 3 had a log that has failed)"
    )


def test_a_damaged_log_does_not_lead_after_all_were_killed_and_is_waited_for() -> None:
    brokers = with_stream()
    brokers.led("s").publish("s", b"one", reply="r")
    brokers.run(1_000)
    leader = brokers.led("s").broker_id
    left = {one: brokers.kill(one) for one in brokers.ids}
    (segment,) = [path for path in left[leader].files() if path.endswith(".arrows")]
    file = left[leader].open(segment)
    file.truncate(100)
    file.close()
    for one in sorted(brokers.ids, key=lambda one: one == leader):
        brokers.start(one, left[one])
    brokers.run(10_000)
    assert brokers.partition("s").leader is None  # it may have been the longest
    brokers.kill(leader)
    brokers.start(leader, disk="another")
    brokers.run(10_000)
    assert brokers.led("s").broker_id != leader
    assert brokers.led("s").stream("s").partitions[0].log_end == 1


def test_whoever_is_asked_says_for_whom_is_waited_after_all_were_killed() -> None:
    brokers = with_stream()
    brokers.led("s").publish("s", b"one", reply="r")
    brokers.run(1_000)
    leader = brokers.led("s").broker_id
    left = {one: brokers.kill(one) for one in brokers.ids}
    others = [one for one in brokers.ids if one != leader]
    for one in others:
        brokers.start(one, left[one])
    brokers.run(10_000)
    reason = (
        f"it has no leader: it waits for broker {leader}: the others stopped uncleanly, and may lack acked messages"
    )
    assert [brokers[one].stream("s").partitions[0].state_reason for one in others] == [reason] * 2
    brokers.start(leader, disk="another")
    brokers.run(10_000)
    assert brokers.led("s").broker_id in others


@each_change
def test_a_log_that_is_not_there_is_waited_for_after_all_were_killed_and_an_empty_disk_is_not() -> None:
    brokers = with_stream()
    brokers.led("s").publish("s", b"one", reply="r")
    brokers.run(1_000)
    left = {one: brokers.kill(one) for one in brokers.ids}
    for path in [path for path in left[THREE].files() if path.startswith("streams/")]:
        left[THREE].remove(path)
    for one in brokers.ids:
        brokers.start(one, left[one])
        brokers.run(3_000)
    brokers.run(10_000)
    reasons = {one: brokers[one].stream("s").partitions[0].state_reason for one in brokers.ids}
    assert "a log was created here earlier" in reasons[THREE]
    assert "start that broker with an empty one" in reasons[ONE]
    assert reasons[ONE] == reasons[TWO]
    brokers.kill(THREE)
    brokers.start(THREE, disk="another")
    brokers.run(15_000)
    assert brokers.led("s").stream("s").partitions[0].log_end == 1
