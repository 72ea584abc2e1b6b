"""`--nats` and `--nats-creds` of commands that speak NATS themselves: where, and as whom.

A password in a URL stands in the list of processes, and in the shell's history; so a file can hold any way to log in.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from penstock.access.secret_files import check_private
from penstock.base.nats_logins import login_of_url, nats_urls, shown_url
from penstock.cli.connection_options import CONNECTION_PANEL

_DEFAULT_PORT = 4222

NatsCreds = Annotated[
    Path | None,
    typer.Option(
        "--nats-creds",
        metavar="FILE",
        help="As whom: NATS credentials (.creds), an nkey seed, or one line with USER:PASSWORD or a token.",
        rich_help_panel=CONNECTION_PANEL,
    ),
]


def nats_option(meaning: str) -> Any:
    """`--nats`, which means that."""
    return typer.Option("--nats", metavar="URL[,…]", help=meaning, rich_help_panel=CONNECTION_PANEL)


def urls_of(nats: str | None) -> list[str] | None:
    """The servers of `--nats`; None: the broker says it."""
    return None if nats is None else nats_urls(nats)


def servers_of(urls: Sequence[str]) -> set[tuple[str, int]]:
    """Host and port of each server, whatever its login and its scheme. ValueError: a URL names none."""
    return {_server_of(url) for url in urls}


def _server_of(url: str) -> tuple[str, int]:
    plain, _ = login_of_url(url)
    try:
        split = urlsplit(plain if "://" in plain else f"nats://{plain}")
        port = split.port
    except ValueError:  # its text quotes the URL, which may hold a password where the host was forgotten
        raise ValueError(f"{shown_url(url)} is no URL of a NATS server") from None
    if not split.hostname:
        raise ValueError(f"{shown_url(url)} names no host")
    return split.hostname, _DEFAULT_PORT if port is None else port


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
