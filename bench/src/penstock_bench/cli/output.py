"""Output of `penstock bench`: facts of the machine, then a table for each comparison, then the goals."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from penstock.base.units import format_bytes
from penstock.cli.terminal import output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from penstock_bench.machine.facts import Machine
    from penstock_bench.measure.latency_summary import LatencyComparison, LatencyRatio
    from penstock_bench.results.report import Comparison, Figure, Limit, Reach, Report


_WIDE = 100  # characters; a narrower terminal does not show the optional columns
_NARROW_PERCENTILES = 4  # the number that fits beside the names of ratios
_SPARED_PERCENTILES = ("75", "95")
_WARNING = "yellow"


class ProgressStep(Protocol):
    """Advances the progress bar by one step."""

    def __call__(self, what: str) -> None:
        """Advance the bar and show `what`, the finished step, beside it."""


def command_line() -> str:
    """Return the command line for a shell."""
    return shlex.join(["penstock", *sys.argv[1:]])


@contextmanager
def steps(total: int, tables: Console) -> Iterator[ProgressStep]:
    """Show a progress bar below the tables, or on stderr if stdout is no terminal; yield the function that advances it.

    Without a terminal no bar is shown.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    # The same console as the tables, so that Rich moves the bar below them; a second console would overwrite it.
    shown = tables if tables.is_terminal else output.console(stderr=True)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=shown, disable=not shown.is_terminal, transient=True) as bars:
        task = bars.add_task("starting", total=total)
        yield lambda what: bars.update(task, advance=1, description=what)


