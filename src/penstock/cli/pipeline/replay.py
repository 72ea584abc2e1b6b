"""`penstock pipeline replay`: appends the rows of an archive to a stream."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.base import limits
from penstock.cli.lake.options import RUN_PANEL, MaxBatch
from penstock.cli.lake.progress import progress
from penstock.cli.pipeline.options import Checkpoint, Config, InvalidHeaders, Master, config_of, servers_of
from penstock.cli.pipeline.spark_session import spark_session
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import clearly, say
from penstock.cli.terminal.options import Debug, Json, Server, examples

EXAMPLES = examples(
    "penstock pipeline replay lake --to orders-again --subject orders.again",
    "# one day, at most 5,000 messages a second",
    "penstock pipeline replay lake --to orders --since 2026-11-20 --until 2026-11-21 --rate 5000",
)


@clearly
def replay(
    ctx: typer.Context,
    path: Annotated[
        str, typer.Argument(metavar="DIR", help="An archive, or a folder of Parquet files, or a Delta table.")
    ],
    to: Annotated[str, typer.Option("--to", metavar="STREAM", help="The stream that the rows are appended to.")],
    since: Annotated[
        str | None, typer.Option("--since", metavar="OFFSET|TIME", help="Only rows from that one on.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="OFFSET|TIME", help="Only rows before that.")] = None,
    where: Annotated[
        str,
        typer.Option("--where", metavar="SQL", help="Only rows of which this is true: \"subject = 'orders.eu'\"."),
    ] = "",
    subject: Annotated[
        str, typer.Option("--subject", metavar="SUBJECT", help="Use this subject instead of each row's own.")
    ] = "",
    rate: Annotated[
        int | None,
        typer.Option("--rate", metavar="N", min=1, help="Most messages per second.", rich_help_panel=RUN_PANEL),
    ] = None,
    max_batch: MaxBatch = limits.REPLAY_BATCH_ROWS_DEFAULT,
    checkpoint: Checkpoint = None,
    invalid_headers: InvalidHeaders = "fail",
    master: Master = None,
    config: Config = None,
    as_json: Json = False,
    server: Server = None,
    debug: Debug = False,
) -> None:
    """Append the rows of an archive to a stream, each exactly once, also if runs are killed.

    The same command continues where a killed run was, and after a complete run with rows that are new in the archive.
    A key decides the partition, and rows of one key keep their order. To replay the same rows a second time, give
    another --checkpoint.

    json: an object for each batch, with [bold]event, number, rows, size_bytes, seconds, lag[/bold], and one at the end
    with [bold]event, rows, batches[/bold].
    """
    conditions = [*_bound("--since", since, ">="), *_bound("--until", until, "<"), *([f"({where})"] if where else [])]
    settings = config_of(config)
    servers = servers_of(ctx, server)
    with spark_session(f"replay {to}", master, settings) as starter:
        from penstock.spark import replay as run

        with progress(f"{path} to {to}", as_json=as_json) as report:
            done = run(
                path, to, servers=servers, spark=starter, rate=rate, where=" AND ".join(conditions), subject=subject,
                max_batch=max_batch, checkpoint=checkpoint, invalid_headers=invalid_headers, report=report,
            )  # fmt: skip
    if as_json:
        output.print_json({"event": "done", "rows": done.rows, "batches": done.batches})
    else:
        say(f"{output.counted(done.rows, 'message')} of {path} appended to {to}")


def _bound(option: str, place: str | None, sign: str) -> list[str]:
    """Return an SQL condition on an offset or a time; empty without a place. Raise BadParameter."""
    from datetime import UTC, datetime

    if not place:
        return []
    if place.isascii() and place.isdigit():
        return [f"offset {sign} {place}"]
    try:
        moment = datetime.fromisoformat(place)
    except ValueError:
        text = f"{place!r} is neither an offset nor a time such as 2026-11-20T10:00:00Z"
        raise typer.BadParameter(text, param_hint=f"'{option}'") from None
    moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    return [f"timestamp {sign} TIMESTAMP '{moment.isoformat()}'"]
