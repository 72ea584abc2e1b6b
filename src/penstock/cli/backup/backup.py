"""`penstock backup`: copies streams and committed offsets into a folder; the next run adds new messages."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.units import format_bytes
from penstock.cli.terminal import output
from penstock.cli.terminal.completing import complete_stream
from penstock.cli.terminal.every import EveryOption, repeated
from penstock.cli.terminal.failure import clearly, say
from penstock.cli.terminal.options import (
    DEFAULT_TIMEOUT,
    Debug,
    Json,
    NoConsumers,
    Server,
    Timeout,
    connected,
    examples,
)

if TYPE_CHECKING:
    from penstock.ops import BackedUp

EXAMPLES = examples(
    "# all streams and the offsets of groups; the next run adds only new messages",
    "penstock backup /backups/penstock",
    "penstock backup /backups/orders --stream orders",
    "# each hour, until Ctrl-C",
    "penstock backup /backups/penstock --every 1h",
    "# verify it without a broker",
    "penstock verify /backups/penstock",
    "# what is in it, with any reader of Arrow",
    "penstock dump /backups/penstock/streams/7-orders/0/00000000000000000000.arrows",
)


@clearly
def backup(
    ctx: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of the backup: a new one, or that of an earlier backup.")
    ],
    streams: Annotated[
        list[str] | None,
        typer.Option(
            "--stream",
            metavar="NAME",
            help="Back up only this stream.  May be repeated.  Default: all.",
            autocompletion=complete_stream,
        ),
    ] = None,
    no_consumers: NoConsumers = False,
    every: EveryOption = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Copy the committed messages of streams into a folder, with configs, the offsets of groups, and consumers.

    Run it again with the same folder to add the messages that came since. You can interrupt it: complete files are
    kept, and the next run continues. Streams stay in use meanwhile.

    Files are Arrow streams of the log's own batches, each with its checksum; a manifest has the SHA-256 of each file.
    `penstock verify DIR` verifies a backup without a broker. `penstock restore DIR` makes streams from it.

    Without --stream the backup includes users: their rules, and the hashes that check their passwords and tokens. Only
    you can read the folder (mode 0700). Keep it secret: messages of encrypted streams are not encrypted there.

    With --every a run that fails is reported, and the next one tries again. Ctrl-C and SIGTERM end the command; its
    exit code is 1 if the last run failed.

    Consumers of JetStream's API come with their configs, their places, and the messages that were delivered and not
    acked; each run replaces those of the run before, and --no-consumers leaves these as they are. A consumer that is
    neither durable nor has acks is left out, with a note.

    Messages that a stream has since compacted, expired or purged stay in the backup.
    """
    from penstock.ops.backup.adding import Backup

    def run(stop: threading.Event | None) -> None:
        with Backup(folder) as written, connected(ctx, server, timeout) as (client, seconds):
            told = output.ShownProgress()
            done = written.add(client, streams, consumers=not no_consumers, timeout=seconds, progress=told, stop=stop)
        if stop is None or as_json or any(one.rows for one in done.streams):
            _say(folder, done, as_json=as_json)

    repeated(every, run)


def _say(folder: Path, done: BackedUp, *, as_json: bool) -> None:
    if as_json:
        for one in done.streams:
            output.print_json(one._asdict())
        return
    if not done.streams:
        say(f"{folder}: there are no streams, and {output.counted(done.users or 0, 'user')}")
        return
    table = output.table("stream", "new rows", "bytes", right=("new rows", "bytes"))
    for one in done.streams:
        table.add_row(output.cell(one.stream), output.cell(output.count_text(one.rows)), format_bytes(one.size_bytes))
    output.console().print(table)
    rows = output.counted(sum(one.rows for one in done.streams), "row")
    say(f"{folder} has {rows} more, of {output.counted(len(done.streams), 'stream')}")
