"""Logs of consumers on several brokers: who may append, what a new leader knows, and what does not wait for them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.base import limits
from penstock.base.companion_kinds import CompanionKind
from penstock.base.config import Intake
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId, StreamId
from penstock.batch import codec
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import Flush
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendRequest,
    FetchRequest,
    FetchResponse,
    PartitionHealth,
    SetIntakeRequest,
)
from penstock.metadata.companions import consumers_key
from penstock.node.api.internal_log import ReadRows
from penstock.node.consumers.consumer_logs import KnownConsumers, Rows
from penstock.node.partition.partition import Partition
from penstock.vfs.memory import Keep, MemoryVfs
from tests.damage import flip
from tests.unit.node.harness import Broker, batch_of
from tests.unit.node.members import Brokers, Member, formed
from tests.unit.node.replicas.companion_brokers import key_of, target

MINUTE_MS = 60_000
Told = list[RemoteError | None]
ONE: Rows = [(b"a", b"1"), (b"b", b"1")]
TWO: Rows = [(b"a", b"2"), (b"b", None), (b"c", b"2")]


def log_of(broker: Broker, name: str = "s", number: int = 0) -> Partition:
    """Its log of consumers on that broker."""
    return broker.node._partitions[consumers_key(key_of(broker, name)._replace(partition=PartitionId(number)))]


def folder_of(broker: Broker) -> str:
    key = log_of(broker).key
    return f"streams/{key.stream_id}-__consumers-{key_of(broker).stream_id}/{key.partition}"


def add(broker: Member, name: str = "s") -> Told:
    """Give the stream logs of consumers."""
    told: Told = []
    broker.node.add_consumer_log(key_of(broker, name).stream_id, told.append)
    broker.brokers.run(500)
    return told


def with_consumers(brokers: Brokers, **config: object) -> Brokers:
    """They hold a stream `s` with logs of consumers."""
    caller = brokers.leader.create("s", subject="s", **{"replicas": len(brokers.members), **config})
    brokers.run(500)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]
    assert add(brokers.led("s")) == [None]
    return brokers


def known(broker: Broker, number: int = 0) -> KnownConsumers:
    """What it knows as the leader."""
    found = broker.node.consumer_log(key_of(broker).stream_id, PartitionId(number))
    broker.turn()
    return found


def refusal(broker: Broker) -> RemoteError:
    """Why it knows nothing."""
    with pytest.raises(RemoteError) as caught:
        known(broker)
    broker.turn()
    return caught.value


def append(brokers: Brokers, log: KnownConsumers, *batches: Rows) -> Told:
    """Append these; what is told is in the list once it is."""
    told: Told = []
    for rows in batches:
        log.append(rows, told.append)
    brokers.settle()
    return told


def stored(brokers: Brokers, *batches: Rows) -> KnownConsumers:
    """The leader's log, with these batches committed, and known to the followers as such."""
    log = known(brokers.led("s"))
    told = append(brokers, log, *batches)
    brokers.run(limits.REPLICA_FETCH_WAIT_MS + 100)
    assert told == [None] * len(batches)
    return log


def rows_of(broker: Broker) -> Mapping[bytes, bytes]:
    return known(broker).take_rows()


def others(brokers: Brokers) -> list[Member]:
    leader = brokers.led("s")
    return [one for one in brokers.members.values() if one is not leader]


def fetched(broker: Member) -> FetchResponse:
    caller = broker.request(
        FetchRequest(stream_id=key_of(broker).stream_id, partition=PartitionId(0), offset=Offset(0))
    )
    broker.settle()
    return broker.answer(caller, FetchResponse)


def logs(brokers: Brokers) -> list[bytes]:
    """The bytes of the log on each broker."""
    found = []
    for member in brokers.members.values():
        view = log_of(member).view()
        found.append(b"".join(bytes(data) for _, data in view.batches(view.log_start, view.log_end)))
    return found


