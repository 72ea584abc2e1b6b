"""When a broker that has ended is started again, and what is told."""

from __future__ import annotations

from penstock.base import limits
from penstock.broker.supervision.restart_policy import ProcessExit, RestartDecision, RestartPolicy

CRASH = ProcessExit(-9, 5_000, True, "")


def test_a_crash_is_told_every_time_and_waits_longer_each_time() -> None:
    restarts = RestartPolicy()
    found = [restarts.ended(CRASH) for _ in range(9)]
    assert [one.delay_ms for one in found] == [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    assert all(one.is_news for one in found)


def test_one_that_ran_for_long_begins_from_the_start() -> None:
    restarts = RestartPolicy()
    for _ in range(5):
        restarts.ended(CRASH)
    assert restarts.ended(CRASH._replace(ran_ms=limits.SUPERVISOR_STEADY_MS)) == RestartDecision(500, True)


def test_what_does_not_start_is_told_once_and_tried_seldom() -> None:
    restarts = RestartPolicy()
    refusal = ProcessExit(1, 800, False, "the disk is damaged")
    assert [restarts.ended(refusal) for _ in range(5)] == [
        RestartDecision(7_500, True),
        RestartDecision(15_000, False),
        RestartDecision(30_000, False),
        RestartDecision(60_000, False),
        RestartDecision(60_000, False),
    ]
    assert restarts.ended(refusal._replace(reason="the port is in use")) == RestartDecision(60_000, True)


def test_what_came_up_in_between_is_told_again() -> None:
    restarts = RestartPolicy()
    refusal = ProcessExit(1, 800, False, "the disk is damaged")
    assert restarts.ended(refusal).is_news
    assert restarts.ended(CRASH).is_news
    assert restarts.ended(refusal).is_news


def test_settings_that_cannot_work_are_an_operators_to_change() -> None:
    assert RestartPolicy().ended(ProcessExit(2, 800, False, "--listen: no")) == RestartDecision(None, True)
