"""Options shared by several commands, and support for commands whose options come from a table."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from penstock.base.units import parse_duration_us
from penstock.cli.terminal.completing import complete_stream, stream_names
from penstock.cli.terminal.connection_options import CONNECTION_PANEL as CONNECTION_PANEL
from penstock.cli.terminal.failure import show_tracebacks
from penstock.cli.terminal.names import new_stream_name, stream_name
from penstock.ops.errors import ArgumentError
from penstock.ops.placed_rows import FutureTimes

if TYPE_CHECKING:
    from penstock.client.blocking.client import Client

_SERVER_HELP = (
    "A broker, or several of a cluster; tls:// before it: use TLS.  Default: $PENSTOCK_SERVER, else 127.0.0.1:7422."
)


class Globals(NamedTuple):
    """Options given before the command's name."""

    server: str | None = None


def _debug(value: bool) -> bool:
    if value:
        show_tracebacks()
    return value


def seconds_of(text: str) -> float:
    """Return the value of `--timeout` in seconds. Raise BadParameter."""
    try:
        seconds = parse_duration_us(text) / 1e6
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--timeout'") from None
    if seconds <= 0:
        raise typer.BadParameter(f"{text} must be more than 0", param_hint="'--timeout'")
    return seconds


Server = Annotated[
    str | None,
    typer.Option("--server", metavar="HOST:PORT[,…]", help=_SERVER_HELP, rich_help_panel=CONNECTION_PANEL),
]
Timeout = Annotated[
    str,
    typer.Option("--timeout", metavar="DURATION", help="How long to wait.", rich_help_panel=CONNECTION_PANEL),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", callback=_debug, help="Show the traceback of an error.", rich_help_panel=CONNECTION_PANEL),
]
ReadFromOption = Annotated[
    str,
    typer.Option(
        "--read-from",
        metavar="leader|any|nearest|followers",
        help="Which replicas to read from: the leader; any in sync, or an observer; the nearest of them, in the rack "
        "of --rack; or any but the leader.",
    ),
]
MaxStaleness = Annotated[
    str,
    typer.Option(
        "--max-staleness",
        metavar="DURATION",
        help="Do not read from a replica that may lack messages committed longer ago than this; 'none': no limit.",
    ),
]
RackOption = Annotated[
    str | None, typer.Option("--rack", metavar="NAME", help="The rack of this client, for --read-from nearest.")
]
NoConsumers = Annotated[
    bool,
    typer.Option(
        "--no-consumers", help="Without the consumers of JetStream's API.  Default: with those that are kept there."
    ),
]
FutureTimesOption = Annotated[
    FutureTimes,
    typer.Option(
        "--future-times",
        metavar="keep|now",
        help="Rows whose time is in the future, because a clock was ahead when they were stored: 'keep' their time, or "
        "store them with the current time ('now').",
    ),
]
FromPlace = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="Begin here: earliest, latest, an offset, -N (the last N offsets), an age such as 30s or '5m ago', or a "
        "time (UTC, if it names no zone).",
    ),
]
UntilPlace = Annotated[
    str | None, typer.Option("--until", metavar="PLACE", help="End before here.  Default: where the log ends now.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Continue with new messages, until Ctrl-C.")]