def test_a_stream_without_consumers_has_no_log_of_them() -> None:
    brokers = formed()
    brokers.leader.create("s", subject="s", replicas=3)
    brokers.run(500)
    for member in brokers.members.values():
        assert len(member.node._partitions) == 1
        assert target(member).terms.companions == ()
        assert member.node.led_consumer_logs() == []
    error = refusal(brokers.led("s"))
    assert error.code == ErrorCode.NOT_YET
    assert "has no log of consumers" in error.message


def test_a_batch_is_told_once_all_in_sync_have_it_and_not_before() -> None:
    brokers = with_consumers(formed())
    leader = brokers.led("s")
    log = known(leader)
    assert log.leader_epoch == brokers.partition("s").leader_epoch
    assert log.take_rows() == {}
    for follower in others(brokers):
        brokers.hang(follower.broker_id)
    told: Told = []
    log.append(ONE, told.append)
    log.append(TWO, told.append)
    assert log.batches == 2
    leader.turn()
    assert told == []
    for follower in others(brokers):
        brokers.wake(follower.broker_id)
    brokers.run(limits.REPLICA_FETCH_WAIT_MS)
    assert told == [None, None]
    assert log.batches == 0
    (first, *rest) = logs(brokers)
    assert first
    assert all(one == first for one in rest)


def test_it_is_added_once_however_often_it_is_asked_for() -> None:
    brokers = with_consumers(formed())
    leader = brokers.led("s")
    before, version = brokers.leader.image.index, leader.node.consumer_logs_version
    assert add(leader) == [None]
    told: Told = []
    leader.node.add_consumer_log(StreamId(9_999), told.append)
    brokers.settle()
    (error,) = told
    assert error is not None
    assert error.code == ErrorCode.STREAM_NOT_FOUND
    assert brokers.leader.image.index == before
    assert leader.node.consumer_logs_version == version


def test_it_waits_for_the_feature_level() -> None:
    brokers = Brokers(1, 2, 3, broker_version="0.3.0")
    brokers.run(5_000)
    brokers.leader.create("s", subject="s", replicas=3)
    brokers.run(500)
    (error,) = add(brokers.led("s"))
    assert error is not None
    assert error.code == ErrorCode.UNSUPPORTED_VERSION
    assert "consumers with acks" in error.message


def test_a_new_leader_knows_the_last_value_of_each_key() -> None:
    brokers = with_consumers(formed())
    log, before = stored(brokers, ONE, TWO), brokers.led("s")
    disk = brokers.kill(before.broker_id)
    brokers.run(15_000)
    leader = brokers.led("s")
    assert leader.node.led_consumer_logs() == [key_of(leader)]
    after = known(leader)
    assert after.leader_epoch > log.leader_epoch
    assert after.take_rows() == {b"a": b"2", b"c": b"2"}
    brokers.start(before.broker_id, disk)
    brokers.run(30_000)
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]
    assert append(brokers, after, ONE) == []
    brokers.run(limits.REPLICA_FETCH_WAIT_MS)
    (first, *rest) = logs(brokers)
    assert all(one == first for one in rest)


def test_rows_of_earlier_leaders_name_no_message_that_has_come_since() -> None:
    """After an unclean election new messages take the offsets of lost ones: they were delivered to nobody."""
    brokers = with_consumers(formed())
    brokers.publish("s", b"1")
    stored(brokers, ONE)
    brokers.kill(brokers.led("s").broker_id)
    brokers.run(10_000)
    second = brokers.led("s")
    brokers.publish("s", b"2")
    brokers.run(5_000)
    assert target(second).committed_end == 2
    log = known(second)
    assert log.messages_end == 1
    log.take_rows()
    with pytest.raises(RemoteError):
        log.take_rows()
    brokers.run(100)
    assert known(second).messages_end == 2, "rows of this leadership name these, too"


