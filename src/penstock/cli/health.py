"""`penstock health`: what a probe runs beside a broker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.errors import OperationalError
from penstock.cli.failure import FAILED, clearly
from penstock.cli.options import Debug, examples, seconds_of

EXAMPLES = examples(
    "# does the broker of this machine or container live, and is it ready?",
    "penstock health",
    "penstock health --ready",
    "# the one with this config",
    "penstock health --config /etc/penstock/penstock.toml",
)


@clearly
def health(
    ready: Annotated[
        bool, typer.Option("--ready", help="Whether it is ready: has its part in the cluster, and NATS.")
    ] = False,
    http: Annotated[
        str | None, typer.Option("--http", metavar="HOST:PORT", help="Its HTTP port.  Default: as its settings say.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Its settings in TOML.  Default: $PENSTOCK_CONFIG, else none."),
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long to wait for each answer.")
    ] = "4s",
    debug: Debug = False,
) -> None:
    """Ask the broker of this machine how it fares, for probes: exit code 0 means well.

    Where its HTTP port is, and whether that speaks TLS (http, http_tls), is taken from the settings that the broker
    takes, too: the environment and --config. Without TLS or with it, the other way is tried if that one is not spoken.
    """
    from penstock.broker.config import load_http
    from penstock.broker.health import HEALTHY, READY, ask

    where = load_http(file=config, environment=os.environ, flags={"http": http})
    if not where.addresses:
        raise OperationalError("the broker shows nothing over HTTP: http is off")
    for address in where.addresses:
        is_well, said = ask(
            address, READY if ready else HEALTHY, speaks_tls=where.speaks_tls, timeout_s=seconds_of(timeout)
        )
        typer.echo(f"{address}: {said}" if len(where.addresses) > 1 else said)
        if not is_well:
            raise typer.Exit(FAILED)
