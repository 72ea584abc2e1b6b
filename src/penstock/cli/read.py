"""`penstock read`: messages of a stream, as a table, JSON lines, raw payloads or an Arrow stream."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import output, places
from penstock.cli.failure import clearly
from penstock.cli.options import (
    DEFAULT_TIMEOUT,
    Debug,
    Server,
    StreamArgument,
    Timeout,
    connected,
    examples,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.blocking import Client
    from penstock.client.values import Start

EXAMPLES = examples(
    "penstock read orders",
    "# the last ten, then what comes",
    "penstock read orders --from -10 --follow",
    "penstock read orders --from '15m ago' --format json | jq .value",
    "penstock read orders --from 2026-01-31T08:00 --to 2026-01-31T09:00",
    "penstock read orders --key customer-7 --limit 5",
    "# for pandas, Polars, DuckDB, ...",
    "penstock read orders --format arrow > orders.arrows",
)
_BATCH_ROWS_MAX = 10_000


class Format(StrEnum):
    """How messages are printed."""

    TABLE = "table"
    JSON = "json"
    RAW = "raw"
    ARROW = "arrow"


_From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="PLACE",
        help="Begin here: earliest, latest, an offset, -N (the last N messages), an age such as 30s or '5m ago', "
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


@clearly
def read(
    ctx: typer.Context,
    stream: StreamArgument,
    start: _From = "earliest",
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="PLACE", help="End before here.  Default: where the log ends now."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", metavar="", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=0, help="Print at most N messages.")
    ] = None,
    shape: _Shape = None,
    key: Annotated[str | None, typer.Option("--key", metavar="TEXT", help="Only messages with this key.")] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="PATTERN", help="Only subjects that match, such as 'orders.*'.")
    ] = None,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Read messages from a stream.

    json: [bold]offset, timestamp, subject, key, value, headers[/bold]; bytes that are no text come as value_base64,
    key_base64, headers_base64. A value of null is a tombstone.

    Filters (--key, --subject) are applied here, not by the broker.
    """
    chosen = shape or (Format.TABLE if sys.stdout.isatty() else Format.JSON)
    if chosen is Format.ARROW and sys.stdout.isatty():
        raise typer.BadParameter("an Arrow stream is not for a terminal: redirect it, as in `> orders.arrows`")
    from_place = places.parse_place(start)
    to_place = None if end is None else places.parse_place(end)
    if follow and to_place is not None and not isinstance(to_place, int):
        raise typer.BadParameter("--follow can end only at an offset (--to 42)")
    client, seconds = connected(ctx, server, timeout)
    with client:
        begin = _start(client, stream, from_place, seconds)
        stop = None if to_place is None else _start(client, stream, to_place, seconds)
        source = client.read(stream, begin, end=stop, follow=follow, batch_rows_max=_BATCH_ROWS_MAX, timeout=seconds)
        with closing(source):
            batches = source if follow else _with_progress(client, stream, begin, source, seconds)
            _print(_limited(_chosen(batches, key, subject), limit), chosen)


def _start(client: Client, stream: str, place: Start | places.LastMessages, timeout: float) -> Start:
    if not isinstance(place, places.LastMessages):
        return place
    from penstock.client.values import LATEST

    at = client.offsets(stream, LATEST, timeout=timeout)
    return max(at.log_start, at.committed_end - place.message_count)


def _with_progress(
    client: Client, stream: str, begin: Start, batches: Iterator[pa.RecordBatch], timeout: float
) -> Iterator[pa.RecordBatch]:
    """`batches`, with a bar where the messages themselves go elsewhere than to the terminal."""
    if sys.stdout.isatty() or not sys.stderr.isatty():
        yield from batches
        return
    at = client.offsets(stream, begin, timeout=timeout)
    with output.progress("Reading", at.committed_end - at.offset) as advance:
        for batch in batches:
            advance(batch.column("offset")[-1].as_py() + 1 - at.offset)
            yield batch


def _chosen(batches: Iterator[pa.RecordBatch], key: str | None, subject: str | None) -> Iterator[pa.RecordBatch]:
    """The rows that the filters let through."""
    if key is None and subject is None:
        yield from batches
        return
    import pyarrow as pa
    import pyarrow.compute as pc

    from penstock.base.subjects import matches, subject_mistake

    if subject is not None and (mistake := subject_mistake(subject, wildcards=True)) is not None:
        raise typer.BadParameter(mistake)
    for batch in batches:
        mask = None
        if key is not None:
            mask = pc.fill_null(pc.equal(batch.column("key"), pa.scalar(key.encode(), pa.binary())), False)
        if subject is not None:
            # Each different subject is matched once.
            known = [one for one in pc.unique(batch.column("subject")).to_pylist() if one and matches(subject, one)]
            found = pc.is_in(batch.column("subject"), pa.array(known, pa.string()))
            mask = found if mask is None else pc.and_(mask, found)
        rows = batch if mask is None else batch.filter(mask)
        if rows.num_rows:
            yield rows


def _limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """At most `limit` rows; asks for no batch beyond them."""
    if limit is None:
        yield from batches
        return
    left = limit
    while left > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, left)
        left -= batch.num_rows


def _print(batches: Iterator[pa.RecordBatch], shape: Format) -> None:
    from penstock.cli import rows

    if shape is Format.TABLE:
        rows.print_table(batches)
    elif shape is Format.JSON:
        rows.print_json_lines(batches)
    elif shape is Format.RAW:
        rows.print_raw(batches)
    else:
        rows.print_arrow(batches)
