"""Several brokers together: what no part can show alone."""

from __future__ import annotations

import errno

import pytest

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, LeaderEpoch, Offset, StreamId
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    CreateStreamRequest,
    DeleteStreamRequest,
    FetchRequest,
    FindStreamsRequest,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    RegisterBrokerRequest,
    Request,
    StatusRequest,
    StatusResponse,
)
from penstock.node.control.startup_conflicts import OLDER_COPY
from penstock.node.data_dir.clean_stop import CLEAN_STOP_PATH
from penstock.node.quorum.registration import BrokerRegistration
from penstock.vfs.faulty import FileFault, FileOperation, FileOperationKind, no_faults
from tests.extent import each_change
from tests.unit.node.contexts import NothingApplied, NothingToReport
from tests.unit.node.members import Brokers, Member, formed


def with_stream(**config: object) -> Brokers:
    brokers = formed()
    caller = brokers.leader.create("s", subject="s", **{"replicas": 3, **config})
    brokers.run(500)
    brokers.leader.answer(caller, object)  # type: ignore[type-var]
    return brokers


def test_three_brokers_ack_what_all_have() -> None:
    brokers = with_stream()
    brokers.led("s").publish("s", b"one", reply="r")
    brokers.run(200)
    (ack,) = brokers.led("s").acks
    assert ack.body["replicas"] == 3


