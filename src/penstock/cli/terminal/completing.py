"""Shell completion of stream, group, user and operation names.

Rules: completion contacts the broker that the line being typed would contact: `--server`, `--credentials` and the TLS
options, before or after the command, then the environment. If no broker answers within COMPLETION_TIMEOUT_S, it offers
no names and prints no error, which would appear in the middle of the user's line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.terminal.connection_options import reached

if TYPE_CHECKING:
    from penstock.client.blocking.client import Client

COMPLETION_TIMEOUT_S = 1.0
OPERATIONS = ("read", "append", "create", "alter", "delete", "commit_offsets", "register", "monitor", "admin")


def complete_stream(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return stream names."""
    return _beginning(incomplete, _asked(ctx, stream_names))


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the group names that the user has permission to see."""
    return _beginning(incomplete, _asked(ctx, _group_names))


def complete_consumer(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the consumers of the stream that was typed before."""
    stream = str(ctx.params.get("stream") or "")

    def names(client: Client) -> list[str]:
        found = client.consumers.all(stream, timeout=COMPLETION_TIMEOUT_S)
        return list(dict.fromkeys(one.name for one in found))

    return _beginning(incomplete, _asked(ctx, names)) if stream else []


def complete_user(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return user names; users who are not administrators get only their own."""
    return _beginning(incomplete, _asked(ctx, _user_names))


def complete_operations(incomplete: str) -> list[str]:
    """Return operations that complete a list separated by commas, without those already in it."""
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    return [f"{before}{comma}{one}" for one in _beginning(last, OPERATIONS) if one not in given]


def stream_names(client: Client) -> list[str]:
    """Return the names of all streams except internal ones."""
    infos = client.streams(timeout=COMPLETION_TIMEOUT_S)
    return [info.name for info in infos if not info.config.is_internal]


def _group_names(client: Client) -> list[str]:
    return list(dict.fromkeys(one.group for one in client.groups.all(timeout=COMPLETION_TIMEOUT_S)))


def _user_names(client: Client) -> list[str]:
    return [one.name for one in client.users.all(timeout=COMPLETION_TIMEOUT_S).users if one.name != "*"]


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _asked(ctx: typer.Context, ask: Callable[[Client], list[str]]) -> list[str]:
    from penstock.base.errors import PenstockError
    from penstock.client.blocking import client as blocking

    given = _typed(ctx)
    server = reached(given.pop("server", None), given)
    credentials = given.get("credentials")
    with (
        suppress(PenstockError, OSError, ValueError),
        blocking.connect(
            server, credentials=credentials, name="penstock-completion", timeout=COMPLETION_TIMEOUT_S
        ) as client,
    ):
        return ask(client)
    return []


def _typed(ctx: Any) -> dict[str, Any]:
    """Return the options typed so far; those after the command override those before it."""
    given: dict[str, Any] = {}
    while ctx is not None:
        given = {**{name: value for name, value in ctx.params.items() if value}, **given}
        ctx = ctx.parent
    return given
