"""Majorities, as a table."""

from __future__ import annotations

from itertools import product

import pytest

from penstock.base.ids import BrokerId
from penstock.raft.quorum import Vote, committed_index, count_votes, is_majority


@pytest.mark.parametrize(
    ("voters", "matched", "committed"),
    [
        ((), {}, 0),
        ((1,), {}, 0),
        ((1,), {1: 12}, 12),
        ((1, 2), {1: 100}, 0),
        ((1, 2), {1: 100, 2: 101}, 100),
        ((1, 2, 3), {1: 100}, 0),
        ((1, 2, 3), {1: 100, 2: 99}, 99),
        ((1, 2, 3), {1: 100, 2: 101, 3: 99}, 100),
        ((1, 2, 3), {1: 100, 2: 101, 3: 103}, 101),
        ((1, 2, 3), {1: 7, 4: 9, 5: 9}, 0),  # learners do not count
        ((1, 2, 3, 4), {1: 101, 2: 104, 3: 103}, 101),
        ((1, 2, 3, 4), {1: 101, 2: 104, 3: 103, 4: 103}, 103),
        ((1, 2, 3, 4, 5), {1: 101, 2: 104, 3: 103, 4: 103}, 103),
        ((1, 2, 3, 4, 5), {1: 101, 2: 104}, 0),
    ],
)
def test_committed_index(voters, matched, committed) -> None:
    assert committed_index(voters, matched) == committed


@pytest.mark.parametrize(
    ("voters", "yes", "no", "result"),
    [
        ((), (), (), Vote.LOST),
        ((1,), (), (), Vote.OPEN),
        ((1,), (1,), (), Vote.WON),
        ((1,), (), (1,), Vote.LOST),
        ((1, 2), (1,), (), Vote.OPEN),
        ((1, 2), (1,), (2,), Vote.LOST),
        ((1, 2), (1, 2), (), Vote.WON),
        ((1, 2, 3), (1,), (2,), Vote.OPEN),
        ((1, 2, 3), (1, 3), (), Vote.WON),
        ((1, 2, 3), (1,), (2, 3), Vote.LOST),
        ((1, 2, 3), (1, 4, 5), (), Vote.OPEN),  # who does not vote does not count
        ((1, 2, 3, 4), (1, 2), (3,), Vote.OPEN),
        ((1, 2, 3, 4), (1, 2), (3, 4), Vote.LOST),
        ((1, 2, 3, 4), (1, 2, 3), (), Vote.WON),
        ((1, 2, 3, 4, 5), (1, 2), (3, 4), Vote.OPEN),
        ((1, 2, 3, 4, 5), (1, 2, 5), (3, 4), Vote.WON),
        ((1, 2, 3, 4, 5), (1, 2), (3, 4, 5), Vote.LOST),
    ],
)
def test_count_votes(voters, yes, no, result) -> None:
    assert count_votes(voters, {**dict.fromkeys(yes, True), **dict.fromkeys(no, False)}) is result


@pytest.mark.parametrize("count", range(1, 6))
def test_against_the_definition(count: int) -> None:
    voters = tuple(map(BrokerId, range(1, count + 1)))
    for indexes in product(range(3), repeat=count):
        matched = dict(zip(voters, indexes, strict=True))
        index = committed_index(voters, matched)
        assert is_majority(voters, [voter for voter in voters if matched[voter] >= index])
        assert not is_majority(voters, [voter for voter in voters if matched[voter] > index])
    for answers in product((True, False, None), repeat=count):
        votes = {voter: answer for voter, answer in zip(voters, answers, strict=True) if answer is not None}
        best = {voter: votes.get(voter, True) for voter in voters}
        worst = {voter: votes.get(voter, False) for voter in voters}
        is_won = is_majority(voters, [voter for voter in voters if worst[voter]])
        is_lost = not is_majority(voters, [voter for voter in voters if best[voter]])
        assert count_votes(voters, votes) is (Vote.WON if is_won else Vote.LOST if is_lost else Vote.OPEN)
