"""`penstock stream subjects`, `count` and `last`: what a stream has on its subjects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.subjects import is_reserved, is_wildcard
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import FAILED, clearly, say, say_note
from penstock.cli.terminal.options import (
    DEFAULT_TIMEOUT,
    Debug,
    Json,
    Server,
    StreamArgument,
    Timeout,
    connected,
    examples,
)
from penstock.cli.terminal.standard_streams import need_stdout

if TYPE_CHECKING:
    from penstock.client.blocking.client import Client
    from penstock.client.values import Message
    from penstock.messages import StreamInfo

SUBJECTS_EXAMPLES = examples(
    "penstock stream subjects orders",
    "penstock stream subjects orders 'orders.eu.*' --limit 20",
    "# the next ones",
    "penstock stream subjects orders --after orders.eu.7",
)
COUNT_EXAMPLES = examples(
    "penstock stream count orders 'orders.eu.*'",
    "penstock stream count orders orders.eu.7 orders.us.7 --json",
)
LAST_EXAMPLES = examples(
    "penstock stream last orders orders.eu.7",
    "# of each subject",
    "penstock stream last orders 'orders.eu.*' --json",
)

_Subjects = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SUBJECT]...", help="Subjects, with wildcards or without.  Default: all."),
]
_Partition = Annotated[
    int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.  Default: all.")
]
_After = Annotated[str, typer.Option("--after", metavar="SUBJECT", help="Begin behind this subject.")]


@clearly
def subjects(
    ctx: typer.Context,
    stream: StreamArgument,
    wanted: _Subjects = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many subjects.")] = 1_000,
    after: _After = "",
    partition: _Partition = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """List the subjects of a stream, with the number of their messages and the offsets of the first and the last.

    Deleted messages do not count. The order is that of the bytes; a subject with messages in several partitions has a
    line for each.
    """
    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        info = client.stream(stream, timeout=seconds)
        patterns = wanted or [">", *filter(is_reserved, info.subjects)]
        found = client.subjects(info, patterns, after=after, limit=limit, partition=partition, timeout=seconds)
    if not found:
        raise _nothing(info, wanted or ["any subject"])
    if as_json:
        for one in found:
            output.print_json(one._asdict())
        return
    columns = ["subject", "messages", "first", "last"]
    if is_split := len(info.partitions) > 1:
        columns.insert(1, "partition")
    table = output.table(*columns, right=("partition", "messages", "first", "last"))
    for one in found:
        numbers = [output.count_text(one.messages), str(one.first), str(one.last)]
        table.add_row(output.cell(one.subject), *([str(one.partition)] if is_split else []), *numbers)
    output.console().print(table)
    if len({one.subject for one in found}) == limit:
        say_note(f"there may be more: --after {found[-1].subject}")


@clearly
def count(
    ctx: typer.Context,
    stream: StreamArgument,
    wanted: Annotated[list[str], typer.Argument(metavar="SUBJECT...", help="Subjects, with wildcards or without.")],
    partition: _Partition = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Count the messages of a stream on some subjects. Deleted ones do not count."""
    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        info = client.stream(stream, timeout=seconds)
        messages = client.count(info, subject=wanted, partition=partition, timeout=seconds)
    if as_json:
        output.print_json({"stream": info.name, "subjects": wanted, "messages": messages})
    else:
        say(str(messages))


@clearly
def last(
    ctx: typer.Context,
    stream: StreamArgument,
    wanted: Annotated[list[str], typer.Argument(metavar="SUBJECT...", help="Subjects, with wildcards or without.")],
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Of at most so many subjects.")] = 1_000,
    after: _After = "",
    partition: _Partition = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Show the last message of a subject, or of each subject that matches.

    With wildcards or several subjects, it is the last one in each partition.
    """
    from penstock.cli.messages import rows
    from penstock.client.read.gathering import table_of

    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        info = client.stream(stream, timeout=seconds)
        if len(wanted) == 1 and not after and not is_wildcard(wanted[0]):
            found = _last_of_one(client, info, wanted[0], partition, seconds)
        else:
            found = client.last_by_subjects(
                info, wanted, after=after, limit=limit, partition=partition, timeout=seconds
            )
    if not found:
        raise _nothing(info, wanted)
    if as_json:
        for one in found:
            output.print_json(rows.json_row(one))
        return
    table = table_of(found, has_partition=len(info.partitions) > 1)
    rows.print_table(iter(table.to_batches()), rows.Look(headers=True))


def _last_of_one(
    client: Client, info: StreamInfo, subject: str, partition: int | None, seconds: float
) -> list[Message]:
    """Return the last message of a plain subject; it works below feature level 0.4, too.

    MessageNotFound: not all was searched.
    """
    from penstock.client.errors import MessageNotFound

    try:
        return [client.last(info, subject=subject, partition=partition, timeout=seconds)]
    except MessageNotFound as error:
        if "scanned_bytes" in error.details:
            raise
        return []


def _nothing(info: StreamInfo, wanted: Sequence[str]) -> typer.Exit:
    """Say that there is no message, with `--json` too, and return the exit code."""
    say(f"stream {info.name} has no message on {', '.join(wanted)}", err=True)
    return typer.Exit(FAILED)
