"""`penstock read`: prints messages of a stream as a table, JSON lines, raw payloads or an Arrow stream."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.base.errors import ErrorCode
from penstock.cli.terminal import output, places
from penstock.cli.terminal.completing import complete_group
from penstock.cli.terminal.failure import advising, clearly, say_note
from penstock.cli.terminal.options import (
    CONNECTION_PANEL,
    DEFAULT_TIMEOUT,
    Debug,
    MaxStaleness,
    RackOption,
    ReadFromOption,
    Server,
    StreamArgument,
    as_bad_parameter,
    connected,
    examples,
    reads_from,
)
from penstock.cli.terminal.standard_streams import need_stdout
from penstock.ops.reading.consuming import Consuming
from penstock.ops.reading.following import following
from penstock.ops.reading.places import BATCH_ROWS_MAX, Batches, all_partitions, place_of

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.blocking.client import Client
    from penstock.client.read.filters import Filter
    from penstock.client.values import OffsetAt, Start
    from penstock.messages import StreamInfo

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
    "# for pandas, Polars, DuckDB, ...",
    "penstock read orders --format arrow > orders.arrows",
)


class Format(StrEnum):
    """Output format of messages."""

    TABLE = "table"
    JSON = "json"
    RAW = "raw"
    ARROW = "arrow"


_From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="Begin here: earliest, latest, an offset, -N (the last N offsets), an age such as 30s or '5m ago', "
        "or a time (UTC, if it names no zone).",
    ),
]
_Shape = Annotated[
    Format | None,
    typer.Option(
        "--format",
        "-o",
        metavar="table|json|raw|arrow",
        help="table; json (an object a line); raw (each value and a line end); arrow (an Arrow IPC stream).  "
        "Default: table on a terminal, else json.",
    ),
]

_ReadTimeout = Annotated[
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
    start: _From = "earliest",
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="PLACE", help="End before here.  Default: where the log ends now."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new messages, until Ctrl-C.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=0, help="Print at most N messages.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", metavar="N", min=0, help="Only this partition.  Default: all.")
    ] = None,
    shape: _Shape = None,
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
    key: Annotated[str | None, typer.Option("--key", metavar="TEXT", help="Only messages with this key.")] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="PATTERN", help="Only subjects that match, such as 'orders.*'.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            metavar="NAME[=VALUE]",
            help="Only messages with this header, and this value if one is given; names are case-sensitive.  May be "
            "repeated: then all must match.",
        ),
    ] = None,
    read_from: ReadFromOption = "leader",
    max_staleness: MaxStaleness = "10s",
    rack: RackOption = None,
    server: Server = None,
    timeout: _ReadTimeout = None,
    debug: Debug = False,
) -> None:
    """Read messages from a stream.

    json: [bold]offset, timestamp, subject, key, value, headers[/bold]; bytes that are not UTF-8 are in value_base64,
    key_base64, headers_base64. A value of null is a tombstone.

    A message is printed if it passes all filters (--key, --subject, --header). The broker applies --subject, so a user
    with permission for only some subjects can read those; the command itself applies --key and --header.

    Without --partition all partitions are read, each in its order; an offset belongs to one partition, so it needs
    --partition.

    With --follow the command waits out an outage of the broker, and reports it on stderr.

    With --group, offsets of printed messages are committed every few seconds, and when the command ends. If other
    members hold all partitions and messages are left, it waits for their session time-out (10 s), as they may be dead.
    """
    need_stdout()
    chosen = shape or (Format.TABLE if sys.stdout.isatty() else Format.JSON)
    if chosen is Format.ARROW and sys.stdout.isatty():
        raise typer.BadParameter("an Arrow stream is not for a terminal: redirect it, as in `> orders.arrows`")
    from_place = places.parse_place(start, "--from")
    to_place = None if end is None else places.parse_place(end, "--to")
    if follow and to_place is not None and not isinstance(to_place, int):
        raise typer.BadParameter("--follow can end only at an offset (--to 42)")
    _check_group(group, {"--key": key, "--subject": subject, "--header": header})
    where = _filter(key, subject, headers=header)
    reads = reads_from(read_from, max_staleness, rack)
    told = output.ShownProgress()
    with (
        _in_range(group),
        as_bad_parameter(),
        connected(ctx, server, timeout or DEFAULT_TIMEOUT, **reads) as (client, seconds),
    ):
        info = client.stream(stream, timeout=seconds)
        seen = _Seen()
        consuming: Consuming | None = None
        if group is not None:
            if to_place is not None:
                text = "--to is not for a group, which continues at its committed offsets; use --limit"
                raise typer.BadParameter(text)
            more: dict[str, Any] = {"start": from_place, "partition": partition, "progress": told}
            consuming = Consuming(client, info, group, timeout_s=seconds, **more)
            batches = consuming.batches(follow=follow, for_ever=timeout is None)
            why = ""
        elif partition is None and len(info.partitions) > 1:
            batches = all_partitions(client, info, from_place, to_place, follow, seconds, where)
            why = f"{info.name} holds none there; --follow waits for what comes"
        else:
            begin = place_of(client, info, partition or 0, from_place, seconds)
            stop = None if to_place is None else _offset(client, info, partition or 0, to_place, seconds)
            if follow:
                more = {"for_ever": timeout is None, "partition": partition, "where": where, "progress": told}
                batches = following(client, info, begin.offset, stop, seconds, **more)
            else:
                batches = _with_progress(client, info, begin, stop, seconds, partition or 0, where)
            why = _why_nothing(info.name, begin, stop)
        with closing(batches):
            wanted = seen.counted(_limited(batches, limit))
            _print(wanted if consuming is None or limit is None else consuming.counted(wanted), chosen)
        if consuming is not None and not (seen.rows or follow):
            why = consuming.why_nothing()
    if not (seen.rows or follow or limit == 0):
        say_note(f"no messages: {why}")


def _check_group(group: str | None, filters: Mapping[str, object]) -> None:
    if group is not None and (given := [flag for flag, value in filters.items() if value not in (None, [])]):
        text = f"{' and '.join(given)} cannot be given with --group: excluded messages would be committed by the group"
        raise typer.BadParameter(f"{text}, and never be printed; read without --group")


def _in_range(group: str | None) -> AbstractContextManager[None]:
    """Add advice to an error about an offset out of range; for a group `Consuming` adds its own."""
    if group is not None:
        return nullcontext()
    advice = "read from `--from earliest`, or from an offset in that range"
    return advising(ErrorCode.OFFSET_OUT_OF_RANGE, advice)


def _offset(
    client: Client, info: StreamInfo, partition: int, place: Start | places.LastMessages, timeout: float
) -> int:
    # An offset beyond the log end is a valid end.
    return place if isinstance(place, int) else place_of(client, info, partition, place, timeout).offset


def _why_nothing(name: str, begin: OffsetAt, stop: int | None) -> str:
    if begin.log_start == begin.committed_end:
        return f"{name} is empty; --follow waits for what comes"
    if begin.offset >= begin.committed_end:
        return f"--from is where {name} ends (offset {begin.committed_end}); --follow waits for what comes"
    if stop is not None and stop <= begin.offset:
        return f"--to (offset {stop}) is not after --from (offset {begin.offset})"
    return f"none from offset {begin.offset} to {min(stop or begin.committed_end, begin.committed_end) - 1} matches"


class _Seen:
    """Counts the rows that pass."""

    def __init__(self) -> None:
        self.rows = 0

    def counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.rows += batch.num_rows
            yield batch


def _with_progress(
    client: Client,
    info: StreamInfo,
    at: OffsetAt,
    stop: int | None,
    timeout: float,
    partition: int,
    where: Filter | None,
) -> Batches:
    """Read one partition; show a progress bar if stdout is not the terminal."""
    source = client.read(
        info,
        at.offset,
        end=stop,
        partition=partition,
        batch_rows_max=BATCH_ROWS_MAX,
        timeout=timeout,
        where=where,
    )
    with closing(source):
        if sys.stdout.isatty() or not sys.stderr.isatty():
            yield from source
            return
        with output.progress("Reading", at.committed_end - at.offset) as advance:
            for batch in source:
                advance(batch.column("offset")[-1].as_py() + 1 - at.offset)
                yield batch


def _filter(key: str | None, subject: str | None, *, headers: list[str] | None) -> Filter | None:
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


def _limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield at most `limit` rows; request no batch beyond them."""
    if limit is None:
        yield from batches
        return
    left = limit
    while left > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, left)
        left -= batch.num_rows


def _print(batches: Iterator[pa.RecordBatch], shape: Format) -> None:
    from penstock.cli.messages import rows

    if shape is Format.TABLE:
        rows.print_table(batches)
    elif shape is Format.JSON:
        rows.print_json_lines(batches)
    elif shape is Format.RAW:
        rows.print_raw(batches)
    else:
        rows.print_arrow(batches)
