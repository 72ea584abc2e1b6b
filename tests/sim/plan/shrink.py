"""Makes a failing run small: leaves out operations and faults as long as it still fails in the same way.

Rules: Parts of the plan are left out; the rest keeps its times. Two failures are the same if their texts are equal up
to numbers. The number of tries is bounded: a smaller case is worth minutes, not hours.

    faults, then operations:   try each half, each quarter, … of the rest, alone and left out
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from tests.sim.plan.plan import RunPlan

TRIES_MAX = 250
_T = TypeVar("_T")
_NUMBERS = re.compile(r"\d+|b'[^']*'")
_KIND_CHARS = 70


class Part(NamedTuple):
    """The numbers of a plan's operations and faults to keep; None: all."""

    operations: tuple[int, ...] | None = None
    faults: tuple[int, ...] | None = None

    def of(self, plan: RunPlan) -> RunPlan:
        """Return the plan with only these."""
        operations, faults = plan.operations, plan.faults
        if self.operations is not None:
            operations = tuple(operations[number] for number in self.operations if number < len(operations))
        if self.faults is not None:
            faults = tuple(faults[number] for number in self.faults if number < len(faults))
        return plan._replace(operations=operations, faults=faults)

    def options(self) -> str:
        """Return the command-line options for this part."""
        words = []
        if self.operations is not None:
            words.append(f"--operations {as_ranges(self.operations) or '-'}")
        if self.faults is not None:
            words.append(f"--faults {as_ranges(self.faults) or '-'}")
        return " ".join(words)


def kind(error: str) -> str:
    """Return the error text without its numbers, to compare failures."""
    return _NUMBERS.sub("#", error)[:_KIND_CHARS]


def shrink(plan: RunPlan, failing: str, run: Callable[[RunPlan], str], failed_us: int) -> Part:
    """Return the smallest part found that fails as `failing`; `run` returns the error of a plan, or an empty text."""
    tries = 0

    def fails(part: Part) -> bool:
        nonlocal tries
        tries += 1
        return tries <= TRIES_MAX and kind(run(part.of(plan))) == kind(failing)

    early = Part(
        tuple(number for number, one in enumerate(plan.operations) if one.at_us <= failed_us),
        tuple(number for number, one in enumerate(plan.faults) if one.at_us <= failed_us),
    )
    assert early.operations is not None
    assert early.faults is not None
    operations, faults = early.operations, early.faults
    if not fails(early):
        operations, faults = tuple(range(len(plan.operations))), tuple(range(len(plan.faults)))
    faults = smaller(faults, lambda some: fails(Part(operations, some)))
    operations = smaller(operations, lambda some: fails(Part(some, faults)))
    faults = smaller(faults, lambda some: fails(Part(operations, some)))
    return Part(operations, faults)


def smaller(items: tuple[_T, ...], fails: Callable[[tuple[_T, ...]], bool]) -> tuple[_T, ...]:
    """Return a minimal subset that still fails, by delta debugging."""
    if items and fails(()):
        return ()
    parts = 2
    while len(items) >= 2:
        size = -(-len(items) // parts)
        chunks = [items[at : at + size] for at in range(0, len(items), size)]
        for number, chunk in enumerate(chunks):
            rest = tuple(one for other, some in enumerate(chunks) if other != number for one in some)
            if len(chunks) > 2 and fails(chunk):  # with two halves, each is the other's rest
                items, parts = chunk, 2
                break
            if fails(rest):
                items, parts = rest, max(parts - 1, 2)
                break
        else:
            if parts >= len(items):
                break
            parts = min(2 * parts, len(items))
    return items


def as_ranges(numbers: Sequence[int]) -> str:
    """Format rising numbers: `0-7,9`."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in found)


def from_ranges(text: str) -> tuple[int, ...]:
    """Parse `as_ranges`; `-` is the empty list. Raise ValueError."""
    if text == "-":
        return ()
    numbers: list[int] = []
    for one in text.split(","):
        low, _, high = one.partition("-")
        numbers += range(int(low), int(high or low) + 1)
    return tuple(numbers)
