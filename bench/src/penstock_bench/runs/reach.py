"""The goals of Penstock, beside the results of a run. A missed goal is shown as missed.

Rules: Every goal is a ratio of two systems in one comparison of the same run, or a single number of Penstock's. Goals
of throughput are defined here, those of latency in `latency_run`, and that of a single number in the module that
measures it. The short form takes the same measurements in smaller rounds, and omits goals that these cannot answer (a
high percentile, a stream of 100 million messages).

| measured by    | long                                            | short                                 |
|----------------|-------------------------------------------------|---------------------------------------|
| `throughput`   | 1,000,000 messages, at most 10 s a round        | 200,000, at most 3 s                  |
| `latency_run`  | 50/s, 12,500 messages, of 1 MB 3,000: p99.9     | 6 s, two sizes: up to the 99th        |
| `scale`        | 10,000 streams, one of 100,000,000 messages     | 10,000 streams, one of 5,000,000      |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from penstock_bench.experiments import scale
from penstock_bench.load.generator import Load
from penstock_bench.measure.histogram import samples_for
from penstock_bench.measure.latency import LatencyLoad
from penstock_bench.measure.rounds import ROUNDS_MIN
from penstock_bench.results.report import Comparison, Reach, Report
from penstock_bench.runs import latency_run, machine_limits, throughput
from penstock_bench.runs.latency_run import LatencyPlan

_VARIANTS = ("penstock", "penstock-os", "jetstream", "jetstream-always", "echo", "null")
_LATENCY_VARIANTS = ("penstock", "penstock-os", "jetstream")
_LATENCY_SECONDS_MIN = 12.0
_LIMIT_ROUNDS_MAX = 5
_LOAD = Load(messages=1_000_000)
_SHORT_LOAD = Load(messages=200_000, seconds_max=3.0)
_READ = Load(messages=1_000_000)
_SHORT_READ = Load(messages=400_000)
_SHORT_SCALE = scale.ScalePlan(messages=5_000_000)


class Goal(NamedTuple):
    """The least wanted ratio of a pair of systems in one comparison."""

    what: str
    comparison: str
    pair: str
    reach: float
    stretch: float


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


CLUSTER_GOALS = (
    Goal(
        "acked publish, 3 replicas, window 4,000, each at its own defaults",
        "publish-256B-w4000-p1",
        "penstock-r3 / jetstream-r3",
        1.5,
        3,
    ),
    Goal(
        "the same, synced before the ack on both sides",
        "publish-256B-w4000-p1",
        "penstock-r3-fsync / jetstream-r3-always",
        3,
        10,
    ),
)
"""The goals of `replicated`."""


class ReachPlan(NamedTuple):
    """The plans of all parts."""

    throughput: throughput.ThroughputPlan
    latency: LatencyPlan
    scale: scale.ScalePlan
    limit_rounds: int

    @property
    def steps(self) -> int:
        """Number of steps for a progress bar."""
        measured = self.throughput.measurements + self.latency.measurements
        return measured + machine_limits.count(self.limit_rounds) + scale.STEPS

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds."""
        return (
            self.throughput.seconds
            + self.latency.seconds
            + machine_limits.seconds(self.limit_rounds)
            + self.scale.seconds
        )

    @property
    def bytes_needed(self) -> int:
        """Disk space in bytes, at most: the parts run one after the other."""
        return max(self.throughput.bytes_needed, self.latency.bytes_needed, self.scale.bytes_needed)


def planned(*, short: bool, rounds: int | None = None) -> ReachPlan:
    """Return the long or the short plan."""
    rounds_count = rounds or ROUNDS_MIN
    base = _SHORT_LOAD if short else _LOAD
    loads = throughput.cross(throughput.Axes(windows=(4_000, 1)), base)
    read = throughput.read_load(base, (_SHORT_READ if short else _READ).messages)
    latency = latency_run.planned(latency_run.LatencyWish(only=_LATENCY_VARIANTS, rounds=rounds_count, short=short))
    if not short:
        seconds = [msgspec.structs.replace(load, seconds=_seconds(load, rounds_count)) for load in latency.loads]
        latency = msgspec.structs.replace(latency, loads=tuple(seconds))
    return ReachPlan(
        throughput.ThroughputPlan(_VARIANTS, loads, (read,), rounds_count),
        latency,
        _SHORT_SCALE if short else scale.ScalePlan(),
        min(rounds_count, _LIMIT_ROUNDS_MAX),
    )


def _seconds(load: LatencyLoad, rounds_count: int) -> float:
    """Return the seconds of a round that suffice for the highest percentile with a goal, even if one round is void."""
    samples = max(samples_for(goal.percentile) for goal in latency_run.GOALS if goal.size == load.size)
    return max(_LATENCY_SECONDS_MIN, samples / max(1, rounds_count - 1) / load.rate_per_s)


def reached(comparisons: Iterable[Comparison], goals: Iterable[Goal] = GOALS) -> list[Reach]:
    """Return every goal in `goals`, with its ratio if these comparisons have it."""
    by_name = {one.name: one for one in comparisons}
    lines = []
    for goal in goals:
        found = by_name.get(goal.comparison)
        ratio = None if found is None else found.ratios.get(goal.pair)
        note = None if found is None else found.notes.get(goal.pair)
        lines.append(Reach(f"{goal.what} ({note})" if note else goal.what, goal.reach, goal.stretch, ratio))
    return lines


def of_report(report: Report) -> list[Reach]:
    """Judge the goals of a stored report again by its comparisons, so that tables and goals agree."""
    if not report.reach:
        return []
    goals = {"reach": GOALS, "replicated": CLUSTER_GOALS}.get(report.kind, ())
    return reached(report.comparisons, goals) + latency_run.reached(report.latencies)
