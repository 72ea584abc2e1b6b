"""Destinations of messages and of results of queries: stdout or a file, in one of the formats."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, NamedTuple

import typer

from penstock.base import limits
from penstock.base.units import counted
from penstock.cli.messages.rows import JsonValues, Look, print_json_lines, print_raw, print_table, print_typed_lines
from penstock.cli.terminal.failure import say_note
from penstock.cli.terminal.standard_streams import need_stdout

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.blocking.client import Client
    from penstock.client.read.decoding import TypedColumns
    from penstock.client.read.filters import Filter
    from penstock.client.read.json_columns import JsonReport
    from penstock.messages import StreamInfo
    from penstock.schemas.report import DecodeReport


class Format(StrEnum):
    """Output format of messages."""

    TABLE = "table"
    JSON = "json"
    RAW = "raw"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


class Decode(StrEnum):
    """Decoding of values."""

    JSON = "json"
    SCHEMA = "schema"


SUFFIXES = {
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".feather": Format.ARROW,
    ".json": Format.JSON,
    ".jsonl": Format.JSON,
    ".ndjson": Format.JSON,
}
_TO_STDOUT = "-"
_OF_FILES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})

ShapeOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        "-o",
        metavar="table|json|raw|csv|parquet|arrow",
        help="table; json (an object a line); raw (each value and a line end); csv; parquet; arrow (an Arrow IPC "
        "stream).  Default: as the suffix of --output says; else table on a terminal, json elsewhere.",
    ),
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="Write this file, which appears when it is complete.  The suffix says the format: .parquet, .csv, .arrow "
        "and .feather (Arrow IPC file), .arrows (stream), .jsonl.  -: stdout.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the file of --output.")]
DecodeOption = Annotated[
    Decode | None,
    typer.Option(
        "--decode",
        metavar="json|schema",
        help="json: fields of JSON values become columns; in the format json, the value is JSON instead of text.  "
        "schema: so for values of any kind, by the schemas registered for the stream; decode_error is the reason if "
        "one does not decode.",
    ),
]
Wide = Annotated[bool, typer.Option("--wide", help="Show cells of a table in full, wider than the terminal.")]
ShowHeaders = Annotated[bool, typer.Option("--headers", help="Show headers in a table.")]


class Destination(NamedTuple):
    """Destination and look of messages; `path` None is stdout."""

    shape: Format
    path: Path | None
    force: bool
    decode: Decode | None
    look: Look

    @classmethod
    def of(
        cls, shape: Format | None, output: str | None, *, force: bool, decode: Decode | None, look: Look
    ) -> Destination:
        """Check the options. Raise BadParameter."""
        path = None if output in (None, _TO_STDOUT) else Path(str(output))
        if path is None:
            need_stdout()
            if force:
                raise typer.BadParameter("--force is about the file of --output: name one")
        chosen = shape or (suffix_format(path) if path else Format.TABLE if sys.stdout.isatty() else Format.JSON)
        if path is None and chosen in (Format.ARROW, Format.PARQUET) and sys.stdout.isatty():
            raise typer.BadParameter(f"{chosen} is not for a terminal: name a file, as in --output orders.{chosen}")
        if path is not None and chosen is Format.TABLE:
            raise typer.BadParameter("a table is for a terminal; --output takes csv, parquet, arrow, json and raw")
        if decode is not None and chosen is Format.RAW:
            raise typer.BadParameter("raw prints values as they are: leave out --decode")
        return cls(chosen, path, force, decode, look)

    def typed(self, client: Client, info: StreamInfo, where: Filter | None, timeout_s: float) -> TypedColumns | None:
        """Return the columns by the stream's schemas, if those are wanted. SchemaError: it has none."""
        if self.decode is not Decode.SCHEMA:
            return None
        from penstock.client.blocking.decoding import schemas_to_decode
        from penstock.client.read.decoding import TypedColumns
        from penstock.schemas.plans import EnumStyle

        subjects = None if where is None else where.subjects
        return TypedColumns(schemas_to_decode(client, info, timeout_s), subjects=subjects, enums=EnumStyle.STRING)

    def write(
        self,
        batches: Iterator[pa.RecordBatch],
        *,
        has_partition: bool,
        follow: bool,
        typed: TypedColumns | None = None,
    ) -> None:
        """Write all messages; then tell what could not be decoded, also if it is interrupted."""
        with self.opened() as out:
            if self.shape is Format.RAW:
                print_raw(batches, out or sys.stdout.buffer)
            elif self.shape is Format.JSON and typed is not None:
                try:
                    print_typed_lines(batches, out, typed)
                finally:
                    _say_report(typed.report)
            elif self.shape is Format.JSON:
                values = None if self.decode is None else JsonValues()
                try:
                    print_json_lines(batches, out, values)
                finally:
                    if values is not None and values.others:
                        say_note(f"{counted(values.others, 'value')} not JSON: left as text")
            else:
                self._write_columns(batches, out, has_partition=has_partition, follow=follow, typed=typed)

    def _write_columns(
        self,
        batches: Iterator[pa.RecordBatch],
        out: BinaryIO | None,
        *,
        has_partition: bool,
        follow: bool,
        typed: TypedColumns | None,
    ) -> None:
        from penstock.batch.schema import arrow_schema
        from penstock.client.read.json_columns import JsonColumns
        from penstock.ops.reading import files

        rows: Iterator[pa.RecordBatch] = (files.plain(batch, has_partition=has_partition) for batch in batches)
        schema, decoder = files.plain_schema(arrow_schema(), has_partition=has_partition), JsonColumns()
        if typed is not None:
            rows, schema = map(typed.batch, rows), typed.schema(schema)
        elif self.decode is not None:
            inferred = 1 if follow else limits.DECODE_INFERRED_ROWS
            as_text = follow and self.shape is Format.TABLE  # the first row tells little of those that come
            rows = decoder.batches(rows, inferred_rows=inferred, as_text=as_text)
            schema = decoder.schema(schema) if (first := next(rows, None)) is None else first.schema
            rows = chain(() if first is None else (first,), rows)
        try:
            if self.shape is Format.TABLE:
                print_table(rows, self.look)
            else:
                self.write_file(rows, schema, out)
        finally:
            _say_report(decoder.report if typed is None else typed.report)

    def write_file(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, out: BinaryIO | None) -> None:
        """Write batches of `schema` as CSV, Parquet or Arrow; `out` None is stdout."""
        from penstock.ops.reading import files

        out = out or sys.stdout.buffer
        if self.shape is Format.CSV:
            files.write_csv(batches, schema, out)
        elif self.shape is Format.PARQUET:
            files.write_parquet(batches, schema, out)
        else:
            is_file = self.path is not None and self.path.suffix.lower() in (".arrow", ".feather")
            files.write_arrow(batches, schema, out, is_stream=not is_file)

    @contextmanager
    def opened(self) -> Iterator[BinaryIO | None]:
        """Yield the file, which appears when the block has ended; None for stdout."""
        if self.path is None:
            yield None
            return
        from penstock.ops.reading.files import complete_file

        folder = self.path.parent
        if not folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"there is no folder {str(folder)!r}", str(self.path))
        try:
            with complete_file(self.path, replace=self.force) as file:
                yield file
        except FileExistsError as error:
            error.add_note("--force replaces it")
            raise
        except OSError as error:
            is_of_part = error.filename is not None and str(error.filename).endswith(".part")
            if is_of_part or (error.filename is None and error.errno in _OF_FILES):
                error.filename = str(self.path)
            raise


def _say_report(report: JsonReport | DecodeReport) -> None:
    for sentence in report.sentences():
        say_note(sentence)


def suffix_format(path: Path) -> Format:
    """Return the format that the suffix of a file says. Raise BadParameter."""
    if (found := SUFFIXES.get(path.suffix.lower())) is None:
        text = f"the suffix of {str(path)!r} says no format: give one of {', '.join(SUFFIXES)}"
        raise typer.BadParameter(f"{text}; or --format")
    return found
