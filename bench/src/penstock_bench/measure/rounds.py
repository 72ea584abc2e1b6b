"""The order of measurements and their evaluation: interleaved rounds, medians, ratios with their spread.

Rules: One round measures every system once; every second round is in reverse order, so that no system is always the
first. Dirty pages of earlier turns are synced before the next system's turn. A measurement counts only if it is
verified; a void one stays in the results, with its reason. A ratio is taken within a round, between neighbours in time;
the median, minimum and maximum of these ratios are reported.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from penstock.base import limits
from penstock.base.errors import PenstockError
from penstock_bench.load.content import difference
from penstock_bench.load.generator import Load, Published
from penstock_bench.machine import vital
from penstock_bench.measure.refusals import refusal
from penstock_bench.systems.system import MeasuredLog, System

ROUNDS_MIN = 5  # fewer are for trying out: their spread means little


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One system in one round: `value` in the unit of its comparison; `void`: why it does not count."""

    system: str
    round_number: int
    value: float = 0.0
    seconds: float = 0.0
    messages: int = 0
    cpu_seconds: dict[str, float] = {}
    void: str | None = None


class Ratio(msgspec.Struct, frozen=True):
    """The ratio of two systems, over the rounds in which both are valid."""

    median: float
    low: float
    high: float
    rounds: int
    pooled: bool = False  # of all rounds' samples together, without a spread: single rounds have too few samples


Measure = Callable[[int], Measurement]


def order_of(names: Sequence[str], round_number: int) -> list[str]:
    """Return the order of the systems in this round (from 0)."""
    return list(names) if round_number % 2 == 0 else list(reversed(names))


def interleave(
    measures: Mapping[str, Measure],
    *,
    rounds: int,
    warm_up: bool = True,
    may_be_void: bool = True,
    before: Callable[[], None] = os.sync,
    said: Callable[[Measurement], None] = lambda one: None,
) -> list[Measurement]:
    """Measure all systems in `rounds` rounds; call `before` before each turn, and `said` after each that counts.

    A warm-up round's results are dropped. A failure gives a void measurement, or is raised unless `may_be_void`.
    """
    names, found = list(measures), []
    for round_number in range(-1 if warm_up else 0, rounds):
        for name in order_of(names, max(0, round_number)):
            before()
            measure = measures[name]
            measured = _measured(name, round_number, measure) if may_be_void else measure(round_number)
            if round_number >= 0:
                said(measured)
                found.append(measured)
    return found


def _measured(name: str, round_number: int, measure: Measure) -> Measurement:
    """Run `measure`; a failure gives a void measurement. Raise EndedError if a vital process has ended."""
    try:
        return measure(round_number)
    except (PenstockError, OSError) as error:
        vital.check(limits.BENCH_END_S)
        return Measurement(system=name, round_number=round_number, void=str(error) or type(error).__name__)


def counted(measurements: Sequence[Measurement], system: str) -> list[Measurement]:
    """Return the valid measurements of one system."""
    return [one for one in measurements if one.system == system and one.void is None]


def ratio(measurements: Sequence[Measurement], system: str, against: str) -> Ratio | None:
    """Return the ratio of `system` to `against`, by rounds; None without a valid pair."""
    return _ratio(ratio_of(measurements, system, against, lambda one: one.value))


def cpu_ratio(measurements: Sequence[Measurement], system: str, against: str) -> Ratio | None:
    """Return the ratio of CPU time per message, all processes together: less is better."""
    cpu = ratio_of(measurements, system, against, lambda one: sum(one.cpu_seconds.values()) / max(1, one.messages))
    return _ratio(cpu)


def ratio_of(
    measurements: Sequence[Measurement], system: str, against: str, figure: Callable[[Measurement], float]
) -> list[float]:
    """Return the ratio of a figure in each round in which both systems are valid."""
    of_other = {one.round_number: figure(one) for one in counted(measurements, against)}
    return [
        figure(one) / of_other[one.round_number]
        for one in counted(measurements, system)
        if of_other.get(one.round_number, 0.0) > 0
    ]


def _ratio(found: Sequence[float]) -> Ratio | None:
    return Ratio(statistics.median(found), min(found), max(found), len(found)) if found else None


def publish_measure(name: str, system: System, load: Load) -> Measure:
    """Return a function that measures acked messages per second and verifies the log."""

    def measure(round_number: int) -> Measurement:
        with system.log() as log:
            published = log.publish(msgspec.structs.replace(load, seed=round_number + 2))
            void = untrue(log, published, ordered=load.publishers == 1)
        return Measurement(
            system=name,
            round_number=round_number,
            value=published.rate,
            seconds=published.seconds,
            messages=published.acks,
            cpu_seconds=published.cpu_seconds,
            void=void,
        )

    return measure


def untrue(log: MeasuredLog, published: Published, *, ordered: bool) -> str | None:
    """Return why a round does not count; None if the log holds exactly the acked messages."""
    if published.errors:
        return f"{published.errors:,} answers were no acks; the first: {refusal(published.first_error)}"
    if published.acks != published.sent.messages:
        return f"{published.sent.messages:,} messages were sent, {published.acks:,} acked"
    try:
        found = log.read_back(ordered=ordered)
    except (PenstockError, OSError) as error:
        return f"it cannot be read back: {error}"
    return None if found is None else difference(published.sent, found)
