"""What a leader does with observers: it answers them, and counts none of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.base.config import Durability
from penstock.base.ids import BrokerId
from penstock.replication.leader import Leadership
from penstock.replication.leadership_timers import LeadershipTimers
from tests.unit.replication.test_leader import LAG_US, LIVE, fetches, leads, partition

WITH_OBSERVERS = {**LIVE, 4: 14, 5: 15}


def observed(agenda: LeadershipTimers[Leadership] | None = None, **fields: object) -> Leadership:
    leadership = leads(agenda, live=WITH_OBSERVERS, **fields)
    state = replace(partition(leadership.isr, 2, leadership.replicas), observers=(4, 5))
    leadership.image(state, WITH_OBSERVERS, 0)  # type: ignore[arg-type]
    return leadership


def observes(leadership: Leadership, broker: int, log_end: int, flushed_end: int = 0) -> bool:
    return leadership.fetched(BrokerId(broker), WITH_OBSERVERS[broker], log_end, flushed_end, 0)


@pytest.mark.parametrize("durability", Durability)
def test_no_commit_counts_one_or_waits_for_one(durability: Durability) -> None:
    leadership = observed(durability=durability)
    leadership.appended(10, 0)
    leadership.flushed(10)
    for observer in (4, 5):
        assert not observes(leadership, observer, 10, 10)
    fetches(leadership, 2, 10, flushed_end=10)
    assert leadership.committed_end == 0  # 3 is in sync, and has nothing
    assert fetches(leadership, 3, 10, flushed_end=10)
    assert leadership.committed_end == 10
    observes(leadership, 4, 3)
    leadership.appended(20, 0)
    leadership.flushed(20)
    fetches(leadership, 2, 20, flushed_end=20)
    assert fetches(leadership, 3, 20, flushed_end=20)
    assert leadership.committed_end == 20


def test_none_joins_however_much_it_has_and_none_is_late() -> None:
    agenda: LeadershipTimers[Leadership] = LeadershipTimers()
    leadership = observed(agenda)
    leadership.appended(10, 0)
    for follower in (2, 3):
        fetches(leadership, follower, 10, flushed_end=10)
    leadership.flushed(10)
    observes(leadership, 4, 10, 10)
    leadership.tick(3 * LAG_US)
    assert leadership.proposal(3 * LAG_US) is None
    assert not agenda.has_wishes


def test_people_are_told_how_far_they_are() -> None:
    leadership = observed()
    leadership.appended(10, 0)
    observes(leadership, 4, 7)
    assert leadership.lag() == {2: None, 3: None, 4: 3, 5: None}
    assert leadership.holders == (1, 2, 3, 4, 5)
    leadership.fetched(BrokerId(5), 15, 0, 0, 0, is_impeded=True)  # type: ignore[arg-type]
    assert leadership.impeded_followers == {5}


def test_one_that_lies_decides_nothing() -> None:
    leadership = observed()
    leadership.appended(10, 0)
    assert not observes(leadership, 4, 2**60, 2**60)
    assert leadership.committed_end == 0
    assert leadership.lag()[BrokerId(4)] == 0
