"""Options shared by the commands of `penstock pipeline`: Spark's master and settings, batches, checkpoints."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.lake.options import RUN_PANEL
from penstock.cli.terminal.options import Globals

SPARK_PANEL = "Spark"

Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark's master, such as spark://HOST:7077.  Default: that of spark-submit, else all cores of this "
        "machine.",
        rich_help_panel=SPARK_PANEL,
    ),
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="KEY=VALUE",
        help="A setting of Spark, such as spark.executor.memory=4g; may be repeated.",
        rich_help_panel=SPARK_PANEL,
    ),
]
Once = Annotated[
    bool,
    typer.Option(
        "--once/--continuous",
        help="End at the messages that are stored at the start, or go on until Ctrl-C.",
        rich_help_panel=RUN_PANEL,
    ),
]
Trigger = Annotated[
    str,
    typer.Option(
        "--trigger",
        metavar="DURATION",
        help="With --continuous: shortest interval between batches.",
        rich_help_panel=RUN_PANEL,
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Where Spark stores the job's progress.  Default: inside the job's target.",
        rich_help_panel=RUN_PANEL,
    ),
]


InvalidHeaders = Annotated[
    str,
    typer.Option(
        "--invalid-headers",
        metavar="fail|drop",
        help="What to do with headers that NATS cannot carry, because of their name, or line ends or zero bytes in "
        "their value: end the job, or leave them out and count them.",
        autocompletion=lambda: ["fail", "drop"],
        rich_help_panel=RUN_PANEL,
    ),
]


def servers_of(ctx: typer.Context, server: str | None) -> str:
    """Return `--server`, after the command or before it; empty if not given: the environment decides."""
    found = ctx.find_object(Globals)
    return server or (found.server if found else None) or ""


def config_of(pairs: list[str] | None, option: str = "--config") -> dict[str, str]:
    """Parse Spark's settings, or other options given as KEY=VALUE. Raise BadParameter."""
    out = {}
    for pair in pairs or ():
        name, sign, value = pair.partition("=")
        if not (sign and name.strip()):
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint=f"'{option}'")
        out[name.strip()] = value
    return out
