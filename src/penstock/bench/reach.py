"""The goals that Penstock set itself, beside what a run got. A goal that was missed is shown as missed.

Rules: every goal is a ratio of two systems in one comparison of the same run, on 256-byte messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.bench.generator import Load
from penstock.bench.report import Comparison, Reach


class Goal(NamedTuple):
    """A line of the table: where its ratio comes from, and what it should be at least."""

    what: str
    comparison: str
    pair: str
    reach: float
    stretch: float


VARIANTS = ("penstock", "penstock-os", "jetstream", "jetstream-always", "echo", "null")
LOADS = (Load(), Load(window=1))

GOALS = (
    Goal(
        "acked publish, window 4,000, each at its own defaults", "publish-256B-w4000-p1", "penstock / jetstream", 1.5, 3
    ),
    Goal("the same, no fsync on both sides", "publish-256B-w4000-p1", "penstock-os / jetstream", 2.5, 4),
    Goal("the same, fsync before ack on both sides", "publish-256B-w4000-p1", "penstock / jetstream-always", 3, 10),
    Goal("window 1, durability os, against a NATS echo on asyncio", "publish-256B-w1-p1", "penstock-os / echo", 0.9, 1),
    Goal("consume as Arrow batches, against nats-py", "read-256B", "penstock-batches / nats-py", 40, 80),
    Goal("consume as Arrow batches, against sendfile", "read-256B", "penstock-batches / sendfile", 0.6, 0.85),
    Goal("consume as single messages, against nats-py", "read-256B", "penstock-messages / nats-py", 5, 10),
)


def reached(comparisons: Iterable[Comparison]) -> list[Reach]:
    """Every goal, with its ratio if these comparisons hold it."""
    by_name = {one.name: one for one in comparisons}
    lines = []
    for goal in GOALS:
        found = by_name.get(goal.comparison)
        ratio = None if found is None else found.ratios.get(goal.pair)
        lines.append(Reach(goal.what, goal.reach, goal.stretch, ratio))
    return lines
