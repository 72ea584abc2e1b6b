"""What readers are shown: up to where, how many bytes, and since when."""

from __future__ import annotations

from penstock.live.row_set import RowSet
from penstock.node.partition.visible_rows import AppliedMarks, VisibleRows


def deciding(end: int = 0, committed_bytes: int = 0) -> VisibleRows:
    """Rows of a stream that needs decisions from now on; up to `end` they were shown before."""
    visible = VisibleRows()
    visible.configure(end, committed_bytes, needs_decisions=True)
    return visible


def test_readers_see_what_is_decided_on_and_what_they_have_seen() -> None:
    assert deciding().end(10, 4) == 4
    assert deciding(7).end(10, 4) == 7
    assert deciding(7).end(10, 9) == 9
    assert deciding(7).end(5, 9) == 5, "a follower does not know yet that more is committed"


def test_a_stricter_limit_takes_nothing_from_what_was_shown() -> None:
    visible = deciding()
    visible.apply(AppliedMarks(decided_end=8, limit=5), end=0)
    assert visible.end(10, 8) == 8
    visible.apply(AppliedMarks(decided_end=2, limit=3), end=8)
    assert visible.end(10, 2) == 8
    assert (visible.applied.decided_end, visible.applied.limit) == (2, 3)


def test_a_log_that_is_cut_shows_nothing_behind_its_end() -> None:
    visible = deciding(9)
    visible.cut(6)
    assert visible.end(12, 0) == 6


def test_marks_of_a_stream_without_decisions_keep_nothing_shown() -> None:
    visible = VisibleRows()
    visible.apply(AppliedMarks(RowSet.of([1])), end=9)
    visible.configure(2, 0, needs_decisions=True)
    assert visible.end(10, 0) == 2, "only what was shown when decisions began"


def test_bytes_grow_with_what_is_shown() -> None:
    assert VisibleRows().bytes_of(500) == 500
    visible = deciding(committed_bytes=1_000)
    assert visible.bytes_of(1_000) == 1_000
    visible.grown(0, 0, 10, 2_000)
    assert visible.bytes_of(2_000) == 1_000
    visible.grown(0, 5, 10, 2_000)
    assert visible.bytes_of(2_000) == 1_500, "half of the rows, half of the bytes"
    visible.grown(5, 10, 10, 2_000)
    assert visible.bytes_of(2_000) == 2_000
    visible.grown(10, 11, 11, 2_000)
    assert visible.bytes_of(2_000) == 2_001, "who waits for more bytes goes on"


def test_a_limit_that_comes_again_counts_from_what_is_committed() -> None:
    visible = deciding(committed_bytes=1_000)
    visible.configure(0, 1_000, needs_decisions=False)
    assert visible.bytes_of(3_000) == 3_000
    visible.configure(0, 3_000, needs_decisions=True)
    visible.configure(0, 9_000, needs_decisions=True)
    assert visible.bytes_of(9_000) == 3_000, "another limit does not show what is not decided on"


def test_it_is_fresh_as_its_log_if_nothing_waits() -> None:
    assert VisibleRows().as_of(77, committed_end=10, end=10) == 77


def test_it_is_as_fresh_as_the_last_end_that_is_shown() -> None:
    visible = deciding()
    assert visible.as_of(100, committed_end=10, end=4) is None
    assert visible.as_of(200, committed_end=20, end=9) is None
    assert visible.as_of(300, committed_end=30, end=10) == 100, "what was committed at 100 is shown now"
    assert visible.as_of(400, committed_end=40, end=29) == 100
    assert visible.as_of(500, committed_end=40, end=40) == 500


def test_marks_that_are_known_and_not_applied_are_waited_for() -> None:
    visible = VisibleRows()
    visible.known_marks = 3
    assert visible.as_of(100, committed_end=10, end=10) is None
    visible.known_marks, visible.shown_marks = 5, 3
    assert visible.as_of(200, committed_end=20, end=20) == 100
    visible.shown_marks = 5
    assert visible.as_of(300, committed_end=30, end=30) == 300
