"""A save of the metadata that does not come back: who leads meanwhile, and who is asked."""

from __future__ import annotations

from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.messages import CreateStreamRequest, CreateStreamResponse, DeleteStreamRequest, DeleteStreamResponse
from penstock.metadata.commands import FormCluster
from tests.unit.node.members import Brokers, Member, formed

AN_ELECTION_MS = 2_000


def others(brokers: Brokers, member: Member) -> list[Member]:
    return [one for one in brokers.members.values() if one is not member]


def hang(brokers: Brokers, member: Member) -> None:
    """Its saves do not come back: the next command that most others have begins one."""
    member.disk_runs_at_once = False
    brokers.leader.request(create("begins-a-save"))
    brokers.settle()
    assert member.disk


def create(name: str, timeout_ms: int = 10_000) -> CreateStreamRequest:
    return CreateStreamRequest(config=StreamConfig(name=name, subject=name, replicas=2), timeout_ms=timeout_ms)


def test_a_metadata_leader_whose_save_hangs_leads_no_more_and_names_its_successor() -> None:
    brokers = formed()
    old = brokers.leader
    hang(brokers, old)
    brokers.run(500)
    assert old.quorum.is_leader
    brokers.run(2 * AN_ELECTION_MS)
    assert old.disk
    successor = brokers.leader
    assert successor is not old
    assert old.quorum.leader == successor.broker_id
    assert sum("others elect another metadata leader" in notice for notice in old.notices) == 1
    assert old.broker_id not in successor.node._cluster._metadata_leader._controller._sessions.heard_since(1)


def test_what_a_client_asks_of_a_metadata_leader_whose_save_hangs_is_asked_of_its_successor() -> None:
    brokers = formed()
    brokers.leader.create("s", subject="s", replicas=3)
    brokers.run(1_000)
    old = brokers.leader
    old.disk_runs_at_once = False
    in_the_save = old.request(DeleteStreamRequest(name="s"))
    behind_it = old.request(create("behind-it", timeout_ms=30_000))
    brokers.run(limits.METADATA_SAVE_MS + AN_ELECTION_MS)
    assert in_the_save in old.replies
    old.answer(in_the_save, DeleteStreamResponse)
    brokers.run(limits.FLUSH_STALL_MS + limits.SESSION_MS)  # until nobody waits for the old one
    assert old.disk
    assert old.answer(behind_it, CreateStreamResponse).created
    old.disk_runs_at_once = True
    brokers.run(5_000)
    assert set(old.image.names) == set(brokers.leader.image.names) == {"behind-it"}


def test_what_comes_while_the_save_hangs_is_asked_of_the_successor() -> None:
    brokers = formed()
    old = brokers.leader
    hang(brokers, old)
    brokers.run(2 * AN_ELECTION_MS)
    caller = old.request(DeleteStreamRequest(name="no such stream"))
    brokers.run(500)
    response = old.replies[caller].response
    assert isinstance(response, RemoteError)
    assert response.code == ErrorCode.STREAM_NOT_FOUND  # as only who leads can say


def test_a_follower_whose_save_hangs_names_the_leader_that_it_hears() -> None:
    brokers = formed()
    follower, third = others(brokers, brokers.leader)
    hang(brokers, follower)
    brokers.run(2 * AN_ELECTION_MS)
    assert follower.quorum.leader == brokers.leader.broker_id  # who goes on sending
    old = brokers.leader
    brokers.kill(old.broker_id)
    brokers.run(AN_ELECTION_MS)
    assert follower.quorum.leader is None  # two of three are needed, and one cannot save its vote
    brokers.start(old.broker_id, old.memory.crash_clone())
    brokers.run(5_000)
    assert follower.disk
    assert follower.quorum.leader == brokers.leader.broker_id
    assert third.quorum.leader == brokers.leader.broker_id


def test_what_waits_for_a_save_that_hangs_is_told_who_leads_and_never_done_here() -> None:
    brokers = formed()
    old = brokers.leader
    hang(brokers, old)
    heard: list[str] = []

    def done(outcome: object) -> None:
        assert isinstance(outcome, RemoteError)
        heard.append(outcome.code)

    for _ in range(2):
        old.quorum.propose(FormCluster(cluster_id="another"), done)
    assert heard == []
    brokers.run(2 * AN_ELECTION_MS)
    assert heard == [ErrorCode.NOT_METADATA_LEADER] * 2
    old.quorum.propose(FormCluster(cluster_id="another"), done)
    assert len(heard) == 3
    assert old.disk


def test_who_led_and_is_elected_again_decides_nothing_before_it_has_all_of_the_terms_between() -> None:
    brokers = formed()
    old = brokers.leader
    hang(brokers, old)
    brokers.run(2 * AN_ELECTION_MS)
    old.settle()
    old.disk_runs_at_once = True
    brokers.run(1_000)
    successor = brokers.leader
    assert successor is not old
    old.disk_runs_at_once = False
    successor.quorum.hand_over(old.broker_id)
    for saved in ("its vote", "the first entry of its term"):
        brokers.settle()
        assert len(old.disk) == 1, saved
        if saved != "its vote":
            for one in others(brokers, old):
                brokers.hang(one.broker_id)
        old.run_disk()
    brokers.settle()
    assert old.quorum.leader == old.broker_id
    assert not old.quorum.is_leader
    old.disk_runs_at_once = True
    for one in others(brokers, old):
        brokers.wake(one.broker_id)
    brokers.run(200)
    assert old.quorum.is_leader


def test_a_leader_that_nobody_took_the_place_of_leads_again_once_its_save_is_back() -> None:
    brokers = formed()
    leader = brokers.leader
    term = leader.quorum.term
    one, other = others(brokers, leader)
    leader.disk_runs_at_once = False
    caller = leader.request(create("s"))
    brokers.cut(one.broker_id, other.broker_id)
    brokers.cut(leader.broker_id, one.broker_id)
    brokers.hang(other.broker_id)
    brokers.run(limits.METADATA_SAVE_MS)
    assert (leader.quorum.is_leader, leader.quorum.leader) == (False, None)
    leader.disk_runs_at_once = True
    brokers.wake(other.broker_id)
    brokers.run(200)
    assert (leader.quorum.is_leader, leader.quorum.term) == (True, term)
    brokers.join(one.broker_id, leader.broker_id, other.broker_id)
    brokers.run(5_000)
    leader.answer(caller, CreateStreamResponse)
    assert len([name for name in brokers.leader.image.names if name == "s"]) == 1
