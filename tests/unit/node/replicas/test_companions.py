"""Companion logs on several brokers: tied leaderships, commits, who may join, and who may show messages."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendRequest,
    AppendResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    PartitionHealth,
    TruncateRequest,
)
from penstock.metadata.companions import marks_key
from penstock.metadata.image import ClusterImage
from penstock.node.data_dir.folders import LogFolders
from penstock.node.replicas.companions import ReadCompanionRows
from penstock.node.step import Outbox
from penstock.vfs.memory import MemoryVfs
from tests.damage import flip
from tests.unit.node.harness import batch_of
from tests.unit.node.members import Brokers, Member, formed
from tests.unit.node.replicas.companion_brokers import (
    companion,
    consume,
    flip_mark,
    key_of,
    mark,
    marks,
    of_companion,
    target,
    with_companion,
)

MINUTE_MS = 60_000


def others(brokers: Brokers) -> list[Member]:
    leader = brokers.led("s")
    return [one for one in brokers.members.values() if one is not leader]


def committed(answers: list[AppendResponse | RemoteError]) -> AppendResponse:
    (answer,) = answers
    assert isinstance(answer, AppendResponse), answer
    return answer


def test_a_mark_is_answered_once_it_is_on_all_disks_of_the_isr() -> None:
    brokers = with_companion(formed())
    leader = brokers.led("s")
    answers = mark(leader, b"one")
    assert answers == []
    brokers.run(200)
    assert committed(answers).fsynced
    brokers.run(limits.REPLICA_FETCH_WAIT_MS)
    for member in brokers.members.values():
        assert marks(member) == [b"one"]
        assert companion(member).log.flushed_end == 1


def test_both_leaderships_begin_and_end_together() -> None:
    brokers = with_companion(formed())
    before = brokers.led("s")
    committed_before = mark(before, b"one")
    brokers.run(200)
    committed(committed_before)
    disk = brokers.kill(before.broker_id)
    brokers.run(15_000)
    leader = brokers.led("s")
    assert leader is not before
    data, marked = target(leader).leadership, companion(leader).leadership
    assert data is not None
    assert marked is not None
    assert marked is data.marks
    assert marked.leader_epoch == data.leader_epoch
    assert marks(leader) == [b"one"]
    answers = mark(leader, b"two")
    brokers.run(200)
    committed(answers)
    brokers.start(before.broker_id, disk)
    brokers.run(30_000)
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]
    for member in brokers.members.values():
        assert marks(member) == [b"one", b"two"]


def test_consumers_get_all_committed_rows_on_the_leader_and_on_followers() -> None:
    brokers = with_companion(formed())
    taken = {one.broker_id: consume(one) for one in brokers.members.values()}
    leader = brokers.led("s")
    for number in range(3):
        answers = mark(leader, b"%d" % number)
        brokers.run(200)
        committed(answers)
        assert taken[leader.broker_id].keys[key_of(leader)][-1] == b"%d" % number
    brokers.run(limits.REPLICA_FETCH_WAIT_MS)
    for one in taken.values():
        assert one.keys[key_of(leader)] == [b"0", b"1", b"2"]


def test_a_follower_that_lacks_marks_does_not_join_though_it_has_all_messages() -> None:
    """Its companion's disk accepts nothing: the other log alone would let it join."""
    brokers = with_companion(formed())
    leader, follower = brokers.led("s"), others(brokers)[0]
    assert target(leader).leadership is not None
    companion(follower).impediment = "its disk takes nothing"
    follower.node._replicas.take_out(companion(follower))
    brokers.run(1_000)
    assert follower.broker_id not in brokers.partition("s").isr
    answers = mark(leader, b"one")
    brokers.publish("s", b"message")
    brokers.run(20_000)
    committed(answers)
    assert target(follower).committed_end == 1
    companion(follower).impediment = ""
    follower.node._replicas.follows.free(companion(follower))
    brokers.run(20_000)
    assert follower.broker_id in brokers.partition("s").isr
    assert marks(follower) == [b"one"]


def test_a_stream_without_marks_has_none() -> None:
    brokers = formed()
    brokers.leader.create("s", subject="s", replicas=3)
    brokers.run(500)
    for member in brokers.members.values():
        assert len(member.node._partitions) == 1


