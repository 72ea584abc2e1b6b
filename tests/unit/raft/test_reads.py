"""When a read is sure."""

from __future__ import annotations

from penstock.raft.reads import PendingRead, ReadQueue

VOTERS = (1, 2, 3)


def test_a_read_waits_for_a_majority_of_a_later_round() -> None:
    reads = ReadQueue(1)
    reads.begin_round()
    reads.acknowledged(2, 1)
    reads.add(1, b"a", 7)
    assert reads.wants_round
    assert reads.confirmed(VOTERS) == []
    reads.begin_round()
    reads.acknowledged(2, 1)  # of the round before: not enough
    assert reads.confirmed(VOTERS) == []
    reads.acknowledged(9, 2)  # no voter
    assert reads.confirmed(VOTERS) == []
    reads.acknowledged(3, 2)
    assert reads.confirmed(VOTERS) == [PendingRead(2, 7, 1, b"a")]
    assert len(reads) == 0


def test_a_later_round_confirms_the_earlier_ones() -> None:
    reads = ReadQueue(1)
    for number in (1, 2, 3):
        reads.add(number, b"r", number)
        reads.begin_round()
    reads.acknowledged(2, 2)
    assert [read.requester for read in reads.confirmed(VOTERS)] == [1, 2]
    reads.acknowledged(2, 1)  # late
    reads.acknowledged(2, 3)
    assert [read.requester for read in reads.confirmed(VOTERS)] == [3]


def test_a_round_that_has_not_begun_confirms_nothing() -> None:
    reads = ReadQueue(1)
    reads.add(1, b"a", 7)
    assert reads.confirmed((1,)) == []
    reads.acknowledged(2, 99)
    reads.begin_round()
    assert reads.confirmed(VOTERS) == []
    assert reads.confirmed((1,)) == [PendingRead(1, 7, 1, b"a")]


def test_an_early_read_gets_its_index_later() -> None:
    reads = ReadQueue(1)
    reads.add(2, b"a", None)
    assert not reads.wants_round
    assert len(reads) == 1
    reads.begin(12)
    reads.begin_round()
    reads.acknowledged(3, 1)
    assert reads.confirmed(VOTERS) == [PendingRead(1, 12, 2, b"a")]


def test_a_leader_that_does_not_vote_needs_all_the_more() -> None:
    reads = ReadQueue(1)
    reads.add(1, b"a", 7)
    reads.begin_round()
    reads.acknowledged(2, 1)
    assert reads.confirmed((2, 3)) == []
    reads.acknowledged(3, 1)
    assert len(reads.confirmed((2, 3))) == 1
