"""What names a plan: its offset, and something of its leader epoch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.staged import is_plan, plan_mark, plan_offset

_OFFSETS = st.integers(0, 2**48 - 1)
_EPOCHS = st.integers(0, 2**32 - 1)


@given(_OFFSETS, _EPOCHS)
def test_a_mark_says_where_the_plan_is_and_fits_a_signed_number(offset: int, leader_epoch: int) -> None:
    mark = plan_mark(offset, leader_epoch)
    assert 0 < mark < 2**63
    assert plan_offset(mark) == offset
    assert is_plan(mark, leader_epoch)


@given(_OFFSETS, _EPOCHS, st.integers(1, 0x7FFE))
def test_a_plan_of_a_later_leader_epoch_is_another_one(offset: int, leader_epoch: int, later: int) -> None:
    mark = plan_mark(offset, leader_epoch)
    assert plan_mark(offset, leader_epoch + later) != mark
    assert not is_plan(mark, leader_epoch + later)


@pytest.mark.parametrize("leader_epoch", [0, 1, 7])
def test_a_mark_that_is_an_offset_alone_names_whatever_is_there(leader_epoch: int) -> None:
    """As publishers wrote them before the leader epoch was in it."""
    assert plan_offset(12) == 12
    assert is_plan(12, leader_epoch)
