"""`penstock group …`: list, show, reset and delete consumer groups and their committed offsets."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from penstock.base.errors import ErrorCode
from penstock.cli.stream.replicas import UNKNOWN
from penstock.cli.terminal import output, places
from penstock.cli.terminal.completing import complete_group, complete_stream
from penstock.cli.terminal.confirming import confirm
from penstock.cli.terminal.failure import FAILED, advising, clearly, printable, say, say_error
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
    """List all consumer groups, the streams in which they have committed offsets, and their lag there."""
    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        found = client.groups.all(lag=True, timeout=seconds)
    if as_json:
        for one in found:
            output.print_json(one._asdict())
    elif found:
        _print_table([*map(_listed, found), *([_total(found)] if len(found) > 1 else [])], ("partitions",))
    else:
        say("no groups yet; `penstock read STREAM --group NAME` makes one", err=True)


def _listed(one: groups.Group) -> dict[str, str]:
    return {
        "group": one.group,
        "stream": f"(deleted: {one.stream_id})" if one.stream is None else one.stream,
        "partitions": output.count_text(one.partitions),
        "members": output.count_text(one.members),
        "lag": UNKNOWN if one.lag is None else output.count_text(one.lag),
    }


def _total(found: list[groups.Group]) -> dict[str, str]:
    known = [one.lag for one in found if one.lag is not None]
    least = "" if len(known) == len(found) else "at least "
    return {
        "group": "total",
        "stream": "",
        "partitions": output.count_text(sum(one.partitions for one in found)),
        "members": output.count_text(sum(one.members for one in found)),
        "lag": f"{least}{output.count_text(sum(known))}",
    }


_NUMBERS = ("members", "lag", "partition", "offset", "log start", "log end")


def _print_table(rows: list[dict[str, str]], left_out_first: tuple[str, ...]) -> None:
    """Print rows of title → text; on a narrow terminal without some columns."""
    console = output.console()
    rows = [{title: printable(text) for title, text in row.items()} for row in rows]
    titles = output.fitting(rows, console.width, left_out_first=left_out_first)
    table = output.table(*titles, right=_NUMBERS)
    for row in rows:
        table.add_row(*(output.cell(row[title]) for title in titles))
    console.print(table)


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
    """Show a group's committed offset and lag in each partition of a stream, or of all its streams, and its members.

    The lag is the number of messages that the group has not consumed yet. A group that has committed nothing there is
    an error. Of each member it shows the client's name and address, and since when it is a member, as far as the
    coordinator of the group has heard. Name and address of other users' clients need the permission monitor.

    json: an object for each partition, with [bold]stream, partition, offset, committed, log_start, committed_end,
    member, client_name, address, joined, lag[/bold]; offset is null if nothing is committed, member is null if the
    partition is not assigned; client_name, address and joined are null where they are not known.
    """
    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        names = [stream]
        if stream is None:
            names = [one.stream for one in client.groups.all(timeout=seconds) if one.group == group]
        found = {name: client.groups.offsets(group, name, timeout=seconds) for name in names if name is not None}
        known = {name: parts for name, parts in found.items() if any(_is_known(one) for one in parts)}
        members = {name: client.groups.members(group, name, timeout=seconds) for name in known}
    if not known:
        _say_nothing_committed(group, stream)
    if as_json:
        for name, parts in known.items():
            by_partition = {number: one for one in members[name] for number in one.partitions}
            for part in parts:
                member = _told(by_partition.get(part.partition))
                output.print_json({"stream": name, **part._asdict(), **member, "lag": part.lag})
        return
    is_wide = output.console().width >= _WIDE
    which = {name: {"stream": name} if stream is None else {} for name in known}
    shown = [which[name] | _row(one, is_wide) for name, parts in known.items() for one in parts]
    _print_table(shown, ("log start", "committed", "log end", "member"))
    if joined := [which[name] | _member(one, is_wide) for name in known for one in members[name]]:
        say("")
        _print_table(joined, ("member", "partitions", "since"))


def _is_known(one: groups.GroupOffset) -> bool:
    return one.offset is not None or one.member is not None


def _say_nothing_committed(group: str, stream: str | None) -> NoReturn:
    where = "" if stream is None else f" in stream {stream}"
    say_error(f"group {group} has nothing committed{where}")
    raise typer.Exit(FAILED)


def _told(one: groups.GroupConsumer | None) -> dict[str, object]:
    """Return what is known of a partition's member, for JSON."""
    if one is None:
        return {"client_name": None, "address": None, "joined": None}
    return {"client_name": one.client_name or None, "address": one.address or None, "joined": one.joined}


_WIDE = 120  # characters: from this width on, times have their year, and names of clients are whole
_ID_CHARS = 8  # of a member's id, which tell members apart
_CLIENT_CHARS_MAX = 24


def _row(one: groups.GroupOffset, is_wide: bool) -> dict[str, str]:
    return {
        "partition": str(one.partition),
        "offset": "" if one.offset is None else str(one.offset),
        "lag": output.count_text(one.lag),
        "log start": str(one.log_start),
        "log end": str(one.committed_end),
        "committed": "never" if one.committed is None else _moment(one.committed, is_wide),
        "member": "" if one.member is None else one.member[:_ID_CHARS],
    }


def _member(one: groups.GroupConsumer, is_wide: bool) -> dict[str, str]:
    return {
        "member": one.member[:_ID_CHARS],
        "client": (one.client_name if is_wide else output.cut(one.client_name, _CLIENT_CHARS_MAX)) or UNKNOWN,
        "address": one.address or UNKNOWN,
        "since": UNKNOWN if one.joined is None else _moment(one.joined, is_wide),
        "partitions": output.cut(",".join(map(str, one.partitions)), _CLIENT_CHARS_MAX) or "none",
    }


def _moment(moment: datetime, is_wide: bool) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%SZ}" if is_wide else f"{moment:%m-%d %H:%M:%SZ}"


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
