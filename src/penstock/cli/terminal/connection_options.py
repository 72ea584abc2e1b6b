"""`--credentials`, `--tls-ca`, `--tls-cert` and `--tls-key`: options of every command that takes `--server`.

Rules: the TLS options become part of the server's address (`tls://HOST:PORT?ca=FILE`), so that everything that takes an
address gets them: clients, pipelines, the Spark options. The credentials go into the environment for the same reason.
`--credentials` after the command overrides the same option before it.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from penstock.client.link.addresses import DEFAULT_SERVER, SERVER_VARIABLE, with_tls

CONNECTION_PANEL = "Connection"
CREDENTIALS_VARIABLE = "PENSTOCK_CREDENTIALS"  # a copy: importing `client.credentials` would load too much
# The variables that `client.credentials` and `client.tls` read: a client's login, certificate and trusted authorities.
_OF_CLIENTS = (
    *(CREDENTIALS_VARIABLE, "PENSTOCK_TOKEN", "PENSTOCK_USER", "PENSTOCK_PASSWORD"),
    *("PENSTOCK_TLS_CA", "PENSTOCK_TLS_CERT", "PENSTOCK_TLS_KEY"),
)

_KIND = inspect.Parameter.KEYWORD_ONLY

P = ParamSpec("P")
T = TypeVar("T")

_MEANINGS = {
    "ca": "Speak TLS, and check brokers against these authorities (PEM).  Default: $PENSTOCK_TLS_CA; with tls:// "
    "before HOST:PORT, those that the system trusts.",
    "cert": "Certificate (PEM) to show to brokers that ask for one.  Default: $PENSTOCK_TLS_CERT.",
    "key": "The key (PEM) of that certificate.  Default: $PENSTOCK_TLS_KEY.",
}

CredentialsOption = Annotated[
    Path | None,
    typer.Option(
        "--credentials",
        metavar="FILE",
        help="A file with one line: a token, an nkey seed, or USER:PASSWORD.  Default: $PENSTOCK_CREDENTIALS, else "
        "$PENSTOCK_TOKEN, else $PENSTOCK_USER and $PENSTOCK_PASSWORD.",
        rich_help_panel=CONNECTION_PANEL,
    ),
]


def among_brokers_of_its_own() -> None:
    """Remove login and TLS variables from the environment: a command that starts its own brokers does not use them."""
    for name in _OF_CLIENTS:
        os.environ.pop(name, None)


def _parameter(name: str) -> inspect.Parameter:
    option = typer.Option(f"--tls-{name}", metavar="FILE", help=_MEANINGS[name], rich_help_panel=CONNECTION_PANEL)
    annotation = Annotated[str | None, option]
    return inspect.Parameter(f"tls_{name}", _KIND, default=None, annotation=annotation)


def with_connection_options(command: Callable[P, T]) -> Callable[P, T]:
    """Return `command` with the connection options after its parameter `server`; unchanged if it has no `server`."""
    own = inspect.signature(command, eval_str=True)
    if "server" not in own.parameters:
        return command

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        files = {name: kwargs.pop(name, None) for name in map("tls_{}".format, _MEANINGS)}
        if any(files.values()):
            kwargs["server"] = reached(_meant(kwargs.get("ctx"), kwargs.get("server")), files)  # type: ignore[arg-type]
        if (credentials := kwargs.pop("credentials", None)) is not None:
            os.environ[CREDENTIALS_VARIABLE] = os.path.abspath(str(credentials))
        return command(*args, **kwargs)

    added = [inspect.Parameter("credentials", _KIND, default=None, annotation=CredentialsOption)]
    added += map(_parameter, _MEANINGS)
    together: list[inspect.Parameter] = []
    for one in own.parameters.values():
        together.append(one.replace(kind=_KIND))
        together += added if one.name == "server" else ()
    run.__signature__ = own.replace(parameters=together)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in together}
    return run


def _meant(context: Any, server: str | None) -> str | None:
    """Return `--server` given after the command, else before it."""
    # Not imported above because of a cycle: options imports failure, which imports this module.
    from penstock.cli.terminal.options import Globals

    found = None if context is None else context.find_object(Globals)
    return server or (found.server if found else None)


def reached(server: str | None, options: Mapping[str, object]) -> str | None:
    """Return the address list with the TLS files in `options` added to each broker; `server` itself without such files.

    Without `server` the list comes from $PENSTOCK_SERVER, else it is the default address.
    """
    files = {name: os.path.abspath(str(file)) for name in _MEANINGS if (file := options.get(f"tls_{name}"))}
    if not files:
        return server
    meant = server or os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER
    return ",".join(with_tls(one, files) for one in meant.split(",") if one.strip())