def test_a_deposed_leader_appends_nothing_and_its_open_appends_are_told() -> None:
    brokers = with_consumers(formed())
    log, before = stored(brokers, ONE), brokers.led("s")
    for other in others(brokers):
        brokers.cut(before.broker_id, other.broker_id)
    open_ones = append(brokers, log, TWO, [(b"d", b"4")])
    brokers.run(20_000)
    assert open_ones == [], "it has not heard of its successor"
    (refused,) = append(brokers, log, [(b"late", b"5")])
    assert refused is not None
    assert refused.code == ErrorCode.NOT_LEADER, "another broker may lead by now"
    after = [one for one in brokers.members.values() if one is not before]
    leader = next(one for one in after if target(one).leadership is not None)
    assert rows_of(leader) == {b"a": b"1", b"b": b"1"}
    version = before.node.consumer_logs_version
    brokers.join(before.broker_id, *[one.broker_id for one in after])
    brokers.run(30_000)
    assert [error and error.code for error in open_ones] == [ErrorCode.FENCED_EPOCH] * 2
    assert not log.is_current
    assert before.node.consumer_logs_version > version
    assert before.node.led_consumer_logs() == []
    assert refusal(before).code == ErrorCode.NOT_LEADER
    (late,) = append(brokers, log, ONE)
    assert late is not None
    assert late.code == ErrorCode.NOT_LEADER
    (first, *rest) = logs(brokers)
    assert all(one == first for one in rest), "what was not committed is cut"


def test_a_new_leader_serves_nothing_before_all_that_it_found_is_committed() -> None:
    brokers = with_consumers(formed(), durability="fsync")
    log, before = stored(brokers, ONE), brokers.led("s")
    for other in others(brokers):
        other.hung = (Flush,)
    open_ones = append(brokers, log, TWO)
    brokers.run(limits.REPLICA_FETCH_WAIT_MS)
    assert open_ones == []
    brokers.kill(before.broker_id)
    brokers.run(8_000)
    leader = brokers.led("s")
    assert log_of(leader).log.log_end == 5
    assert log_of(leader).committed_end == 2
    error = refusal(leader)
    assert error.code == ErrorCode.NOT_YET
    version = leader.node.consumer_logs_version
    for other in brokers.members.values():
        other.hung = ()
    brokers.run(2_000)
    assert leader.node.consumer_logs_version > version
    assert rows_of(leader) == {b"a": b"2", b"c": b"2"}


def test_a_leader_that_reads_its_log_is_not_known_yet_and_a_read_of_an_ended_leadership_counts_for_nothing() -> None:
    brokers = with_consumers(formed())
    before = brokers.led("s")
    stored(brokers, ONE)
    for member in brokers.members.values():
        member.hung = (ReadRows,)
    brokers.kill(before.broker_id)
    brokers.run(15_000)
    leader = brokers.led("s")
    error = refusal(leader)
    assert error.code == ErrorCode.NOT_YET
    assert "is being read" in error.message
    leader.hung = ()
    leader.turn()
    assert rows_of(leader) == {b"a": b"1", b"b": b"1"}


def test_rows_that_the_caller_lost_are_read_again_and_what_it_had_is_fenced() -> None:
    brokers = with_consumers(formed())
    log = stored(brokers, ONE)
    leader = brokers.led("s")
    assert log.take_rows() == {}
    stored(brokers, TWO)
    leader.hung = (ReadRows,)
    with pytest.raises(RemoteError) as caught:
        log.take_rows()
    assert caught.value.code == ErrorCode.NOT_YET
    assert not log.is_current
    (refused,) = append(brokers, log, ONE)
    assert refused is not None
    assert refused.code == ErrorCode.NOT_LEADER
    leader.hung = ()
    leader.turn()
    assert rows_of(leader) == {b"a": b"2", b"c": b"2"}