def test_clients_do_not_see_it() -> None:
    brokers = with_companion(formed())
    leader = brokers.led("s")
    stream_id = companion(leader).key.stream_id
    error = leader.refusal(FetchRequest(stream_id=stream_id, partition=PartitionId(0), offset=Offset(0)))
    assert error.code == ErrorCode.STREAM_NOT_FOUND
    batch = batch_of([("s", None, b"not mine", None)])
    error = leader.refusal(AppendRequest(stream_id=stream_id, partition=PartitionId(0)), bytes(batch))
    assert error.code == ErrorCode.STREAM_NOT_FOUND
    assert set(leader.streams()) == {"s"}


def test_it_goes_with_its_stream() -> None:
    brokers = with_companion(formed())
    leader = brokers.led("s")
    path = f"streams/{companion(leader).key.stream_id}-__marks-{target(leader).key.stream_id}"
    assert leader.memory.list(path)
    leader.delete("s")
    brokers.run(1_000)
    for member in brokers.members.values():
        assert not member.node._partitions
        assert member.memory.list("streams") == []


def test_committed_marks_survive_a_loss_of_power_everywhere() -> None:
    brokers = with_companion(formed())
    leader = brokers.led("s")
    answers = mark(leader, b"one", b"two")
    brokers.run(200)
    committed(answers)
    disks = {one: brokers.kill(one) for one in list(brokers.members)}
    for one, disk in disks.items():
        brokers.start(one, disk)
    brokers.run(MINUTE_MS)
    for member in brokers.members.values():
        assert marks(member) == [b"one", b"two"]


def read(broker: Member, max_staleness_ms: int | None = None) -> FetchResponse:
    """What the broker shows of the messages."""
    request = FetchRequest(
        stream_id=key_of(broker).stream_id,
        partition=PartitionId(0),
        offset=Offset(0),
        max_staleness_ms=max_staleness_ms,
    )
    caller = broker.request(request)
    broker.settle()
    return broker.answer(caller, FetchResponse)


def request_to(broker: Member) -> FetchResponse | RemoteError:
    """What a reader hears who may not find the stream there."""
    stream_id = next(iter(broker.brokers.leader.image.streams))
    caller = broker.request(FetchRequest(stream_id=stream_id, partition=PartitionId(0), offset=Offset(0)))
    broker.settle()
    reply = broker.replies[caller].response
    assert isinstance(reply, FetchResponse | RemoteError)
    return reply


def refusal(broker: Member, **options: int) -> RemoteError:
    """Why the broker does not show messages."""
    request = FetchRequest(stream_id=key_of(broker).stream_id, partition=PartitionId(0), offset=Offset(0), **options)
    return broker.refusal(request)


def with_marks(brokers: Brokers, *marked: bytes, **config: object) -> Brokers:
    """One message, and a mark for each of these."""
    with_companion(brokers, **config)
    brokers.publish("s", b"message")
    for one in marked:
        answers = mark(brokers.led("s"), one)
        brokers.run(200)
        committed(answers)
    brokers.run(limits.REPLICA_FETCH_WAIT_MS)
    return brokers


def test_a_sole_replica_commits_marks_on_its_disk() -> None:
    brokers = with_marks(formed(), b"one", replicas=1)
    assert read(brokers.led("s")).committed_end == 1
    assert companion(brokers.led("s")).log.flushed_end == 1


def test_a_new_read_replica_shows_messages_only_once_it_has_the_marks() -> None:
    brokers = with_marks(formed(), b"one", replicas=1)
    leader = brokers.led("s")
    altered = leader.request(AlterStreamRequest(name="s", changes={"observers": 1}))
    brokers.run(500)
    leader.answer(altered, AlterStreamResponse)
    (observer,) = [brokers.members[one] for one in brokers.partition("s").observers]
    brokers.run(2_000)
    assert read(observer, 10_000).committed_end == 1
    assert marks(observer) == [b"one"]
    disk = brokers.kill(observer.broker_id)
    answers = mark(leader, b"two")
    brokers.run(200)
    committed(answers)
    observer = brokers.start(observer.broker_id, disk)
    shown = 0
    for _ in range(100):
        brokers.run(50)
        reply = request_to(observer)
        if isinstance(reply, FetchResponse):
            assert marks(observer) == [b"one", b"two"]
            shown += 1
        else:
            assert reply.code in (ErrorCode.STREAM_NOT_FOUND, ErrorCode.NOT_YET, ErrorCode.NOT_LEADER)
    assert shown


