"""What `penstock bench` shows: facts first, then a table for each comparison, then what was reached."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from penstock.base.units import format_bytes
from penstock.cli import output

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.bench.machine import Machine
    from penstock.bench.report import Comparison, Figure, Limit, Reach, Report, Summary
    from penstock.bench.rounds import Ratio


_CPU = ("CPU µs/message", "NATS", "client")
_CPU_OF = {"nats-server": "NATS", "generator": "client", "reader": "client"}


class Step(Protocol):
    """Told what was done last; moves the bar by one."""

    def __call__(self, what: str) -> None:
        """`what` stands beside the bar."""


def command_line() -> str:
    """The command, as a person would repeat it."""
    return shlex.join(["penstock", *sys.argv[1:]])


@contextmanager
def steps(total: int) -> Iterator[Step]:
    """A bar over all measurements, on stderr; without a terminal a line for each."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    shown = output.console(stderr=True)
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


def show_machine(console: Console, machine: Machine) -> None:
    """The facts without which a rate says nothing."""
    from penstock.bench.machine import MEMORY_FILE_SYSTEMS

    console.print(
        f"{machine.cpu}, {output.counted(machine.cores, 'core')}, {format_bytes(machine.memory_bytes)}, "
        f"{machine.kernel}, {machine.file_system}"
    )
    console.print(
        f"Penstock {machine.penstock} (hot path: {machine.hot_path}), nats-server {machine.nats_server}, "
        f"{machine.python}, load average {machine.load_average:g}"
    )
    if machine.file_system in MEMORY_FILE_SYSTEMS:
        console.print("The logs lie in memory: nothing here is durable. Name a folder on a disk with --dir.")


def show_comparison(console: Console, comparison: Comparison) -> None:
    """One table, and the ratios below it."""
    from penstock.bench.report import bounded_text

    console.print(f"\n{comparison.title} ({comparison.unit})")
    right = ("median", "spread", *_CPU, "rounds")
    table = output.table("system", "median", "spread", *_CPU, "rounds", right=right)
    for summary in comparison.systems.values():
        if summary.median is None or summary.low is None or summary.high is None:
            table.add_row(output.cell(summary.title), "", output.cell(f"void: {summary.void_reason}"), "", "", "", "0")
            continue
        counted = str(summary.rounds) if not summary.void else f"{summary.rounds} ({summary.void} void)"
        spread = f"{summary.low:,.0f} to {summary.high:,.0f}"
        mark = " *" if summary.bounded_by else ""
        table.add_row(output.cell(summary.title + mark), f"{summary.median:,.0f}", spread, *_cpu(summary), counted)
    console.print(table)
    for summary in comparison.systems.values():
        if bounded := bounded_text(summary):
            console.print(output.cell(f"  * {summary.title}: {bounded}", "yellow"))
    for name, ratio in comparison.ratios.items():
        cpu = comparison.cpu_ratios.get(name)
        also = "" if cpu is None else f"; CPU {cpu.median:.2f} ({cpu.low:.2f} to {cpu.high:.2f})"
        console.print(f"  {name}: {ratio_text(ratio)}{also}")
        if note := comparison.notes.get(name):
            console.print(output.cell(f"    {note}", "yellow"))
    for summary in comparison.systems.values():
        if summary.void and summary.rounds:
            console.print(f"  void: {summary.title}: {summary.void_reason}")


def _cpu(summary: Summary) -> list[str]:
    """Microseconds a message of who serves, of NATS, and of who asks."""
    sums = dict.fromkeys(_CPU, 0.0)
    for name, micros in summary.cpu_us_per_message.items():
        sums[_CPU_OF.get(name, _CPU[0])] += micros
    return [f"{micros:.2f}" if micros else "" for micros in sums.values()]


def ratio_text(ratio: Ratio) -> str:
    """`1.50 (1.40 to 1.60, 5 rounds)`."""
    if ratio.pooled:
        return f"{ratio.median:.2f} (all rounds as one: no spread)"
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}, {output.counted(ratio.rounds, 'round')})"


def show_limits(console: Console, found: list[Limit]) -> None:
    """What no product can pass."""
    table = output.table("limit of this machine", "median", "spread", "unit", right=("median", "spread"))
    for one in found:
        table.add_row(output.cell(one.title), f"{one.median:,.0f}", f"{one.low:,.0f} to {one.high:,.0f}", one.unit)
    console.print()
    console.print(table)


def show_reach(console: Console, lines: list[Reach]) -> None:
    """The goals, and what was got."""
    table = output.table("what", "reach", "stretch", "got", "", right=("reach", "stretch"))
    for line in lines:
        sign = "≤" if line.at_most else "≥"
        stretch = "" if line.stretch is None else f"{line.stretch:g} ×"
        got = "not measured" if line.got is None else ratio_text(line.got)
        verdict = {None: "", True: "reached", False: "missed"}[line.is_reached]
        table.add_row(output.cell(line.what), f"{sign} {line.reach:g} ×", stretch, got, verdict)
    console.print("\nReach (median ratio within this run)")
    console.print(table)


def show_figures(console: Console, figures: list[Figure]) -> None:
    """Numbers with goals of their own."""
    table = output.table("what", "reach", "stretch", "got", "unit", "", right=("reach", "stretch", "got"))
    for one in figures:
        reach = "" if one.reach is None else f"≤ {one.reach:g}"
        stretch = "" if one.stretch is None else f"{one.stretch:g}"
        verdict = {None: "", True: "reached", False: "missed"}[one.is_reached]
        table.add_row(output.cell(one.what), reach, stretch, f"{one.got:,.3g}", one.unit, verdict)
    console.print()
    console.print(table)


def show_end(console: Console, report: Report) -> None:
    """The machine's limits and what was reached, where they were measured, and what a reader must know."""
    if report.limits:
        show_limits(console, report.limits)
    if report.figures:
        show_figures(console, report.figures)
    if report.reach:
        show_reach(console, report.reach)
    console.print()
    for note in report.notes:
        console.print(note)
