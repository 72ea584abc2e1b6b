"""What the commands of `penstock pipeline` have in common: where Spark runs, and how long they go on."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.base.units import parse_bytes, parse_duration_us
from penstock.cli.options import Globals

SPARK_PANEL = "Spark"
RUN_PANEL = "Run"

Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Where Spark runs, as spark://HOST:7077.  Default: as spark-submit says, else all cores of this machine.",
        rich_help_panel=SPARK_PANEL,
    ),
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="KEY=VALUE",
        help="A setting of Spark, as spark.executor.memory=4g; may be repeated.",
        rich_help_panel=SPARK_PANEL,
    ),
]
Once = Annotated[
    bool,
    typer.Option(
        "--once/--continuous",
        help="End when all is done that is there now, or go on until Ctrl-C.",
        rich_help_panel=RUN_PANEL,
    ),
]
Trigger = Annotated[
    str,
    typer.Option(
        "--trigger",
        metavar="DURATION",
        help="With --continuous: at most one batch in so long.",
        rich_help_panel=RUN_PANEL,
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Where Spark notes how far the job is.  Default: inside of what the job writes.",
        rich_help_panel=RUN_PANEL,
    ),
]
MaxBatch = Annotated[
    int,
    typer.Option(
        "--max-batch", metavar="ROWS", min=1, help="At most so many messages at once.", rich_help_panel=RUN_PANEL
    ),
]


AllowLoss = Annotated[
    bool,
    typer.Option(
        "--allow-data-loss",
        help="Go on behind messages that are gone from the log and were not taken.",
        rich_help_panel=RUN_PANEL,
    ),
]


InvalidHeaders = Annotated[
    str,
    typer.Option(
        "--invalid-headers",
        metavar="fail|drop",
        help="What becomes of headers that NATS cannot carry, by their name or by line ends or bytes of zero in their "
        "value: they end the job, or are left out and counted.",
        autocompletion=lambda: ["fail", "drop"],
        rich_help_panel=RUN_PANEL,
    ),
]


def servers_of(ctx: typer.Context, server: str | None) -> str:
    """The brokers that were named, before the command or behind it; empty: as the environment says."""
    found = ctx.find_object(Globals)
    return server or (found.server if found else None) or ""


def seconds_of(option: str, text: str) -> float:
    """A duration in seconds; nothing is one, too."""
    try:
        return parse_duration_us(text) / 1e6
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None


def bytes_of(option: str, text: str) -> int:
    """A size in bytes."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None


def config_of(pairs: list[str] | None, option: str = "--config") -> dict[str, str]:
    """Spark's settings, or others that are given as KEY=VALUE."""
    out = {}
    for pair in pairs or ():
        name, sign, value = pair.partition("=")
        if not (sign and name.strip()):
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint=f"'{option}'")
        out[name.strip()] = value
    return out