def test_a_replica_that_fetches_messages_and_no_marks_does_not_say_that_it_is_fresh() -> None:
    """A read replica that has not heard of the companion log yet: its leader does not call its news settled."""
    brokers = with_marks(formed(), b"one")
    leader, follower = brokers.led("s"), others(brokers)[0]
    fetcher = follower.node._replicas.follows._fetchers[leader.broker_id]
    before = follower.node._replicas.as_of_us(target(follower))
    assert before is not None
    fetcher.forget(companion(follower).key)
    brokers.publish("s", b"another")
    brokers.run(3_000)
    following = target(follower).following
    assert following is not None
    assert target(follower).committed_end == 2
    assert following.freshness.as_of_us is not None
    assert following.freshness.as_of_us < brokers.clock.now.elapsed_us - 2_000_000
    assert companion(follower).following is not None
    fetcher.follow(companion(follower).following)  # type: ignore[arg-type]
    brokers.run(3_000)
    assert following.freshness.as_of_us > brokers.clock.now.elapsed_us - 2_000_000


def damaged(disk: MemoryVfs, folder: str) -> str:
    """Flip a bit of the first mark; the file's path."""
    (name,) = [one for one in disk.list(folder) if one.endswith(".arrows")]
    flip(disk, f"{folder}/{name}", disk.open(f"{folder}/{name}").size() - 8)
    return f"{folder}/{name}"


def test_a_follower_with_damaged_marks_shows_nothing_and_is_mended() -> None:
    brokers = with_marks(formed(), b"one", b"two")
    follower = others(brokers)[0]
    folder = of_companion(follower)
    disk = brokers.stop(follower.broker_id)
    path = damaged(disk, folder)
    follower = brokers.start(follower.broker_id, disk)
    brokers.run(200)
    error = refusal(follower)
    assert error.code == ErrorCode.CORRUPT_RANGE
    assert error.details["file"] == path
    assert f"damaged in {path} at byte {error.details['position']}" in error.message
    assert any(one.startswith("the log of deletions of stream 's' is read-only") for one in follower.notices)
    assert not [one for one in follower.notices if "stream '__marks" in one]
    brokers.run(MINUTE_MS)
    assert read(follower).committed_end == 1
    assert marks(follower) == [b"one", b"two"]
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]


def test_a_leader_that_finds_its_marks_damaged_hands_over() -> None:
    brokers = with_marks(formed(), b"one", b"two")
    leader = brokers.led("s")
    damaged(leader.memory, of_companion(leader))
    with pytest.raises(RemoteError, match="damaged"):
        list(companion(leader).view().batches(0, 2))
    leader.tick(1_000)
    assert refusal(leader).code == ErrorCode.CORRUPT_RANGE
    epoch = brokers.partition("s").leader_epoch
    brokers.run(3_000)
    assert brokers.partition("s").leader_epoch > epoch
    assert brokers.led("s") is not leader
    brokers.run(MINUTE_MS)
    assert marks(leader) == [b"one", b"two"]
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]
    assert read(leader).committed_end == 1


def sole_with_damaged_marks() -> tuple[Brokers, Member, str]:
    """A stream of one replica whose marks are damaged, as its leader has found; and their file."""
    brokers = with_marks(formed(), b"one", replicas=1)
    leader = brokers.led("s")
    path = damaged(leader.memory, of_companion(leader))
    with pytest.raises(RemoteError, match="damaged"):
        list(companion(leader).view().batches(0, 1))
    leader.tick(1_000)
    return brokers, leader, path


def test_a_sole_replica_with_damaged_marks_takes_messages_and_shows_none() -> None:
    brokers, leader, path = sole_with_damaged_marks()
    leader.publish("s", b"another", reply="r")
    brokers.run(500)
    assert len(leader.acks) == 1
    error = refusal(leader)
    assert error.code == ErrorCode.CORRUPT_RANGE
    assert path in error.message
    assert "there is no other replica" in error.message
    (info,) = leader.stream("s").partitions
    assert info.state == PartitionHealth.FAILED
    assert path in info.state_reason


