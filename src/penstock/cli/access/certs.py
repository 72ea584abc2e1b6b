"""`penstock certs`: certificate authorities and certificates, for tests of TLS and small installations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.broker.security.certificate_authority import issued, written
from penstock.cli.terminal.failure import clearly, say
from penstock.cli.terminal.options import Debug, examples

DAYS = 365
DAYS_MAX = 3_650

EXAMPLES = examples(
    "# for a broker on this machine",
    "penstock certs certs",
    "penstock serve --tls-cert certs/broker.pem --tls-key certs/broker.key",
    "penstock status --tls-ca certs/ca.pem",
    "# for the brokers of a cluster",
    "penstock certs certs --hosts a.example.com,b.example.com,c.example.com",
)


@clearly
def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files; created if it does not exist.")],
    hosts: Annotated[
        str,
        typer.Option(
            "--hosts", metavar="HOST[,…]", help="The names and addresses at which clients and brokers reach brokers."
        ),
    ] = "localhost,127.0.0.1,::1",
    client: Annotated[
        str, typer.Option("--client", metavar="NAME", help="The name in the certificate of the client.")
    ] = "client",
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=1, max=DAYS_MAX, help="Days until all of them expire.")
    ] = DAYS,
    debug: Debug = False,
) -> None:
    """Make certificates for TLS: an authority for brokers and one for clients, and a certificate of each.

    For tests and small installations. The authorities' keys can sign more certificates: keep ca.key and client-ca.key
    away from brokers and clients. Existing files are not overwritten.
    """
    named = [host.strip() for host in hosts.split(",") if host.strip()]
    if not named:
        raise typer.BadParameter("name one at least", param_hint="'--hosts'")
    made = issued(named, client, days)
    written(made, folder)
    say(f"{len(made)} files in {folder}, good for {days} days, for {', '.join(named)}")
