"""`penstock wait`: waits until a cluster is ready, or in sync, for scripts and rolling restarts."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.terminal.completing import complete_stream
from penstock.cli.terminal.failure import FAILED, clearly, say_error, say_note
from penstock.cli.terminal.names import each_stream_name
from penstock.cli.terminal.options import Debug, Server, examples, seconds_of, server_of

EXAMPLES = examples(
    "# after the start of a broker",
    "penstock wait --ready",
    "# before the next broker of a cluster is restarted",
    "penstock wait --in-sync --timeout 10m",
    "# only these streams count",
    "penstock wait --in-sync orders bills",
)


@clearly
def wait(
    ctx: typer.Context,
    streams: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STREAM",
            help="Only these streams count.  Default: all.",
            callback=each_stream_name,
            autocompletion=complete_stream,
            show_default=False,
        ),
    ] = None,
    ready: Annotated[
        bool,
        typer.Option(
            "--ready", help="Until every broker is live and connected to NATS, and every partition stores messages."
        ),
    ] = False,
    in_sync: Annotated[
        bool,
        typer.Option("--in-sync", help="Until also all replicas of every partition are in sync, and observers follow."),
    ] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long to wait.  Exit code 1 after that.")
    ] = "60s",
    server: Server = None,
    debug: Debug = False,
) -> None:
    """Wait until the cluster is ready, or all its replicas are in sync. Then the exit code is 0.

    After the time-out it says what is missing, and the exit code is 1. It also waits for brokers that do not answer
    yet, and not for a stream that does not exist. A user needs the right `monitor` or `admin`.
    """
    import asyncio

    from penstock.doctor.waiting import wait_until

    seconds = seconds_of(timeout)
    if not (ready or in_sync):
        raise typer.BadParameter("give --ready or --in-sync")

    def said(missing: list[str]) -> None:
        if missing:
            say_note(f"waiting: {'; '.join(missing)}")

    waited = wait_until(server_of(ctx, server), in_sync=in_sync, streams=streams or (), timeout=seconds, missing=said)
    if missing := asyncio.run(waited):
        say_error(f"not {'in sync' if in_sync else 'ready'} after {timeout}: {'; '.join(missing)}")
        raise typer.Exit(FAILED)
