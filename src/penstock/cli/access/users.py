"""`penstock user …`: add, list, rotate, limit and delete users and their logins."""

from __future__ import annotations

import getpass
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.base.text_files import text_of
from penstock.base.units import format_bytes, parse_bytes, parse_duration_us
from penstock.cli.access.acl import rule_fields
from penstock.cli.terminal import output
from penstock.cli.terminal.completing import complete_user
from penstock.cli.terminal.confirming import confirm
from penstock.cli.terminal.failure import FAILED, clearly, say, say_error
from penstock.cli.terminal.help import Command, Group
from penstock.cli.terminal.names import user_name
from penstock.cli.terminal.open_secrets import warn_if_open
from penstock.cli.terminal.options import DEFAULT_TIMEOUT, Debug, Json, Server, Timeout, Yes, connected, examples
from penstock.cli.terminal.standard_streams import need_stdout

if TYPE_CHECKING:
    from penstock.access import Credential, Quotas
    from penstock.client.blocking.client import Client
    from penstock.client.users import NewCredential
    from penstock.messages import CredentialInfo, UserInfo

app = typer.Typer(
    cls=Group,
    help="Add, list, rotate, limit and delete users and their logins.",
    epilog=examples(
        "# the first user is an administrator: from then on all clients have to log in",
        "penstock user add admin --admin",
        "penstock --credentials admin.credentials user add billing --token --out billing.token",
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

NONE = "none"

_NewUser = Annotated[str, typer.Argument(metavar="USER", help="The user's name.", callback=user_name)]
_User = Annotated[
    str, typer.Argument(metavar="USER", help="The user's name.", callback=user_name, autocompletion=complete_user)
]
_PasswordFile = Annotated[
    Path | None,
    typer.Option("--password-file", metavar="FILE", help="File that holds the password; - reads it from stdin."),
]
_Token = Annotated[bool, typer.Option("--token", help="Make a random token, and print it once.")]
_Nkey = Annotated[
    str | None, typer.Option("--nkey", metavar="PUBLIC_KEY", help="Log in with this NATS nkey: its public key (U…).")
]
_Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="DURATION", help="How long the login is valid, such as 90d.  Default: for ever."),
]
_Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="Write the token to this file, which only you can read, instead of printing it."
    ),
]


