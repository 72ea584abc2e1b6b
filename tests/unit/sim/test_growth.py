"""Which added partitions are excused when they take no messages."""

from __future__ import annotations

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.ids import LeaderEpoch, Offset, PartitionId, StreamId
from penstock.metadata.image import KeyBoundary, StreamState
from tests.sim.checks.growth import waits_for_stuck


def grown(counts: tuple[int, ...], *marks: tuple[int, int], by: str = "key") -> StreamState:
    """A stream that had so many partitions one after the other; `marks`: (partitions, partition)."""
    config = msgspec.convert(
        {"name": "s", "subject": "s.>", "partitions": counts[-1], "partition_by": by}, StreamConfig
    )
    made = tuple(KeyBoundary(after, PartitionId(one), Offset(0), LeaderEpoch(1), 1) for after, one in marks)
    return StreamState(StreamId(1), config, 1, (), counts=counts, marks=made)


def test_an_added_partition_waits_for_a_stuck_one_that_made_no_mark() -> None:
    state = grown((3, 4), (4, 0), (4, 2))
    assert [waits_for_stuck(state, number, {1}.__contains__) for number in range(4)] == [False, False, False, True]
    assert not waits_for_stuck(state, 3, {0, 2}.__contains__)


def test_once_all_marks_are_there_nothing_is_excused() -> None:
    assert not waits_for_stuck(grown((2, 3), (3, 0), (3, 1)), 2, {0, 1}.__contains__)


def test_a_later_growth_waits_for_partitions_of_the_one_before() -> None:
    state = grown((2, 3, 4), (3, 0), (4, 0), (4, 1))
    assert waits_for_stuck(state, 3, {1}.__contains__)
    assert not waits_for_stuck(grown((2, 3, 4), (3, 0), (3, 1), (4, 0), (4, 1)), 3, {1}.__contains__)


def test_streams_whose_keys_do_not_move_are_never_excused() -> None:
    assert not waits_for_stuck(grown((2, 3), by="group"), 2, {0, 1}.__contains__)
    assert not waits_for_stuck(grown((2,)), 1, {0}.__contains__)