class Shown:
    """Prints the tables of one run; explains each row name above the first table that has it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._explained: dict[str, str] = {}
        self._cpu_explained = False

    @property
    def _is_wide(self) -> bool:
        return self._console.width >= _WIDE

    def line(self, text: str, style: str = "", *, indent: int = 0, further: int = 0) -> None:
        """Print text wrapped to the terminal's width; continuation lines are indented by `further` more."""
        lines = textwrap.wrap(
            text,
            self._console.width,
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + further),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines:
            self._console.print(output.cell(line, style))

    def _explain(self, titles: Mapping[str, str]) -> None:
        new = {name: title for name, title in titles.items() if self._explained.get(name) != title}
        self._explained |= new
        width = max(map(len, new), default=0)
        for name, title in new.items():
            self.line(f"{name:{width}}  {title}", "dim", indent=2, further=width + 2)

    def machine(self, machine: Machine) -> None:
        """Print the machine and the versions that the rates depend on."""
        from penstock_bench.machine.facts import MEMORY_FILE_SYSTEMS

        self.line(
            f"{machine.cpu}, {output.counted(machine.cores, 'core')}, {format_bytes(machine.memory_bytes)}, "
            f"{machine.kernel}, {machine.file_system}"
        )
        self.line(
            f"Penstock {machine.penstock} (hot path: {machine.hot_path}), nats-server {machine.nats_server}, "
            f"{machine.python}, load average {machine.load_average:g}"
        )
        if machine.file_system in MEMORY_FILE_SYSTEMS:
            self.line("The logs lie in memory: nothing here is durable. Name a folder on a disk with --dir.", _WARNING)

    def comparison(self, comparison: Comparison) -> None:
        """Print one table, and the ratios below it."""
        from penstock_bench.results.report import bounded_text, short_text
        from penstock_bench.results.wording import CPU_LEGEND, voids

        self._console.print()
        self.line(_headline(comparison))
        self._explain({name: one.title for name, one in comparison.systems.items()})
        if not self._cpu_explained:
            self.line(CPU_LEGEND, "dim", indent=2)
            self._cpu_explained = True
        self._console.print(_rates(comparison))
        if comparison.ratios:
            self._console.print()
            self._console.print(self._ratios(comparison))
        for name, summary in comparison.systems.items():
            if bounded := bounded_text(summary):
                self.line(f"* {name}: {bounded}", _WARNING, indent=2)
        if short := short_text(comparison):
            self.line(short, _WARNING, indent=2)
        for note, pairs in _noted(comparison).items():
            self.line(f"{', '.join(pairs)}: {note}", _WARNING, indent=2)
        for name, summary in comparison.systems.items():
            if summary.void:
                self.line(voids(name, summary.void, summary.rounds, summary.void_reason), "red", indent=2)

    def _ratios(self, comparison: Comparison) -> Table:
        from penstock_bench.results.wording import ratio, times

        columns = (comparison.unit, "CPU a message")
        table = output.table("ratio", *columns, right=columns)
        for pair, found in comparison.ratios.items():
            cpu = comparison.cpu_ratios.get(pair)
            told = "" if cpu is None else ratio(cpu, count_rounds=False) if self._is_wide else times(cpu.median)
            table.add_row(output.cell(pair), ratio(found, count_rounds=self._is_wide), told)
        return table

    def latency(self, comparison: LatencyComparison) -> None:
        """Print a table for each path, and the ratios below it."""
        from penstock_bench.measure.latency import ACK, CONSUMER, PATHS
        from penstock_bench.measure.latency_summary import is_senders, missing_text
        from penstock_bench.results.wording import LATENCY_RATIOS, SENDERS_LEGEND, voids

        load = comparison.load
        self._console.print()
        self.line(f"{comparison.title}, {load.rate_per_s:g}/s for {load.seconds:g} s a round: milliseconds")
        self._explain({name: one.title for name, one in comparison.systems.items()})
        paths = [path for path in PATHS if any(path in one.paths for one in comparison.systems.values())]
        for number, path in enumerate(paths):
            if number:
                self._console.print()
            self._console.print(self._latencies(comparison, path, with_ratios=path in (ACK, CONSUMER)))
        if comparison.ratios:
            self.line(LATENCY_RATIOS, "dim", indent=2)
        if any(
            is_senders(one, path, percentile)
            for one in comparison.systems.values()
            for path, found in one.paths.items()
            for percentile in found.percentiles_us
        ):
            self.line(SENDERS_LEGEND, _WARNING, indent=2)
        for name, one in comparison.systems.items():
            if one.void:
                self.line(voids(name, one.void, one.rounds, one.void_reason), "red", indent=2)
            if missing := missing_text(one):
                self.line(f"{name}: {missing}", _WARNING, indent=2)

    def _latencies(self, comparison: LatencyComparison, path: str, *, with_ratios: bool) -> Table:
        from penstock_bench.measure.latency import PATHS
        from penstock_bench.measure.latency_summary import is_senders, void_text
        from penstock_bench.results.wording import SENDERS, milliseconds

        rows = {name: one.paths[path] for name, one in comparison.systems.items() if path in one.paths}
        said = list(dict.fromkeys(p for one in rows.values() for p in one.percentiles_us))
        if not self._is_wide and len(said) > _NARROW_PERCENTILES:
            said = [one for one in said if one not in _SPARED_PERCENTILES]
        columns = (*(f"p{one}" for one in said), "greatest", "samples")
        table = output.table(PATHS[path], *columns, right=columns)
        for name, one in rows.items():
            values = [one.percentiles_us.get(percentile) for percentile in said]
            marks = [SENDERS * is_senders(comparison.systems[name], path, percentile) for percentile in said]
            told = [
                "" if value is None else milliseconds(value / 1000) + mark
                for value, mark in zip(values, marks, strict=True)
            ]
            table.add_row(output.cell(name), *told, milliseconds(one.max_us / 1000), f"{one.samples:,}")
        for pair, ratios in comparison.ratios.items() if with_ratios else ():
            if path in ratios:
                void = comparison.void_rounds.get(pair)
                text, style = (f"  {pair}: {void_text(void)}", "red") if void else (f"  {pair}", "dim")
                for label, figures in _ratio_rows([ratios[path].get(percentile) for percentile in said]):
                    table.add_row(output.cell(label or text, "dim" if label else style), *figures, "", "")
        return table

    def end(self, report: Report) -> None:
        """Print the machine's limits and the goals, if they were measured, and the notes."""
        from penstock_bench.results.report import busy_text

        parts = (
            ("", _limits(report.limits) if report.limits else None),
            ("", _figures(report.figures, is_wide=self._is_wide) if report.figures else None),
            ("Reach (median ratio within this run)", _reach(report.reach, is_wide=self._is_wide)),
        )
        for title, table in parts:
            if table is not None:
                self._console.print(f"\n{title}" if title else "")
                self._console.print(table)
        self._console.print()
        if busy := busy_text(report):
            self.line(busy, _WARNING)
        for note in report.notes:
            self.line(note)


