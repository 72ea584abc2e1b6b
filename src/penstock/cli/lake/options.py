"""Options of `penstock archive` that jobs of `penstock pipeline` have, too, and how errors name them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.errors import ConfigError
from penstock.base.units import parse_bytes, parse_duration_us
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import say

if TYPE_CHECKING:
    from penstock.lake.archiving.job import Archived

RUN_PANEL = "Run"
FORMATS = ("parquet", "delta", "iceberg")

_LOSS_ADVICE = "With --allow-data-loss it goes on all the same"
_NAMES = (
    *("format", "to", "name", "min_batch", "max_batch", "as_of", "buckets", "history_hours", "decode", "schema", "by"),
    *("rate", "checkpoint", "output_mode", "invalid_headers"),
)
_FLAGS = {name: f"--{name.replace('_', '-')}" for name in _NAMES} | {
    "file_bytes": "--file-size",
    "start": "--from",
    "end": "--to",
}
"""Options of the commands by the jobs' parameter names."""


MaxBatch = Annotated[
    int,
    typer.Option("--max-batch", metavar="ROWS", min=1, help="Most messages in one batch.", rich_help_panel=RUN_PANEL),
]
AllowLoss = Annotated[
    bool,
    typer.Option(
        "--allow-data-loss",
        help="Skip messages that were deleted from the log before the job read them.",
        rich_help_panel=RUN_PANEL,
    ),
]


def _formats(partly: str) -> list[str]:
    return [name for name in FORMATS if name.startswith(partly)]


Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="parquet, delta or iceberg.",
        autocompletion=_formats,
    ),
]
FileSize = Annotated[
    str,
    typer.Option("--file-size", metavar="SIZE", help="Approximate largest file.", rich_help_panel=RUN_PANEL),
]
ArchiveName = Annotated[
    str,
    typer.Option(
        "--name",
        metavar="NAME",
        help="The group `archive-NAME` shows its progress.  Default: the folder's name and an id.",
        rich_help_panel=RUN_PANEL,
    ),
]


@contextmanager
def options_as_typed() -> Iterator[None]:
    """Name the command's options in errors, instead of an operation's parameters."""
    from penstock.lake.reading.data_loss import advising

    try:
        with advising(_LOSS_ADVICE):
            yield
    except ConfigError as error:
        raise ConfigError([_as_typed(one) for one in error.mistakes]) from error


def _as_typed(mistake: str) -> str:
    name, sign, text = mistake.partition(": ")
    return f"{_FLAGS[name]}: {text}" if sign and name in _FLAGS else mistake


def seconds_of(option: str, text: str) -> float:
    """Return a duration in seconds; 0 is allowed. Raise BadParameter."""
    try:
        return parse_duration_us(text) / 1e6
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None


def bytes_of(option: str, text: str) -> int:
    """Return a size in bytes. Raise BadParameter."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None


def schema_of(file: Path | None) -> str:
    """Return the text of `--schema`; empty if it is not given. Raise BadParameter."""
    if file is None:
        return ""
    try:
        return file.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file} is no text: {error}", param_hint="'--schema'") from None


def say_archived(done: Archived, stream: str, to: str, *, as_json: bool) -> None:
    """Print the result of a run."""
    if as_json:
        ends: dict[str, dict[str, int]] = {}
        for key, end in done.ends.items():
            ends.setdefault(key.stream, {})[str(key.partition)] = end
        counts = {"rows": done.rows, "files": done.files, "batches": done.batches, "rejected": done.rejected}
        output.print_json({"event": "done", "name": done.name, **counts, "ends": ends})
        return
    files = output.counted(done.files, "file")
    say(f"{output.counted(done.rows, 'message')} of {stream} archived in {to}, in {files}")
    if done.rejected:
        count = output.counted(done.rejected, "value")
        say(f"{count} could not be decoded: with the reasons in {Path(to) / '_rejects'}")
    say(f"how far it is: penstock group show archive-{done.name}")
