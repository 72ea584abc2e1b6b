"""`penstock stream subjects`, `count` and `last`: what a stream has on its subjects."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.base.subjects import is_reserved
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import clearly, say, say_note
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
    if as_json:
        for one in found:
            output.print_json(one._asdict())
        return
    if not found:
        say(f"stream {info.name} has no message on {', '.join(wanted or ['any subject'])}", err=True)
        raise typer.Exit(1)
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
    """Show the last message of a subject, or of each subject that matches."""
    from penstock.cli.messages import rows
    from penstock.client.read.gathering import table_of

    need_stdout()
    with connected(ctx, server, timeout) as (client, seconds):
        info = client.stream(stream, timeout=seconds)
        found = client.last_by_subjects(info, wanted, after=after, limit=limit, partition=partition, timeout=seconds)
    if as_json:
        for one in found:
            output.print_json(rows.json_row(one))
    elif found:
        table = table_of(found, has_partition=len(info.partitions) > 1)
        rows.print_table(iter(table.to_batches()), rows.Look(headers=True))
    if not found:
        say(f"stream {info.name} has no message on {', '.join(wanted)}", err=True)
        raise typer.Exit(1)
