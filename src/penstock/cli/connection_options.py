"""`--credentials`, `--tls-ca`, `--tls-cert` and `--tls-key`, which every command takes that takes `--server`.

Rules: what the last three say becomes a part of the server's address (`tls://HOST:PORT?ca=FILE`), so that whatever
takes a server takes them, too: clients, pipelines, the options of Spark. The credentials go into the environment, for
the same reason; behind the command they count instead of those before it.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from penstock.client.addresses import DEFAULT_SERVER, SERVER_VARIABLE, with_tls

CONNECTION_PANEL = "Connection"
CREDENTIALS_VARIABLE = "PENSTOCK_CREDENTIALS"  # as of `client.credentials`, which loads more than a command needs

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


def _parameter(name: str) -> inspect.Parameter:
    option = typer.Option(f"--tls-{name}", metavar="FILE", help=_MEANINGS[name], rich_help_panel=CONNECTION_PANEL)
    annotation = Annotated[str | None, option]
    return inspect.Parameter(f"tls_{name}", _KIND, default=None, annotation=annotation)


def with_connection_options(command: Callable[P, T]) -> Callable[P, T]:
    """`command`, with these options behind its `server`; as it is if it has none."""
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
    """The server that was named, here or before the command."""
    # Not imported above: the options of commands are made with what fails clearly, which has these.
    from penstock.cli.options import Globals

    found = None if context is None else context.find_object(Globals)
    return server or (found.server if found else None)


def reached(server: str | None, options: Mapping[str, object]) -> str | None:
    """The server that is meant, else that of the environment, each of its brokers with the files for TLS in `options`.

    As it is given, if there are none of these.
    """
    files = {name: os.path.abspath(str(file)) for name in _MEANINGS if (file := options.get(f"tls_{name}"))}
    if not files:
        return server
    meant = server or os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER
    return ",".join(with_tls(one, files) for one in meant.split(",") if one.strip())
