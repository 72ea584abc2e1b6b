"""`penstock stream forget-archive`: stop retaining messages for an archive that no longer exists."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.base.config import Retain
from penstock.cli.terminal.confirming import confirm
from penstock.cli.terminal.failure import clearly, say
from penstock.cli.terminal.names import archive_name
from penstock.cli.terminal.options import DEFAULT_TIMEOUT, Debug, Server, StreamArgument, Timeout, Yes, connected


@clearly
def forget_archive(
    ctx: typer.Context,
    stream: StreamArgument,
    archive: Annotated[
        str,
        typer.Argument(
            metavar="ARCHIVE",
            help="Its name, as `stream show` prints it after `archived up to`.",
            callback=archive_name,
        ),
    ],
    yes: Yes = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Stop waiting for an archive that no longer exists. Asks first.

    With [bold]--retain until-archived[/bold], messages that only this archive lacks may be deleted then.

    The archive itself is not changed; if it reports again, the stream waits for it again.
    """
    with connected(ctx, server, timeout) as (client, seconds):
        info = client.stream(stream, timeout=seconds)
        known = {name: part.partition for part in info.partitions for name in part.archives}
        if archive not in known:
            there = f"it waits for {', '.join(sorted(known))}" if known else "no archive has reported to it"
            raise ValueError(f"stream {info.name} waits for no archive {archive!r}: {there}")
        if not yes and info.config.retain is Retain.UNTIL_ARCHIVED:
            then = "may then delete what only it has not archived"
            if len(known) == 1:
                then = "knows no other archive, and deletes nothing until one reports"
            confirm(f"Stream {info.name} {then}. Forget archive {archive}?", f"stream {info.name} waits for {archive}")
        client.report_archived(info, known[archive], None, archive=archive, timeout=seconds)
    say(f"stream {info.name} waits for archive {archive} no longer")
