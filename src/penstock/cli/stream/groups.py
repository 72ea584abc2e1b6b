"""`penstock group …`: list, show, reset and delete consumer groups and their committed offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from penstock.base.errors import ErrorCode
from penstock.cli.terminal import output, places
from penstock.cli.terminal.completing import complete_group, complete_stream
from penstock.cli.terminal.confirming import confirm
from penstock.cli.terminal.failure import FAILED, advising, clearly, say, say_error
from penstock.cli.terminal.help import Command, Group
from penstock.cli.terminal.names import group_name, stream_name
from penstock.cli.terminal.options import (
    DEFAULT_TIMEOUT,
    Debug,
    Json,
    Server,
    StreamArgument,
    Timeout,
    Yes,
    connected,
    examples,
)
from penstock.cli.terminal.standard_streams import need_stdout

if TYPE_CHECKING:
    from penstock.client.consume import groups
    from penstock.client.values import Start

app = typer.Typer(
    cls=Group,
    help="List, show, reset and delete consumer groups: their committed offsets, members and lag.",
    epilog=examples("penstock read orders --group billing", "penstock group show billing orders"),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

_GroupArgument = Annotated[
    str,
    typer.Argument(metavar="GROUP", help="The group's name.", callback=group_name, autocompletion=complete_group),
]

_StreamsArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[STREAM]",
        help="Only in this stream.  Default: all.",
        callback=stream_name,
        autocompletion=complete_stream,
    ),
]


@clearly
def list_groups(
    ctx: typer.Context,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """List all consumer groups, and the streams in which they have committed offsets."""
    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        found = client.groups.all(timeout=seconds)
    if as_json:
        for one in found:
            output.print_json(one._asdict())
    elif found:
        table = output.table("group", "stream", "partitions", "members", right=("partitions", "members"))
        for one in found:
            name = f"(deleted: {one.stream_id})" if one.stream is None else one.stream
            table.add_row(*map(output.cell, (one.group, name, one.partitions, one.members)))
        output.console().print(table)
    else:
        say("no groups yet; `penstock read STREAM --group NAME` makes one", err=True)


@clearly
def show(
    ctx: typer.Context,
    group: _GroupArgument,
    stream: _StreamsArgument = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Show a group's committed offset and lag in each partition of a stream, or of all its streams.

    The lag is the number of offsets that the group has not consumed yet. A group that has committed nothing there is an
    error.

    json: an object for each partition, with [bold]stream, partition, offset, committed, log_start, committed_end,
    member, lag[/bold]; offset is null if nothing is committed, member is null if the partition is not assigned.
    """
    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        names = [stream]
        if stream is None:
            names = [one.stream for one in client.groups.all(timeout=seconds) if one.group == group]
        found = {name: client.groups.offsets(group, name, timeout=seconds) for name in names if name is not None}
    known = {name: parts for name, parts in found.items() if any(_is_known(one) for one in parts)}
    if not known:
        _say_nothing_committed(group, stream)
    if as_json:
        for name, parts in known.items():
            for one in parts:
                output.print_json({"stream": name, **one._asdict(), "lag": one.lag})
        return
    numbers = ("partition", "offset", "lag", "log start", "log end")
    table = output.table(*(("stream",) if stream is None else ()), *numbers, "committed", "member", right=numbers)
    for name, parts in known.items():
        for one in parts:
            table.add_row(*map(output.cell, (*((name,) if stream is None else ()), *_row(one))))
    output.console().print(table)


def _is_known(one: groups.GroupOffset) -> bool:
    return one.offset is not None or one.member is not None


def _say_nothing_committed(group: str, stream: str | None) -> NoReturn:
    where = "" if stream is None else f" in stream {stream}"
    say_error(f"group {group} has nothing committed{where}")
    raise typer.Exit(FAILED)


def _row(one: groups.GroupOffset) -> tuple[object, ...]:
    moment = "never" if one.committed is None else f"{one.committed:%Y-%m-%d %H:%M:%SZ}"
    ends = (one.log_start, one.committed_end)
    return (one.partition, one.offset, output.count_text(one.lag), *ends, moment, one.member)


