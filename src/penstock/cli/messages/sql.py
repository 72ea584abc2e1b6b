"""`penstock sql`: runs a query over streams, by DuckDB."""

from __future__ import annotations

import sys
from itertools import chain
from typing import Annotated

import typer

from penstock.base import limits
from penstock.base.units import format_bytes, parse_bytes
from penstock.cli.messages.destination import (
    DecodeOption,
    Destination,
    Force,
    Format,
    Output,
    ShapeOption,
    Wide,
)
from penstock.cli.messages.rows import Look, print_result_lines, print_table
from penstock.cli.terminal import places
from penstock.cli.terminal.failure import clearly, say_note
from penstock.cli.terminal.options import (
    DEFAULT_TIMEOUT,
    Debug,
    FromPlace,
    Server,
    SubjectPattern,
    Timeout,
    as_bad_parameter,
    connected,
    examples,
)

EXAMPLES = examples(
    "penstock sql 'SELECT subject, count(*) FROM orders GROUP BY 1'",
    "# a stream whose name is no SQL name is in double quotes",
    "penstock sql 'SELECT count(*) FROM \"web-orders\"' --from '1h ago'",
    "# the fields of JSON values are columns",
    "penstock sql 'SELECT city, sum(amount) FROM orders GROUP BY ALL' --decode json",
    "# typed columns by the schemas that are registered for the stream",
    "penstock sql 'SELECT customer, sum(total) FROM orders GROUP BY ALL' --decode schema",
    "# the result as a file",
    "penstock sql 'SELECT * FROM orders' --decode json --output orders.parquet",
)


@clearly
def sql(
    ctx: typer.Context,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A query in DuckDB's SQL; -: read it from stdin.")],
    start: FromPlace = "earliest",
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="PLACE", help="End before here.  Default: where the log ends now."),
    ] = None,
    subject: SubjectPattern = None,
    decode: DecodeOption = None,
    shape: ShapeOption = None,
    output: Output = None,
    force: Force = False,
    wide: Wide = False,
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="Memory of DuckDB; beyond it, it uses a temporary folder.")
    ] = format_bytes(limits.SQL_MEMORY_BYTES_DEFAULT),
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Query streams with SQL: each table is the stream of that name.

    Columns: [bold]offset, timestamp, subject, key, value, headers[/bold], and partition if the stream has several;
    key and value are BLOBs: decode(value) is text. headers is a MAP of lists: headers['Colour'][1].

    With --decode json the fields of JSON values are columns in place of value, inferred from the first 10,000 messages.
    With --decode schema the columns are those of the stream's schemas, and decode_error tells why a row has none.

    json: BLOBs are text; what is not UTF-8 is in NAME_base64.

    Only the columns that the query names are fetched. --from, --to and --subject, and conditions on offset, timestamp,
    partition and subject = '…', narrow what is fetched.

    DuckDB runs in this process, and reads no files. Needs the extra duckdb.
    """
    from penstock.ops.query import QueryOptions, query_streams
    from penstock.ops.reading.files import empty_batch

    target = Destination.of(shape, output, force=force, decode=None, look=Look(wide=wide, is_log=False))
    if target.shape is Format.RAW:
        raise typer.BadParameter("raw prints values of messages; write --format json or csv")
    try:
        memory_bytes = parse_bytes(memory)
    except ValueError as error:
        raise typer.BadParameter(f"--memory: {error}") from None
    options = QueryOptions(
        places.parse_place(start, "--from"),
        None if end is None else places.parse_place(end, "--to"),
        subject,
        None if decode is None else decode.value,
        memory_bytes,
    )
    text = sys.stdin.read() if query == "-" else query
    with (
        as_bad_parameter(),
        connected(ctx, server, timeout) as (client, seconds),
        target.opened() as out,
        query_streams(client, text, options, timeout=seconds) as result,
    ):
        first = next(result.batches, None)
        batches = chain((empty_batch(result.schema) if first is None else first,), result.batches)
        if target.shape is Format.JSON:
            print_result_lines(batches, out)
        elif target.shape is Format.TABLE:
            print_table(batches, target.look)
        else:
            target.write_file(batches, result.schema, out)
    if target.path is not None:
        say_note(f"{target.path}: {format_bytes(target.path.stat().st_size)}")
    for note in result.notes:
        say_note(note)