def test_a_sole_replica_that_starts_with_damaged_marks_refuses_expectations_at_once() -> None:
    """It would wait for marks that do not come."""
    brokers = with_marks(formed(), b"one", replicas=1)
    leader = brokers.led("s")
    folder = of_companion(leader)
    disk = brokers.stop(leader.broker_id)
    path = damaged(disk, folder)
    brokers.start(leader.broker_id, disk)
    brokers.run(5_000)
    leader = brokers.led("s")
    expects_none = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 0\r\n\r\n"
    leader.deliver([(b"s", b"r.1", expects_none, b"v")])
    brokers.settle()
    (refused,) = leader.acks
    assert path in refused.body["error"]["description"]
    leader.deliver([(b"s", b"r.2", None, b"v")])
    brokers.settle()
    assert [ack.body["seq"] > 0 for ack in leader.acks] == [False, True]


def test_a_purge_that_keeps_the_last_messages_needs_to_know_which_are_deleted() -> None:
    """Deleted messages would be kept in place of others, which would go for good."""
    brokers, leader, path = sole_with_damaged_marks()
    brokers.publish("s", b"another")
    error = leader.refusal(TruncateRequest(stream_id=key_of(leader).stream_id, before=Offset(2), keep=1))
    assert error.code == ErrorCode.CORRUPT_RANGE
    assert path in error.message
    assert target(leader).log_start == 0


SIX = [b"%d" % number for number in range(1, 7)]


def killed_with_damaged_marks(*numbers: int) -> Brokers:
    """Brokers that were all killed, and start with that batch of marks damaged, each one."""
    brokers = with_companion(formed())
    for name in SIX:
        answers = mark(brokers.led("s"), name)
        brokers.run(200)
        committed(answers)
    brokers.publish("s", b"a message")
    brokers.run(limits.REPLICA_FETCH_WAIT_MS)
    folders = {one: of_companion(member) for one, member in brokers.members.items()}
    disks = {one: brokers.kill(one) for one in list(brokers.members)}
    for (one, disk), number in zip(disks.items(), numbers, strict=True):
        flip_mark(disk, folders[one], number)
        brokers.start(one, disk)
    brokers.run(2 * MINUTE_MS)
    return brokers


@pytest.mark.parametrize("numbers", [(0, 1, 2), (1, 2, 5), (5, 4, 3)])
def test_marks_that_are_damaged_on_all_brokers_at_different_places_are_mended_without_a_leader(
    numbers: tuple[int, ...],
) -> None:
    brokers = killed_with_damaged_marks(*numbers)
    for member in brokers.members.values():
        assert marks(member) == SIX
    assert sorted(brokers.partition("s").isr) == [1, 2, 3]
    assert read(brokers.led("s")).committed_end == 1


def test_marks_that_are_damaged_on_all_brokers_at_the_same_place_are_not_taken_for_whole() -> None:
    brokers = killed_with_damaged_marks(2, 2, 2)
    assert brokers.partition("s").leader is None
    for member in brokers.members.values():
        error = refusal(member)
        assert error.code == ErrorCode.CORRUPT_RANGE
        assert "no other replica gives offset 2" in companion(member).mending
        assert companion(member).mending in error.message, "as a user is told"
        (info,) = member.stream("s").partitions
        assert "no other replica gives offset 2" in info.state_reason
    (one, *_) = brokers.members
    folder = of_companion(brokers[one])
    disk = brokers.kill(one)
    flip_mark(disk, folder, 2)  # as it was: the file was put back
    brokers.start(one, disk)
    brokers.run(2 * MINUTE_MS)
    assert brokers.partition("s").leader is not None
    for member in brokers.members.values():
        assert marks(member) == SIX


def test_a_broker_that_has_not_heard_of_its_marks_since_its_start_shows_nothing() -> None:
    """Its image is older than its disk: the metadata leader is away, and no one says what is committed."""
    brokers = with_marks(formed(), b"one")
    follower = others(brokers)[0]
    assert key_of(follower).stream_id not in follower.node._replicas.streams.marks_ahead
    folder = of_companion(follower).rpartition("/")[0]
    disk = follower.memory
    outbox = Outbox()
    folders = LogFolders(disk, outbox)
    state = msgspec.structs.replace(follower.image.by_name("s"), has_marks=False)
    image = dataclasses.replace(follower.image, streams=follower.image.streams.with_item(state.stream_id, state))
    folders.tidy(image, ())
    assert folders.marks_ahead == {state.stream_id}
    of_nothing = LogFolders(disk, Outbox())
    of_nothing.tidy(ClusterImage(), ())
    assert of_nothing.marks_ahead == {state.stream_id}, "the stream itself is still to come"
    assert disk.list(folder), "nothing is moved to the quarantine"
    assert outbox.take().notices == []


