"""A run of `penstock bench`, from Ctrl-C to the files that it writes: the same for all its commands.

Rules: what is found is shown as soon as it is; the files are written at the end, also when a run fails or is
interrupted, and then say so: an hour of measurements is not lost with the last one, nor with a disk that has become
full. Neither processes nor folders are left behind.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from penstock.cli import bench_output, output
from penstock.cli.failure import FAILED, say_error, say_note

if TYPE_CHECKING:
    from penstock.bench.latency_summary import LatencyComparison
    from penstock.bench.report import Comparison, Report
    from penstock.bench.rounds import Measurement


class Place(NamedTuple):
    """Where logs shall lie (None: wherever a disk is), how much room they need, and what would need less."""

    parent: Path | None
    bytes_needed: int
    or_else: str = ""


class Files(NamedTuple):
    """What a run writes at its end; None: nothing."""

    json: Path | None
    html: Path | None

    def check(self) -> None:
        """Before anything is measured: one file cannot be both."""
        if self.json is not None and self.html is not None and self.json.resolve() == self.html.resolve():
            raise typer.BadParameter(f"{self.html} is what --json writes: name another file", param_hint="'--html'")

    def write(self, report: Report) -> list[str]:
        """Each that can be written; why the others cannot."""
        from penstock.bench.html import write_html
        from penstock.bench.report import write_json

        failures = []
        for file, write in ((self.json, write_json), (self.html, write_html)):
            if file is not None:
                try:
                    write(report, file)
                except OSError as error:
                    failures.append(f"{file} could not be written: {error.strerror or error}")
        return failures


class Run:
    """A run that is under way. `found` holds the fields of the report that the command knows."""

    def __init__(self, folder: Path, shown: bench_output.Shown, step: bench_output.Step, found: dict[str, Any]) -> None:
        self.folder = folder
        self.shown = shown
        self.step = step
        self.found = found

    def will_take(self, seconds: float) -> None:
        """Say beforehand how long it will be."""
        from penstock.bench.wording import minutes

        self.shown.line(f"about {minutes(seconds)}")

    def said(self, one: Measurement) -> None:
        """Move the bar by a measurement."""
        self.step(one.system)

    def add(self, field: str, one: object) -> None:
        """One more of what a field of the report lists."""
        self.found.setdefault(field, []).append(one)

    def show(self, one: Comparison) -> None:
        """A comparison that is finished."""
        self.add("comparisons", one)
        self.shown.comparison(one)

    def show_latency(self, one: LatencyComparison) -> None:
        """The same of latencies."""
        self.add("latencies", one)
        self.shown.latency(one)


@contextmanager
def running(
    kind: str, place: Place, *, total: int, json_file: Path | None = None, html_file: Path | None = None
) -> Iterator[Run]:
    """A run of so many steps; in the end its report is written and shown."""
    from penstock.bench.machine import machine
    from penstock.bench.place import folder_on_disk, left_behind
    from penstock.bench.place import place as made
    from penstock.bench.report import SHARED, STOPPED, Report, now
    from penstock.cli.interrupts import Interrupts

    files = Files(json_file, html_file)
    files.check()
    Interrupts()
    console = output.console()
    shown = bench_output.Shown(console)
    started, started_s = now(), time.monotonic()
    found: dict[str, Any] = {}
    notes: tuple[str, ...] = (SHARED, STOPPED)
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
            yield Run(folder, shown, step, found)
        notes = (SHARED,)
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
                notes=notes,
                **found,
            )
            # Written before it is shown: whoever reads what is shown may have enough of it before its end.
            failures = files.write(report)
            try:
                shown.end(report)
            finally:
                for failure in failures:
                    say_error(failure)
    if failures:
        raise typer.Exit(FAILED)
