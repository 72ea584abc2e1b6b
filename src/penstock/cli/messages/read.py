"""`penstock read`: prints messages of a stream, or writes them to a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.errors import ErrorCode
from penstock.base.units import counted, format_bytes
from penstock.cli.messages.destination import (
    DecodeOption,
    Destination,
    Force,
    Format,
    Output,
    ShapeOption,
    ShowHeaders,
    Wide,
)
from penstock.cli.messages.rows import Look
from penstock.cli.terminal import places
from penstock.cli.terminal.completing import complete_group
from penstock.cli.terminal.failure import advising, clearly, say_note
from penstock.cli.terminal.options import (
    CONNECTION_PANEL,
    DEFAULT_TIMEOUT,
    Debug,
    Follow,
    FromPlace,
    MaxStaleness,
    OnePartition,
    RackOption,
    ReadFromOption,
    Server,
    StreamArgument,
    SubjectPattern,
    as_bad_parameter,
    connected,
    examples,
    reads_from,
)
from penstock.cli.terminal.output import ShownProgress, progress
from penstock.ops.reading.places import Batches, Reading, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.read.filters import Filter
    from penstock.client.values import Start

EXAMPLES = examples(
    "penstock read orders",
    "# the last ten, then new messages",
    "penstock read orders --from -10 --follow",
    "penstock read orders --from '15m ago' --format json | jq .value",
    "penstock read orders --from 2026-01-31T08:00 --to 2026-01-31T09:00",
    "penstock read orders --key customer-7 --limit 5",
    "penstock read orders --header Colour=red",
    "# continue there the next time",
    "penstock read orders --group billing",
    "# from a replica in this rack, if there is one",
    "penstock read orders --follow --read-from nearest --rack a --max-staleness 2s",
    "# for pandas, Polars, DuckDB, ...: .parquet, .csv, .arrow",
    "penstock read orders --output orders.parquet",
    "# the fields of JSON values as columns",
    "penstock read orders --decode json --output orders.csv",
    "# typed columns by the stream's schemas",
    "penstock read orders --decode schema --output orders.parquet",
)


KeyOption = Annotated[str | None, typer.Option("--key", metavar="TEXT", help="Only messages with this key.")]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="NAME[=VALUE]",
        help="Only messages with this header, and this value if one is given; names are case-sensitive.  May be "
        "repeated: then all must match.",
    ),
]
ReadTimeout = Annotated[
    str | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="How long to wait for the broker.  Default: 10s; with --follow for ever, once it has begun.",
        rich_help_panel=CONNECTION_PANEL,
        show_default=False,
    ),
]


@clearly
def read(
    ctx: typer.Context,
    stream: StreamArgument,
    start: FromPlace = "earliest",
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="PLACE", help="End before here.  Default: where the log ends now."),
    ] = None,
    follow: Follow = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=0, help="Print at most N messages.")
    ] = None,
    partition: OnePartition = None,
    shape: ShapeOption = None,
    output: Output = None,
    force: Force = False,
    decode: DecodeOption = None,
    headers: ShowHeaders = False,
    wide: Wide = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="NAME",
            help="Start at this consumer group's committed offsets, else at --from; commit printed messages.  Not with "
            "--key, --subject or --header, because the messages that they exclude would be committed, too.",
            autocompletion=complete_group,
        ),
    ] = None,
    key: KeyOption = None,
    subject: SubjectPattern = None,
    header: HeaderOption = None,
    read_from: ReadFromOption = "leader",
    max_staleness: MaxStaleness = "10s",
    rack: RackOption = None,
    server: Server = None,
    timeout: ReadTimeout = None,
    debug: Debug = False,
) -> None:
    """Read messages from a stream.

    json: [bold]offset, timestamp, subject, key, value, headers[/bold]; bytes that are not UTF-8 are in value_base64,
    key_base64, headers_base64. A value of null is a tombstone.

    csv: the same columns; keys and values that are not UTF-8 are base64 after 'base64:'. parquet, arrow: bytes.

    With --decode json, the first 10,000 messages determine the columns; what does not fit is null, and is counted on
    stderr. A field named like a column of the log gets the prefix data_. With --decode schema the columns are those of
    the stream's schemas (penstock schema list), and decode_error: why a message has none, which is counted, too.

    A message is printed if it passes all filters (--key, --subject, --header). The broker applies --subject, so a user
    with permission for only some subjects can read those; the command itself applies --key and --header.

    Without --partition all partitions are read, each in its order; an offset belongs to one partition, so it needs
    --partition.

    With --follow the command waits out an outage of the broker, and reports it on stderr.

    With --group, offsets of printed messages are committed every few seconds, and when the command ends. If other
    members hold all partitions and messages are left, it waits for their session time-out (10 s), as they may be dead.
    """
    target = Destination.of(shape, output, force=force, decode=decode, look=Look(headers, wide))
    from_place = places.parse_place(start, "--from")
    to_place = None if end is None else places.parse_place(end, "--to")
    if follow and to_place is not None and not isinstance(to_place, int):
        raise typer.BadParameter("--follow can end only at an offset (--to 42)")
    if follow and target.path is not None and limit is None and to_place is None:
        raise typer.BadParameter(
            "--follow without --limit or --to has no end, so the file of --output would never be complete: use `> FILE`"
        )
    _check_group(group, {"--key": key, "--subject": subject, "--header": header}, to_place, target)
    wanted = ReadOptions(from_place, to_place, follow, group, partition, filter_of(key, subject, headers=header))
    reads = reads_from(read_from, max_staleness, rack)
    with (
        _in_range(group),
        as_bad_parameter(),
        connected(ctx, server, timeout or DEFAULT_TIMEOUT, **reads) as (client, seconds),
    ):
        info = client.stream(stream, timeout=seconds)
        typed = target.typed(client, info, wanted.where, seconds)
        told, is_patient = ShownProgress(), timeout is None
        reading = Reading(client, info, wanted, for_ever=is_patient, timeout_s=seconds, progress=told)
        printed = _Printed()
        with (
            closing(reading.batches),
            closing(_with_progress(reading, follow=follow, to_file=target.path is not None)) as batches,
        ):
            rows = printed.limited(batches, limit)
            rows = rows if reading.consuming is None or limit is None else reading.consuming.counted(rows)
            has_partition = partition is None and len(info.partitions) > 1
            target.write(rows, has_partition=has_partition, follow=follow, typed=typed)
        why = "" if printed.rows or follow or limit == 0 else _why_nothing(info.name, reading)
    if target.path is not None:
        say_note(f"{target.path}: {counted(printed.rows, 'message')}, {format_bytes(target.path.stat().st_size)}")
    if why:
        say_note(f"no messages: {why}")


def _check_group(
    group: str | None, filters: Mapping[str, object], end: Start | places.LastMessages | None, target: Destination
) -> None:
    if group is None:
        return
    if given := [flag for flag, value in filters.items() if value not in (None, [])]:
        text = f"{' and '.join(given)} cannot be given with --group: excluded messages would be committed by the group"
        raise typer.BadParameter(f"{text}, and never be printed; read without --group")
    if end is not None:
        raise typer.BadParameter("--to is not for a group, which continues at its committed offsets; use --limit")
    if target.path is not None or target.shape is Format.PARQUET:
        text = "--group commits messages that the file does not have yet, and that a failure would lose"
        raise typer.BadParameter(f"{text}: read without --group, or write another format to stdout (`> FILE`)")


def _in_range(group: str | None) -> AbstractContextManager[None]:
    """Add advice to an error about an offset out of range; for a group `Consuming` adds its own."""
    if group is not None:
        return nullcontext()
    advice = "read from `--from earliest`, or from an offset in that range"
    return advising(ErrorCode.OFFSET_OUT_OF_RANGE, advice)


def _why_nothing(name: str, reading: Reading) -> str:
    begin, stop = reading.begin, reading.stop
    if reading.consuming is not None:
        return reading.consuming.why_nothing()
    if begin is None:
        return f"{name} holds none there; --follow waits for what comes"
    if begin.log_start == begin.committed_end:
        return f"{name} is empty; --follow waits for what comes"
    if begin.offset >= begin.committed_end:
        return f"--from is where {name} ends (offset {begin.committed_end}); --follow waits for what comes"
    if stop is not None and stop <= begin.offset:
        return f"--to (offset {stop}) is not after --from (offset {begin.offset})"
    return f"none from offset {begin.offset} to {min(stop or begin.committed_end, begin.committed_end) - 1} matches"


class _Printed:
    """Counts the rows that are printed."""

    def __init__(self) -> None:
        self.rows = 0

    def limited(self, batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
        """Yield at most `limit` rows; request no batch beyond them."""
        while (limit is None or self.rows < limit) and (batch := next(batches, None)) is not None:
            part = batch if limit is None else batch.slice(0, limit - self.rows)
            self.rows += part.num_rows
            yield part


def _with_progress(reading: Reading, *, follow: bool, to_file: bool) -> Batches:
    """Yield the batches; show a progress bar, if there is an end, and the terminal does not show the messages."""
    at = reading.begin
    if follow or (sys.stdout.isatty() and not to_file) or not sys.stderr.isatty():
        yield from reading.batches
        return
    total = None if at is None else min(reading.stop or at.committed_end, at.committed_end) - at.offset
    rows = 0
    with progress("Reading", total, noun="messages" if at is None else "offsets") as advance:
        for batch in reading.batches:
            rows += batch.num_rows
            advance(rows if at is None else batch.column("offset")[-1].as_py() + 1 - at.offset)
            yield batch


def filter_of(key: str | None, subject: str | None, *, headers: list[str] | None) -> Filter | None:
    """Return a filter that combines these; None if there are none. Raise BadParameter."""
    if key is None and subject is None and not headers:
        return None
    from penstock.client.read.filters import Filter

    try:
        return Filter(key=key, subject=subject, headers=_named(headers or []))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _named(texts: list[str]) -> dict[str, str | None]:
    headers: dict[str, str | None] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if name in headers:
            raise typer.BadParameter(f"--header {name!r} is given twice")
        headers[name] = value if separator else None
    return headers
