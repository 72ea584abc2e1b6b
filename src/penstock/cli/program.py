"""The Typer app: global options and the table of commands.

Rules: only the module of the requested command is imported, since importing all of them takes several times as long as
most commands run. `penstock --help`, shell completion and an unknown command name import all. A command of another
distribution is found by its entry point in the group `penstock.commands`; without that distribution the command is
listed, and says how to install it.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, NamedTuple

import typer

from penstock import __version__
from penstock.base.extras import how_to_install
from penstock.cli.terminal.connection_options import with_connection_options
from penstock.cli.terminal.failure import FAILED, say, say_error
from penstock.cli.terminal.help import Command, Group
from penstock.cli.terminal.options import Debug, Globals, Server, examples
from penstock.hot import way

DATA_PANEL = "Streams and messages"
BROKER_PANEL = "Brokers"


class _Place(NamedTuple):
    """Locates a command: a function in a module with `EXAMPLES`, or the module's `app`, a group of commands."""

    module: str
    panel: str
    function: str = ""  # empty for a group of commands


class _Extra(NamedTuple):
    """Locates a group of commands that another distribution brings, by its entry point; `extra` brings it."""

    extra: str
    panel: str
    summary: str  # its help where the distribution is not installed

    def add_to(self, app: typer.Typer, name: str) -> None:
        """Add the distribution's commands; without it one that fails, and says how to install it."""
        for entry in entry_points(group=ENTRY_POINTS, name=name):
            app.add_typer(entry.load(), name=name, rich_help_panel=self.panel)
            return

        def missing() -> None:
            say_error(f"`penstock {name}` is not installed: {how_to_install(self.extra)}")
            raise typer.Exit(FAILED)

        how = how_to_install(self.extra).replace("[", r"\[")  # it is no markup
        app.command(
            name,
            cls=Command,
            help=f"{self.summary}\n\nNot installed: {how}",
            rich_help_panel=self.panel,
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        )(missing)


ENTRY_POINTS = "penstock.commands"
"""The group of entry points that name the commands of other distributions."""

COMMANDS: dict[str, _Place | _Extra] = {
    "serve": _Place("broker.serve", BROKER_PANEL, "serve"),
    "status": _Place("broker.status", BROKER_PANEL, "status"),
    "wait": _Place("broker.wait", BROKER_PANEL, "wait"),
    "health": _Place("broker.health", BROKER_PANEL, "health"),
    "doctor": _Place("broker.doctor", BROKER_PANEL, "doctor"),
    "dump": _Place("verify.dump", BROKER_PANEL, "dump"),
    "verify": _Place("verify.verify", BROKER_PANEL, "verify"),
    "certs": _Place("access.certs", BROKER_PANEL, "certs"),
    "demo": _Place("demo.command", BROKER_PANEL, "demo"),
    "publish": _Place("messages.publish", DATA_PANEL, "publish"),
    "nats-config": _Place("access.nats_config", DATA_PANEL, "nats_config"),
    "read": _Place("messages.read", DATA_PANEL, "read"),
    "tail": _Place("messages.tail", DATA_PANEL, "tail"),
    "sql": _Place("messages.sql", DATA_PANEL, "sql"),
    "relay": _Place("messages.relay", DATA_PANEL, "relay"),
    "import": _Place("stream.import_jetstream", DATA_PANEL, "import_stream"),
    "archive": _Place("lake.archive", DATA_PANEL, "archive"),
    "backup": _Place("backup.backup", DATA_PANEL, "backup"),
    "restore": _Place("backup.restore", DATA_PANEL, "restore"),
    "cluster": _Place("broker.cluster", BROKER_PANEL),
    "keys": _Place("access.keys", BROKER_PANEL),
    "bench": _Extra("bench", BROKER_PANEL, "Measure Penstock on this machine, and other products in the same run."),
    "user": _Place("access.users", BROKER_PANEL),
    "acl": _Place("access.acl", BROKER_PANEL),
    "stream": _Place("stream.streams", DATA_PANEL),
    "group": _Place("stream.groups", DATA_PANEL),
    "consumer": _Place("stream.consumers", DATA_PANEL),
    "pipeline": _Place("pipeline.command", DATA_PANEL),
    "schema": _Place("stream.schemas", DATA_PANEL),
    "idl": _Place("idl.command", DATA_PANEL),
}
"""Commands by name, in the order of the help."""


def _version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


def version() -> None:
    """Print the version: the same as `penstock --version`."""
    say(f"penstock {__version__} (hot path: {way()})")


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


def program(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the app with the commands `names`."""
    app = typer.Typer(
        name="penstock",
        cls=Group,
        help="A durable log for NATS, stored as Arrow.\n\n"
        "A broker attaches named streams to NATS subjects, stores what is published there, acks it, and lets any "
        "number of readers pull it back from any offset.",
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
    app.callback()(globals_before_the_command)
    app.command("version", cls=Command, hidden=True)(version)
    for name in names:
        place = COMMANDS[name]
        if isinstance(place, _Extra):
            place.add_to(app, name)
            continue
        module = import_module(f"penstock.cli.{place.module}")
        if place.function:
            add = app.command(name, cls=Command, rich_help_panel=place.panel, epilog=module.EXAMPLES)
            add(getattr(module, place.function))
        else:
            app.add_typer(module.app, name=name, rich_help_panel=place.panel)
    return app