@clearly
def add(
    ctx: typer.Context,
    user: _NewUser,
    admin: Annotated[bool, typer.Option("--admin", help="The user may do everything.")] = False,
    password_file: _PasswordFile = None,
    token: _Token = False,
    nkey: _Nkey = None,
    expires: _Expires = None,
    out: _Out = None,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Add a user. Without --password-file, --token and --nkey the command asks for a password.

    The first user of a cluster must be an administrator (--admin): [bold]from then on clients have to log in.[/bold]
    Any other user has no permissions until `penstock acl add` gives some.

    Brokers never get the password or the token, only a hash that checks it. A token is shown only once, by this
    command.
    """
    from penstock.access import Operation, Rule

    made = _credential(user, password_file, token=token, nkey=nkey, expires=expires)
    rules = (Rule(Operation.ADMIN),) if admin else ()
    with connected(ctx, server, timeout) as (client, seconds):
        _need_new(client, user, is_admin=admin, timeout_s=seconds)
        with _kept(made, out):
            client.users.create(user, made, rules=rules, timeout=seconds)
    _tell_token(made, out)
    may = "may do everything" if admin else f"may do nothing yet: penstock acl add {user} read --stream NAME"
    say(f"user {user} was added; it {may}", err=True)


@clearly
def list_users(
    ctx: typer.Context,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """List users, their kinds of login, rules and limits. Users who are not administrators see only themselves."""
    need_stdout()
    from msgspec.structs import asdict

    with connected(ctx, server, timeout) as (client, seconds):
        found = client.users.all(timeout=seconds)
    if not found.is_guarded:
        say("authentication is off: there are no users (`penstock user add admin --admin`)", err=True)
        return
    users = [one for one in found.users if one.name != "*"]
    if as_json:
        for one in users:
            named = {"rules": [rule_fields(rule) for rule in one.rules], "quotas": asdict(one.quotas)}
            output.print_json({**asdict(one), **named})
        return
    table = output.table(
        "user", "logs in with", "rules", "append/s", "fetch/s", "connections", "streams", "partitions", "since"
    )
    for one in users:
        table.add_row(*map(output.cell, _row(one)))
    output.console().print(table)


def _row(user: UserInfo) -> tuple[object, ...]:
    with_what = ", ".join(_credential_text(one) for one in user.credentials)
    rules = "admin" if any(str(rule) == "admin" for rule in user.rules) else len(user.rules)
    quotas = user.quotas
    rates = (_rate_text(quotas.append_bytes_per_s), _rate_text(quotas.fetch_bytes_per_s), quotas.connections_max)
    made = (_of(user.streams, quotas.streams_max), _of(user.partitions, quotas.partitions_max))
    return user.name, with_what, rules, *rates, *made, output.time_text(user.created_us)[:10]


def _of(count: int, most: int | None) -> object:
    return count if most is None else f"{count} of {most}"


def _credential_text(one: CredentialInfo | Credential) -> str:
    name = str(one.kind) if one.kind == "password" else f"{one.kind} {one.credential_id}"
    if one.expires_us is None:
        return name
    until = f"{datetime.fromtimestamp(one.expires_us // 1_000_000, UTC):%Y-%m-%d}"
    return f"{name} (until {until})" if one.expires_us > time.time_ns() // 1_000 else f"{name} (expired {until})"


def _rate_text(rate: int | None) -> str | None:
    return None if rate is None else format_bytes(rate)


@clearly
def rotate(
    ctx: typer.Context,
    user: _User,
    password_file: _PasswordFile = None,
    token: _Token = False,
    nkey: _Nkey = None,
    expires: _Expires = None,
    drop: Annotated[
        list[str] | None,
        typer.Option("--drop", metavar="ID", help="Remove the token or nkey with this id at once.  May be repeated."),
    ] = None,
    out: _Out = None,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Change a user's password, add a token or an nkey, or remove one.

    Users may do this for themselves, unless they logged in with a token.

    A new password replaces the old one at once. A user can have several tokens and nkeys: add a new one, give it to the
    programs, then remove the old one with --drop. Clients that used a removed login have to log in again.
    """
    is_given = password_file is not None or token or nkey is not None
    made = [_credential(user, password_file, token=token, nkey=nkey, expires=expires)] if is_given or not drop else []
    with connected(ctx, server, timeout) as (client, seconds):
        before = client.users.get(user, timeout=seconds)  # before the change, which may invalidate our own login
        _need_credentials(before, user, drop or [])
        with _kept(made[0] if made else None, out):
            client.users.alter(user, add=made, drop=drop or (), timeout=seconds)
    if made:
        _tell_token(made[0], out)
    new = [one.credential for one in made]
    gone = {*(drop or ()), *(one.credential_id for one in new)}
    old = () if before is None else [one for one in before.credentials if one.credential_id not in gone]
    left = (
        ", ".join(map(_credential_text, (*old, *new))) or "nothing any more: give it something (`penstock user rotate`)"
    )
    say(f"user {user} logs in with: {left}", err=True)


def _need_new(client: Client, user: str, *, is_admin: bool, timeout_s: float) -> None:
    """Exit with an error if the user cannot be created, before a token is printed that a script would use."""
    found = client.users.all(timeout=timeout_s)
    if not found.is_guarded and not is_admin:
        say_error(f"the first user must be an administrator: penstock user add {user} --admin")
        raise typer.Exit(FAILED)
    if any(one.name == user for one in found.users):
        say_error(f"user {user} exists already: penstock user rotate {user} gives it another login")
        raise typer.Exit(FAILED)


def _need_credentials(there: UserInfo | None, user: str, ids: list[str]) -> None:
    """Exit with an error if the user or an id to drop does not exist: the broker ignores unknown ids silently."""
    if there is None:
        say_error(f"there is no user {user}")
        raise typer.Exit(FAILED)
    missing = sorted(set(ids) - {one.credential_id for one in there.credentials})
    if missing:
        has = ", ".join(map(_credential_text, there.credentials)) or "none"
        say_error(f"user {user} has no token or nkey {', '.join(missing)}; it has {has}. Nothing was changed")
        raise typer.Exit(FAILED)


@clearly
def limit(
    ctx: typer.Context,
    user: _User,
    append_rate: Annotated[
        str | None,
        typer.Option("--append-rate", metavar="SIZE", help=f"Bytes a second that it may append; {NONE}: no limit."),
    ] = None,
    fetch_rate: Annotated[
        str | None,
        typer.Option("--fetch-rate", metavar="SIZE", help=f"Bytes a second that it may fetch; {NONE}: no limit."),
    ] = None,
    connections: Annotated[
        str | None,
        typer.Option("--connections", metavar="N", help=f"Connections that it may have; {NONE}: no limit."),
    ] = None,
    streams: Annotated[
        str | None,
        typer.Option("--streams", metavar="N", help=f"Streams that it may create in the cluster; {NONE}: no limit."),
    ] = None,
    partitions: Annotated[
        str | None,
        typer.Option("--partitions", metavar="N", help=f"Partitions of all its streams together; {NONE}: no limit."),
    ] = None,
    message_ids: Annotated[
        str | None,
        typer.Option(
            "--message-ids",
            metavar="N",
            help=f"Message ids kept for its streams, --dedup-ids-max for each partition; {NONE}: no limit.",
        ),
    ] = None,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Set a user's rate limits and connections on each broker, over the socket, and quotas for its streams.

    A client over a rate limit has to wait; the broker tells it how long. A user who has reached the quota of streams
    can create another after deleting one; the same holds for partitions, and for message ids that brokers keep. Quotas
    of streams do not apply to administrators.
    """
    import msgspec

    given: dict[str, int | None] = {}
    for name, text in (("append_bytes_per_s", append_rate), ("fetch_bytes_per_s", fetch_rate)):
        if text is not None:
            given[name] = None if text == NONE else parse_bytes(text)
    if connections is not None:
        given["connections_max"] = None if connections == NONE else _count(connections, limits.CONNECTIONS_MAX)
    for name, text, most in (
        ("streams_max", streams, limits.STREAMS_MAX),
        ("partitions_max", partitions, limits.PARTITIONS_MAX),
        ("message_ids_max", message_ids, limits.USER_MESSAGE_IDS_MAX),
    ):
        if text is not None:
            given[name] = None if text == NONE else _count(text, most)
    if not given:
        options = "--append-rate, --fetch-rate, --connections, --streams, --partitions or --message-ids"
        raise typer.BadParameter(f"give {options}")
    with connected(ctx, server, timeout) as (client, seconds):
        there = client.users.get(user, timeout=seconds)
        if there is None:
            say_error(f"there is no user {user}")
            raise typer.Exit(FAILED)
        quotas = msgspec.structs.replace(there.quotas, **given)
        client.users.alter(user, quotas=quotas, timeout=seconds)
    say(f"limits of user {user} on each broker: {_quotas_text(quotas)}", err=True)


def _count(text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= most):
        raise typer.BadParameter(f"{text!r} is not a number from 1 to {most}")
    return int(text)


def _quotas_text(quotas: Quotas) -> str:
    parts = [
        None if quotas.append_bytes_per_s is None else f"append {format_bytes(quotas.append_bytes_per_s)}/s",
        None if quotas.fetch_bytes_per_s is None else f"fetch {format_bytes(quotas.fetch_bytes_per_s)}/s",
        None if quotas.connections_max is None else f"{quotas.connections_max} connections",
    ]
    of_brokers = ", ".join(filter(None, parts)) or "none"
    bounds = (
        (quotas.streams_max, "stream"),
        (quotas.partitions_max, "partition"),
        (quotas.message_ids_max, "message id"),
    )
    made = [output.counted(most, what) for most, what in bounds if most is not None]
    of_cluster = f"in the cluster: {', '.join(made)}" if made else None
    return "; ".join(filter(None, (of_brokers, of_cluster)))


@clearly
def delete(
    ctx: typer.Context,
    user: _User,
    yes: Yes = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Delete a user and its rules. Asks first. Its logins fail from then on. The last administrator is not deleted."""
    if not yes:
        confirm(f"Delete user {user} and its rules?", f"user {user} stays")
    with connected(ctx, server, timeout) as (client, seconds):
        client.users.delete(user, timeout=seconds)
    say(f"user {user} was deleted", err=True)


# Credentials


def _credential(
    user: str, password_file: Path | None, *, token: bool, nkey: str | None, expires: str | None
) -> NewCredential:
    from penstock.client.users import nkey_credential, password_credential, token_credential

    if (password_file is not None) + token + (nkey is not None) > 1:
        raise typer.BadParameter("give one of --password-file, --token and --nkey")
    until = None if expires is None else datetime.now(UTC) + timedelta(microseconds=parse_duration_us(expires))
    if token:
        return token_credential(user, expires=until)
    if nkey is not None:
        return nkey_credential(nkey, expires=until)
    return password_credential(_password(user, password_file), expires=until)


def _password(user: str, file: Path | None) -> str:
    if file is not None:
        from penstock.client.link.credentials import file_failure

        if str(file) != "-":
            warn_if_open(file)
        try:
            with sys.stdin.buffer if str(file) == "-" else file.open("rb") as opened:
                password = text_of(opened.read(limits.CREDENTIALS_FILE_BYTES_MAX)).rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise OperationalError(file_failure(file, error)) from None
    elif not sys.stdin.isatty():
        raise typer.BadParameter("stdin is not interactive; give --password-file, --token or --nkey")
    else:
        password = getpass.getpass(f"Password for {user}: ")
        if getpass.getpass("Again: ") != password:
            raise ValueError("the two passwords are not the same; nothing was done")
    from penstock.access.users import password_mistake

    if (mistake := password_mistake(password)) is not None:
        raise ValueError(mistake)
    return password


class _kept:  # noqa: N801 (used as a statement)
    """Writes the token to its file or stdout before the broker learns it: else a full disk would lose it."""

    def __init__(self, made: NewCredential | None, file: Path | None) -> None:
        self._made = made
        self._file = file

    def __enter__(self) -> None:
        if self._file is None:
            if self._made is not None and self._made.token is not None:
                _print_token(self._made.token)
            return
        if self._made is None or self._made.token is None:
            raise typer.BadParameter("--out is for a token; give --token, too")
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as opened:
            opened.write(f"{self._made.token}\n")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            return
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        elif self._made is not None and self._made.token is not None:
            number = self._made.credential.credential_id
            error.add_note(f"the printed token is valid only if `penstock user list` shows token {number}")


def _print_token(token: str) -> None:
    need_stdout()
    try:
        say(token)
    except BrokenPipeError:
        raise OperationalError(
            "the token cannot be printed: stdout is a pipe without a reader; nothing was done"
        ) from None


def _tell_token(made: NewCredential, out: Path | None) -> None:
    if made.token is None:
        return
    if out is None:
        say("that is the token: it cannot be shown again", err=True)
    else:
        say(f"the token is in {out}: penstock --credentials {out} …", err=True)


for _name, _command, _lines in (
    (
        "add",
        add,
        (
            "penstock user add admin --admin",
            "# for a program: a token, in a file that only its owner can read",
            "penstock user add billing --token --out billing.token",
            "penstock user add ci --nkey UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4",
        ),
    ),
    ("list", list_users, ("penstock user list", "penstock user list --json")),
    (
        "rotate",
        rotate,
        (
            "penstock user rotate admin",
            "penstock user rotate billing --token --out new.token",
            "penstock user rotate billing --drop 4f3a9c21",
        ),
    ),
    (
        "limit",
        limit,
        (
            "penstock user limit billing --append-rate 10MiB --fetch-rate 50MiB --connections 20",
            "penstock user limit billing --streams 5",
        ),
    ),
    ("delete", delete, ("penstock user delete billing",)),
):
    app.command(_name, cls=Command, epilog=examples(*_lines))(_command)
