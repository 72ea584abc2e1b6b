"""`penstock stream find`: which streams store a subject."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.stream import report
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import FAILED, clearly, say
from penstock.cli.terminal.options import DEFAULT_TIMEOUT, Debug, Json, Server, Timeout, connected
from penstock.cli.terminal.standard_streams import need_stdout


@clearly
def find(
    ctx: typer.Context,
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="A plain subject, as one publishes on.")],
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Find the streams that store a subject, and so ack messages that are published on it."""
    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        infos = client.streams_for(subject, timeout=seconds)
    if not infos:
        say(f"no stream stores {subject}", err=True)
        raise typer.Exit(FAILED)
    if as_json:
        for info in infos:
            output.print_json(report.with_subjects(info))
        return
    table = output.table("stream", "subject", "acks")
    for info in infos:
        table.add_row(output.cell(info.name), output.cell(", ".join(info.subjects)), output.cell(info.config.acks))
    output.console().print(table)
