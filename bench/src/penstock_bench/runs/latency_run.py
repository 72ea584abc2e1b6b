"""A whole latency run: its systems, sizes and rounds, and its goals.

Rules: Every size is a comparison of its own, in which all systems take turns. All systems keep running, but only one at
a time has work. Goals are reported at the percentiles that have enough samples, with the ratios of the tables. A goal
whose percentile is dominated by the sender's own delay counts as not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.base import limits
from penstock_bench import extras
from penstock_bench.measure import latency_summary
from penstock_bench.measure.histogram import is_sayable, samples_for
from penstock_bench.measure.latency import ACK, LatencyLoad, latency_measure
from penstock_bench.measure.latency_summary import SENDER_SHARE_MAX, LatencyComparison, sender_share
from penstock_bench.measure.rounds import ROUNDS_MIN, Measurement, interleave
from penstock_bench.results.report import Reach
from penstock_bench.systems import clusters
from penstock_bench.systems.system import variant

PENSTOCK = ("penstock", "penstock-os")
PENSTOCK_ALL = (*PENSTOCK, "penstock-memory")
AGAINST = {"jetstream": ("jetstream",)}
AGAINST_ALL = {"jetstream": ("jetstream", "jetstream-always", "jetstream-memory")}
CLUSTERS = ("penstock-r3",)
CLUSTERS_AGAINST = {"jetstream": ("jetstream-r3", "jetstream-r3-away")}
FLOOR = ("echo",)
SIZES = (256, 1_024, 5_120, 1_000_000)
SHORT_SIZES = (256, 1_000_000)
SECONDS = 30.0
SHORT_SECONDS = 6.0  # 300 samples a round: up to the 95th percentile, and the 99th of all rounds together
_ROW_BYTES = 1_500  # overhead of a message in a batch of its own
_PAIRS = (
    ("penstock", "jetstream"),
    ("penstock-os", "jetstream"),
    ("penstock", "jetstream-always"),
    ("penstock-memory", "jetstream-memory"),
    ("penstock-os", "echo"),
    ("penstock-r3", "jetstream-r3"),
    ("penstock-r3", "jetstream-r3-away"),
    ("penstock-r3-fsync", "jetstream-r3-always"),
)


class LatencyPlan(msgspec.Struct, frozen=True):
    """The variants, loads and rounds of a run: every load with every variant."""

    variants: tuple[str, ...]
    loads: tuple[LatencyLoad, ...]
    rounds: int = ROUNDS_MIN

    @property
    def measurements(self) -> int:
        """Number of measurements, for a progress bar."""
        return self.rounds * len(self.loads) * len(self.variants)

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds."""
        return self.rounds * len(self.variants) * sum(load.plan(0).duration_s + 1.0 for load in self.loads)

    @property
    def bytes_needed(self) -> int:
        """Disk space in bytes, at most: a log, one that is being deleted, and a reserve."""
        return limits.GIB + 2 * max(load.plan(0).count * (load.size + _ROW_BYTES) for load in self.loads)


class LatencyWish(NamedTuple):
    """The user's options; empty and None mean the default."""

    against: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    rate_per_s: float = 50.0
    seconds: float | None = None
    rounds: int | None = None
    consumer: bool = True
    every: bool = False
    short: bool = False
    replicas: int = 1


def planned(wish: LatencyWish) -> LatencyPlan:
    """Return the plan for a wish. Raise OperationalError if the package for percentiles is missing."""
    extras.required(extras.HISTOGRAMS)
    ours, others = systems_of(wish.replicas, every=wish.every)
    seconds = wish.seconds or (SHORT_SECONDS if wish.short else SECONDS)
    sizes = wish.sizes or (SHORT_SIZES if wish.short else SIZES)
    variants = wish.only or (*ours, *(name for product in wish.against for name in others[product]), *FLOOR)
    return LatencyPlan(
        variants=tuple(dict.fromkeys(variants)),
        loads=tuple(LatencyLoad(size, wish.rate_per_s, seconds, wish.consumer) for size in dict.fromkeys(sizes)),
        rounds=wish.rounds or ROUNDS_MIN,
    )


def systems_of(replicas: int, *, every: bool) -> tuple[Sequence[str], Mapping[str, Sequence[str]]]:
    """Return the variants with `replicas` replicas: Penstock's, and each product's. `every` adds the optional ones."""
    if replicas == 1:
        return (PENSTOCK_ALL, AGAINST_ALL) if every else (PENSTOCK, AGAINST)
    return (clusters.PENSTOCK, clusters.AGAINST) if every else (CLUSTERS, CLUSTERS_AGAINST)


