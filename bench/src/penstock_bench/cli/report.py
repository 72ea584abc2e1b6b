"""`penstock bench report`: shows a run that was saved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.base.errors import OperationalError
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import clearly
from penstock.cli.terminal.options import Debug, examples
from penstock_bench.cli import output as bench_output
from penstock_bench.cli.options import HtmlFile

EXAMPLES = examples(
    "# the tables of a run, again",
    "penstock bench report latency.json",
    "# a page with plots, of a run that made none",
    "penstock bench report throughput.json --html throughput.html",
)


@clearly
def report(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", exists=True, dir_okay=False, help="File that a bench wrote with --json.", show_default=False
        ),
    ],
    html_file: HtmlFile = None,
    debug: Debug = False,
) -> None:
    """Show a run that was saved with --json, or make an HTML page of it.

    Nothing is measured. Runs of earlier versions can be shown too, but against today's goals.
    """
    from msgspec.structs import replace

    from penstock_bench.results.page import write_html
    from penstock_bench.results.report import read_json
    from penstock_bench.results.wording import minutes
    from penstock_bench.runs import reach

    if html_file is not None and html_file.resolve() == file.resolve():
        raise typer.BadParameter(f"{html_file} is the run itself: name another file", param_hint="'--html'")
    found = read_json(file)
    found = replace(found, reach=reach.of_report(found))
    if html_file is not None:
        try:
            write_html(found, html_file)  # before it is shown, like a run
        except OSError as error:
            raise OperationalError(f"{html_file} could not be written: {error.strerror or error}") from error
    console = output.console()
    shown = bench_output.Shown(console)
    console.print(found.command)  # on one line, so that it can be copied
    shown.line(f"{found.started:%Y-%m-%d %H:%M} UTC, {minutes(found.seconds)}")
    shown.machine(found.machine)
    for each in found.comparisons:
        shown.comparison(each)
    for one in found.latencies:
        shown.latency(one)
    shown.end(found)