OnePartition = Annotated[
    int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.  Default: all.")
]
SubjectPattern = Annotated[
    str | None, typer.Option("--subject", metavar="PATTERN", help="Only subjects that match, such as 'orders.*'.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
IncludeFolders = Annotated[
    list[Path] | None,
    typer.Option(
        "--include",
        "-I",
        metavar="DIR",
        help="Also look for included files below this folder; may be given several times.",
        show_default=False,
    ),
]

DEFAULT_TIMEOUT = "10s"


def reads_from(which: str, max_staleness: str, rack: str | None) -> dict[str, Any]:
    """Return these options as arguments of `connected`. Raise BadParameter."""
    from penstock.cli.terminal.stream_fields import UNLIMITED
    from penstock.client.link.read_from import ReadFrom

    try:
        staleness = None if max_staleness == UNLIMITED else parse_duration_us(max_staleness) / 1e6
    except ValueError as error:
        raise typer.BadParameter(f"--max-staleness: {error}") from None
    if staleness == 0:
        raise typer.BadParameter(f"--max-staleness {max_staleness} must be more than 0; write {UNLIMITED} for no limit")
    try:
        return {"read_from": ReadFrom(which, staleness), "rack": rack}  # type: ignore[arg-type]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@contextmanager
def as_bad_parameter() -> Iterator[None]:
    """Turn an operation's ArgumentError into a BadParameter, which the usage of the command precedes."""
    try:
        yield
    except ArgumentError as error:
        raise typer.BadParameter(str(error)) from None


def server_of(ctx: typer.Context, server: str | None) -> str | None:
    """Return `--server` given after the command, else before it."""
    found = ctx.find_object(Globals)
    return server or (found.server if found else None)


@contextmanager
def connected(ctx: typer.Context, server: str | None, timeout: str, **options: Any) -> Iterator[tuple[Client, float]]:
    """Connect to the broker of `--server`; yield the client and the time-out in seconds."""
    from penstock.client.blocking import client as blocking
    from penstock.client.errors import StreamNotFound

    seconds = seconds_of(timeout)
    at = server_of(ctx, server)
    with blocking.connect(at, name="penstock-cli", timeout=seconds, **options) as client:
        try:
            yield client, seconds
        except StreamNotFound as error:
            for note in _similar(client, str(error.details.get("stream") or "")):
                error.add_note(note)
            raise


def _similar(client: Client, name: str) -> list[str]:
    """Return a suggestion of streams with similar names; empty if there are none or the broker does not answer."""
    from penstock.base.errors import PenstockError

    known: list[str] = []
    with suppress(PenstockError, OSError):
        known = stream_names(client) if name else []
    folded = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), folded, n=3)
    return [f"did you mean {' or '.join(folded[one] for one in close)}?"] if close else []


StreamArgument = Annotated[
    str,
    typer.Argument(metavar="STREAM", help="The stream's name.", callback=stream_name, autocompletion=complete_stream),
]


StreamsArgument = Annotated[
    str,
    typer.Argument(
        metavar="STREAM",
        help="The stream's name, several with commas between, or a pattern.",
        callback=new_stream_name,
        autocompletion=complete_stream,
    ),
]


def examples(*lines: str) -> str:
    """Return an epilog with example commands; a line that begins with `#` explains the next one."""
    marked = (("dim", line) if line.startswith("#") else ("cyan", f"$ {line}") for line in lines)
    shown = (f"[{style}]{escape(line)}[/{style}]" for style, line in marked)
    # Typer joins lines unless an empty line separates them.
    return "\n\n".join(("[bold]Examples[/bold]", *shown))


def escape(text: str) -> str:
    """Return `text` with Rich markup escaped."""
    return text.replace("[", "\\[")


def with_options(command: Callable[..., Any], parameters: Iterable[inspect.Parameter]) -> Callable[..., Any]:
    """Replace `**options` in the signature of `command` by `parameters`, which Typer reads from there."""
    own = inspect.signature(command, eval_str=True)
    kept = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    together = [*kept, *parameters]
    command.__signature__ = own.replace(parameters=together)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in together}
    return command


def text_option(
    name: str,
    *,
    flag: str,
    metavar: str,
    meaning: str,
    panel: str | None = None,
    hidden: bool = False,
    is_many: bool = False,
) -> inspect.Parameter:
    """Return a parameter for an option that takes text, or a list with `is_many`; None if it is not given."""
    option = typer.Option(
        flag, metavar=metavar, help=escape(meaning), rich_help_panel=panel, show_default=False, hidden=hidden
    )
    kind = Annotated[list[str] | None, option] if is_many else Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def switch(name: str, *, flag: str, meaning: str, panel: str | None = None) -> inspect.Parameter:
    """Return a parameter for an option without a value: True, or None if it is not given."""
    option = typer.Option(flag, help=escape(meaning), rich_help_panel=panel, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[bool | None, option]
    )
