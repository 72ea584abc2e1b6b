"""Making a failing plan small."""

from __future__ import annotations

import pytest

from tests.sim.plan.shrink import Part, as_ranges, from_ranges, kind, shrink, smaller
from tests.sim.run.run import plan_of


def test_few_items_that_still_fail_are_found() -> None:
    tried = []

    def fails(items: tuple[int, ...]) -> bool:
        tried.append(items)
        return {3, 77} <= set(items)

    assert smaller(tuple(range(100)), fails) == (3, 77)
    assert len(tried) < 100


def test_nothing_may_be_needed() -> None:
    assert smaller((1, 2), lambda _items: True) == ()


@pytest.mark.parametrize("text", ["-", "0", "0-7,9", "3,5-6"])
def test_numbers_as_text(text: str) -> None:
    assert (as_ranges(from_ranges(text)) or "-") == text


def test_a_plan_is_shrunk_to_what_makes_it_fail() -> None:
    plan = plan_of(3, 1)
    needed = plan.operations[17], plan.faults[5]

    def run(some) -> str:
        return "lost 5" if needed[0] in some.operations and needed[1] in some.faults else ""

    part = shrink(plan, "lost 9", run, plan.end_us)
    assert part == Part((17,), (5,))
    assert part.of(plan).operations == needed[:1]
    assert part.options() == "--operations 17 --faults 5"


def test_failures_are_alike_but_for_their_numbers() -> None:
    assert kind("offset 5 was b'x/1/'") == kind("offset 77 was b'y/23/'")
    assert kind("offset 5 was lost") != kind("offset 5 was changed")
