"""`penstock pipeline archive`: copies a stream into a lake."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.base import limits
from penstock.cli.lake.options import (
    RUN_PANEL,
    AllowLoss,
    ArchiveName,
    FileSize,
    Format,
    MaxBatch,
    bytes_of,
    say_archived,
    schema_of,
    seconds_of,
)
from penstock.cli.lake.progress import progress
from penstock.cli.pipeline.options import Config, Master, Once, Trigger, config_of, servers_of
from penstock.cli.pipeline.spark_session import spark_session
from penstock.cli.terminal.failure import clearly
from penstock.cli.terminal.options import Debug, Json, Server, StreamsArgument, examples

EXAMPLES = examples(
    "# all messages so far",
    "penstock pipeline archive orders --to lake",
    "# and new messages, a batch each 5 minutes",
    "penstock pipeline archive orders --to lake --continuous --trigger 5m",
    "# also decode values to columns, by the registered schemas or as JSON",
    "penstock pipeline archive readings --to lake --decode schema",
    "penstock pipeline archive orders --to lake --decode json",
    "# on a cluster whose workers can reach the folder, too",
    "penstock pipeline archive orders --to /mnt/lake --master spark://spark:7077",
)

_Schema = Annotated[
    Path | None,
    typer.Option(
        "--schema",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="Schema of the values: DDL for JSON, or an Avro schema.  Default for JSON: inferred from the first "
        "messages.",
    ),
]
_MinBatch = Annotated[
    int,
    typer.Option(
        "--min-batch",
        metavar="ROWS",
        min=1,
        help="With --continuous: wait for this many messages, so that files are not too small.",
        rich_help_panel=RUN_PANEL,
    ),
]


@clearly
def archive(
    ctx: typer.Context,
    stream: StreamsArgument,
    to: Annotated[
        str, typer.Option("--to", metavar="DIR", help="The lake's folder, which the workers can reach, too.")
    ],
    format: Format = "parquet",  # noqa: A002
    decode: Annotated[
        str,
        typer.Option("--decode", metavar="schema|json|avro", help="Decode values into the additional column data."),
    ] = "",
    schema: _Schema = None,
    once: Once = True,
    trigger: Trigger = "1m",
    max_batch: MaxBatch = limits.ARCHIVE_BATCH_ROWS_DEFAULT,
    min_batch: _MinBatch = 10_000,
    max_delay: Annotated[
        str,
        typer.Option(
            "--max-delay", metavar="DURATION", help="Longest wait for --min-batch.", rich_help_panel=RUN_PANEL
        ),
    ] = "5m",
    file_size: FileSize = "128MiB",
    name: ArchiveName = "",
    allow_loss: AllowLoss = False,
    master: Master = None,
    config: Config = None,
    as_json: Json = False,
    server: Server = None,
    debug: Debug = False,
) -> None:
    """Copy a stream, or several, into Parquet files by day, each message once.

    STREAM is a name, several with commas between, or a pattern such as 'orders-*'. Any reader of Parquet files sees
    each message once, with its offset and partition; as delta or iceberg it is a table of that format, too. A run
    continues where the last one ended, even if that was killed; of two concurrent runs on the same folder the second
    one is refused.

    With --decode each row also has the struct [bold]data[/bold]. Values that cannot be decoded go to a second table, in
    _rejects, with the reason: the run continues, and the lines of each batch and of the end have their number. The
    first run fixes the schema: of schema, those that are registered (`penstock schema`); of json and avro that of
    --schema.

    json: an object for each batch, with [bold]event, number, rows, size_bytes, seconds, lag[/bold], with --decode
    [bold]rejected[/bold], and one at the end with [bold]event, name, rows, files, batches, rejected, ends[/bold].
    """
    seconds = seconds_of("--trigger", trigger)
    delay_s = seconds_of("--max-delay", max_delay)
    file_bytes = bytes_of("--file-size", file_size)
    settings = config_of(config)
    schema_text = schema_of(schema)
    servers = servers_of(ctx, server)
    with spark_session(f"archive {stream}", master, settings) as starter:
        from penstock.spark import archive as run

        with progress(f"{stream} to {to}", as_json=as_json) as report:
            done = run(
                stream, to, format=format, spark=starter, servers=servers, once=once, name=name, max_batch=max_batch,
                min_batch=min(min_batch, max_batch), max_delay_s=delay_s, trigger_s=seconds, file_bytes=file_bytes,
                fail_on_data_loss=not allow_loss, decode=decode, schema=schema_text, report=report,
            )  # fmt: skip
    say_archived(done, stream, to, as_json=as_json)