def test_followers_learn_that_commits_wait_for_their_disks_by_now() -> None:
    """They went by the durability with which they had begun to follow: a sync was reported with the next fetch only."""
    brokers = with_stream(durability="os")
    leader = brokers.led("s")
    altered = leader.request(AlterStreamRequest(name="s", changes={"durability": "fsync"}))
    brokers.run(500)
    leader.answer(altered, AlterStreamResponse)
    leader.publish("s", b"one", reply="r")
    brokers.run(limits.REPLICA_FETCH_WAIT_MS // 2)
    (ack,) = leader.acks
    assert ack.body["replicas"] == 3


@pytest.mark.parametrize("before", ["os", "auto"])
@pytest.mark.parametrize("min_isr", [1, 2])
def test_followers_of_an_idle_stream_stay_in_sync_when_commits_begin_to_wait_for_their_disks(
    before: str, min_isr: int
) -> None:
    """Their syncs in the background were reported to nobody: the leader removed both, and published in vain."""
    brokers = with_stream(durability=before)
    leader = brokers.led("s")
    leader.publish("s", b"one", reply="r")
    brokers.run(3_000)
    altered = leader.request(AlterStreamRequest(name="s", changes={"durability": "fsync", "min_isr": min_isr}))
    brokers.run(3 * limits.REPLICA_LAG_MS_MAX)
    leader.answer(altered, AlterStreamResponse)
    assert len(brokers.partition("s").isr) == 3
    leader.publish("s", b"two", reply="r")
    brokers.run(500)
    assert [ack.body.get("replicas") for ack in leader.acks] == [3, 3]


@pytest.mark.parametrize("before", ["os", "auto", "fsync"])
@pytest.mark.parametrize("after", ["os", "fsync"])
def test_a_replica_of_an_idle_stream_comes_back_into_the_isr(before: str, after: str) -> None:
    """Also if the durability changes while it is away, and nothing is published before or after."""
    brokers = with_stream(durability=before, min_isr=2)
    leader = brokers.led("s")
    leader.publish("s", b"one", reply="r")
    brokers.run(50)  # before the syncs in the background
    away = next(one for one in brokers.ids if brokers[one] is not leader and brokers[one] is not brokers.leader)
    others = [one for one in brokers.ids if one != away]
    for other in others:
        brokers.cut(away, other)
    brokers.run(2 * limits.REPLICA_LAG_MS_MAX)
    assert away not in brokers.partition("s").isr
    altered = leader.request(AlterStreamRequest(name="s", changes={"durability": after}))
    brokers.run(2 * limits.REPLICA_LAG_MS_MAX)
    leader.answer(altered, AlterStreamResponse)
    brokers.join(away, *others)
    brokers.run(limits.REPLICA_LAG_MS_MAX)
    assert len(brokers.partition("s").isr) == 3


def test_what_a_slow_disk_finds_is_of_the_leadership_in_which_it_was_asked() -> None:
    brokers = with_stream()
    old = brokers.led("s")
    old.publish("s", b"one")
    brokers.run(500)
    epoch = brokers.partition("s").leader_epoch
    old.disk_runs_at_once = False
    caller = old.request(ListOffsetsRequest(stream_id=old.stream_id("s"), at="latest"))
    brokers.settle()  # the others promise to wait
    (question,) = old.disk
    old.disk, old.disk_runs_at_once = [], True
    for number in (one for one in brokers.ids if one != old.broker_id):
        brokers.cut(old.broker_id, number)
    brokers.run(8_000)
    brokers.led("s").publish("s", b"two")
    brokers.run(500)
    brokers.join(old.broker_id, *(one for one in brokers.ids if one != old.broker_id))
    brokers.run(5_000)
    old.disk.append(question)
    old.turn()
    response = old.answer(caller, ListOffsetsResponse)
    assert (response.offset, response.leader_epoch) == (1, epoch)
    assert brokers.partition("s").leader_epoch > epoch


@each_change
def test_an_older_copy_of_a_data_directory_leads_nobody_to_lose_what_was_acked() -> None:
    """It has the mark of a clean stop, and all others come back from a power loss."""
    brokers = with_stream()
    brokers.led("s").publish("s", b"one", reply="r")
    brokers.run(500)
    stopped = next(one for one in brokers.ids if one not in (brokers.led("s").broker_id, brokers.leader.broker_id))
    copy = brokers.stop(stopped)
    brokers.start(stopped, copy.crash_clone())
    brokers.run(5_000)
    assert len(brokers.partition("s").isr) == 3
    brokers.led("s").publish("s", b"two", reply="r")
    brokers.run(500)
    assert [ack.body["seq"] for ack in brokers.led("s").acks][-1] == 2
    left = {one: brokers.kill(one) for one in brokers.ids}
    for one in brokers.ids:
        brokers.start(one, copy if one == stopped else left[one])
    brokers.run(20_000)
    assert OLDER_COPY in brokers[stopped].failure
    brokers.kill(stopped)
    brokers.start(stopped, left[stopped])
    brokers.run(20_000)
    assert brokers.led("s").stream("s").partitions[0].log_end == 2


def test_a_broker_whose_start_was_never_heard_of_has_not_stopped_cleanly() -> None:
    brokers = with_stream()
    brokers.run(500)
    disks = {one: brokers.kill(one) for one in brokers.ids}
    alone = brokers.start(1, disks[1])  # after a crash, and nobody is there to hear of that
    brokers.run(2_000)
    alone.stop()
    assert CLEAN_STOP_PATH not in alone.memory.list("")


def test_a_slow_save_does_not_make_a_follower_doubt_its_leader() -> None:
    brokers = formed()
    leader = brokers.leader
    follower = next(member for member in brokers.members.values() if member is not leader)
    follower.disk_runs_at_once = False
    leader.create("s", subject="s", replicas=3)
    brokers.run(3_000)
    assert follower.disk  # a save of Raft, for all that time
    follower.disk_runs_at_once = True
    brokers.settle()
    assert follower.quorum.leader == leader.broker_id


def test_a_stream_is_deleted_while_its_log_is_being_cut() -> None:
    brokers = with_stream()
    brokers.led("s").publish("s", b"one", reply="r")
    brokers.run(500)
    old = brokers.led("s")
    others = [one for one in brokers.ids if one != old.broker_id]
    for other in others:
        brokers.cut(old.broker_id, other)
    old.publish("s", b"never committed", reply="r")
    brokers.run(8_000)
    assert brokers.led("s") is not old
    brokers.led("s").publish("s", b"two", b"three")
    old.disk_runs_at_once = False
    brokers.join(old.broker_id, *others)
    for _ in range(200):
        brokers.run(50)
        cuts = [work for work in old.disk if "Truncation" in work.run.__qualname__]
        if cuts:
            break
        old.settle()
    (cut,) = cuts
    old.disk.remove(cut)
    brokers.leader.delete("s")
    for _ in range(20):
        brokers.run(50)
        for work in [one for one in old.disk if one is not cut]:
            old.run_disk(old.disk.index(work))
    assert not old.image.streams
    old.disk.append(cut)
    old.settle()
    assert not old.open_requests


@each_change
def test_a_broker_that_was_away_follows_one_whose_disk_is_new() -> None:
    brokers = Brokers(1, 2, 3, 4, 5)
    brokers.run(5_000)
    away, new = [one for one in brokers.ids if one != brokers.leader.broker_id][:2]
    others = [one for one in brokers.ids if one != away]
    for other in others:
        brokers.cut(away, other)
    brokers.kill(new)
    brokers.run(6_000)
    brokers.start(new, disk="another")
    brokers.run(6_000)
    assert new in brokers.leader.quorum.membership.voters
    brokers.leader.quorum.hand_over(new)
    brokers.settle()
    brokers.run(500)
    assert brokers.leader.broker_id == new
    brokers.join(away, *others)
    brokers.run(5_000)
    assert brokers[away].image.brokers[new].data_dir_id == "another"


def test_a_leader_that_cannot_open_its_log_is_replaced() -> None:
    brokers = formed()
    failing = next(member for member in brokers.members.values() if member is not brokers.leader)
    failing.vfs.plan = lambda one: FileFault(errno.EIO) if one.path.startswith("streams") else None
    for number in range(6):
        brokers.leader.create(f"s{number}", subject=f"s{number}", replicas=3)
    brokers.run(2_000)
    names = [f"s{number}" for number in range(6)]
    assert all(failing.broker_id in brokers.partition(name).replicas for name in names)
    assert any(brokers.partition(name).replicas[0] == failing.broker_id for name in names)
    assert all(brokers.led(name) is not failing for name in names)


def test_a_leader_to_which_there_was_never_a_connection_is_reported() -> None:
    brokers = formed()
    for number in range(6):
        brokers.leader.create(f"s{number}", subject=f"s{number}", replicas=3)
    brokers.run(1_000)
    led = next(m for m in map(brokers.led, [f"s{n}" for n in range(6)]) if m is not brokers.leader)
    (follower,) = [one for one in brokers.ids if one not in (led.broker_id, brokers.leader.broker_id)]
    left = brokers.kill(follower)
    brokers.cut(led.broker_id, follower)
    brokers.run(4_000)
    brokers.start(follower, left)
    brokers.run(4_000)
    reported = [one.broker_id for one in brokers[follower].node._replicas.unreachable()]
    assert reported == [led.broker_id]


def test_a_registration_that_nobody_answers_is_asked_for_again() -> None:
    asked = []
    who = RegisterBrokerRequest(
        broker_id=BrokerId(2), data_dir_id="d", address="a:1", rack=None, broker_version="1", clean_stop=True
    )
    standing = BrokerRegistration(
        who,
        lambda request, done: asked.append(done),
        NothingApplied(),
        NothingToReport(),
        lambda: None,
    )
    for ms in range(0, limits.SESSION_MS, 500):
        standing.tick(Now(0, ms * 1_000))
    assert len(asked) == 1
    standing.tick(Now(0, limits.SESSION_MS * 1_000))
    assert len(asked) == 2


def test_a_leader_whose_subscription_is_refused_ends_its_gap_when_another_one_leads() -> None:
    brokers = with_stream()
    old = brokers.led("s")
    old.nats.forbid("s")
    brokers.run(500)
    (partition,) = old.node._partitions.values()
    assert [gap.end_us for gap in old.node._listener.gaps_of(partition)] == [None]
    for other in brokers.ids:
        if other != old.broker_id:
            brokers.cut(old.broker_id, other)
    brokers.run(8_000)
    brokers.join(old.broker_id, *(other for other in brokers.ids if other != old.broker_id))
    brokers.run(3_000)
    assert brokers.led("s") is not old
    (gap,) = old.node._listener.gaps_of(partition)
    assert gap.end_us is not None


def test_a_broker_says_what_it_waits_for_until_it_has_its_part_in_the_cluster() -> None:
    brokers = Brokers(1, 2, 3)
    for other in (2, 3):
        brokers.kill(other)
    one = brokers[1]
    said = [one.node.waits_for]
    while len(brokers.members) == 1 and brokers.clock.now.elapsed_us < 5_000_000:
        brokers.run(50)
        said.append(one.node.waits_for)
    assert set(said) == {"waiting for a majority: 1 of 3 voters reachable"}
    brokers.start(2)
    assert one.node.waits_for == "waiting to hear of the metadata leader: 2 of 3 voters reachable"
    said = [one.node.waits_for]
    while one.node.waits_for:
        said.append(one.node.waits_for)
        brokers.run(50)
    assert one.broker_id in one.image.live_brokers()
    # Once it has it, a lost majority does not take it back: what it leads and follows is another question.
    brokers.kill(2)
    brokers.run(5_000)
    assert one.node.waits_for == ""


def test_a_broker_is_not_ready_while_it_may_not_come_in() -> None:
    brokers = formed()
    brokers.kill(3)
    brokers.start(3, disk="another disk")
    brokers.run(1_000)
    assert "broker 3 is registered at b3:1 with another data directory" in brokers[3].node.waits_for
    brokers.run(5_000)
    assert brokers[3].node.waits_for == ""


def test_who_is_alone_waits_for_nobody() -> None:
    alone = Brokers(1)
    assert alone[1].node.waits_for == ""


def test_a_broker_without_a_metadata_leader_says_how_old_its_news_are_and_whom_it_reaches() -> None:
    brokers = with_stream()
    leader = brokers.led("s")
    other, left = (brokers[one] for one in brokers.ids if one != leader.broker_id)
    state = left.ask(StatusRequest(), StatusResponse)
    assert (state.metadata_heard_ms, state.voters, state.voters_reachable) == (0, 3, 3)
    assert [one.is_reachable for one in state.brokers] == [True, True, True]
    brokers.kill(leader.broker_id)
    brokers.kill(other.broker_id)
    brokers.run(20_000)
    state = left.ask(StatusRequest(), StatusResponse)
    assert (state.metadata_leader, state.voters, state.voters_reachable) == (None, 3, 1)
    assert state.metadata_heard_ms is not None
    assert 15_000 < state.metadata_heard_ms <= 20_000
    assert {one.broker_id for one in state.brokers if one.is_reachable} == {left.broker_id}
    assert state.partitions_by_state == {"no_leader": 1}
    (part,) = left.stream("s").partitions
    assert part.state_reason == f"broker {leader.broker_id} led it last, and cannot be reached from here"


def test_partitions_are_counted_wherever_their_replicas_are() -> None:
    brokers = formed()
    brokers.leader.create("s", subject="s", replicas=1)
    brokers.run(500)
    states = [brokers[one].ask(StatusRequest(), StatusResponse) for one in brokers.ids]
    assert [(state.partitions, sum(state.partitions_by_state.values())) for state in states] == [(1, 1)] * 3


ABSENT: list[Request] = [
    MetadataRequest(names=("nobody",)),
    FindStreamsRequest(subject="nobody"),
    FetchRequest(stream_id=StreamId(999), offset=Offset(0)),
]


@pytest.mark.parametrize("asked", ABSENT, ids=lambda asked: type(asked).__name__)
def test_what_a_broker_without_a_metadata_leader_has_not_heard_of_it_does_not_deny(asked: Request) -> None:
    brokers = with_stream()
    one = brokers[1]
    first = one.replies[one.request(asked)].response
    assert not isinstance(first, RemoteError) or first.code == ErrorCode.STREAM_NOT_FOUND
    for other in (2, 3):
        brokers.kill(other)
    brokers.run(5_000)
    refusal = one.refusal(asked)
    assert (refusal.code, refusal.message) == (
        ErrorCode.NOT_YET,
        "not ready: waiting for a metadata leader: 1 of 3 voters reachable",
    )
    assert one.stream("s").name == "s"


def test_a_broker_that_is_not_in_its_cluster_yet_denies_no_stream_and_keeps_nobody_waiting() -> None:
    brokers = Brokers(1, 2, 3)
    for other in (2, 3):
        brokers.kill(other)
    config = StreamConfig(name="s", subject="s")
    for asked in (*ABSENT, MetadataRequest(), CreateStreamRequest(config=config), DeleteStreamRequest(name="s")):
        refusal = brokers[1].refusal(asked)
        assert (refusal.code, refusal.message) == (
            ErrorCode.NOT_YET,
            "not ready: waiting for a majority: 1 of 3 voters reachable",
        )
    assert brokers[1].ask(MetadataRequest(names=()), MetadataResponse).streams == ()


def test_a_change_that_finds_no_metadata_leader_says_who_is_missing() -> None:
    brokers = formed()
    for other in (2, 3):
        brokers.kill(other)
    brokers.run(5_000)
    caller = brokers[1].create("s", subject="s")
    brokers.run(15_000)
    refusal = brokers[1].replies[caller].response
    assert isinstance(refusal, RemoteError)
    assert refusal.message == (
        "no metadata leader was found in time: waiting for a metadata leader: 1 of 3 voters reachable"
    )


@each_change
def test_why_nobody_leads_is_said_by_whoever_is_asked() -> None:
    brokers = formed()
    brokers.leader.create("one", subject="one", replicas=1)
    brokers.run(500)
    holder = brokers.led("one").broker_id
    others = [brokers[one] for one in brokers.ids if one != holder]
    brokers.kill(holder)
    brokers.run(15_000)
    reason = f"it has no leader: it waits for broker {holder}: no other broker has all acked messages"
    for other in others:
        (part,) = other.stream("one").partitions
        assert (part.state, part.state_reason, part.committed_end) == ("no_leader", reason, None)
        fetch = FetchRequest(stream_id=other.stream_id("one"), offset=Offset(0))
        assert other.refusal(fetch).message.endswith(reason)
    brokers.start(holder, disk="another")
    brokers.run(10_000)
    for member in brokers.members.values():
        (part,) = member.stream("one").partitions
        assert part.state == "no_leader"
        assert f"its last in-sync copy was on broker {holder}'s old disk; start broker" in part.state_reason


def test_a_new_metadata_leader_hears_at_once_who_is_there() -> None:
    brokers = formed()
    old = brokers.leader.broker_id
    brokers.kill(old)
    while not any(member.quorum.is_leader for member in brokers.members.values()):
        brokers.run(50)
    brokers.run(2 * limits.RAFT_TICK_MS)
    controller = brokers.leader.node._cluster._metadata_leader._controller
    assert controller.ready(brokers.clock.now) == set()  # the dead one is not heard of
    assert len(controller._heard(brokers.clock.now)) == 2


@each_change
def test_a_memory_stream_whose_replicas_all_began_anew_tells_its_readers() -> None:
    brokers = with_stream(storage="memory")
    brokers.led("s").publish("s", b"one")
    brokers.led("s").publish("s", b"two")
    brokers.run(200)
    disks = {broker_id: brokers.kill(broker_id) for broker_id in brokers.ids}
    for broker_id, disk in disks.items():
        brokers.start(broker_id, disk)
    brokers.settle()
    brokers.run(10_000)
    leader = brokers.led("s")
    read = FetchRequest(stream_id=leader.stream_id("s"), offset=Offset(2), leader_epoch=LeaderEpoch(1))
    assert leader.refusal(read).code == ErrorCode.LOG_TRUNCATED
    leader.publish("s", b"three", reply="r")
    brokers.run(200)
    assert leader.acks[-1].body["seq"] == 1
    assert leader.refusal(read).code == ErrorCode.LOG_TRUNCATED


@pytest.mark.parametrize("missed", ["registered", "learner", "voter"])
def test_who_lags_lets_a_broker_lead_that_was_taken_in_again_meanwhile(missed: str) -> None:
    brokers = formed()
    first = brokers.leader.broker_id
    behind, new = (one for one in brokers.ids if one != first)
    brokers.kill(new)
    brokers.run(5_000)
    brokers.start(new, disk="another")

    def has_come(what: str) -> bool:
        quorum = brokers[first].quorum
        if what == "registered":
            return bool(quorum.image.brokers[new].data_dir_id == "another")
        return new in (quorum.membership.learners if what == "learner" else quorum.membership.voters)

    def until(what: str) -> None:
        for _ in range(400):
            brokers.run(50)
            if has_come(what):
                return
        raise AssertionError(what)

    if missed != "registered":
        until({"learner": "registered", "voter": "learner"}[missed])
    else:
        for _ in range(400):
            brokers.run(50)
            if new not in brokers[first].quorum.membership:
                break
    for other in (first, new):
        brokers.cut(behind, other)
    brokers.run(3_000)
    has_vote = has_come("voter")
    disk = brokers.kill(first)
    brokers.join(behind, new)
    brokers.run(10_000)
    leaders = [one.broker_id for one in brokers.members.values() if one.quorum.is_leader]
    assert leaders == ([new] if has_vote else [])  # without a vote it is two voters, of whom one is away
    assert has_vote == (missed == "voter")
    brokers.start(first, disk)
    brokers.join(first, behind)
    brokers.run(10_000)
    assert brokers.leader.quorum.membership.voters == brokers.ids


def test_a_first_voter_that_loses_its_disk_before_it_is_registered_leaves_the_voters_too() -> None:
    brokers = Brokers(1, 2, 3)
    while not (leaders := [one for one in brokers.members.values() if one.quorum.is_leader]):
        brokers.run(50)
    first = leaders[0]
    new = next(one for one in brokers.ids if one != first.broker_id)
    assert new not in first.image.brokers
    brokers.kill(new)
    brokers.start(new, disk="another")
    voters = set()
    for _ in range(200):
        brokers.run(50)
        voters.add(first.quorum.membership.voters)
    assert voters == {(1, 2, 3), tuple(one for one in brokers.ids if one != new)}
    assert first.quorum.membership.voters == brokers.ids
    assert first.image.brokers[new].data_dir_id == "another"


def test_who_could_not_open_a_log_does_not_say_that_it_stopped_cleanly() -> None:
    brokers = with_stream()
    follower = next(one for one in brokers.members.values() if one not in (brokers.led("s"), brokers.leader)).broker_id
    left = brokers.kill(follower)
    brokers.run(5_000)
    member = Member(brokers, follower, f"disk-{follower}", left)
    brokers.members[follower] = member
    member.vfs.plan = lambda one: FileFault(errno.EIO) if one.path.startswith("streams/") else no_faults(one)
    member.start()
    brokers.join(follower, *(one for one in brokers.ids if one != follower))
    brokers.run(5_000)
    assert member.node._replicas.streams.failures
    member.vfs.plan = no_faults
    assert "clean-stop" not in brokers.stop(follower).list("")


@each_change
def test_more_resignations_than_a_heartbeat_tells_are_told_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ELECTIONS_PER_COMMAND_MAX", 1)
    brokers = formed()
    names = [f"s{number}" for number in range(12)]
    for name in names:
        brokers.leader.create(name, subject=name, replicas=2)
        brokers.run(500)
    of_one = [name for name in names if brokers.partition(name).leader != brokers.leader.broker_id]
    full = brokers.led(of_one[0]).broker_id
    led = [name for name in names if brokers.partition(name).leader == full]
    away = next(one for one in brokers.partition(led[0]).replicas if one != full)
    if away == brokers.leader.broker_id:  # who decides stays
        away = next(one for one in brokers.ids if one not in (full, away))
    brokers.kill(away)
    brokers.run(8_000)
    brokers[full].vfs.plan = no_room_for_logs
    for name in led:
        brokers[full].publish(name, b"x", reply="r")
    brokers.run(30_000)
    movable = [name for name in led if away not in brokers.partition(name).replicas]
    assert len(led) > 1
    assert [brokers.partition(name).leader for name in movable] == [brokers.leader.broker_id] * len(movable)


def no_room_for_logs(one: FileOperation) -> FileFault | None:
    is_log = one.path.startswith("streams") or one.path == "room"
    return FileFault(errno.ENOSPC) if one.kind is FileOperationKind.WRITE and is_log else None


def test_a_stream_that_is_deleted_before_all_have_opened_it_is_said_to_be() -> None:
    """The metadata leader described a stream that its image did not have any more, and ended."""
    brokers = formed()
    leader = brokers.leader
    (away, *_) = [one for one in brokers.members if one != leader.broker_id]
    brokers.hang(away)
    created = leader.create("s", subject="s", replicas=3)
    brokers.run(500)
    assert created not in leader.replies
    leader.delete("s")
    brokers.run(500)
    brokers.kill(away)
    brokers.run(15_000)
    error = leader.answer(created, RemoteError)  # type: ignore[type-var]
    assert error.code == ErrorCode.STREAM_CHANGED