@clearly
def reset(
    ctx: typer.Context,
    group: _GroupArgument,
    stream: StreamArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="Where the group continues: earliest, latest, an offset, an age such as 30s or '5m ago', or a time "
            "(UTC, if it names no zone).",
        ),
    ],
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            metavar="N",
            min=0,
            help="Reset only this partition.  Default: all.  Needed where --to is an offset and the stream has several "
            "partitions.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the new offsets, and change nothing.")] = False,
    yes: Yes = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Set the offsets of a consumer group in a stream. Asks first. A group that does not exist is created.

    Stop the group's consumers first: the command fails while the group has members. A consumer that was killed remains
    a member for 10 s.
    """
    place = _place(to)
    in_range = advising(ErrorCode.OFFSET_OUT_OF_RANGE, "give --to an offset in that range")
    with in_range, connected(ctx, server, timeout) as (client, seconds):
        info = client.stream(stream, timeout=seconds)
        if isinstance(place, int) and partition is None and len(info.partitions) > 1:
            text = f"an offset is a place in one partition, and stream {info.name} has {len(info.partitions)}"
            raise typer.BadParameter(f"{text}: say which with --partition")
        before = {one.partition: one for one in client.groups.offsets(group, info, timeout=seconds)}
        after = client.groups.reset(group, info, place, partition=partition, dry_run=True, timeout=seconds)
        is_new = not any(map(_is_known, before.values())) and all(
            one.group != group for one in client.groups.all(timeout=seconds)
        )
        if not dry_run:
            if not yes:
                question = f"Have group {group} go on {_where(after)} in stream {info.name}?"
                if is_new:
                    question = f"Group {group} does not exist. Create it {_where(after)} in stream {info.name}?"
                confirm(question, f"group {group} stays where it is")
            for one in after:  # the confirmed offsets, even if a time or `latest` resolves to others by now
                client.groups.reset(group, info, one.offset or 0, partition=one.partition, timeout=seconds)
    for one in after:
        old = before[one.partition].offset
        if as_json:
            output.print_json({"partition": one.partition, "offset": one.offset, "before": old, "lag": one.lag})
            continue
        which = f"{info.name}, partition {one.partition}" if len(info.partitions) > 1 else info.name
        if is_new:
            begins = "would begin" if dry_run else "begins"
            say(f"group {group} did not exist: it {begins} in {which} at offset {one.offset}")
            continue
        was = "nothing was committed" if old is None else f"it was at {old}"
        begins = "would go on" if dry_run else "goes on"
        say(f"group {group} {begins} in {which} at offset {one.offset}; {was}")


@clearly
def delete(
    ctx: typer.Context,
    group: _GroupArgument,
    stream: _StreamsArgument = None,
    yes: Yes = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Delete the committed offsets of a group, in all streams or in one. Asks first.

    Stop the group's consumers first: the command fails while the group has members. A consumer that was killed remains
    a member for 10 s.
    """
    with connected(ctx, server, timeout) as (client, seconds):
        found = [one for one in client.groups.all(timeout=seconds) if one.group == group]
        if stream is not None:
            stream_id = client.stream(stream, timeout=seconds).stream_id
            found = [one for one in found if one.stream_id == stream_id]
        if not found:
            _say_nothing_committed(group, stream)
        names = ", ".join(one.stream or f"the deleted stream {one.stream_id}" for one in found)
        if not yes:
            confirm(f"Delete the offsets of group {group} in {names}?", f"group {group} stays where it is")
        client.groups.delete(group, stream, timeout=seconds)
    say(f"group {group} has nothing committed any more in {names}")


def _place(text: str) -> Start:
    place = places.parse_place(text, "--to", takes_last=False)
    if isinstance(place, places.LastMessages):
        raise typer.BadParameter("give earliest, latest, an offset, an age or a time: -N changes with each new message")
    return place


def _where(after: list[groups.GroupOffset]) -> str:
    offsets = ", ".join(f"{one.offset}" if len(after) == 1 else f"{one.partition}: {one.offset}" for one in after[:8])
    more = ", …" if len(after) > 8 else ""
    return f"at offset {offsets}" if len(after) == 1 else f"at these offsets (partition: offset): {offsets}{more}"


for _name, _command, _lines in (
    ("list", list_groups, ("penstock group list",)),
    (
        "show",
        show,
        (
            "penstock group show billing",
            "penstock group show billing orders",
            "penstock group show billing orders --json | jq .lag",
        ),
    ),
    (
        "reset",
        reset,
        (
            "# where would that be?",
            "penstock group reset billing orders --to '1h ago' --dry-run",
            "penstock group reset billing orders --to earliest",
            "penstock group reset billing orders --to 4200 --partition 2 --yes",
        ),
    ),
    ("delete", delete, ("penstock group delete billing", "penstock group delete billing orders --yes")),
):
    app.command(_name, cls=Command, epilog=examples(*_lines))(_command)
