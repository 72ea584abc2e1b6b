"""Where logs diverge, and that a follower that cuts as it is told comes to an end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import BrokerId
from penstock.replication import rules
from penstock.replication.rules import EpochEnd
from tests.unit.replication.model_log import Batch, ModelLog


def log_of(*epochs: tuple[int, int], start: int = 0) -> ModelLog:
    """A log of (epoch, count) one after the other; an epoch's batch at an offset is the same in all logs."""
    log = ModelLog()
    log.reset(start)
    for epoch, count in epochs:
        for _ in range(count):
            end = log.log_end
            log.append(Batch(epoch, end, end + 1, 1, (epoch,)))
    return log


def diverges(follower: ModelLog, leader: ModelLog) -> EpochEnd | None:
    return rules.divergence(follower.last_epoch, follower.log_end, leader, leader.log_start, leader.log_end)


@pytest.mark.parametrize(
    ("follower", "leader", "expected"),
    [
        (log_of((1, 3)), log_of((1, 5)), None),
        (log_of((1, 5)), log_of((1, 5)), None),
        (log_of((1, 6)), log_of((1, 5)), EpochEnd(1, 5)),  # it ends there
        (log_of((1, 3), (2, 1)), log_of((1, 5), (3, 1)), EpochEnd(1, 5)),  # an epoch that the leader never had
        (log_of((1, 3), (2, 9)), log_of((1, 3), (2, 2), (3, 1)), EpochEnd(2, 5)),
        (log_of(), log_of((1, 5)), None),
        (log_of(start=4), log_of((1, 5)), None),
        (log_of(start=9), log_of((1, 5)), EpochEnd(0, 5)),  # empty, but beyond the end
        (log_of((2, 3)), log_of((3, 5), start=10), EpochEnd(0, 10)),  # all of it lies below the leader's start
        (log_of((3, 3)), log_of((3, 5), start=10), None),  # also this, but it is a part of the same history
        (log_of((2, 12)), log_of((3, 5), start=10), EpochEnd(0, 10)),
    ],
)
def test_where_a_follower_diverges(follower: ModelLog, leader: ModelLog, expected: EpochEnd | None) -> None:
    assert diverges(follower, leader) == expected


HISTORY = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4)), max_size=5).map(
    lambda runs: sorted(dict(runs).items())
)


@given(HISTORY, HISTORY)
def test_every_answer_that_diverges_cuts_something_until_none_does(mine, theirs) -> None:
    follower, leader = log_of(*mine), log_of(*theirs)
    for _ in range(len(mine) + len(theirs) + 1):
        if (told := diverges(follower, leader)) is None:
            break
        end = rules.truncation_end(told, follower)
        assert end < follower.log_end
        follower.truncate(end)
    assert diverges(follower, leader) is None


def test_a_follower_shows_no_more_than_it_has_and_no_more_than_its_leader_says() -> None:
    assert rules.follower_committed_end(5, 3) == 3
    assert rules.follower_committed_end(3, 5) == 3


def test_everybody_who_may_be_in_sync_must_have_it() -> None:
    one, two, three = map(BrokerId, (1, 2, 3))
    assert rules.must_have((one, two), [(one,), (one, two, three)]) == {1, 2, 3}
