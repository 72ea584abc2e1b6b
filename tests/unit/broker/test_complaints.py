"""A flood of complaints becomes a line now and then."""

from __future__ import annotations

from penstock.base import limits
from penstock.broker.complaints import Complaints

INTERVAL_US = limits.COMPLAINT_INTERVAL_MS * 1_000


def test_one_line_in_a_while_tells_how_many_there_were() -> None:
    complaints = Complaints()
    lines = [complaints.line("PERMISSION", f"no. {number}", number * 1_000) for number in range(1_000)]
    assert lines == ["no. 0", *[None] * 999]
    assert complaints.line("PERMISSION", "later", INTERVAL_US) == "later (999 more like it before)"
    assert complaints.line("PERMISSION", "much later", 3 * INTERVAL_US) == "much later"


def test_one_kind_does_not_hide_another() -> None:
    complaints = Complaints()
    assert complaints.line("PERMISSION", "one", 0) == "one"
    assert complaints.line("OTHER", "two", 0) == "two"
    assert complaints.line("PERMISSION", "three", 1) is None
