"""`penstock acl …`: add, list, delete and test the rules that give users permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.terminal import output
from penstock.cli.terminal.completing import OPERATIONS, complete_operations, complete_stream, complete_user
from penstock.cli.terminal.failure import FAILED, clearly, say
from penstock.cli.terminal.help import Command, Group
from penstock.cli.terminal.names import user_or_everybody
from penstock.cli.terminal.options import (
    DEFAULT_TIMEOUT,
    Debug,
    Json,
    Server,
    Timeout,
    connected,
    examples,
)
from penstock.cli.terminal.standard_streams import need_stdout

if TYPE_CHECKING:
    from penstock.access import Rule

app = typer.Typer(
    cls=Group,
    help="Add, list, delete and test rules, the permissions of users. Everything that no rule allows is denied.",
    epilog=examples(
        "penstock acl add billing read,commit_offsets --stream orders",
        "penstock acl test billing read --stream orders",
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

_User = Annotated[
    str,
    typer.Argument(
        metavar="USER",
        help="The user's name; '*' is all users.",
        callback=user_or_everybody,
        autocompletion=complete_user,
    ),
]
_Operations = Annotated[
    str,
    typer.Argument(
        metavar="OPERATION[,…]",
        help=f"{', '.join(OPERATIONS)}; several with commas between.",
        autocompletion=complete_operations,
    ),
]
_Stream = Annotated[
    str | None,
    typer.Option(
        "--stream",
        metavar="PATTERN",
        help="Streams by name: a name, a prefix such as 'orders-*', or '*' for all.",
        autocompletion=complete_stream,
    ),
]
_Subject = Annotated[
    str | None,
    typer.Option("--subject", metavar="PATTERN", help="Messages on these subjects, such as 'orders.eu.>'."),
]
_GroupOption = Annotated[
    str | None,
    typer.Option("--group", metavar="PATTERN", help="For commit_offsets: only these groups, such as 'billing-*'."),
]


def _rules(operations: str, stream: str | None, subject: str | None, group: str | None) -> list[Rule]:
    from penstock.client.users import rule

    names = [name.strip().replace("-", "_") for name in operations.split(",") if name.strip()]
    if unknown := [name for name in names if name not in OPERATIONS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: no such operation; there are {', '.join(OPERATIONS)}")
    if not names:
        raise typer.BadParameter(f"give an operation: {', '.join(OPERATIONS)}")
    return [
        rule(name, stream=stream, subject=subject, group=group if name == "commit_offsets" else None)  # type: ignore[arg-type]
        for name in names
    ]


@clearly
def add(
    ctx: typer.Context,
    user: _User,
    operations: _Operations,
    stream: _Stream = None,
    subject: _Subject = None,
    group: _GroupOption = None,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Add rules that allow a user operations, on streams by name or by subject.

    When the command ends, all brokers apply the rules. A rule with a subject applies to a stream if all the stream's
    subjects match; on other streams it allows appends of rows on matching subjects, and reads with a filter on such
    subjects.

    The permissions of NATS govern messages published over NATS.
    """
    rules = _rules(operations, stream, subject, group)
    with connected(ctx, server, timeout) as (client, seconds):
        client.users.change_rules(user, add=rules, timeout=seconds)
    for rule in rules:
        say(f"{_who(user)} may {rule}", err=True)


