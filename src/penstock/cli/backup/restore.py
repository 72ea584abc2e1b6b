"""`penstock restore`: creates streams from a backup, with their offsets, times, groups and consumers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.config import Intake
from penstock.cli.terminal import output
from penstock.cli.terminal.confirming import confirm
from penstock.cli.terminal.failure import clearly, say_note
from penstock.cli.terminal.options import (
    DEFAULT_TIMEOUT,
    Debug,
    FutureTimesOption,
    Json,
    NoConsumers,
    Server,
    Timeout,
    Yes,
    as_bad_parameter,
    connected,
    examples,
)
from penstock.ops.placed_rows import FutureTimes

if TYPE_CHECKING:
    from penstock.ops import RestoredStream, RestoredUsers

EXAMPLES = examples(
    "# all streams, into another cluster",
    "penstock restore /backups/penstock --server other:7422",
    "# also users; the cluster must already have an administrator",
    "penstock --credentials admin.credentials restore /backups/penstock --users --server other:7422",
    "penstock --credentials admin.credentials restore /backups/penstock --users-only --server other:7422",
    "# one stream, beside the existing one; it stays paused",
    "penstock restore /backups/penstock --stream orders --as orders-of-monday",
    "# an old one, which its max_age would delete at once",
    "penstock restore /backups/penstock --stream orders --as orders-of-march --without-max-age",
    "# rows with times in the future, from a clock that was ahead, get the current time",
    "penstock restore /backups/penstock --stream orders --future-times now",
)


@clearly
def restore(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A backup.")],
    stream: Annotated[
        str | None, typer.Option("--stream", metavar="NAME", help="Only this stream.  Default: all.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="With --stream: its new name. It stays paused then."),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", metavar="N", min=1, help="Default: as in the backup, at most the number of brokers."
        ),
    ] = None,
    paused: Annotated[
        bool, typer.Option("--paused", help="Leave the streams paused, so that brokers do not subscribe for them yet.")
    ] = False,
    without_max_age: Annotated[
        bool,
        typer.Option(
            "--without-max-age",
            help="Give the streams no max_age, which would delete older rows at once.",
        ),
    ] = False,
    future_times: FutureTimesOption = FutureTimes.KEEP,
    with_users: Annotated[
        bool, typer.Option("--users", help="Also create the users of the backup, before any rows.")
    ] = False,
    only_users: Annotated[
        bool, typer.Option("--users-only", help="Create the users of the backup, and no streams.")
    ] = False,
    no_consumers: NoConsumers = False,
    yes: Yes = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Create streams from a backup: the same rows, offsets and times, groups' offsets, and consumers.

    Every file is verified before its stream is created, and the stream is compared with the backup at the end. You can
    interrupt the command and run it again: it continues at the end of each stream; complete streams that accept
    messages already are not changed. If a stream of that name holds anything else, the command fails and leaves it
    alone.

    With --users or --users-only, missing users are created with the same passwords, tokens, nkeys and permissions. This
    needs an administrator in the target cluster. Existing users are not changed. The command asks first if some of the
    users are administrators, because a backup does not prove who wrote it.

    Consumers of JetStream's API go on where they were when they were backed up: what was in hand then is delivered
    again once its time is over, with the next count. One that the brokers refuse is left out, with a note.

    A stream is paused until it is complete; then it gets its retention, and accepts messages if it did when it was
    backed up. Rows keep their times, so max_age deletes older rows at once: see --without-max-age.
    """
    from penstock.ops.backup.restoring import Restore, RestoreOptions

    options = RestoreOptions(stream, name, replicas, paused, without_max_age, future_times)
    with as_bad_parameter():
        options = options._replace(streams=not only_users, users=with_users or only_users, consumers=not no_consumers)
        wanted = Restore(folder, options)
    with connected(ctx, server, timeout) as (client, seconds):
        plan = wanted.plan(client, timeout=seconds, progress=output.ShownProgress())
        if not yes:
            _ask(plan.administrators, folder)
        users = plan.create()
        if users is not None:
            _say_users(users, as_json=as_json)
        restored = plan.fill()
    if restored:
        _say(restored, as_json=as_json)


def _ask(administrators: list[str], folder: Path) -> None:
    """Ask the user to confirm new administrators. Raise OperationalError at the end of stdin."""
    if administrators:
        names = ", ".join(administrators)
        what = "an administrator" if len(administrators) == 1 else "administrators"
        confirm(f"Make {names} of {folder} {what} of this cluster?", "nothing was restored")


def _say_users(done: RestoredUsers, *, as_json: bool) -> None:
    if as_json:
        for name in (*done.made, *done.left):
            known = {"user": name, "made": name in done.made}
            output.print_json({**known, "administrator": True} if name in done.administrators else known)
        return
    made = ", ".join(f"{one} (administrator)" if one in done.administrators else one for one in done.made)
    say_note(f"{output.counted(len(done.made), 'user')} made{made and ': '}{made}")
    for name in done.left:
        say_note(f"note: user {name} exists, and is unchanged")


def _say(restored: list[RestoredStream], *, as_json: bool) -> None:
    if as_json:
        for one in restored:
            output.print_json(one._asdict())
        return
    table = output.table("stream", "rows", "groups", "consumers", "intake", right=("rows", "groups", "consumers"))
    for one in restored:
        cells = (one.stream, output.count_text(one.rows), one.groups, one.consumers, one.intake)
        table.add_row(*map(output.cell, cells))
    output.console().print(table)
    for one in restored:
        if one.intake == Intake.PAUSED:
            say_note(f"stream {one.stream} is paused; `penstock stream resume {one.stream}` lets it accept messages")
