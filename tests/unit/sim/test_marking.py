"""Up to where a limit by subject is not checked: what readers may have seen without it."""

from __future__ import annotations

from penstock.live.row_set import NONE
from penstock.testing.simulation.inspector import LimitLook
from tests.sim.models.marking import seen_before


def look(limit: int | None, visible_end: int) -> LimitLook:
    return LimitLook(limit, 0, visible_end, 0, NONE)


def test_what_was_seen_without_the_limit_or_with_a_wider_one_may_stay() -> None:
    assert seen_before(None, 0, look(3, 44), catches_up=False) == 44
    assert seen_before(5, 10, look(3, 44), catches_up=False) == 44


def test_what_comes_later_is_checked() -> None:
    assert seen_before(3, 44, look(3, 48), catches_up=False) == 44
    assert seen_before(3, 44, look(5, 48), catches_up=False) == 44
    assert seen_before(3, 44, look(None, 48), catches_up=False) == 44


def test_a_replica_that_catches_up_may_have_had_no_limit_between_two_looks() -> None:
    """The limit was 2, none, and 3; this replica heard of all of it at once."""
    assert seen_before(2, 44, look(3, 48), catches_up=True) == 48
