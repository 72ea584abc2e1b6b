"""Who is measured when, and what follows: interleaved rounds, medians, ratios with their spread.

Rules: one round measures every system once; every second round takes them the other way round, so that none is always
the first. What earlier rounds left to be written back is on the disk before the next system's turn. A measurement
counts only if it is true; a void one stays in the results, with its reason. A ratio is taken within a round, between
neighbours in time; what is told is the median of these ratios and the least and the greatest of them.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from penstock.base import limits
from penstock.base.errors import PenstockError
from penstock.bench import vital
from penstock.bench.content import difference
from penstock.bench.generator import Load, Published
from penstock.bench.refusals import refusal
from penstock.bench.systems import Log, System

ROUNDS_MIN = 5  # fewer are for trying out: their spread says nothing


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One system in one round: `value` in the unit of its comparison; `void` says why it does not count."""

    system: str
    round_number: int
    value: float = 0.0
    seconds: float = 0.0
    messages: int = 0
    cpu_seconds: dict[str, float] = {}
    void: str | None = None


class Ratio(msgspec.Struct, frozen=True):
    """Between two systems, from the rounds in which both count."""

    median: float
    low: float
    high: float
    rounds: int
    pooled: bool = False  # of all rounds as one: single ones say too little, and there is no spread


Measure = Callable[[int], Measurement]


def order_of(names: Sequence[str], round_number: int) -> list[str]:
    """Whose turn it is when, in this round (from 0)."""
    return list(names) if round_number % 2 == 0 else list(reversed(names))


def interleave(
    measures: Mapping[str, Measure],
    *,
    rounds: int,
    warm_up: bool = True,
    before: Callable[[], None] = os.sync,
) -> Iterator[Measurement]:
    """Measure all of them so many rounds; a first round before is thrown away."""
    names = list(measures)
    for round_number in range(-1 if warm_up else 0, rounds):
        for name in order_of(names, max(0, round_number)):
            before()
            measured = _measured(name, round_number, measures[name])
            if round_number >= 0:
                yield measured


def _measured(name: str, round_number: int, measure: Measure) -> Measurement:
    """What `measure` says; void if it failed. EndedError if it failed because a process ended that it needs."""
    try:
        return measure(round_number)
    except (PenstockError, OSError) as error:
        vital.check(limits.BENCH_END_S)
        return Measurement(system=name, round_number=round_number, void=str(error) or type(error).__name__)


def counted(measurements: Sequence[Measurement], system: str) -> list[Measurement]:
    """Those of one system that count."""
    return [one for one in measurements if one.system == system and one.void is None]


def median(measurements: Sequence[Measurement], system: str) -> float | None:
    """The median of its values; None if none counts."""
    values = [one.value for one in counted(measurements, system)]
    return statistics.median(values) if values else None


def ratio(measurements: Sequence[Measurement], system: str, against: str) -> Ratio | None:
    """How many times the value of `against` that of `system` is, pair by pair; None if no pair counts."""
    return _ratio_of(measurements, system, against, lambda one: one.value)


def cpu_ratio(measurements: Sequence[Measurement], system: str, against: str) -> Ratio | None:
    """The same of the CPU time of a message, all processes together: less is better."""
    return _ratio_of(measurements, system, against, lambda one: sum(one.cpu_seconds.values()) / max(1, one.messages))


def _ratio_of(
    measurements: Sequence[Measurement], system: str, against: str, figure: Callable[[Measurement], float]
) -> Ratio | None:
    of_other = {one.round_number: figure(one) for one in counted(measurements, against)}
    pairs = [
        figure(one) / of_other[one.round_number]
        for one in counted(measurements, system)
        if of_other.get(one.round_number, 0.0) > 0
    ]
    if not pairs:
        return None
    return Ratio(statistics.median(pairs), min(pairs), max(pairs), len(pairs))


def publish_measure(name: str, system: System, load: Load) -> Measure:
    """Measures acked messages per second, and reads back whether it is true."""

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


def untrue(log: Log, published: Published, *, ordered: bool) -> str | None:
    """Why what was published does not count; None if the log holds just what was acked."""
    if published.errors:
        return f"{published.errors:,} answers were no acks; the first: {refusal(published.first_error)}"
    if published.acks != published.sent.messages:
        return f"{published.sent.messages:,} messages were sent, {published.acks:,} acked"
    try:
        found = log.read_back(ordered=ordered)
    except (PenstockError, OSError) as error:
        return f"it cannot be read back: {error}"
    return None if found is None else difference(published.sent, found)
