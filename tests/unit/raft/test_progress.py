"""What a leader may send to one follower, event by event."""

from __future__ import annotations

from penstock.raft import RaftMembership, Snapshot
from penstock.raft.progress import PeerProgress, ProgressState

SNAPSHOT = Snapshot(5, 1, RaftMembership((1, 2, 3)), b"0123456789")


def replicating(match_index: int) -> PeerProgress:
    progress = PeerProgress(match_index + 1)
    assert progress.accepted(match_index)
    return progress


def test_a_probe_goes_out_alone() -> None:
    progress = PeerProgress(7)
    assert progress.may_append(4)
    progress.sent(9, 0)
    assert not progress.may_append(4)
    assert progress.next_index == 7
    assert progress.accepted(9)
    assert (progress.pace, progress.match_index, progress.next_index) == (ProgressState.REPLICATE, 9, 10)


def test_a_window_of_appends() -> None:
    progress = replicating(0)
    for last_index in (2, 4):
        assert progress.may_append(2)
        progress.sent(last_index, 0)
    assert not progress.may_append(2)
    assert progress.accepted(4)  # answers for both
    assert not progress.in_flight
    assert not progress.accepted(2)  # late
    assert progress.match_index == 4


def test_what_is_empty_takes_no_place_in_the_window() -> None:
    progress = replicating(4)
    progress.sent(4, 3)
    assert not progress.in_flight
    assert progress.commit_sent == 3


def test_a_rejection_goes_back_to_what_is_committed_there() -> None:
    progress = PeerProgress(20)
    assert not progress.rejected(12, 3)  # of a probe before
    assert progress.rejected(19, 11)
    assert (progress.pace, progress.next_index) == (ProgressState.PROBE, 12)
    progress = replicating(10)
    progress.sent(15, 0)
    assert not progress.rejected(10, 0)  # it has that one: the rejection is old
    assert progress.rejected(15, 4)
    assert progress.next_index == 11  # never below what it is known to have


def test_who_has_lost_what_it_acknowledged_gets_it_again() -> None:
    progress = replicating(10)
    progress.sent(12, 0)
    assert not progress.rejected(10, 4)  # perhaps it is late
    progress.probe()
    progress.sent(12, 0)
    assert progress.rejected(10, 4)  # its disk is in an older state
    assert (progress.match_index, progress.next_index) == (4, 5)
    assert progress.may_append(9)


def test_who_lacks_what_it_says_is_committed_is_not_asked_in_haste() -> None:
    progress = replicating(10)
    progress.probe()
    progress.sent(12, 0)
    assert not progress.rejected(10, 10)
    assert not progress.may_append(9)  # until the answer is overdue


def test_who_forgot_what_it_acknowledged_is_sent_that_again() -> None:
    progress = replicating(10)
    assert progress.forgot(4)
    assert (progress.pace, progress.match_index, progress.next_index) == (ProgressState.PROBE, 4, 5)
    assert progress.accepted(12)
    progress.start_snapshot(SNAPSHOT)
    assert not progress.forgot(3)  # what it needs is on its way
    assert (progress.pace, progress.match_index) == (ProgressState.SNAPSHOT, 3)


def test_what_is_not_answered_is_sent_again() -> None:
    progress = replicating(3)
    progress.sent(6, 0)
    for _ in range(3):
        progress.tick()
    assert not progress.is_overdue(4)
    progress.tick()
    assert progress.is_overdue(4)
    assert (progress.pace, progress.next_index) == (ProgressState.PROBE, 4)
    assert progress.may_append(1)
    for _ in range(9):
        progress.tick()
    assert not progress.is_overdue(4)  # nothing is on its way


def test_a_snapshot_in_chunks() -> None:
    progress = PeerProgress(2)
    progress.start_snapshot(SNAPSHOT)
    assert not progress.may_append(9)
    progress.chunk_end, progress.is_waiting = 4, True
    assert progress.received(4)
    assert progress.chunk_position == 4
    progress.chunk_end = 8
    assert not progress.received(4)  # the same answer again
    assert progress.chunk_position == 4
    assert progress.received(9)  # it has more than it could tell
    assert progress.chunk_position == 9
    assert not progress.rejected(1, 0)
    assert progress.accepted(3)  # of an append before
    assert progress.pace is ProgressState.SNAPSHOT
    assert progress.accepted(5)
    assert (progress.pace, progress.next_index) == (ProgressState.REPLICATE, 6)
    assert progress.snapshot is None


def test_a_follower_that_lost_the_first_chunk() -> None:
    progress = PeerProgress(2)
    progress.start_snapshot(SNAPSHOT)
    progress.chunk_position, progress.chunk_end = 4, 8
    assert not progress.received(0)
    assert progress.chunk_position == 0


def test_an_empty_snapshot_at_the_beginning() -> None:
    progress = PeerProgress(1)
    progress.start_snapshot(Snapshot(0, 0, RaftMembership((1,)), b""))
    assert progress.accepted(0)
    assert (progress.pace, progress.next_index) == (ProgressState.REPLICATE, 1)


def test_a_follower_that_knows_no_cluster_begins_anew() -> None:
    progress = replicating(9)
    progress.begin_anew()
    assert progress.wants_snapshot
    assert (progress.match_index, progress.next_index) == (0, 1)
    progress.start_snapshot(SNAPSHOT)
    progress.begin_anew()  # it says so again
    assert progress.pace is ProgressState.SNAPSHOT
