"""`penstock pipeline audit`: counts messages, finds gaps and duplicates, and compares an archive with the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base import limits
from penstock.base.units import format_bytes
from penstock.cli.pipeline.options import Config, Master, config_of, servers_of
from penstock.cli.pipeline.spark_session import spark_session
from penstock.cli.terminal import output
from penstock.cli.terminal.completing import complete_stream
from penstock.cli.terminal.failure import FAILED, clearly, say, say_error
from penstock.cli.terminal.names import stream_name
from penstock.cli.terminal.options import Debug, Json, Server, examples

if TYPE_CHECKING:
    from penstock.spark.jobs.audit_job import Audit

EXAMPLES = examples(
    "# count messages by subject",
    "penstock pipeline audit orders",
    "penstock pipeline audit --subject 'orders.eu.>' --from 2026-11-20T10:00:00Z --by key",
    "# is the archive equal to the log?",
    "penstock pipeline audit orders --against lake && echo equal",
)


@clearly
def audit(
    ctx: typer.Context,
    stream: Annotated[
        str | None,
        typer.Argument(
            metavar="[STREAM]", help="The stream's name.", callback=stream_name, autocompletion=complete_stream
        ),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option("--subject", metavar="SUBJECT", help="Only messages on it; without STREAM: of all its streams."),
    ] = None,
    start: Annotated[
        str, typer.Option("--from", metavar="PLACE", help="earliest, or a time such as 2026-11-20T10:00:00Z.")
    ] = "earliest",
    end: Annotated[str, typer.Option("--to", metavar="PLACE", help="latest, or a time: end before it.")] = "latest",
    by: Annotated[str, typer.Option("--by", metavar="COLUMN", help="Count by subject, or by key.")] = "subject",
    top: Annotated[int, typer.Option("--top", metavar="N", min=1, help="Show the N with the most messages.")] = 20,
    against: Annotated[
        str | None, typer.Option("--against", metavar="DIR", help="Compare with this archive, offset by offset.")
    ] = None,
    range_rows: Annotated[
        int, typer.Option("--range", metavar="OFFSETS", min=1, help="Offsets per checksum.")
    ] = limits.AUDIT_RANGE_ROWS_DEFAULT,
    master: Master = None,
    config: Config = None,
    as_json: Json = False,
    server: Server = None,
    debug: Debug = False,
) -> None:
    """Count messages, find missing and repeated ones, and check that an archive is equal to the log.

    Each range of offsets has a checksum of its rows, which does not depend on how they are stored. With --against the
    checksums of the log and the archive are compared wherever both have offsets; where they differ, the command counts
    the rows that are missing in the archive, changed, repeated, or only in the archive. The exit code is 1 if they
    differ, if the archive has nothing of a partition that holds messages, so that nothing could be compared, or if
    offsets are missing that nothing of the stream can have removed: no retention, compaction, time to live, rollup or
    limit by subject, and no deletion.

    json: one object, with [bold]good, equal, messages, spans, groups, gaps, repeated, differences, sums[/bold].
    """
    settings = config_of(config)
    with spark_session(f"audit {stream or subject}", master, settings) as starter:
        from penstock.spark import audit as run

        found = run(
            stream or "", subject=subject or "", start=start, end=end, by=by, top=top, against=against,
            range_rows=range_rows, spark=starter, servers=servers_of(ctx, server),
        )  # fmt: skip
    if as_json:
        output.print_json(as_object(found))
    else:
        _show(found, by, against)
    if not found.is_good:
        raise typer.Exit(FAILED)


def as_object(found: Audit) -> dict[str, object]:
    """Return the result as a JSON object; checksums are in hexadecimal."""
    groups = []
    for one in found.groups:
        name = one.name if isinstance(one.name, str | None) else output.shown_bytes(one.name)
        first, last = one.first.isoformat(), one.last.isoformat()
        groups.append({**one._asdict(), "name": name, "first": first, "last": last})
    spans = [
        {
            "topic": one.key.stream,
            "partition": one.key.partition,
            "start": one.start,
            "end": one.end,
            "compared_start": one.compared_start,
            "compared_end": one.compared_end,
            "lacking": one.lacking,
        }
        for one in found.spans
    ]
    return {
        "good": found.is_good,
        "equal": found.is_equal,
        "messages": found.messages,
        "spans": spans,
        "groups": groups,
        "gaps": [one._asdict() for one in found.gaps],
        "repeated": [one._asdict() for one in found.repeated],
        "differences": [one._asdict() for one in found.differences],
        "sums": [{**one._asdict(), "checksum": f"{one.checksum:016x}"} for one in found.sums],
    }


def _show(found: Audit, by: str, against: str | None) -> None:
    shown = output.console()
    table = output.table(by, "messages", "bytes", "first", "last", right=("messages", "bytes"))
    for one in found.groups:
        name = output.shown_bytes(one.name, 60) if isinstance(one.name, bytes) else one.name or "(none)"
        first, last = (output.time_text(int(at.timestamp() * 1e6)) for at in (one.first, one.last))
        table.add_row(*map(output.cell, (name, output.count_text(one.messages), format_bytes(one.bytes), first, last)))
    shown.print(table)
    say(f"{output.counted(found.messages, 'message')} in {output.counted(len(found.spans), 'partition')}")
    for gap in found.gaps:
        why = (
            "removed by compaction, a time to live or a rollup"
            if gap.is_expected
            else "nothing should have removed them"
        )
        say(f"missing: {gap.topic}, partition {gap.partition}, offsets {gap.start} to {gap.end - 1}: {why}")
    for twice in found.repeated:
        places = ", ".join(f"{partition}:{offset}" for partition, offset in twice.offsets)
        say(f"message id {twice.message_id}: {twice.messages} times in {twice.topic}, at partition:offset {places}")
    if against is not None:
        _show_comparison(found, against)


def _show_comparison(found: Audit, against: str) -> None:
    for span in found.spans:
        where = f"{span.key.stream}, partition {span.key.partition}"
        if span.compared_start >= span.compared_end:
            if span.lacking:
                say_error(f"{where}: the archive holds none of the offsets {span.start} to {span.end - 1}")
            else:
                say(f"{where}: nothing to compare: the log holds no message there")
            continue
        say(f"{where}: compared offsets {span.compared_start} to {span.compared_end - 1}")
        for start, end in span.lacking:
            say(f"{where}: the archive does not have the offsets {start} to {end - 1}")
    if not any(span.compared_start < span.compared_end for span in found.spans):
        say_error("log and archive are not equal: nothing could be compared")
    for one in found.differences:
        counts = f"{one.missing} missing in the archive, {one.changed} changed, {one.twice} there twice"
        text = f"{one.topic}, partition {one.partition}, offsets {one.start} to {one.end - 1}: {counts}"
        said = f"{text}, {one.only_archived} only in the archive"
        if one.is_mistake:
            say_error(said)
        else:
            say(f"{said}: they were deleted from the log")
    if found.is_equal:
        say(f"{against} is equal to the log")
