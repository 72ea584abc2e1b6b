"""Progress of archives and of `penstock pipeline` jobs: a status line on a terminal, else one line for each batch.

Rules: progress goes to stderr, results go to stdout. With --json each batch is an object on a line of stdout.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.base.units import format_bytes
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import say_note

if TYPE_CHECKING:
    from penstock.lake.progress import BatchDone, Report

_STEADY_S = 0.001  # lower bound of a batch's duration, for rates


@contextmanager
def progress(what: str, *, as_json: bool = False) -> Iterator[Report]:
    """Yield the function that a job calls after each batch. `what` is the prefix of each line."""
    from rich.status import Status

    shown = output.console(stderr=True)
    if as_json:
        yield lambda done: output.print_json({"event": "batch", **_fields(done)})
        return
    if not shown.is_terminal:
        yield lambda done: say_note(f"{what}: {line(done)}")
        return
    started_s, rows = time.monotonic(), 0
    with Status(f"{what}: the first batch is to come", console=shown) as status:

        def report(done: BatchDone) -> None:
            nonlocal rows
            rows += done.rows
            average = rows / max(_STEADY_S, time.monotonic() - started_s)
            status.update(f"{what}: {line(done)} · {output.counted(rows, 'row')} in all, {average:,.0f}/s")

        yield report


def _fields(done: BatchDone) -> dict[str, Any]:
    """Return the JSON fields of a batch, without those that this job does not have."""
    return {name: value for name, value in done._asdict().items() if value is not None}


def line(done: BatchDone) -> str:
    """Return a batch as one line of text."""
    rate = done.rows / max(_STEADY_S, done.seconds)
    parts = [f"batch {done.number}", f"{output.counted(done.rows, 'row')} in {done.seconds:.1f} s, {rate:,.0f}/s"]
    if done.rejected:
        parts.append(f"{output.count_text(done.rejected)} rejected")
    if done.size_bytes:
        parts.append(format_bytes(done.size_bytes))
    if done.lag >= 0:
        parts.append(f"lag {output.count_text(done.lag)}")
    return " · ".join(parts)
