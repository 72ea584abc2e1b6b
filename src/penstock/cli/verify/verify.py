"""`penstock verify`: checks stored data for corruption, and compares replicas.

Rules: it writes nothing. An argument is a path if it looks like one or exists; then the command reads the files itself,
also while a broker runs. Any other argument is a stream, which its brokers verify.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base import limits
from penstock.base.errors import ErrorCode, PenstockError
from penstock.base.units import format_exact_bytes, parse_bytes
from penstock.cli.access.keys import KeysFile, keys_of
from penstock.cli.backup.verify_backup import is_backup, show_backup
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import FAILED, advising, clearly
from penstock.cli.terminal.names import each_stream_name
from penstock.cli.terminal.options import DEFAULT_TIMEOUT, Debug, Globals, Json, Server, Timeout, connected, examples
from penstock.cli.verify import report as verify_report

if TYPE_CHECKING:
    from penstock.ops.verify.results import Verified

EXAMPLES = examples(
    "# every stream of a cluster: each broker reads its own replicas",
    "penstock verify",
    "# one stream, one partition of another, not faster than 10 MiB/s on each broker",
    "penstock verify orders prices/2 --rate 10MiB",
    "# the files of a data directory, with or without its broker",
    "penstock verify penstock-data",
    "# one stream on the disks of three brokers",
    "penstock verify disks/1 disks/2 disks/3 --stream orders",
    "# a backup",
    "penstock verify /backups/penstock",
    "# for a script",
    "penstock verify orders --json | jq -r 'select(.verdict != \"sound\").replica'",
)

_STREAM = re.compile(r"[^./\\~][^./\\]*(/\d+)?")


def _rate(text: str) -> int:
    try:
        rate = parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if rate <= 0:
        raise typer.BadParameter("the rate must be more than 0")
    return rate


@clearly
def verify(
    ctx: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STREAM[/N]|PATH...",
            help="Streams or partitions of the cluster; or paths of data directories, folders of logs, segment files, "
            "or a backup.  Default: all streams.",
            callback=each_stream_name,
            show_default=False,
        ),
    ] = None,
    stream: Annotated[
        str | None, typer.Option("--stream", metavar="NAME", help="With paths: verify only this stream.")
    ] = None,
    rate: Annotated[
        str,
        typer.Option("--rate", metavar="SIZE", help="Most bytes per second that each broker reads."),
    ] = format_exact_bytes(limits.VERIFY_BYTES_PER_S_DEFAULT),
    keys_file: KeysFile = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Verify the checksums of all stored data, and compare replicas.

    Streams: each broker with a replica reads its committed messages in the background, not faster than --rate. The rows
    of all replicas are compared; they may be batched and compressed differently. Ctrl-C stops it. If a broker finds
    corruption in a partition that it leads, another broker takes over.

    Paths: the command reads every file itself; it needs no broker, and one may be running. Copies of a partition in
    several data directories are compared. It ignores a tail that a crash may have torn, and rows appended meanwhile.
    The files of a backup are also compared with its manifest.

    The command writes nothing. The exit code is 0 if all is sound and equal, 1 if something is corrupt, differs or
    could not be verified, 2 if the command line is wrong.
    """
    named = what or []
    found = ctx.find_object(Globals)
    server = server or (found.server if found else None)
    is_online = server is not None or not any(_is_path(one) for one in named)
    if is_online:
        if stream is not None:
            raise typer.BadParameter("--stream is for paths; to verify streams of a cluster, give their names")
        _verify_streams(ctx, named, _rate(rate), server, timeout, as_json=as_json)
        return
    paths = [Path(one) for one in named]
    for path in paths:
        if not path.exists():
            raise typer.BadParameter(f"{path}: there is no such file or folder")
    if any(is_backup(path) for path in paths):
        if len(paths) > 1:
            raise typer.BadParameter("give a single path to verify a backup")
        show_backup(paths[0], stream, as_json=as_json)
        return
    from penstock.ops.verify.files import verify_files

    done = verify_files(paths, stream, keys=keys_of(keys_file), progress=output.ShownProgress())
    _finish(done, as_json=as_json)


def _is_path(text: str) -> bool:
    return Path(text).exists() or _STREAM.fullmatch(text) is None


def _verify_streams(
    ctx: typer.Context, named: list[str], rate: int, server: str | None, timeout: str, *, as_json: bool
) -> None:
    from penstock.ops.verify.streams import verify_streams

    for one in named:
        if _STREAM.fullmatch(one) is None:
            raise typer.BadParameter(f"{one!r} is neither STREAM nor STREAM/PARTITION; for paths leave --server out")
    try:
        needs = "verifying streams needs the rule `admin`; verifying files, such as a data directory, needs no rule"
        with advising(ErrorCode.NOT_AUTHORIZED, needs), connected(ctx, server, timeout) as (client, seconds):
            done = verify_streams(client, named, rate=rate, timeout=seconds, progress=output.ShownProgress())
    except (PenstockError, OSError) as error:
        if named and server is None:
            error.add_note(f"there is no file {' or '.join(named)}, so the name was taken for a stream")
        raise
    _finish(done, as_json=as_json)


def _finish(done: Verified, *, as_json: bool) -> None:
    """Print the result; exit with 1 unless all is sound."""
    replicas = done.replicas
    verify_report.show(done, as_json=as_json)
    if not as_json and not replicas:
        output.console().print("There is no stream, so nothing was verified.")
    elif not as_json:
        rows = output.counted(sum(one.rows for one in replicas), "row")
        text = f"{output.counted(len(replicas), 'log')}, {rows}"
        if done.is_sound:
            output.console().print(output.cell(f"Sound: {text}.", "green"))
        else:
            wrong = sum(one.verdict != "sound" for one in replicas)
            output.console().print(output.cell(f"Not sound: {wrong} of {text}; nothing was changed.", "bold red"))
    if not done.is_sound:
        raise typer.Exit(FAILED)
