"""A run of `penstock bench`, from Ctrl-C to the files that it writes: the same for all its commands.

Rules: what is found is shown as soon as it is; the files are written at the end, also when a run fails or is
interrupted, and then say so: an hour of measurements is not lost with the last one. Neither processes nor folders are
left behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cli import bench_output, output

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.bench.report import Comparison
    from penstock.bench.rounds import Measurement


class Place(NamedTuple):
    """Where logs shall lie (None: wherever a disk is), and how much room they need."""

    parent: Path | None
    bytes_needed: int


class Run:
    """A run that is under way. `found` holds the fields of the report that the command knows."""

    def __init__(self, folder: Path, console: Console, step: bench_output.Step, found: dict[str, Any]) -> None:
        self.folder = folder
        self.console = console
        self.step = step
        self.found = found

    def said(self, one: Measurement) -> None:
        """Move the bar by a measurement."""
        self.step(one.system)

    def add(self, field: str, one: object) -> None:
        """One more of what a field of the report lists."""
        self.found.setdefault(field, []).append(one)

    def show(self, one: Comparison) -> None:
        """A comparison that is finished."""
        self.add("comparisons", one)
        bench_output.show_comparison(self.console, one)


@contextmanager
def running(
    kind: str, place: Place, *, total: int, json_file: Path | None = None, html_file: Path | None = None
) -> Iterator[Run]:
    """A run of so many steps; in the end its report is shown and written."""
    from penstock.bench import html
    from penstock.bench.machine import machine
    from penstock.bench.place import place as made
    from penstock.bench.report import SHARED, STOPPED, Report, now, write_json
    from penstock.cli.interrupts import Interrupts

    Interrupts()
    console = output.console()
    started, started_s = now(), time.monotonic()
    found: dict[str, Any] = {}
    notes: tuple[str, ...] = (SHARED, STOPPED)
    try:
        with made(place.parent, bytes_needed=place.bytes_needed) as folder, bench_output.steps(total) as step:
            facts = machine(folder)
            bench_output.show_machine(console, facts)
            yield Run(folder, console, step, found)
        notes = (SHARED,)
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
            if json_file is not None:
                write_json(report, json_file)
            if html_file is not None:
                html.write_html(report, html_file)
            bench_output.show_end(console, report)