@clearly
def delete(
    ctx: typer.Context,
    user: _User,
    operations: _Operations,
    stream: _Stream = None,
    subject: _Subject = None,
    group: _GroupOption = None,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Delete rules; give them as they were added. When the command ends, no broker applies them any more."""
    rules = _rules(operations, stream, subject, group)
    with connected(ctx, server, timeout) as (client, seconds):
        there = client.users.get(user, timeout=seconds)
        missing = [rule for rule in rules if there is None or rule not in there.rules]
        if missing:
            raise ValueError(f"{_who(user)} has no rule: {', '.join(map(str, missing))} (`penstock acl list {user}`)")
        client.users.change_rules(user, drop=rules, timeout=seconds)
    for rule in rules:
        say(f"no rule allows {_who(user)} any more: {rule}", err=True)


def _who(user: str) -> str:
    return "everybody" if user == "*" else f"user {user}"


@clearly
def list_rules(
    ctx: typer.Context,
    user: Annotated[
        str | None,
        typer.Argument(
            metavar="[USER]",
            help="Only rules of this user.  Default: all.",
            callback=user_or_everybody,
            autocompletion=complete_user,
        ),
    ] = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """List rules. Users who are not administrators see only their own rules, and those for all users (*)."""
    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        found = client.users.all(timeout=seconds)
    if not found.is_guarded:
        say("authentication is off: all clients have all permissions (`penstock user add admin --admin`)", err=True)
        return
    rows = [(one.name, rule) for one in found.users if user in (None, one.name) for rule in one.rules]
    if as_json:
        for name, rule in rows:
            output.print_json({"user": name, **rule_fields(rule)})
        return
    table = output.table("user", "may", "streams", "subjects", "groups")
    for name, rule in rows:
        group = rule.group if rule.operation == "commit_offsets" else ""
        table.add_row(*map(output.cell, (name, rule.operation, rule.stream, rule.subject, group)))
    output.console().print(table)


def rule_fields(rule: Rule) -> dict[str, str]:
    """Return a rule's non-empty fields as a JSON object."""
    fields = ("operation", "stream", "subject", "group")
    return {field: str(getattr(rule, field)) for field in fields if getattr(rule, field)}


@clearly
def try_out(
    ctx: typer.Context,
    user: _User,
    operation: Annotated[
        str, typer.Argument(metavar="OPERATION", help=f"{', '.join(OPERATIONS)}.", autocompletion=complete_operations)
    ],
    stream: Annotated[
        str, typer.Option("--stream", metavar="NAME", help="On this stream.", autocompletion=complete_stream)
    ] = "",
    subject: Annotated[
        str,
        typer.Option("--subject", metavar="SUBJECT", help="The subject of a stream that does not exist; else of rows."),
    ] = "",
    group: Annotated[str, typer.Option("--group", metavar="NAME", help="For this group.")] = "",
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Test if a user has permission for an operation, and print the deciding rule. Exit code 1: it is denied."""
    need_stdout()
    operation = operation.replace("-", "_")
    if operation not in OPERATIONS:
        raise typer.BadParameter(f"{operation}: no such operation; there are {', '.join(OPERATIONS)}")
    with connected(ctx, server, timeout) as (client, seconds):
        answer = client.users.may(user, operation, stream=stream, subject=subject, group=group, timeout=seconds)  # type: ignore[arg-type]
    if as_json:
        output.print_json({"allowed": answer.is_allowed, "reason": answer.reason, "subjects": answer.subjects})
    else:
        say(f"{'allowed' if answer.is_allowed else 'denied'}: {answer.reason}")
    if not answer.is_allowed:
        raise typer.Exit(FAILED)


for _name, _command, _lines in (
    (
        "add",
        add,
        (
            "penstock acl add billing read,commit_offsets --stream orders --group 'billing-*'",
            "penstock acl add loader append --subject 'orders.eu.>'",
            "penstock acl add platform create,alter,delete --subject 'platform.>'",
            "# all users who have logged in",
            "penstock acl add '*' read --stream prices",
        ),
    ),
    ("list", list_rules, ("penstock acl list", "penstock acl list billing --json")),
    ("delete", delete, ("penstock acl delete billing read --stream orders",)),
    (
        "test",
        try_out,
        (
            "penstock acl test billing read --stream orders",
            "penstock acl test billing commit_offsets --stream orders --group b1",
        ),
    ),
):
    app.command(_name, cls=Command, epilog=examples(*_lines))(_command)
