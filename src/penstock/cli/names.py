"""Callbacks of arguments that are names: what no name can be is told at once, before a broker is asked.

In scripts a name is empty where a variable is not set. Names that could be some, and are not there, are the broker's to
tell, which knows what may have been meant.
"""

from __future__ import annotations

import re

import typer

_JETSTREAM = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]+")


def stream_name(name: str | None) -> str | None:
    """Return the name of a stream. BadParameter: it is empty."""
    return _checked(name, "a stream needs a name" if name == "" else None)


def archive_name(name: str | None) -> str | None:
    """Return the name of an archive. BadParameter: it is empty."""
    return _checked(name, "an archive has a name" if name == "" else None)


def group_name(name: str | None) -> str | None:
    """Return the name of a consumer group. BadParameter: no group can have it."""
    from penstock.groups.rows import group_mistake

    return _checked(name, None if name is None else group_mistake(name))


def user_name(name: str | None) -> str | None:
    """Return the name of a user. BadParameter: no user can have it."""
    from penstock.access.users import user_name_mistake

    return _checked(name, None if name is None else user_name_mistake(name))


def user_or_everybody(name: str | None) -> str | None:
    """Return the name of a user, or `*`, which is everybody. BadParameter: it is neither."""
    from penstock.access.users import EVERYBODY

    return name if name == EVERYBODY else user_name(name)


def jetstream_name(name: str | None) -> str | None:
    """Return the name of a stream of JetStream, which is a token of subjects. BadParameter: it cannot be one."""
    mistake = None
    if name == "":
        mistake = "a stream of JetStream needs a name"
    elif name is not None and not _JETSTREAM.fullmatch(name):
        mistake = f"{name!r} is no name of a stream of JetStream, which holds no white space, '.', '*', '>' and slashes"
    return _checked(name, mistake)


def each_stream_name(names: list[str] | None) -> list[str] | None:
    """Return names of streams. BadParameter: one is empty."""
    for name in names or ():
        stream_name(name)
    return names


def _checked(name: str | None, mistake: str | None) -> str | None:
    if mistake is not None:
        raise typer.BadParameter(mistake)
    return name
