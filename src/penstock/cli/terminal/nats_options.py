"""`--nats`, `--nats-creds` and `--nats-tls-…`: options of commands that connect to NATS themselves.

A password in a URL is visible in the process list and the shell's history, so a file can hold any kind of login.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.access.secret_files import check_private
from penstock.base.nats_logins import nats_urls
from penstock.cli.terminal.connection_options import CONNECTION_PANEL

NatsCreds = Annotated[
    Path | None,
    typer.Option(
        "--nats-creds",
        metavar="FILE",
        help="Login file: NATS credentials (.creds), an nkey seed, or one line with USER:PASSWORD or a token.",
        rich_help_panel=CONNECTION_PANEL,
    ),
]
NatsTlsCa = Annotated[
    Path | None,
    typer.Option(
        "--nats-tls-ca",
        metavar="FILE",
        help="Authorities (PEM) to check the certificate of NATS against.",
        rich_help_panel=CONNECTION_PANEL,
    ),
]
NatsTlsCert = Annotated[
    Path | None,
    typer.Option(
        "--nats-tls-cert", metavar="FILE", help="Certificate (PEM) to show to NATS.", rich_help_panel=CONNECTION_PANEL
    ),
]
NatsTlsKey = Annotated[
    Path | None,
    typer.Option("--nats-tls-key", metavar="FILE", help="Its key (PEM).", rich_help_panel=CONNECTION_PANEL),
]

_SCHEMES = ("nats", "tls", "ws", "wss")


def nats_option(meaning: str) -> Any:
    """Return the option `--nats` with the help text `meaning`."""
    return typer.Option("--nats", metavar="URL[,…]", help=meaning, rich_help_panel=CONNECTION_PANEL)


def urls_of(nats: str | None) -> list[str] | None:
    """Return the URLs of `--nats`; None if empty or not given: use those that the broker reports. Raise ValueError."""
    urls = nats_urls(nats) if nats else None
    for url in urls or ():
        scheme, separator, _ = url.partition("://")
        if separator and scheme.lower() not in _SCHEMES:
            known = ", ".join(f"{one}://" for one in _SCHEMES)
            raise ValueError(f"--nats: the scheme {scheme}:// is not supported; there are {known}")
    return urls


def tls_of(ca: Path | None, cert: Path | None, key: Path | None) -> dict[str, Any]:
    """Return the options of `nats.connect` for `--nats-tls-…`. Raise ConfigError if a file cannot be used."""
    from penstock.base.errors import ConfigError
    from penstock.broker.security.nats_credentials import TlsFiles

    if (secret := key or cert) is not None and secret.is_file():  # without --nats-tls-key the file holds both
        check_private(secret, os.environ)
    files = TlsFiles(ca, cert, key)
    if mistakes := files.mistakes():
        raise ConfigError(mistakes)
    return {"tls": files.context()} if files else {}


def login_of(file: Path | None) -> dict[str, str]:
    """Return the options of `nats.connect` for `--nats-creds`. Raise ValueError if the file holds no login."""
    if file is None:
        return {}
    from penstock.broker.security.nats_credentials import read_credentials

    if file.is_file():
        check_private(file, os.environ)
    known = read_credentials(file)
    files = {"nkeys_seed": known.nkey_file, "user_credentials": known.creds_file}
    found = {"user": known.user, "password": known.password, "token": known.token, **files}
    return {name: str(value) for name, value in found.items() if value is not None}
