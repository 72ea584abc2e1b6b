"""How far a consumer has come, against a model that only remembers what was said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import LeaderEpoch
from penstock.client.consume.progress import Progress, ReadMark

EPOCH = LeaderEpoch(3)
actions = st.lists(
    st.tuples(st.sampled_from(["handed", "finish", "commit", "seek"]), st.integers(0, 1), st.integers(1, 9))
)


@given(todo=actions)
def test_only_what_is_done_is_committed(todo: list[tuple[str, int, int]]) -> None:
    progress = Progress(5.0, 100.0)
    for number in (0, 1):
        progress.begin(number, ReadMark(10, EPOCH), is_committed=True)
    done, committed = {0: 10, 1: 10}, {0: 10, 1: 10}
    in_hand: tuple[int, int] | None = None
    for action, number, count in todo:
        if action == "handed":
            progress.finish()
            if in_hand is not None:
                done[in_hand[0]] = in_hand[1]
            in_hand = number, done[number] + count
            progress.handed(number, ReadMark(in_hand[1], EPOCH))
        elif action == "finish":
            progress.finish()
            if in_hand is not None:
                done[in_hand[0]], in_hand = in_hand[1], None
        elif action == "seek":
            progress.seek(number, count)
            done[number] = count
            in_hand = None if in_hand is not None and in_hand[0] == number else in_hand
        else:
            progress.committed(progress.uncommitted, 100.0)
            committed = dict(done)
        assert progress.positions == done
        wanted = {one: offset for one, offset in done.items() if committed[one] != offset}
        assert {one: mark.offset for one, mark in progress.uncommitted.items()} == wanted


def test_a_checkpoint_is_due_when_its_time_has_come_and_there_is_something_to_commit() -> None:
    progress = Progress(5.0, 100.0)
    progress.begin(0, ReadMark(0, None), is_committed=True)
    assert progress.due_s is None
    progress.handed(0, ReadMark(3, EPOCH))
    assert progress.due_s is None  # it is in hand
    progress.finish()
    assert progress.due_s == 105.0
    assert not progress.is_due(104.9)
    assert progress.is_due(105.0)
    progress.committed(progress.uncommitted, 106.0)
    assert progress.due_s is None
    assert not progress.is_due(200.0)
    progress.handed(0, ReadMark(4, EPOCH))
    progress.finish()
    assert progress.due_s == 111.0


def test_where_it_begins_is_to_be_committed_unless_it_was() -> None:
    progress = Progress(5.0, 0.0)
    progress.begin(0, ReadMark(7, EPOCH), is_committed=False)
    progress.begin(1, ReadMark(8, None), is_committed=True)
    assert progress.uncommitted == {0: ReadMark(7, EPOCH)}


def test_an_offset_of_a_partition_that_is_not_read_is_refused() -> None:
    progress = Progress(5.0, 0.0)
    progress.begin(0, ReadMark(7, EPOCH), is_committed=False)
    with pytest.raises(ValueError, match="partition 1 is not read"):
        progress.seek(1, 3)
    with pytest.raises(ValueError, match="negative"):
        progress.seek(0, -1)


def test_offsets_are_looked_at_before_any_counts() -> None:
    progress = Progress(5.0, 100.0)
    for number in (0, 1):
        progress.begin(number, ReadMark(10, EPOCH), is_committed=True)
    progress.handed(1, ReadMark(15, EPOCH))
    assert progress.beyond({0: 10, 1: 15}) == {}
    assert progress.beyond({0: 11, 1: 16}) == {0: 11, 1: 16}
    wrong: tuple[tuple[object, type[Exception], str], ...] = (
        (5, TypeError, "the offsets are an int; give a dict"),
        ({0: "7"}, TypeError, "the offset '7' is a str; give an int"),
        ({"0": 7}, TypeError, "the partition '0' is a str; give an int"),
        ({0: 7, 2: 7}, ValueError, "partition 2 is not read"),
        ({0: 7, 1: -1}, ValueError, "-1 is negative"),
    )
    for offsets, kind, reason in wrong:
        with pytest.raises(kind, match=reason):
            progress.beyond(offsets)  # type: ignore[arg-type]
    assert progress.positions == {0: 10, 1: 10}