def _headline(comparison: Comparison) -> str:
    """Return the title, the unit, and the number of rounds if it is the same for all systems."""
    from penstock_bench.results.wording import rounds

    counts = {one.rounds for one in comparison.systems.values()}
    return f"{comparison.title}: {comparison.unit}" + (f", {rounds(counts.pop())}" if len(counts) == 1 else "")


def _noted(comparison: Comparison) -> dict[str, list[str]]:
    """Return the ratios that each note applies to."""
    found: dict[str, list[str]] = {}
    for pair, note in comparison.notes.items():
        found.setdefault(note, []).append(pair)
    return found


def _rates(comparison: Comparison) -> Table:
    from penstock_bench.results.wording import CPU_COLUMNS, cpu_columns, number, spread

    systems = comparison.systems
    cpu = [f"CPU µs\n{column}" for column in CPU_COLUMNS]
    counts = ["rounds"] if len({one.rounds for one in systems.values()}) > 1 else []
    columns = ("median", "spread", *cpu, *counts)
    table = output.table("system", *columns, right=columns)
    for name, one in systems.items():
        counted = [str(one.rounds)] if counts else []
        if one.median is None or one.low is None or one.high is None:
            table.add_row(output.cell(name), "", "void", "", "", "", *counted)
            continue
        told = spread(one.low, one.high, one.rounds)
        mark = " *" if one.bounded_by else ""
        costs = cpu_columns(one.cpu_us_per_message)
        table.add_row(output.cell(name + mark), number(one.median), told, *costs, *counted)
    return table


def _ratio_rows(found: Sequence[LatencyRatio | None]) -> Iterator[tuple[str, list[str]]]:
    """Yield a row of medians (with an empty label), then of the least and the greatest if there are several rounds."""
    from penstock_bench.results.wording import POOLED, times

    told = [None if one is None else one.ratio for one in found]
    yield "", ["" if one is None else times(one.median) + POOLED * one.pooled for one in told]
    spread = [one if one is not None and one.rounds > 1 else None for one in told]
    if any(spread):
        yield "    least", ["" if one is None else times(one.low) for one in spread]
        yield "    greatest", ["" if one is None else times(one.high) for one in spread]


def _limits(found: Sequence[Limit]) -> Table:
    """Return the table of the machine's limits."""
    from penstock_bench.results.wording import number, spread

    table = output.table("limit of this machine", "median", "spread", "unit", right=("median", "spread"))
    for one in found:
        table.add_row(output.cell(one.title), number(one.median), spread(one.low, one.high, one.rounds), one.unit)
    return table


def _reach(lines: Sequence[Reach], *, is_wide: bool) -> Table | None:
    """Return the table of goals and results; None if there are none."""
    from penstock_bench.results.wording import VERDICTS, goal
    from penstock_bench.results.wording import got as got_text

    if not lines:
        return None
    stretches = ["stretch"] if is_wide else []
    table = output.table("what", "reach", *stretches, "got", "", right=("reach", "stretch"))
    for line in lines:
        wanted = [line.reach, line.stretch] if is_wide else [line.reach]
        goals = [goal(one, at_most=line.at_most, unit="×") for one in wanted]
        got = got_text(line.got, line.why, count_rounds=is_wide)
        table.add_row(output.cell(line.what), *goals, got, VERDICTS[line.is_reached])
    return table


def _figures(figures: Sequence[Figure], *, is_wide: bool) -> Table:
    """Return the table of figures, which have goals of their own."""
    from penstock_bench.results.wording import VERDICTS, figure, goal

    stretches = ["stretch"] if is_wide else []
    table = output.table("what", "reach", *stretches, "got", "unit", "", right=("reach", "stretch", "got"))
    for one in figures:
        goals = [
            goal(each, at_most=not one.at_least) for each in ([one.reach, one.stretch] if is_wide else [one.reach])
        ]
        table.add_row(
            output.cell(one.what), *goals, figure(one.got, one.low, one.high), one.unit, VERDICTS[one.is_reached]
        )
    return table
