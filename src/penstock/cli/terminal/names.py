"""Callbacks for arguments that are names: an invalid name is rejected before a broker is contacted.

In scripts a name is empty if a variable is not set. The broker rejects valid names that do not exist, because it can
suggest similar ones.
"""

from __future__ import annotations

import re

import typer

from penstock.base.subjects import stream_name_mistake, subject_mistake

_JETSTREAM = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]+")


def stream_name(name: str | None) -> str | None:
    """Return the stream name. Raise BadParameter if it is empty, or cannot be the name of any stream."""
    mistake = None if name is None else stream_name_mistake(name)
    if name and mistake is not None and {*name} & {*".*>"} and subject_mistake(name, wildcards=True) is None:
        mistake = (
            f"{mistake}; this is a subject: the stream comes first, and `penstock stream find` says which stores it"
        )
    return _checked(name, mistake)


def new_stream_name(name: str | None) -> str | None:
    """Return the stream name. Raise BadParameter if it is empty: other mistakes are told with those of the config."""
    return _checked(name, "a stream needs a name" if name == "" else None)


def archive_name(name: str | None) -> str | None:
    """Return the archive name. Raise BadParameter if it is empty."""
    return _checked(name, "an archive needs a name" if name == "" else None)


def group_name(name: str | None) -> str | None:
    """Return the consumer group name. Raise BadParameter if it is not a valid one."""
    from penstock.groups.rows import group_mistake

    return _checked(name, None if name is None else group_mistake(name))


def consumer_name(name: str | None) -> str | None:
    """Return the consumer name, which is a subject token. Raise BadParameter if it is not a valid one."""
    mistake = None
    if name == "":
        mistake = "a consumer needs a name"
    elif name is not None and not _JETSTREAM.fullmatch(name):
        mistake = f"{name!r} is not a consumer's name: it must not hold white space, '.', '*', '>' or slashes"
    return _checked(name, mistake)


def user_name(name: str | None) -> str | None:
    """Return the user name. Raise BadParameter if it is not a valid one."""
    from penstock.access.users import user_name_mistake

    return _checked(name, None if name is None else user_name_mistake(name))


def user_or_everybody(name: str | None) -> str | None:
    """Return the user name, or `*`, which means all users. Raise BadParameter if it is neither."""
    from penstock.access.users import EVERYBODY

    return name if name == EVERYBODY else user_name(name)


def jetstream_name(name: str | None) -> str | None:
    """Return the JetStream stream name, which is a subject token. Raise BadParameter if it is not a valid one."""
    mistake = None
    if name == "":
        mistake = "a JetStream stream needs a name"
    elif name is not None and not _JETSTREAM.fullmatch(name):
        mistake = f"{name!r} is not a JetStream stream name: it must not hold white space, '.', '*', '>' or slashes"
    return _checked(name, mistake)


def each_stream_name(names: list[str] | None) -> list[str] | None:
    """Return the stream names. Raise BadParameter if one is empty."""
    for name in names or ():  # of `penstock verify` they may be paths
        new_stream_name(name)
    return names


def _checked(name: str | None, mistake: str | None) -> str | None:
    if mistake is not None:
        raise typer.BadParameter(mistake)
    return name