def test_only_some_logs_are_read_at_once() -> None:
    brokers = Brokers(1)
    brokers.run(5_000)
    numbers = range(limits.CONSUMER_LOG_READS_MAX + 3)
    with_consumers(brokers, partitions=len(numbers))
    (leader,) = brokers.members.values()
    assert len(leader.node.led_consumer_logs()) == len(numbers)
    logs_led = [known(leader, number) for number in numbers]
    assert [log.take_rows() for log in logs_led] == [{}] * len(numbers)
    leader.hung = (ReadRows,)
    for log in logs_led:
        with pytest.raises(RemoteError):
            log.take_rows()
    leader.turn()
    reads = [work for work in leader.disk if isinstance(getattr(work.run, "__self__", None), ReadRows)]
    assert len(reads) == limits.CONSUMER_LOG_READS_MAX
    leader.hung = ()
    leader.turn()
    for number in numbers:
        assert known(leader, number).take_rows() == {}


def test_what_is_too_much_is_refused() -> None:
    brokers = with_consumers(formed())
    leader = brokers.led("s")
    log = known(leader)
    for rows in (
        [(b"a", b"")] * (limits.BATCH_ROWS_MAX + 1),
        [(b"a", b"x" * (limits.CONSUMER_ROW_BYTES_MAX + 1))],
        [(b"a", b"x" * (limits.CONSUMER_BATCH_BYTES_MAX // 3 + 1))] * 3,
    ):
        (error,) = append(brokers, log, rows)
        assert error is not None
        assert error.code == ErrorCode.TOO_LARGE
    for follower in others(brokers):
        brokers.hang(follower.broker_id)
    told: Told = []
    for number in range(limits.CONSUMER_BATCHES_MAX + 1):
        log.append([(b"%d" % number, b"")], told.append)
    (full,) = told
    assert full is not None
    assert full.code == ErrorCode.OVERLOADED
    for follower in others(brokers):
        brokers.wake(follower.broker_id)
    brokers.run(limits.REPLICA_FETCH_WAIT_MS)
    assert told[1:] == [None] * limits.CONSUMER_BATCHES_MAX


def test_clients_do_not_see_it() -> None:
    brokers = with_consumers(formed())
    leader = brokers.led("s")
    stream_id = log_of(leader).key.stream_id
    error = leader.refusal(FetchRequest(stream_id=stream_id, partition=PartitionId(0), offset=Offset(0)))
    assert error.code == ErrorCode.STREAM_NOT_FOUND
    batch = batch_of([("s", None, b"not mine", None)])
    error = leader.refusal(AppendRequest(stream_id=stream_id, partition=PartitionId(0)), bytes(batch))
    assert error.code == ErrorCode.STREAM_NOT_FOUND
    assert set(leader.streams()) == {"s"}


def test_it_goes_with_its_stream() -> None:
    brokers = with_consumers(formed())
    leader = brokers.led("s")
    log = stored(brokers, ONE)
    for follower in others(brokers):
        brokers.hang(follower.broker_id)
    open_ones = append(brokers, log, TWO)
    assert leader.memory.list(folder_of(leader).rpartition("/")[0])
    for follower in others(brokers):
        brokers.wake(follower.broker_id)
    leader.delete("s")
    brokers.run(1_000)
    assert len(open_ones) == 1
    assert not log.is_current
    for member in brokers.members.values():
        assert not member.node._partitions
        assert member.memory.list("streams") == []
        assert member.node.led_consumer_logs() == []
    with_consumers(brokers)
    assert rows_of(brokers.led("s")) == {}


@pytest.mark.parametrize("durability", ["fsync", "auto"])
def test_what_was_synced_survives_a_loss_of_power_everywhere(durability: str) -> None:
    brokers = with_consumers(formed(), durability=durability)
    brokers.publish("s", b"message")
    stored(brokers, ONE, TWO)
    brokers.run(MINUTE_MS)
    disks = {one: brokers.kill(one) for one in list(brokers.members)}
    for one, disk in disks.items():
        brokers.start(one, disk)
    brokers.run(MINUTE_MS)
    assert rows_of(brokers.led("s")) == {b"a": b"2", b"c": b"2"}
    assert fetched(brokers.led("s")).committed_end == 1


def test_after_a_loss_of_power_that_with_the_most_of_the_consumers_leads() -> None:
    """Acked with the page cache of all in sync: only one of them had it on its disk."""
    brokers = with_consumers(formed(), durability="os")
    brokers.publish("s", b"message")
    brokers.run(MINUTE_MS)
    last = brokers[max(brokers.members)]
    for member in brokers.members.values():
        if member is not last:
            member.hung = (Flush,)
    log = known(brokers.led("s"))
    told = append(brokers, log, ONE)
    brokers.run(limits.REPLICA_FETCH_WAIT_MS)
    assert told == [None]
    kept = {one: Keep.ALL if one == last.broker_id else Keep.SYNCED for one in brokers.members}
    disks = {one: brokers.kill(one, keep) for one, keep in kept.items()}
    for one, disk in disks.items():
        brokers.start(one, disk)
    brokers.run(MINUTE_MS)
    assert rows_of(brokers.led("s")) == {b"a": b"1", b"b": b"1"}
    assert fetched(brokers.led("s")).committed_end == 1


@pytest.mark.parametrize("lost", ["messages", "consumers"])
def test_a_loss_of_power_between_the_syncs_of_the_two_logs(lost: str) -> None:
    """Either log may be ahead of the other: each keeps what it had synced, and no more was promised."""
    brokers = with_consumers(formed(), replicas=1, durability="fsync")
    leader = brokers.led("s")
    log = known(leader)
    told: Told = []
    for of in sorted(["messages", "consumers"], key=lost.__eq__):
        leader.hung = (Flush,) if of == lost else ()
        if of == "messages":
            leader.publish("s", b"message", reply="r")
        else:
            log.append(ONE, told.append)
        leader.turn()
    assert (told, len(leader.acks)) == (([None], 0) if lost == "messages" else ([], 1))
    disk = brokers.kill(leader.broker_id)
    leader = brokers.start(leader.broker_id, disk)
    brokers.run(15_000)
    assert rows_of(leader) == ({b"a": b"1", b"b": b"1"} if lost == "messages" else {})
    assert fetched(leader).committed_end == (0 if lost == "messages" else 1)


def damage(disk: MemoryVfs, folder: str) -> str:
    """Flip a bit of the first batch; its file."""
    (name,) = [one for one in disk.list(folder) if one.endswith(".arrows")]
    path = f"{folder}/{name}"
    prefix = disk.open(path).read_at(SCHEMA_BYTES, codec.PREFIX_BYTES)
    flip(disk, path, SCHEMA_BYTES + codec.read_header(prefix).size_bytes - 8)
    return path


def test_a_sole_replica_with_a_damaged_log_of_consumers_serves_messages_and_refuses_consumers() -> None:
    brokers = with_consumers(formed(), replicas=1)
    stored(brokers, ONE, TWO)
    leader = brokers.led("s")
    folder = folder_of(leader)
    disk = brokers.stop(leader.broker_id)
    path = damage(disk, folder)
    leader = brokers.start(leader.broker_id, disk)
    brokers.run(5_000)
    for _ in range(2):
        error = refusal(leader)
        assert error.code == ErrorCode.CORRUPT_RANGE
        assert error.details["file"] == path
        assert isinstance(error.details["position"], int)
    leader.publish("s", b"message", reply="r")
    brokers.run(500)
    assert [ack.err_code for ack in leader.acks] == [0]
    assert fetched(leader).committed_end == 1
    (info,) = leader.stream("s").partitions
    assert info.state == PartitionHealth.ONLINE
    assert path in info.state_reason
    assert "consumers" in info.state_reason


def test_a_log_that_was_removed_with_its_mark_begins_anew() -> None:
    """What docs/how-to/repair.md says where no replica is whole; without the mark's removal it is missing."""
    brokers = with_consumers(formed(), replicas=1)
    brokers.publish("s", b"message")
    stored(brokers, ONE)
    leader = brokers.led("s")
    folder = folder_of(leader)
    disk = brokers.stop(leader.broker_id)
    disk.remove(folder)
    leader = brokers.start(leader.broker_id, disk)
    brokers.run(5_000)
    error = refusal(leader)
    assert error.code == ErrorCode.STORAGE_FAILED
    assert fetched(leader).committed_end == 1
    disk = brokers.stop(leader.broker_id)
    disk.remove(f"made/{folder.split('/')[1]}")
    leader = brokers.start(leader.broker_id, disk)
    brokers.run(5_000)
    assert rows_of(leader) == {}
    stored(brokers, TWO)


def test_damage_that_is_found_while_consumers_are_served_refuses_them_with_its_place() -> None:
    brokers = with_consumers(formed(), replicas=1)
    log, leader = stored(brokers, ONE, TWO), brokers.led("s")
    path = damage(leader.memory, folder_of(leader))
    with pytest.raises(RemoteError, match="damaged"):
        list(log_of(leader).view().batches(0, 5))
    leader.tick(1_000)
    (error,) = append(brokers, log, ONE)
    assert error is not None
    assert error.code == ErrorCode.CORRUPT_RANGE
    assert error.details["file"] == path
    assert error.message.startswith("consumers with acks of stream 's' cannot be served: its log of consumers")
    brokers.publish("s", b"message")
    brokers.run(500)
    assert fetched(leader).committed_end == 1


def test_a_leader_with_a_damaged_log_hands_over_and_is_mended() -> None:
    brokers = with_consumers(formed())
    stored(brokers, ONE, TWO)
    leader = brokers.led("s")
    damage(leader.memory, folder_of(leader))
    with pytest.raises(RemoteError, match="damaged"):
        list(log_of(leader).view().batches(0, 5))
    leader.tick(1_000)
    assert fetched(leader).committed_end == 0, "reads of messages go on"
    brokers.run(3_000)
    assert brokers.led("s") is not leader
    assert rows_of(brokers.led("s")) == {b"a": b"2", b"c": b"2"}
    brokers.run(MINUTE_MS)
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]
    (first, *rest) = logs(brokers)
    assert all(one == first for one in rest)


def test_a_leader_whose_log_of_consumers_is_damaged_everywhere_takes_and_shows_messages() -> None:
    brokers = with_consumers(formed())
    brokers.publish("s", b"message")
    stored(brokers, ONE, TWO)
    brokers.run(MINUTE_MS)
    folder = folder_of(brokers.leader)
    disks = {one: brokers.kill(one) for one in list(brokers.members)}
    for one, disk in disks.items():
        damage(disk, folder)
        brokers.start(one, disk)
    brokers.run(MINUTE_MS)
    leader = brokers.led("s")
    assert fetched(leader).committed_end == 1
    assert refusal(leader).code in (ErrorCode.CORRUPT_RANGE, ErrorCode.STORAGE_FAILED)


def test_reads_of_messages_do_not_wait_for_it() -> None:
    brokers = with_consumers(formed())
    brokers.publish("s", b"message")
    brokers.run(limits.REPLICA_FETCH_WAIT_MS)
    follower = others(brokers)[0]
    leader = brokers.led("s")
    fetcher = follower.node._replicas.follows._fetchers[leader.broker_id]
    fetcher.forget(log_of(follower).key)  # it fetches messages alone
    brokers.publish("s", b"another")
    brokers.run(5_000)
    assert target(follower).committed_end == 2
    behind_us = follower.node._replicas.behind_us(target(follower))
    assert behind_us is not None
    assert behind_us < 2_000_000


def test_a_follower_joins_only_with_the_log_of_consumers() -> None:
    brokers = with_consumers(formed())
    follower = others(brokers)[0]
    log_of(follower).impediment = "its disk takes nothing"
    follower.node._replicas.take_out(log_of(follower))
    brokers.run(1_000)
    assert follower.broker_id not in brokers.partition("s").isr
    log = known(brokers.led("s"))
    told = append(brokers, log, ONE)
    brokers.publish("s", b"message")
    brokers.run(20_000)
    assert told == [None]
    assert target(follower).committed_end == 1
    log_of(follower).impediment = ""
    follower.node._replicas.follows.free(log_of(follower))
    brokers.run(20_000)
    assert follower.broker_id in brokers.partition("s").isr
    assert log_of(follower).log.log_end == 2


def test_a_read_replica_has_it_and_does_not_serve_it() -> None:
    brokers = with_consumers(formed(), replicas=1)
    stored(brokers, ONE)
    leader = brokers.led("s")
    altered = leader.request(AlterStreamRequest(name="s", changes={"observers": 1}))
    brokers.run(500)
    leader.answer(altered, AlterStreamResponse)
    (observer,) = [brokers.members[one] for one in brokers.partition("s").observers]
    brokers.run(2_000)
    assert log_of(observer).committed_end == 2
    assert refusal(observer).code == ErrorCode.NOT_LEADER
    assert observer.node.led_consumer_logs() == []


@pytest.mark.parametrize("intake", [Intake.PAUSED, Intake.READ_ONLY, Intake.SEALED])
def test_consumers_go_on_while_their_stream_takes_no_messages(intake: Intake) -> None:
    brokers = with_consumers(formed())
    leader = brokers.led("s")
    leader.request(SetIntakeRequest(name="s", intake=intake))
    brokers.run(2_000)
    stored(brokers, ONE, TWO)


def test_those_of_a_stream_in_memory_are_kept_there() -> None:
    brokers = with_consumers(formed(), storage="memory")
    before = brokers.led("s")
    stored(brokers, ONE, TWO)
    assert all(member.memory.list("streams") == [] for member in brokers.members.values())
    brokers.kill(before.broker_id)
    brokers.run(15_000)
    assert rows_of(brokers.led("s")) == {b"a": b"2", b"c": b"2"}


def test_added_partitions_have_them_and_so_has_a_stream_with_marks() -> None:
    brokers = with_consumers(formed(), partitions=1, max_messages_per_subject=2)
    leader = brokers.led("s")
    assert target(leader).stream.companions == (CompanionKind.MARKS, CompanionKind.CONSUMERS)
    altered = leader.request(AlterStreamRequest(name="s", changes={"partitions": 2}))
    brokers.run(2_000)
    leader.answer(altered, AlterStreamResponse)
    second = next(one for one in brokers.members.values() if log_of(one, number=1).leadership is not None)
    assert known(second, 1).take_rows() == {}
    for member in brokers.members.values():
        assert len(member.node._partitions) == 6
    brokers.publish("s", b"message")
    stored(brokers, ONE, TWO)
    brokers.kill(brokers.led("s").broker_id)
    brokers.run(15_000)
    assert rows_of(brokers.led("s")) == {b"a": b"2", b"c": b"2"}


def test_it_is_compacted_by_each_replica_and_says_the_same() -> None:
    brokers = with_consumers(formed(), segment_bytes=8_192)
    log = known(brokers.led("s"))
    batch: Rows = [(b"%d" % (number % 3), b"x" * 500) for number in range(12)]
    for number in range(40):
        told = append(brokers, log, [*batch, (b"last", b"%d" % number)])
        brokers.run(200)
        assert told == [None]
    brokers.run(10 * MINUTE_MS)
    for member in brokers.members.values():
        assert log_of(member).log.size_bytes < 40 * 12 * 500 // 3
    brokers.kill(brokers.led("s").broker_id)
    brokers.run(15_000)
    rows = rows_of(brokers.led("s"))
    assert rows[b"last"] == b"39"
    assert sorted(rows) == [b"0", b"1", b"2", b"last"]


def test_an_internal_stream_has_none() -> None:
    brokers = with_consumers(formed())
    leader = brokers.led("s")
    told: Told = []
    leader.node.add_consumer_log(log_of(leader).key.stream_id, told.append)
    assert len(told) == 1
    assert told[0] is not None
