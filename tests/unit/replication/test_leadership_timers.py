"""Deadlines and wishes of all led partitions."""

from __future__ import annotations

from penstock.replication.leadership_timers import LeadershipTimers


def test_an_item_comes_once_at_the_earliest_time_that_was_planned() -> None:
    agenda: LeadershipTimers[str] = LeadershipTimers()
    agenda.plan("a", 50)
    agenda.plan("a", 70)
    agenda.plan("b", 60)
    agenda.plan("b", 40)
    assert agenda.next_deadline_us == 40
    assert agenda.due(55) == ["b", "a"]
    assert agenda.due(100) == []
    assert agenda.next_deadline_us is None


def test_what_was_dropped_does_not_come() -> None:
    agenda: LeadershipTimers[str] = LeadershipTimers()
    agenda.plan("a", 1)
    agenda.wish("a")
    agenda.drop("a")
    assert agenda.next_deadline_us is None
    assert agenda.due(5) == []
    assert not agenda.has_wishes


def test_wishes_come_in_order_and_once() -> None:
    agenda: LeadershipTimers[str] = LeadershipTimers()
    for name in "abcab":
        agenda.wish(name)
    assert agenda.take_wishes(2) == ["a", "b"]
    assert agenda.take_wishes(9) == ["c"]


def test_dropped_items_leave_no_heap_behind() -> None:
    agenda: LeadershipTimers[int] = LeadershipTimers()
    for number in range(1_000):
        agenda.plan(number, number)
        agenda.drop(number)
    assert len(agenda._heap) <= 65
