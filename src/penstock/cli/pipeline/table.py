"""`penstock pipeline table`: keeps the latest message of each key in a Delta table."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.base import limits
from penstock.cli.lake.options import RUN_PANEL, AllowLoss, MaxBatch, seconds_of
from penstock.cli.lake.progress import progress
from penstock.cli.pipeline.options import Config, Master, Once, Trigger, config_of, servers_of
from penstock.cli.pipeline.spark_session import spark_session
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import clearly, say
from penstock.cli.terminal.options import Debug, Json, Server, StreamArgument, examples

EXAMPLES = examples(
    "# the table as of now; run again, it adds new messages",
    "penstock pipeline table prices --to tables/prices",
    "# kept up to date, a batch each 10 seconds",
    "penstock pipeline table prices --to tables/prices --continuous",
    "# the table at an earlier time",
    "penstock pipeline table prices --to tables/prices-november --as-of 2026-11-01T00:00:00Z",
)


def _formats(partly: str) -> list[str]:
    return [name for name in ("delta",) if name.startswith(partly)]


@clearly
def table(
    ctx: typer.Context,
    stream: StreamArgument,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="The table's folder, which workers can reach, too.")],
    format: Annotated[  # noqa: A002
        str, typer.Option("--format", metavar="FORMAT", help="delta.", autocompletion=_formats)
    ] = "delta",
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of",
            metavar="OFFSET|TIME",
            help="The earlier state: only messages before that offset (of a single partition), or stored before that "
            "time, such as 2026-11-20T10:00:00Z. Computed once, from the log.",
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
            help="Number of files of a new table, fixed from then on, and so of concurrent merge tasks. Each holds all "
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

    Its columns are key, value, subject, partition, offset and timestamp. A tombstone removes its key; messages without
    a key are skipped. All messages of a key should be in one partition, as with publishers that use keys: else an older
    message from another partition can come back after a tombstone. A run continues where the last one ended, even if
    that was killed, unless the log has lost messages that the table holds; of two concurrent runs on the same table,
    one fails and changes nothing.

    json: an object for each batch, with [bold]event, number, rows, size_bytes, seconds, lag[/bold], and one at the end
    with [bold]event, rows, batches, keys[/bold].
    """
    if format != "delta":
        raise typer.BadParameter(f"{format!r} is not supported; a table is kept as delta", param_hint="'--format'")
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


_MILLISECONDS_MIN = 100_000_000_000  # 1973: larger numbers are times in ms, smaller ones are offsets


def _place(text: str | None) -> int | str | None:
    if text is not None and text.isascii() and text.isdigit() and int(text) < _MILLISECONDS_MIN:
        return int(text)
    return text
