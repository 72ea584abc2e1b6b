"""`--nats`, `--nats-creds` and `--nats-tls-…` of commands that speak NATS themselves: where, as whom, with which files.

A password in a URL stands in the list of processes, and in the shell's history; so a file can hold any way to log in.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.access.secret_files import check_private
from penstock.base.nats_logins import nats_urls
from penstock.cli.connection_options import CONNECTION_PANEL

NatsCreds = Annotated[
    Path | None,
    typer.Option(
        "--nats-creds",
        metavar="FILE",
        help="As whom: NATS credentials (.creds), an nkey seed, or one line with USER:PASSWORD or a token.",
        rich_help_panel=CONNECTION_PANEL,
    ),
]
NatsTlsCa = Annotated[
    Path | None,
    typer.Option(
        "--nats-tls-ca",
        metavar="FILE",
        help="Certificates (PEM) that NATS is checked against.",
        rich_help_panel=CONNECTION_PANEL,
    ),
]
NatsTlsCert = Annotated[
    Path | None,
    typer.Option(
        "--nats-tls-cert", metavar="FILE", help="Our certificate (PEM) for NATS.", rich_help_panel=CONNECTION_PANEL
    ),
]
NatsTlsKey = Annotated[
    Path | None,
    typer.Option("--nats-tls-key", metavar="FILE", help="Its key (PEM).", rich_help_panel=CONNECTION_PANEL),
]

_SCHEMES = ("nats", "tls", "ws", "wss")


def nats_option(meaning: str) -> Any:
    """`--nats`, which means that."""
    return typer.Option("--nats", metavar="URL[,…]", help=meaning, rich_help_panel=CONNECTION_PANEL)


def urls_of(nats: str | None) -> list[str] | None:
    """The servers of `--nats`; None, also for an empty text: the broker says it. ValueError."""
    urls = nats_urls(nats) if nats else None
    for url in urls or ():
        scheme, separator, _ = url.partition("://")
        if separator and scheme.lower() not in _SCHEMES:
            known = ", ".join(f"{one}://" for one in _SCHEMES)
            raise ValueError(f"--nats: the scheme {scheme}:// is not supported; there are {known}")
    return urls


def tls_of(ca: Path | None, cert: Path | None, key: Path | None) -> dict[str, Any]:
    """What `nats.connect` takes for `--nats-tls-…`: then TLS is asked for. ConfigError: a file cannot be used."""
    from penstock.base.errors import ConfigError
    from penstock.broker.nats_credentials import TlsFiles

    if (secret := key or cert) is not None and secret.is_file():  # without a key of its own the file has both
        check_private(secret, os.environ)
    files = TlsFiles(ca, cert, key)
    if mistakes := files.mistakes():
        raise ConfigError(mistakes)
    return {"tls": files.context()} if files else {}


def login_of(file: Path | None) -> dict[str, str]:
    """What `nats.connect` takes for `--nats-creds`. ValueError: the file holds nothing to log in with."""
    if file is None:
        return {}
    from penstock.broker.nats_credentials import read_credentials

    if file.is_file():
        check_private(file, os.environ)
    known = read_credentials(file)
    files = {"nkeys_seed": known.nkey_file, "user_credentials": known.creds_file}
    found = {"user": known.user, "password": known.password, "token": known.token, **files}
    return {name: str(value) for name, value in found.items() if value is not None}
