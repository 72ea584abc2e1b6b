"""The log in memory: what is cut, kept and replaced."""

from __future__ import annotations

import pytest

from penstock.raft import Entry, EntryKind, HardState, RaftMembership, Snapshot, StoredState
from penstock.raft.log import RaftLog
from penstock.raft.membership import encode_membership

BEGIN = Snapshot(10, 2, RaftMembership((1, 2, 3)), b"")
FOUR = RaftMembership((1, 2, 3, 4))


def entry(index: int, term: int, membership: RaftMembership | None = None) -> Entry:
    if membership is not None:
        return Entry(term, index, EntryKind.MEMBERSHIP, encode_membership(membership))
    return Entry(term, index, EntryKind.COMMAND, b"x" * 10)


def log(commit: int = 0) -> RaftLog:
    """11:2 12:3 13:3 (four members) 14:4."""
    entries = (entry(11, 2), entry(12, 3), entry(13, 3, FOUR), entry(14, 4))
    return RaftLog(StoredState(HardState(4, None, commit), BEGIN, entries))


def test_what_is_stored() -> None:
    found = log(12)
    assert (found.last_index, found.last_term, found.stable_index) == (14, 4, 14)
    assert (found.commit, found.applied) == (12, 10)
    assert [found.term_at(index) for index in (9, 10, 11, 14, 15)] == [None, 2, 2, 4, None]
    assert [entry.index for entry in found.between(11, 13)] == [12, 13]
    assert found.between(14, 14) == ()


@pytest.mark.parametrize(("commit", "expected"), [(0, 10), (13, 13), (99, 14)])
def test_a_stored_commit_index_stays_within_the_log(commit: int, expected: int) -> None:
    assert log(commit).commit == expected


def test_the_membership_is_the_last_one_committed_or_not() -> None:
    found = log(12)
    assert (found.membership, found.membership_index) == (FOUR, 13)
    assert found.committed_membership == BEGIN.membership
    found.commit_to(13)
    assert found.committed_membership == FOUR


def test_truncation_takes_a_membership_back() -> None:
    found = log(12)
    found.truncate_from(13)
    assert (found.last_index, found.stable_index) == (12, 12)
    assert (found.membership, found.membership_index) == (BEGIN.membership, 10)
    with pytest.raises(AssertionError, match="committed"):
        found.truncate_from(12)


def test_entries_follow_each_other() -> None:
    with pytest.raises(AssertionError, match="no gaps"):
        log().append((entry(16, 4),))


def test_batches() -> None:
    found = log()
    assert len(found.batch(10, 14, 1_000, 100)) == 4
    assert len(found.batch(10, 14, 1_000, 3)) == 3
    assert len(found.batch(10, 14, 20, 100)) == 2
    assert len(found.batch(10, 14, 1, 100)) == 1
    assert found.batch(14, 14, 1, 100) == ()


def test_compaction_keeps_a_few_entries_for_who_lags() -> None:
    found = log(14)
    found.applied = 14
    snapshot = found.compact(13, b"image", kept_entries_max=2)
    assert snapshot == Snapshot(13, 3, FOUR, b"image")
    assert (found.base_index, found.base_term, found.last_index) == (11, 2, 14)
    assert [found.term_at(index) for index in (10, 11, 12, 13, 14)] == [None, 2, 3, 3, 4]
    assert found.membership == FOUR
    with pytest.raises(AssertionError):
        found.compact(13, b"again", kept_entries_max=2)
    found.compact(14, b"image", kept_entries_max=0)
    assert (found.base_index, found.base_term, found.last_term) == (14, 4, 4)


def test_compaction_before_a_change_has_the_membership_of_that_place() -> None:
    found = log(14)
    found.applied = 14
    assert found.compact(12, b"image", kept_entries_max=0).membership == BEGIN.membership
    assert found.membership == FOUR


def test_a_snapshot_of_the_leader_replaces_everything() -> None:
    found = log(12)
    snapshot = Snapshot(20, 5, RaftMembership((1, 2)), b"image")
    found.restore(snapshot)
    assert (found.base_index, found.last_index, found.last_term, found.commit) == (20, 20, 5, 20)
    assert found.membership == snapshot.membership
    assert found.new_snapshot is snapshot
    found.append((entry(21, 5),))
    assert found.stable_index == 20
