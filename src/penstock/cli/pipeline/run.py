"""`penstock pipeline run`: applies a user's function to a stream."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.base import limits
from penstock.cli.lake.options import RUN_PANEL, MaxBatch, seconds_of
from penstock.cli.lake.progress import progress
from penstock.cli.pipeline.options import (
    Checkpoint,
    Config,
    InvalidHeaders,
    Master,
    Once,
    Trigger,
    config_of,
    servers_of,
)
from penstock.cli.pipeline.spark_session import spark_session
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import clearly, say
from penstock.cli.terminal.options import Debug, Json, Server, examples

EXAMPLES = examples(
    "# mine.py: def totals(rows): return rows.selectExpr('offset', 'CAST(value AS STRING) AS text')",
    "penstock pipeline run mine.py:totals --from orders --to tables/totals",
    "# only the messages so far",
    "penstock pipeline run mine.py:totals --from orders --to tables/totals --once",
)


def _formats(partly: str) -> list[str]:
    return [name for name in ("delta", "parquet") if name.startswith(partly)]


@clearly
def run(
    ctx: typer.Context,
    function: Annotated[
        str, typer.Argument(metavar="FILE.py:FUNCTION", help="A function from DataFrame to DataFrame.")
    ],
    stream: Annotated[str, typer.Option("--from", metavar="STREAM", help="The stream to read.")],
    to: Annotated[
        str, typer.Option("--to", metavar="STREAM|DIR", help="Target: a stream, or a folder if there is a slash in it.")
    ],
    format: Annotated[  # noqa: A002
        str,
        typer.Option("--format", metavar="FORMAT", help="For a folder: delta or parquet.", autocompletion=_formats),
    ] = "delta",
    once: Once = False,
    trigger: Trigger = "0s",
    max_batch: MaxBatch = limits.RUN_BATCH_ROWS_DEFAULT,
    checkpoint: Checkpoint = None,
    output_mode: Annotated[
        str,
        typer.Option(
            "--output-mode",
            metavar="MODE",
            help="append, or complete: each batch replaces a Delta table by the whole result.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = "append",
    invalid_headers: InvalidHeaders = "fail",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="NAME=VALUE",
            help="An option of format('penstock'), such as startingOffsets=latest; may be repeated.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = None,
    master: Master = None,
    config: Config = None,
    as_json: Json = False,
    server: Server = None,
    debug: Debug = False,
) -> None:
    """Apply your own function to a stream, and write its result to a folder or to another stream.

    The function gets a streaming DataFrame with the columns key, value, topic, partition, offset, timestamp and
    subject, and returns a DataFrame. Each batch is written once, also if runs are killed; a run continues where the
    last one ended.

    json: an object for each batch, with [bold]event, number, rows, size_bytes, seconds, lag[/bold], and one at the end
    with [bold]event, rows, batches[/bold].
    """
    seconds = seconds_of("--trigger", trigger)
    settings, options = config_of(config), config_of(option, "--option")
    servers = servers_of(ctx, server)
    with spark_session(f"run {function}", master, settings) as starter:
        from penstock.spark import run as run_job

        with progress(f"{stream} to {to}", as_json=as_json) as report:
            done = run_job(
                function, stream, to, format=format, servers=servers, spark=starter, once=once, trigger_s=seconds,
                max_batch=max_batch, checkpoint=checkpoint, output_mode=output_mode, options=options,
                invalid_headers=invalid_headers, report=report,
            )  # fmt: skip
    if as_json:
        output.print_json({"event": "done", "rows": done.rows, "batches": done.batches})
    else:
        say(f"{output.counted(done.rows, 'message')} of {stream} read, and the result written to {to}")
