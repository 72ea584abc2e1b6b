"""The runner of experiments: an `Experiment` says what is measured and how it is shown; the rest is the same for all.

Rules: Every system has its turn in each round, in the order of `rounds.interleave`, which also settles the disk before
a turn. A turn returns its measures by name. A turn that fails does not count: it ends the run if every turn must count,
else a note of the report says why. A row is a figure of the report: the median of a measure with its spread, or the
ratio of two systems, taken within a round. A row without a valid turn is left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from penstock_bench.measure.rounds import Measure, Measurement, counted, interleave, ratio_of
from penstock_bench.results.report import Figure, summary
from penstock_bench.results.wording import voids

ROUNDS = 5

Said = Callable[[str], None]
"""Receives the name of every finished step."""
Turn = Callable[[str, int], Mapping[str, float]]
"""Measures the named system in one round (-1: the warm-up); raises PenstockError or OSError if that does not count."""


class Row(NamedTuple):
    """A figure: `measure` of the system `of`, or its ratio to that of `against`."""

    name: str
    what: str  # may name measures of the system's last round in braces
    unit: str
    measure: str
    of: str
    against: str = ""
    reach: float | None = None
    stretch: float | None = None
    at_least: bool = False
    once: Callable[[Sequence[float]], float] | None = None  # makes one number of the rounds, without a spread


class Findings(NamedTuple):
    """The figures of a run, and notes for its report: the turns that did not count, and why."""

    figures: list[Figure]
    notes: tuple[str, ...] = ()


class Runnable(Protocol):
    """The work of a command: an `Experiment`, or a plan with steps of its own."""

    @property
    def steps(self) -> int:
        """Number of steps that a run reports."""

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds."""

    @property
    def bytes_needed(self) -> int:
        """Disk space in bytes, at most."""

    def run(self, folder: Path, said: Said) -> Findings:
        """Measure everything in `folder`."""


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """Systems that take turns. `begin` starts what all turns share, makes the load, and returns the turn."""

    systems: tuple[str, ...]
    begin: Callable[[Path], AbstractContextManager[Turn]]
    rows: tuple[Row, ...]
    rounds: int
    turn_seconds: float  # for the time estimate
    start_seconds: float = 10.0
    bytes_needed: int
    warm_up: bool = True
    all_count: bool = False  # a turn that fails ends the run
    titles: Mapping[str, str] = {}  # of systems, for the progress bar

    @property
    def steps(self) -> int:
        """Number of steps that a run reports."""
        return 1 + len(self.systems) * (self.rounds + self.warm_up)

    @property
    def seconds(self) -> float:
        """Estimated duration in seconds."""
        return self.start_seconds + self.steps * self.turn_seconds

    def run(self, folder: Path, said: Said) -> Findings:
        """Run everything in `folder`. Raise OperationalError if a turn fails that must count."""
        with self.begin(folder) as turn:
            said("ready")
            found = in_turn(
                turn,
                self.systems,
                rounds=self.rounds,
                warm_up=self.warm_up,
                all_count=self.all_count,
                said=lambda name: said(self.titles.get(name, name)),
            )
        return findings(self.rows, found)


class Turned(Measurement, frozen=True, kw_only=True):
    """The measures of one turn."""

    measures: Mapping[str, float]


def in_turn(
    turn: Turn, systems: Sequence[str], *, rounds: int, said: Said, warm_up: bool = False, all_count: bool = True
) -> list[Measurement]:
    """Give each system its turn in every round; `said` receives its name after each."""

    def measure(name: str) -> Measure:
        def once(round_number: int) -> Turned:
            try:
                return Turned(system=name, round_number=round_number, measures=turn(name, round_number))
            finally:
                said(name)

        return once

    measures = {name: measure(name) for name in systems}
    return interleave(measures, rounds=rounds, warm_up=warm_up, may_be_void=not all_count)


def findings(rows: Sequence[Row], found: Sequence[Measurement]) -> Findings:
    """Return the figures of the rows that were measured, and a note for each system with void turns."""
    figures = [figure for row in rows if (figure := _figure(row, found)) is not None]
    summaries = {name: summary(found, name, name) for name in dict.fromkeys(one.system for one in found)}
    notes = (voids(name, one.void, one.rounds, one.void_reason) for name, one in summaries.items() if one.void)
    return Findings(figures, tuple(notes))


def _figure(row: Row, found: Sequence[Measurement]) -> Figure | None:
    def value(one: Measurement) -> float:
        assert isinstance(one, Turned)
        return one.measures[row.measure]

    turns = counted(found, row.of)
    values = ratio_of(found, row.of, row.against, value) if row.against else [value(one) for one in turns]
    if not values:
        return None
    last = turns[-1]
    assert isinstance(last, Turned)
    is_once = row.once is not None
    return Figure(
        row.name,
        row.what.format_map(last.measures),
        row.unit,
        statistics.median(values) if row.once is None else row.once(values),
        row.reach,
        row.stretch,
        low=None if is_once else min(values),
        high=None if is_once else max(values),
        at_least=row.at_least,
    )


def last(values: Sequence[float]) -> float:
    """Return the value of the last round: `Row.once` of what is the same in all."""
    return values[-1]
