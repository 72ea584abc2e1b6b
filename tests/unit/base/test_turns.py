"""Whose turn it is: counted in turns and bytes, never in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.fair_shares import FairShares
from penstock.base.turns import Turns


def filled(**waiting: int) -> Turns[tuple[str, int]]:
    turns: Turns[tuple[str, int]] = Turns()
    for user, count in waiting.items():
        for number in range(count):
            turns.put(user, (user, number))
    return turns


def test_who_comes_last_waits_for_one_turn_of_each_other_user() -> None:
    turns = filled(bob=100, eve=1)
    assert [turns.take() for _ in range(3)] == [("bob", 0), ("eve", 0), ("bob", 1)]
    turns.put("eve", ("eve", 1))
    assert turns.take() == ("eve", 1)


def test_users_take_turns_and_each_keeps_its_order() -> None:
    turns = filled(bob=4, eve=2, kim=3)
    taken = [turns.take() for _ in range(9)]
    assert [user for user, _ in taken] == ["bob", "eve", "kim"] * 2 + ["bob", "kim", "bob"]
    for user in ("bob", "eve", "kim"):
        assert [number for name, number in taken if name == user] == sorted(
            number for name, number in taken if name == user
        )
    assert len(turns) == 0


@pytest.mark.parametrize("waiting", [{"bob": 1, "eve": 1}, {"bob": 5, "eve": 1}, {"bob": 1, "eve": 1, "kim": 5}])
def test_who_comes_back_at_once_is_not_first_again(waiting: dict[str, int]) -> None:
    """As a connection does, which stands in line with one request at a time."""
    turns = filled(**waiting)
    taken = []
    for _ in range(30):
        user, number = turns.take()
        taken.append(user)
        turns.put(user, (user, number))
    assert {taken.count(one) for one in waiting} == {30 // len(waiting)}


def test_what_was_done_counts_where_nobody_waits_for_a_moment() -> None:
    turns = filled(bob=1)
    turns.take()
    turns.charge("bob", 100 * limits.TURN_BYTES)
    for user in ("bob", "eve"):
        turns.put(user, (user, 0))
    taken = []
    for _ in range(50):
        user, _ = turns.take()
        taken.append(user)
        turns.put(user, (user, 0))
    assert taken == ["eve"] * 50


def test_what_was_read_for_a_user_counts() -> None:
    """One search of bob's reads as much as ten of eve's; a turn counts a little, too."""
    turns = filled(bob=20, eve=40)
    taken = {"bob": 0, "eve": 0}
    for _ in range(33):
        user, _ = turns.take()
        taken[user] += 1
        turns.charge(user, (10 if user == "bob" else 1) * 10 * limits.TURN_BYTES)
    assert taken == {"bob": 4, "eve": 29}


def test_who_was_away_gets_no_more_than_his_part() -> None:
    turns = filled(bob=100, kim=100)
    for _ in range(60):
        turns.take()
    turns.put("eve", ("eve", 0))
    for number in range(1, 10):
        turns.put("eve", ("eve", number))
    users = [turns.take()[0] for _ in range(12)]
    assert all(abs(users.count(one) - 4) <= 1 for one in ("bob", "kim", "eve"))


def test_one_user_alone_is_a_plain_queue() -> None:
    turns = filled(**{"": 50})
    assert [turns.take()[1] for _ in range(50)] == list(range(50))


def test_what_is_gone_waits_no_more_and_gives_back_its_place() -> None:
    turns = filled(bob=3, eve=3)
    assert not turns.fits("bob", 6)
    turns.drop(lambda one: one[0] == "bob" and one[1] != 1)
    assert list(turns) == [("bob", 1), ("eve", 0), ("eve", 1), ("eve", 2)]
    assert len(turns) == 4
    assert turns.fits("bob", 6)
    turns.drop(lambda one: True)
    assert len(turns) == 0


def test_queues_share_the_places_of_one_room() -> None:
    shares = FairShares()
    one: Turns[int] = Turns(shares)
    other: Turns[int] = Turns(shares)
    one.put("bob", 1)
    one.put("bob", 2)
    assert (len(one), len(other)) == (2, 0)
    assert not other.fits("bob", 4)
    assert other.fits("eve", 4)
    assert other.fits("", 4)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 10**9)), max_size=60))
def test_nobody_who_waits_is_passed_over_twice_by_turns_that_cost_as_much(asked) -> None:
    turns: Turns[str] = Turns()
    for user, _ in asked:
        turns.put(user, user)
    since = dict.fromkeys({user for user, _ in asked}, 0)
    while turns:
        taken = turns.take()
        waiting = {*turns}
        for user in since:
            since[user] = 0 if user == taken else since[user] + (user in waiting)
            assert since[user] < len(since)
