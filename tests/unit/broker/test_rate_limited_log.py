"""A flood of complaints becomes a line now and then."""

from __future__ import annotations

from penstock.base import limits
from penstock.broker.rate_limited_log import RateLimitedLog

INTERVAL_US = limits.RATE_LIMITED_LOG_INTERVAL_MS * 1_000


def test_one_line_in_a_while_tells_how_many_there_were() -> None:
    complaints = RateLimitedLog()
    lines = [complaints.line("PERMISSION", f"no. {number}", number * 1_000) for number in range(1_000)]
    assert lines == ["no. 0", *[None] * 999]
    assert complaints.line("PERMISSION", "later", INTERVAL_US) == "later (999 more like it before)"
    assert complaints.line("PERMISSION", "much later", 3 * INTERVAL_US) == "much later"


def test_one_kind_does_not_hide_another() -> None:
    complaints = RateLimitedLog()
    assert complaints.line("PERMISSION", "one", 0) == "one"
    assert complaints.line("OTHER", "two", 0) == "two"
    assert complaints.line("PERMISSION", "three", 1) is None


def test_what_goes_on_is_told_at_intervals_that_double_up_to_the_longest() -> None:
    complaints = RateLimitedLog(60_000, 3_600_000)
    minute_us = 60_000_000
    told = [now for now in range(5 * 60) if complaints.line("broker 2", "away", now * minute_us) is not None]
    assert told == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]


def test_what_was_well_for_a_while_is_told_soon_again() -> None:
    complaints = RateLimitedLog(60_000, 3_600_000)
    minute_us = 60_000_000
    for now in range(40):
        complaints.line("broker 2", "away", now * minute_us)
    complaints.was_well("broker 2")
    complaints.was_well("broker 3")  # of which nothing was told
    assert complaints.line("broker 2", "away", 40 * minute_us) is not None
    assert complaints.line("broker 2", "away", 40 * minute_us + 1) is None
