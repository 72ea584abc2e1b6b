"""A broker with an empty disk helps to form no second cluster."""

from __future__ import annotations

import pytest

from penstock.base.ids import BrokerId
from penstock.metadata.commands import FormCluster, encode_command
from penstock.metadata.image import ClusterImage
from penstock.node.quorum.cluster_formation import ClusterFormation
from penstock.raft import Entry, EntryKind, Message, RaftMembership
from penstock.raft.messages import AppendEntriesRequest, AppendEntriesResponse, RaftHeartbeat, VoteRequest, VoteResponse
from tests.unit.node.contexts import context_of

ONE, TWO, THREE, FOUR = map(BrokerId, (1, 2, 3, 4))


def forming(*, named: bool = False) -> ClusterFormation:
    image = ClusterImage(cluster_id="x") if named else ClusterImage()
    return ClusterFormation(context_of(image=image), lambda: RaftMembership((ONE, TWO, THREE)))


def names(cluster_id: str) -> Entry:
    return Entry(2, 9, EntryKind.COMMAND, encode_command(FormCluster(cluster_id=cluster_id)))


def append(*entries: Entry) -> Message:
    return AppendEntriesRequest(THREE, ONE, 9, 0, 0, 0, entries)


def test_who_is_empty_waits_for_the_cluster_that_a_first_voter_has_told_of_last() -> None:
    one = forming()
    one.cluster_id_reported(THREE, "")
    assert (one.elder, one.obstacle) == (None, "")
    one.cluster_id_reported(TWO, "x")
    assert one.elder == (TWO, "x")
    assert one.obstacle.startswith("broker 2 belongs to cluster x already, and this data directory is empty")
    one.cluster_id_reported(TWO, "")  # an operator has given it an empty disk, too
    assert one.elder is None


def test_who_is_no_first_voter_keeps_nobody_from_forming_a_cluster() -> None:
    one = forming()
    one.cluster_id_reported(FOUR, "x")
    assert one.elder is None


def test_who_has_metadata_does_not_care() -> None:
    named, in_log = forming(named=True), forming()
    in_log.note([Entry(1, 9, EntryKind.LEADERSHIP, b""), names("y")])
    for one in (named, in_log):
        one.cluster_id_reported(TWO, "x")
        assert one.elder is None
        assert one.takes(VoteRequest(THREE, ONE, 9, 0, 0, is_pre_vote=False))


def is_taken(message: Message) -> bool:
    """By a broker to which 2 has told of a cluster x, and 3 of none."""
    one = forming()
    one.cluster_id_reported(TWO, "x")
    one.cluster_id_reported(THREE, "")
    return one.takes(message)


@pytest.mark.parametrize("is_pre_vote", [True, False])
def test_it_votes_for_nobody_who_may_be_as_empty(*, is_pre_vote: bool) -> None:
    assert not is_taken(VoteRequest(THREE, ONE, 9, 0, 0, is_pre_vote))
    assert is_taken(VoteRequest(TWO, ONE, 9, 4, 7, is_pre_vote))
    assert not is_taken(VoteResponse(THREE, ONE, 9, is_pre_vote, is_granted=True))


def test_it_follows_whoever_leads_unless_the_cluster_has_another_name_there() -> None:
    assert is_taken(append())
    assert is_taken(append(names("x")))
    assert not is_taken(append(names("y")))
    assert is_taken(append(Entry(2, 9, EntryKind.COMMAND, b"form_cluster, and nothing that can be read")))
    assert is_taken(RaftHeartbeat(THREE, ONE, 9, 0, 1))


def test_as_a_leader_it_hears_no_answers_and_leads_no_longer() -> None:
    assert not is_taken(AppendEntriesResponse(THREE, ONE, 9, 1))
