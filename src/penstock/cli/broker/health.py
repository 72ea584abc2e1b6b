"""`penstock health`: the health and readiness probe of the local broker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.errors import OperationalError
from penstock.cli.terminal.failure import FAILED, clearly, say
from penstock.cli.terminal.options import Debug, examples, seconds_of

EXAMPLES = examples(
    "# is the broker of this machine or container alive, and is it ready?",
    "penstock health",
    "penstock health --ready",
    "# the one with this config",
    "penstock health --config /etc/penstock/penstock.toml",
)


@clearly
def health(
    ready: Annotated[
        bool, typer.Option("--ready", help="Check that it is ready: has joined the cluster, and reaches NATS.")
    ] = False,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="HOST:PORT", help="Its HTTP port.  Default: $PENSTOCK_HTTP, else as --config says."
        ),
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
    """Check the health of the broker on this machine, for probes: exit code 0 means healthy.

    The address is --http, else that of the broker's own settings: $PENSTOCK_HTTP, else `http` in --config or
    $PENSTOCK_CONFIG, else 127.0.0.1:8422. $PENSTOCK_HTTP_TLS or the file says if that port speaks TLS; if that is
    wrong, the command tries the other way. Each line of output begins with the address.

    $PENSTOCK_SERVER does not give a broker's HTTP port. If it names another broker than the one at 127.0.0.1:7422, and
    no setting names an HTTP port, the command checks no broker: give --http.
    """
    from penstock.broker.config.config import load_http
    from penstock.broker.observability.health import HEALTHY, READY, ask

    _check_told(http, config)
    where = load_http(file=config, environment=os.environ, flags={"http": http})
    if not where.addresses:
        raise OperationalError("the broker's HTTP port is off (http)")
    for address in where.addresses:
        is_well, said = ask(
            address, READY if ready else HEALTHY, speaks_tls=where.speaks_tls, timeout_s=seconds_of(timeout)
        )
        say(f"{address}: {said}")
        if not is_well:
            raise typer.Exit(FAILED)


def _check_told(http: str | None, config: Path | None) -> None:
    """Raise BadParameter if only $PENSTOCK_SERVER names a broker and it is not the local one."""
    from penstock.broker.config.config import knows_broker
    from penstock.client.link.addresses import DEFAULT_PORT, SERVER_VARIABLE, parse_server, parse_servers, parse_tls

    named = os.environ.get(SERVER_VARIABLE)
    if http is not None or not named or knows_broker(file=config, environment=os.environ):
        return
    here = {(host, DEFAULT_PORT) for host in ("127.0.0.1", "localhost", "::1")}
    if here.isdisjoint(parse_server(parse_tls(one)[0]) for one in parse_servers(named)):
        text = f"{SERVER_VARIABLE} names {named}, but this command needs the HTTP port of a broker"
        raise typer.BadParameter(f"{text}: give --http HOST:PORT, or its settings (--config, PENSTOCK_HTTP)")
