"""A run of `penstock bench`: signals, folder, output and result files, shared by all its commands.

Rules: each result is shown at once. The files are written at the end, also if a run fails or is interrupted, and then
say so; neither a failed last measurement nor a full disk loses an hour of results. A run leaves no process and no
folder behind.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from penstock.base.errors import OperationalError
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import FAILED, say_error, say_note
from penstock_bench.cli import output as bench_output
from penstock_bench.extras import PLOTS, required

if TYPE_CHECKING:
    from penstock_bench.experiments.experiment import Runnable
    from penstock_bench.measure.latency_summary import LatencyComparison
    from penstock_bench.measure.rounds import Measurement
    from penstock_bench.results.report import Comparison, Report


class BenchPlace(NamedTuple):
    """The folder of the logs (None: one on a disk), the space they need, and a hint how to need less."""

    parent: Path | None
    bytes_needed: int
    or_else: str = ""


class Files(NamedTuple):
    """Result files that a run writes at its end; None if not wanted."""

    json: Path | None
    html: Path | None

    def check(self) -> None:
        """Raise BadParameter if both files are the same; called before anything is measured."""
        if self.json is not None and self.html is not None and self.json.resolve() == self.html.resolve():
            raise typer.BadParameter(f"{self.html} is what --json writes: name another file", param_hint="'--html'")
        if self.html is not None:
            required(PLOTS)

    def write(self, report: Report) -> list[str]:
        """Write each file; return an error text for each that could not be written."""
        from penstock_bench.results.report import write_json

        failures = []
        for file, write in ((self.json, write_json), (self.html, _write_html)):
            if file is not None:
                try:
                    write(report, file)
                except OSError as error:
                    failures.append(f"{file} could not be written: {error.strerror or error}")
        return failures


def _write_html(report: Report, file: Path) -> None:
    from penstock_bench.results.page import write_html  # imports matplotlib

    write_html(report, file)


class BenchRun:
    """A run in progress. `found` holds the results, which are fields of the report."""

    def __init__(
        self, folder: Path, shown: bench_output.Shown, step: bench_output.ProgressStep, found: dict[str, Any]
    ) -> None:
        self.folder = folder
        self.shown = shown
        self.step = step
        self.found = found
        self.notes: tuple[str, ...] = ()

    def will_take(self, seconds: float) -> None:
        """Print the estimated duration."""
        from penstock_bench.results.wording import minutes

        self.shown.line(f"about {minutes(seconds)}")

    def said(self, one: Measurement) -> None:
        """Advance the progress bar by one measurement."""
        self.step(one.system)

    def measure(self, experiment: Runnable, part: str = "") -> None:
        """Run an experiment in a folder of its own, `part`, or in that of the run; record its figures and notes."""
        found = experiment.run(self.folder / part, self.step)
        self.found.setdefault("figures", []).extend(found.figures)
        self.notes += found.notes

    def add(self, field: str, one: object) -> None:
        """Append a result to a list of the report."""
        self.found.setdefault(field, []).append(one)

    def show(self, one: Comparison) -> None:
        """Record and print a finished comparison."""
        self.add("comparisons", one)
        self.shown.comparison(one)

    def show_latency(self, one: LatencyComparison) -> None:
        """Record and print a finished latency comparison."""
        self.add("latencies", one)
        self.shown.latency(one)


@contextmanager
def running(
    kind: str, place: BenchPlace, *, total: int, json_file: Path | None = None, html_file: Path | None = None
) -> Iterator[BenchRun]:
    """Start a run of `total` steps; at its end write and show the report."""
    from penstock.cli.terminal.interrupts import Interrupts
    from penstock_bench.machine.facts import machine
    from penstock_bench.machine.run_folder import folder_on_disk, left_behind
    from penstock_bench.machine.run_folder import place as made
    from penstock_bench.results.report import SHARED, STOPPED, Report, now

    files = Files(json_file, html_file)
    files.check()
    Interrupts()
    console = output.console()
    shown = bench_output.Shown(console)
    started, started_s = now(), time.monotonic()
    found: dict[str, Any] = {}
    ended_early: tuple[str, ...] = (STOPPED,)
    failures: list[str] = []
    parent = folder_on_disk() if place.parent is None else place.parent
    for left in left_behind(parent):
        say_note(f"left behind by a bench that was killed: rm -r {shlex.quote(str(left.absolute()))}")
    try:
        with (
            made(parent, bytes_needed=place.bytes_needed, or_else=place.or_else) as folder,
            bench_output.steps(total, console) as step,
        ):
            facts = machine(folder)
            shown.machine(facts)
            run = BenchRun(folder, shown, step, found)
            yield run
        ended_early = ()
    except KeyboardInterrupt:
        if not found:
            say_note("stopped before anything was finished: there is nothing to show, and no file was written")
        raise
    finally:
        if found:
            report = Report(
                kind=kind,
                command=bench_output.command_line(),
                started=started,
                seconds=round(time.monotonic() - started_s, 1),
                machine=facts,
                notes=(SHARED, *ended_early, *run.notes),
                **found,
            )
            # Written before it is shown, because the reader of stdout may close the pipe early.
            failures = files.write(report)
            try:
                shown.end(report)
            finally:
                for failure in failures:
                    say_error(failure)
    if failures:
        raise typer.Exit(FAILED)


def run_experiment(
    kind: str, experiment: Runnable, parent: Path | None, json_file: Path | None, *, less: str = "give fewer --messages"
) -> None:
    """Run one experiment as a command. Raise OperationalError if no turn counts."""
    place = BenchPlace(parent, experiment.bytes_needed, less)
    with running(kind, place, total=experiment.steps, json_file=json_file) as run:
        run.will_take(experiment.seconds)
        run.measure(experiment)
        if not run.found["figures"]:
            del run.found["figures"]
            raise OperationalError(f"nothing could be measured: {run.notes[0]}")
