"""`penstock pipeline table`: the latest message of each key, as a Delta table."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.base import limits
from penstock.cli import output
from penstock.cli.failure import clearly, say
from penstock.cli.options import Debug, Json, Server, StreamArgument, examples
from penstock.cli.pipeline_options import (
    RUN_PANEL,
    AllowLoss,
    Config,
    Master,
    MaxBatch,
    Once,
    Trigger,
    config_of,
    seconds_of,
    servers_of,
)
from penstock.cli.pipeline_progress import progress
from penstock.cli.spark_session import spark_session

EXAMPLES = examples(
    "# as it is now; again: only what is new since",
    "penstock pipeline table prices --to tables/prices",
    "# kept up to date, a batch each 10 seconds",
    "penstock pipeline table prices --to tables/prices --continuous",
    "# as it was",
    "penstock pipeline table prices --to tables/prices-november --as-of 2026-11-01T00:00:00Z",
)


def _formats(partly: str) -> list[str]:
    return [name for name in ("delta",) if name.startswith(partly)]


@clearly
def table(
    ctx: typer.Context,
    stream: StreamArgument,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The table's folder, which the workers see, too.")],
    format: Annotated[  # noqa: A002
        str, typer.Option("--format", metavar="FORMAT", help="delta.", autocompletion=_formats)
    ] = "delta",
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="OFFSET|TIME",
            help="As it was: of the messages before that offset (where there is one partition), or stored before that "
            "time, as 2026-11-20T10:00:00Z. Computed once, from the log.",
        ),
    ] = None,
    once: Once = True,
    trigger: Trigger = "10s",
    max_batch: MaxBatch = limits.TABLE_BATCH_ROWS_DEFAULT,
    buckets: Annotated[
        int,
        typer.Option(
            "--buckets",
            metavar="N",
            min=1,
            max=limits.TABLE_BUCKETS_MAX,
            help="Of a new table, for good: how many files it has, and so how many tasks merge at once. Each holds all "
            "of its file in memory.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = limits.TABLE_BUCKETS_DEFAULT,
    history: Annotated[
        str,
        typer.Option(
            "--history",
            metavar="DURATION",
            help="How long earlier versions of the table can be read.",
            rich_help_panel=RUN_PANEL,
        ),
    ] = "24h",
    allow_loss: AllowLoss = False,
    master: Master = None,
    config: Config = None,
    as_json: Json = False,
    server: Server = None,
    debug: Debug = False,
) -> None:
    """Keep the latest message of each key of a stream in a Delta table.

    Its columns are key, value, subject, partition, offset and timestamp. A tombstone takes its key out; messages
    without a key are passed over. All messages of a key should be in one partition, as publishers with keys see to: an
    older message of another one can come back after a tombstone. A run goes on where the last one ended, however that
    came about, unless the log has lost what the table holds; of two that keep the same table at the same time, one
    fails and changes nothing.

    json: an object for each batch, with [bold]event, number, rows, size_bytes, seconds, lag[/bold], and one at the end
    with [bold]event, rows, batches, keys[/bold].
    """
    if format != "delta":
        raise typer.BadParameter(f"it is {format!r}; a table is kept as delta", param_hint="'--format'")
    seconds = seconds_of("--trigger", trigger)
    history_hours = round(seconds_of("--history", history) / 3600)
    settings = config_of(config)
    servers = servers_of(ctx, server)
    with spark_session(f"table {stream}", master, settings) as starter:
        from penstock.spark import table as run

        with progress(f"{stream} to {to}", as_json=as_json) as report:
            done = run(
                stream, to, servers=servers, spark=starter, once=once, as_of=_place(as_of), buckets=buckets,
                max_batch=max_batch, trigger_s=seconds, history_hours=history_hours, fail_on_data_loss=not allow_loss,
                report=report,
            )  # fmt: skip
    if as_json:
        output.print_json({"event": "done", "rows": done.rows, "batches": done.batches, "keys": done.keys})
    else:
        keys = output.counted(done.keys, "key")
        say(f"{output.counted(done.rows, 'message')} of {stream} merged into {to}, which has {keys}")


_MILLISECONDS_MIN = 100_000_000_000  # 1973: no offset that somebody types is as high, and no time as low


def _place(text: str | None) -> int | str | None:
    if text is not None and text.isascii() and text.isdigit() and int(text) < _MILLISECONDS_MIN:
        return int(text)
    return text
