"""What a replica hides is held against the rollups that are known, and against those that may be stored unknown."""

from __future__ import annotations

import pytest

from penstock.base.config import StreamConfig
from penstock.live.row_set import NONE, RowSet
from penstock.testing.simulation.checks.checks import PartitionHistory
from penstock.testing.simulation.inspector import FullLook
from tests.sim.checks.rollups import Rollups

KNOWN = {0: b"a0", 1: b"b1", 2: b"a2"}
SUBJECTS = {b"a0": b"a", b"b1": b"b", b"a2": b"a", b"a3": b"a", b"b3": b"b"}


def look(log_start: int = 0, committed_end: int = 3, hidden: RowSet = NONE) -> FullLook:
    return FullLook(False, 1, False, log_start, committed_end, committed_end, committed_end, 0, hidden)


def mistake(
    at: FullLook, kinds: dict[bytes, bytes], committed_end: int = 3, deleted: frozenset[int] = frozenset()
) -> str:
    """Return what is wrong with a replica, when a leader has had that committed_end."""
    history = PartitionHistory(StreamConfig(name="s", subject="s.>"), 0, known=KNOWN, committed_end=committed_end)
    return Rollups(kinds).mistake(at, history, SUBJECTS, deleted)


def test_what_a_rollup_replaces_is_hidden_once_it_is_shown() -> None:
    of_subject, of_all = {b"a2": b"sub"}, {b"a2": b"all"}
    assert "shows 0 beside" in mistake(look(), of_subject)
    assert mistake(look(hidden=RowSet.of([0])), of_subject) == ""
    assert "shows 1 beside" in mistake(look(hidden=RowSet.of([0])), of_all)
    assert mistake(look(log_start=2), of_all) == ""
    assert mistake(look(committed_end=2), of_all) == ""  # it does not show the rollup


@pytest.mark.parametrize("kinds", [{b"a2": b"sub"}, {}])
def test_nothing_else_is_hidden(kinds: dict[bytes, bytes]) -> None:
    assert "shows 1 no more" in mistake(look(hidden=RowSet.of([0, 1])), kinds)
    assert "shows 1 no more" in mistake(look(log_start=2), kinds)


def test_a_deleted_message_is_hidden() -> None:
    assert mistake(look(hidden=RowSet.of([0, 1])), {b"a2": b"sub"}, deleted=frozenset({1})) == ""


def test_a_rollup_without_an_ack_hides_also_where_the_log_ends_before_it() -> None:
    behind = look(log_start=3)
    assert mistake(behind, {}, committed_end=4) == ""
    assert "shows 2 no more" in mistake(behind, {}, committed_end=3)


def test_what_is_committed_nowhere_hides_nothing() -> None:
    at = look(log_start=3)._replace(log_end=5)
    assert "shows 2 no more" in mistake(at, {})


def test_a_rollup_may_have_taken_a_message_only_of_its_subject() -> None:
    of_b = Rollups({b"b3": b"sub"})
    assert not of_b.may_take(2, 4, b"a", KNOWN | {3: b"b3"}, SUBJECTS)
    assert of_b.may_take(1, 4, b"b", KNOWN | {3: b"b3"}, SUBJECTS)
    assert Rollups({b"b3": b"all"}).may_take(2, 4, b"a", KNOWN | {3: b"b3"}, SUBJECTS)
    assert Rollups().may_take(2, 5, b"a", KNOWN | {4: b"a3"}, SUBJECTS)  # nobody knows what is at 3