def run(
    plan: LatencyPlan, folder: Path, said: Callable[[Measurement], None], done: Callable[[LatencyComparison], None]
) -> list[LatencyComparison]:
    """Run the whole plan; `said` receives every measurement, `done` every comparison."""
    found = []
    found_variants = [variant(name, clusters.VARIANTS.values()) for name in plan.variants]
    titles = {one.name: one.title for one in found_variants}
    with ExitStack() as running:
        systems = {one.name: running.enter_context(one.start(folder / one.name)) for one in found_variants}
        for load in plan.loads:
            measures = {name: latency_measure(name, system, load) for name, system in systems.items()}
            measured = interleave(measures, rounds=plan.rounds, warm_up=False, said=said)
            pairs = [pair for pair in _PAIRS if titles.keys() >= set(pair)]
            found.append(latency_summary.compared(size_text(load.size), load, titles, measured, pairs))
            done(found[-1])
    return found


def size_text(size: int) -> str:
    """Format a size: `256 B`, `5 KiB`, `1 MB`."""
    for unit, name in ((1_000_000, "MB"), (limits.MIB, "MiB"), (limits.KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size:,} B"


# Goals


class LatencyGoal(NamedTuple):
    """The highest ratio of two systems' ack latencies at one percentile."""

    size: int
    percentile: str
    pair: str
    reach: float
    stretch: float


_SMALL = (256, 1_024, 5_120)
_PROMISED = ("penstock / jetstream", "penstock-os / jetstream")
GOALS = (
    *(LatencyGoal(size, one, pair, 1.3, 1.0) for pair in _PROMISED for size in _SMALL for one in ("99", "99.9")),
    *(LatencyGoal(1_000_000, "99", pair, 1.0, 0.5) for pair in _PROMISED),
    *(LatencyGoal(256, one, "penstock-r3 / jetstream-r3", 1.3, 1.0) for one in ("50", "99")),
)


def reached(comparisons: Iterable[LatencyComparison]) -> list[Reach]:
    """Return the goals that these comparisons cover; `why` says why a ratio is missing or does not count."""
    by_size = {one.load.size: one for one in comparisons if one.load.rate_per_s == LatencyLoad().rate_per_s}
    lines = []
    for goal in GOALS:
        found = by_size.get(goal.size)
        if found is None or goal.pair not in found.ratios:
            continue
        what = f"ack at 50/s, {size_text(goal.size)}, p{goal.percentile}: {goal.pair}"
        if void := found.void_rounds.get(goal.pair):
            what += f", {latency_summary.void_text(void)}"
        ratio = found.ratios[goal.pair].get(ACK, {}).get(goal.percentile)
        why = _too_few(found, goal) if ratio is None else _senders(found, goal)
        got = None if ratio is None or why else ratio.ratio
        lines.append(Reach(what, goal.reach, goal.stretch, got, at_most=True, why=why))
    return lines


def _too_few(found: LatencyComparison, goal: LatencyGoal) -> str:
    paths = [found.systems[name].paths.get(ACK) for name in goal.pair.split(" / ")]
    samples = min(0 if path is None else path.samples for path in paths)
    return f"needs {samples_for(goal.percentile):,} samples, {samples:,} are there"


def _senders(found: LatencyComparison, goal: LatencyGoal) -> str:
    """Return why the sender's delay dominates a ratio; empty if it does not."""
    shares = {name: sender_share(found.systems[name], ACK, goal.percentile) for name in goal.pair.split(" / ")}
    name, share = max(shares.items(), key=lambda one: one[1])
    return f"{share:.0%} of {name} is the sender's own delay" if share > SENDER_SHARE_MAX else ""


def too_short_for(plan: LatencyPlan) -> list[str]:
    """Return a line for each set of goals that the run is too short for, with a sufficient duration."""
    loads = {load.size: load for load in plan.loads if load.rate_per_s == LatencyLoad().rate_per_s}
    sizes: dict[tuple[str, int], list[str]] = {}
    for goal in GOALS:
        load = loads.get(goal.size)
        if load is None or not set(goal.pair.split(" / ")) <= set(plan.variants):
            continue
        samples = plan.rounds * load.plan(0).measured
        if not is_sayable(goal.percentile, samples):
            sizes.setdefault((goal.percentile, samples), []).append(size_text(goal.size))
    lines = []
    for (percentile, samples), texts in sizes.items():
        wanted = samples_for(percentile)
        seconds = math.ceil(wanted / plan.rounds / LatencyLoad().rate_per_s)
        lines.append(
            f"The goals at p{percentile} of {', '.join(dict.fromkeys(texts))} need {wanted:,} samples of a size, "
            f"{plan.rounds} rounds of {plan.loads[0].seconds:g} s make {samples:,}: --duration {seconds}s answers them."
        )
    return lines
