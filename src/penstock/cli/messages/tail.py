"""`penstock tail`: prints the last messages of a stream, and follows it."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from penstock.base import limits
from penstock.cli.messages.destination import DecodeOption, Destination, Format, ShowHeaders, Wide
from penstock.cli.messages.read import HeaderOption, KeyOption, filter_of
from penstock.cli.messages.rows import Look
from penstock.cli.terminal.connection_options import CONNECTION_PANEL
from penstock.cli.terminal.failure import clearly
from penstock.cli.terminal.options import (
    DEFAULT_TIMEOUT,
    Debug,
    OnePartition,
    Server,
    StreamArgument,
    SubjectPattern,
    as_bad_parameter,
    connected,
    examples,
)
from penstock.cli.terminal.output import ShownProgress

EXAMPLES = examples(
    "penstock tail orders",
    "penstock tail orders -n 100 --no-follow",
    "penstock tail orders --subject 'orders.eu.*' --decode json",
    "penstock tail orders --format json | jq .value",
)

TailFormat = Annotated[
    Format | None,
    typer.Option(
        "--format",
        "-o",
        metavar="table|json|raw|csv|parquet|arrow",
        help="table; json (an object a line); raw (each value and a line end); csv; parquet; arrow (an Arrow IPC "
        "stream).  Default: table on a terminal, json elsewhere.",
        show_default=False,
    ),
]
TailTimeout = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="How long to wait for the broker.  Default: 10s; once it has begun, for ever.",
        rich_help_panel=CONNECTION_PANEL,
        show_default=False,
    ),
]


@clearly
def tail(
    ctx: typer.Context,
    stream: StreamArgument,
    count: Annotated[
        int,
        typer.Option(
            "--lines", "-n", metavar="N", min=0, max=limits.TAIL_MESSAGES_MAX, help="Begin with the last N messages."
        ),
    ] = 10,
    no_follow: Annotated[bool, typer.Option("--no-follow", help="End after the last messages.")] = False,
    partition: OnePartition = None,
    shape: TailFormat = None,
    decode: DecodeOption = None,
    headers: ShowHeaders = False,
    wide: Wide = False,
    key: KeyOption = None,
    subject: SubjectPattern = None,
    header: HeaderOption = None,
    server: Server = None,
    timeout: TailTimeout = None,
    debug: Debug = False,
) -> None:
    """Show the last messages of a stream, then new ones, until Ctrl-C.

    The last messages are those of all partitions together, by time. With a filter, they are looked for back to where
    the log starts, which may take long. An outage of the broker is waited out, and reported on stderr.
    """
    from penstock.ops.reading.tailing import Tail, TailOptions

    target = Destination.of(shape, None, force=False, decode=decode, look=Look(headers, wide))
    wanted = TailOptions(count, not no_follow, partition, filter_of(key, subject, headers=header))
    with as_bad_parameter(), connected(ctx, server, timeout or DEFAULT_TIMEOUT) as (client, seconds):
        info = client.stream(stream, timeout=seconds)
        typed = target.typed(client, info, wanted.where, seconds)
        told = ShownProgress()
        found = Tail(client, info, wanted, for_ever=timeout is None, timeout_s=seconds, progress=told)
        with closing(found.batches) as batches:
            has_partition = partition is None and len(info.partitions) > 1
            target.write(batches, has_partition=has_partition, follow=True, typed=typed)
