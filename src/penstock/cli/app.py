"""The program's commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock import __version__
from penstock.cli import (
    acl,
    backup,
    bench,
    certs,
    demo,
    doctor,
    dump,
    groups,
    health,
    import_jetstream,
    keys,
    nats_config,
    pipeline,
    publish,
    read,
    relay,
    restore,
    serve,
    status,
    streams,
    users,
    verify,
)
from penstock.cli.connection_options import with_connection_options
from penstock.cli.failure import say
from penstock.cli.help import Command, Group
from penstock.cli.options import Debug, Globals, Server, examples
from penstock.hot import way

DATA_PANEL = "Streams and messages"
BROKER_PANEL = "Brokers"

app = typer.Typer(
    name="penstock",
    cls=Group,
    help="A durable log for NATS, stored as Arrow.\n\n"
    "A broker attaches named streams to NATS subjects, stores what is published there, acks it, and lets any number of "
    "readers pull it back from any offset.",
    epilog=examples(
        "# see it work, on real data",
        "penstock demo",
        "# a broker with its own nats-server, for this machine",
        "penstock serve",
        "# store what is published on orders.>",
        "penstock stream create orders 'orders.>'",
        "# or with any NATS client",
        "penstock publish orders.eu '{\"amount\": 42}'",
        "# read it back",
        "penstock read orders --follow",
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"penstock {__version__} (hot path: {way()})")
        raise typer.Exit


@app.callback()
@with_connection_options
def globals_before_the_command(
    ctx: typer.Context,
    server: Server = None,
    debug: Debug = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop."),
    ] = False,
) -> None:
    """A durable log for NATS, stored as Arrow."""
    ctx.obj = Globals(server)


app.command("serve", cls=Command, rich_help_panel=BROKER_PANEL, epilog=serve.EXAMPLES)(serve.serve)
app.command("status", cls=Command, rich_help_panel=BROKER_PANEL, epilog=status.EXAMPLES)(status.status)
app.command("health", cls=Command, rich_help_panel=BROKER_PANEL, epilog=health.EXAMPLES)(health.health)
app.command("doctor", cls=Command, rich_help_panel=BROKER_PANEL, epilog=doctor.EXAMPLES)(doctor.doctor)
app.command("dump", cls=Command, rich_help_panel=BROKER_PANEL, epilog=dump.EXAMPLES)(dump.dump)
app.command("verify", cls=Command, rich_help_panel=BROKER_PANEL, epilog=verify.EXAMPLES)(verify.verify)
app.command("certs", cls=Command, rich_help_panel=BROKER_PANEL, epilog=certs.EXAMPLES)(certs.certs)
app.command("demo", cls=Command, rich_help_panel=BROKER_PANEL, epilog=demo.EXAMPLES)(demo.demo)
app.add_typer(keys.app, name="keys", rich_help_panel=BROKER_PANEL)
app.add_typer(bench.app, name="bench", rich_help_panel=BROKER_PANEL)
app.add_typer(users.app, name="user", rich_help_panel=BROKER_PANEL)
app.add_typer(acl.app, name="acl", rich_help_panel=BROKER_PANEL)
app.add_typer(streams.app, name="stream", rich_help_panel=DATA_PANEL)
app.add_typer(groups.app, name="group", rich_help_panel=DATA_PANEL)
app.add_typer(pipeline.app, name="pipeline", rich_help_panel=DATA_PANEL)
app.command("publish", cls=Command, rich_help_panel=DATA_PANEL, epilog=publish.EXAMPLES)(publish.publish)
app.command("nats-config", cls=Command, rich_help_panel=DATA_PANEL, epilog=nats_config.EXAMPLES)(
    nats_config.nats_config
)
app.command("read", cls=Command, rich_help_panel=DATA_PANEL, epilog=read.EXAMPLES)(read.read)
app.command("relay", cls=Command, rich_help_panel=DATA_PANEL, epilog=relay.EXAMPLES)(relay.relay)
app.command("import", cls=Command, rich_help_panel=DATA_PANEL, epilog=import_jetstream.EXAMPLES)(
    import_jetstream.import_stream
)
app.command("backup", cls=Command, rich_help_panel=DATA_PANEL, epilog=backup.EXAMPLES)(backup.backup)
app.command("restore", cls=Command, rich_help_panel=DATA_PANEL, epilog=restore.EXAMPLES)(restore.restore)
