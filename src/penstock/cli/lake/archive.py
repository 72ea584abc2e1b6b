"""`penstock archive`: copies streams into a lake of Parquet files, on this machine."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

import typer

from penstock.base import limits
from penstock.cli.lake.options import (
    AllowLoss,
    ArchiveName,
    FileSize,
    Format,
    MaxBatch,
    bytes_of,
    options_as_typed,
    say_archived,
    schema_of,
)
from penstock.cli.lake.progress import progress
from penstock.cli.terminal.every import EveryOption, repeated
from penstock.cli.terminal.failure import clearly
from penstock.cli.terminal.options import (
    DEFAULT_TIMEOUT,
    Debug,
    Json,
    Server,
    StreamsArgument,
    Timeout,
    connected,
    examples,
)

EXAMPLES = examples(
    "# all messages so far, as Parquet files by day",
    "penstock archive orders --to lake",
    "# and new messages each 15 minutes, until Ctrl-C",
    "penstock archive orders --to lake --every 15m",
    "# all streams of a pattern, as a Delta table",
    "penstock archive 'orders-*' --to lake --format delta",
    "# also decode values to columns, by the registered schemas or by your own",
    "penstock archive readings --to lake --decode schema",
    "penstock archive readings --to lake --decode avro --schema reading.avsc",
    "# how far it is",
    "penstock group list",
)

_Schema = Annotated[
    Path | None,
    typer.Option("--schema", metavar="FILE", exists=True, dir_okay=False, help="Avro schema of the values."),
]


@clearly
def archive(
    ctx: typer.Context,
    stream: StreamsArgument,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The lake's folder.")],
    every: EveryOption = None,
    format: Format = "parquet",  # noqa: A002
    decode: Annotated[
        str,
        typer.Option("--decode", metavar="schema|avro", help="Decode values into the additional column data."),
    ] = "",
    schema: _Schema = None,
    max_batch: MaxBatch = limits.ARCHIVE_BATCH_ROWS_DEFAULT,
    file_size: FileSize = "128MiB",
    name: ArchiveName = "",
    allow_loss: AllowLoss = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Copy a stream, or several, into Parquet files by day, each message once.

    STREAM is a name, several with commas between, or a pattern such as 'orders-*'. Any reader of Parquet files sees
    each message once, with its offset and partition; as delta or iceberg it is a table of that format, too. A run
    copies what is stored when it begins. It continues where the last one ended, even if that was killed, or ran on
    Spark (`penstock pipeline archive`); of two concurrent runs on the same folder the second
    one is refused.

    With --every a run that fails is reported, and the next one tries again. Ctrl-C and SIGTERM end the command between
    two batches; its exit code is 1 if the last run failed.

    With --decode each row also has the struct [bold]data[/bold]. Values that cannot be decoded go to a second table, in
    _rejects, with the reason. The first run fixes the schema: of schema those that are registered (`penstock schema`),
    of avro that of --schema. JSON without a registered schema is decoded by `penstock pipeline archive`.

    json: an object for each batch, with [bold]event, number, rows, size_bytes, seconds, lag[/bold], with --decode
    [bold]rejected[/bold], and one at the end of a run with [bold]event, name, rows, files, batches, rejected,
    ends[/bold].
    """
    from penstock.ops.archive import ArchiveOptions, archive_stream

    options = ArchiveOptions(
        format, name, max_batch, bytes_of("--file-size", file_size), decode, schema_of(schema), not allow_loss
    )

    def run(stop: threading.Event | None) -> None:
        with (
            options_as_typed(),
            connected(ctx, server, timeout) as (client, seconds),
            progress(f"{stream} to {to}", as_json=as_json) as report,
        ):
            done = archive_stream(client, stream, to, options, timeout=seconds, report=report, stop=stop)
        if done.rows or stop is None or as_json:
            say_archived(done, stream, to, as_json=as_json)

    repeated(every, run)
