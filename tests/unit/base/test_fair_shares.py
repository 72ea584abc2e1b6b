"""No user fills a table, however often it asks, and the next one always gets a first entry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.fair_shares import FairShares


def fill(shares: FairShares, user: str, capacity: int, at_once: int = 1) -> int:
    """Add as often as it is allowed; how many entries that were."""
    added = 0
    while shares.fits(user, at_once, capacity):
        shares.add(user, at_once)
        added += at_once
    return added


@pytest.mark.parametrize(("users", "share"), [(1, 50), (2, 33), (3, 25), (9, 10)])
def test_each_of_n_users_gets_one_part_of_n_and_one(users, share) -> None:
    shares = FairShares()
    names = [f"user{number}" for number in range(users)]
    is_more = True
    while is_more:  # all ask in turn
        is_more = False
        for name in names:
            if shares.fits(name, 1, 100):
                shares.add(name)
                is_more = True
    assert all(abs(shares.held(name) - share) <= 1 for name in names)


@given(st.integers(1, 200), st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), max_size=40))
def test_as_long_as_there_is_room_a_user_who_has_nothing_gets_an_entry(capacity, asked) -> None:
    shares = FairShares()
    for user, count in asked:
        if shares.fits(user, count, capacity):
            shares.add(user, count)
        assert shares.used <= capacity
        assert shares.fits("new", 1, capacity) == (shares.used < capacity)


def test_one_user_leaves_half_in_one_step_or_in_many() -> None:
    for at_once in (1, 7, 51):
        shares = FairShares()
        assert fill(shares, "bob", 100, at_once) <= 51
        assert fill(shares, "eve", 100) >= 16


def test_nobody_in_particular_may_fill_it() -> None:
    shares = FairShares()
    assert fill(shares, "", 100) == 100
    assert not shares.fits("bob", 1, 100)
    assert shares.refused("bob", 100) == "there are 100 already, and the limit is 100"


def test_what_goes_makes_room() -> None:
    shares = FairShares([("bob", 2), ("eve", 1)])
    assert (shares.used, shares.held("bob")) == (3, 2)
    assert not shares.fits("bob", 1, 5)
    assert "user 'bob' has 2 of 3" in shares.refused("bob/7".partition("/")[0], 5)
    shares.remove("bob", 2)
    shares.remove("eve")
    assert (shares.used, shares.held("bob")) == (0, 0)
    assert shares.fits("bob", 1, 5)