def test_a_mark_that_is_not_committed_goes_with_its_leader_and_consumers_never_see_it() -> None:
    brokers = with_marks(formed(), b"one")
    taken = {one.broker_id: consume(one) for one in brokers.members.values()}
    before = brokers.led("s")
    for other in others(brokers):
        brokers.cut(before.broker_id, other.broker_id)
    unanswered = mark(before, b"lost")
    brokers.run(20_000)
    after = [one for one in brokers.members.values() if one is not before]
    leader = next(one for one in after if target(one).leadership is not None)
    answers = mark(leader, b"two")
    brokers.run(500)
    committed(answers)
    brokers.join(before.broker_id, *[one.broker_id for one in after])
    brokers.run(30_000)
    (error,) = unanswered
    assert isinstance(error, RemoteError)
    for member in brokers.members.values():
        assert marks(member) == [b"one", b"two"]
        assert b"lost" not in taken[member.broker_id].keys.get(key_of(member), [])


def test_what_is_too_much_at_once_is_refused() -> None:
    brokers = with_companion(formed())
    with pytest.raises(RemoteError) as caught:
        mark(brokers.led("s"), *[b"x"] * (limits.BATCH_ROWS_MAX + 1))
    assert caught.value.code == ErrorCode.TOO_LARGE


def test_a_broker_that_does_not_lead_takes_no_marks() -> None:
    brokers = with_companion(formed())
    with pytest.raises(RemoteError) as caught:
        mark(others(brokers)[0], b"x")
    assert caught.value.code == ErrorCode.NOT_YET


def test_a_new_leader_shows_messages_only_once_its_consumer_has_all_marks() -> None:
    brokers = with_companion(formed())
    brokers.publish("s", b"message")
    taken = {one.broker_id: consume(one) for one in brokers.members.values()}
    before = brokers.led("s")
    committed_first = mark(before, b"one")
    brokers.run(limits.REPLICA_FETCH_WAIT_MS)
    committed(committed_first)
    for other in others(brokers):
        assert read(other).committed_end == 1
        other.hung = (ReadCompanionRows,)
    answers = mark(before, b"two")
    brokers.run(limits.REPLICA_FETCH_WAIT_MS)
    committed(answers)
    brokers.kill(before.broker_id)
    brokers.run(15_000)
    leader = brokers.led("s")
    assert companion(leader).committed_end == 2
    assert taken[leader.broker_id].keys[key_of(leader)] == [b"one"]
    error = refusal(leader)
    assert error.code == ErrorCode.NOT_YET
    assert "is being read" in error.message
    request = ListOffsetsRequest(stream_id=key_of(leader).stream_id, at="latest", counts_rows=True, rows_from=Offset(0))
    caller = leader.request(request)
    brokers.settle()  # the others promise to wait
    uncounted = leader.answer(caller, ListOffsetsResponse)
    assert (uncounted.offset, uncounted.live, uncounted.rows) == (1, None, None)
    leader.hung = ()
    brokers.run(100)
    caller = leader.request(request)
    brokers.settle()
    assert leader.answer(caller, ListOffsetsResponse).rows == 1
    assert read(leader).committed_end == 1
    assert taken[leader.broker_id].keys[key_of(leader)] == [b"one", b"two"]


def test_marks_of_a_stream_in_memory_are_kept_there() -> None:
    brokers = with_marks(formed(), b"one", storage="memory")
    for member in brokers.members.values():
        assert marks(member) == [b"one"]
        assert member.memory.list("streams") == []
    before = brokers.led("s")
    brokers.kill(before.broker_id)
    brokers.run(15_000)
    leader = brokers.led("s")
    assert marks(leader) == [b"one"]
    assert read(leader).committed_end == 1


def test_added_partitions_have_companion_logs() -> None:
    brokers = with_marks(formed(), b"one", partitions=1)
    leader = brokers.led("s")
    altered = leader.request(AlterStreamRequest(name="s", changes={"partitions": 2}))
    brokers.run(2_000)
    leader.answer(altered, AlterStreamResponse)
    for member in brokers.members.values():
        keys = [key for key in member.node._partitions if key.partition == 1]
        assert len(keys) == 2
        (data, marked) = sorted(keys)
        assert marks_key(data) == marked
        is_led = member.node._partitions[data].leadership is not None
        assert (member.node._partitions[marked].leadership is not None) is is_led
