"""Gathers what a reader reads into one table, with its values as columns if that is wanted."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.client.checks import require, wanted_columns
from penstock.client.errors import warn_caller
from penstock.client.read import batches
from penstock.client.read.decoding import Decode, TypedColumns, decode_of
from penstock.client.read.json_columns import JsonReport, json_table
from penstock.client.read.progress_bar import ProgressBar
from penstock.client.read.reading import Reader
from penstock.client.values import Message
from penstock.messages import StreamInfo

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

    from penstock.schemas.registry import StreamSchemas
    from penstock.schemas.report import DecodeReport

PARTITION = "partition"
"""Column with the partition number in a table of several partitions: an offset is unique only within one."""


class DecodeWarning(UserWarning):
    """Values that were to become columns are in none of them. `report` counts them, with the first offset.

    Of `decode="json"` it is a `JsonReport`, of schemas a `DecodeReport`; both have `sentences`.
    """

    def __init__(self, report: JsonReport | DecodeReport) -> None:
        super().__init__("; ".join(report.sentences()))
        self.report = report


class WantedColumns:
    """The columns of a table, as its caller gave them. ValueError: one does not exist, or `decode` needs another.

    `schemas`: those by which values are decoded, of rows of `subjects`.
    """

    def __init__(
        self,
        info: StreamInfo,
        columns: Iterable[str] | None,
        decode: Decode | StreamSchemas | None = None,
        subjects: Sequence[str] | None = None,
    ) -> None:
        names = None if columns is None else [columns] if isinstance(columns, str) else list(columns)
        if decode is not None and names is not None and "value" not in names:
            raise ValueError(f"columns are {names}; decode needs the column 'value'")
        self.stream = info.name
        self._is_json = decode == "json"
        self.has_partition = len(info.partitions) > 1 if names is None else PARTITION in names
        self._names = names
        self.fetched = wanted_columns(names if not names else [one for one in names if one != PARTITION] or ["offset"])
        self._typed = None
        if decode is not None and not isinstance(decode, str):
            self._typed = TypedColumns(decode, names, subjects=subjects)
            self.fetched = self._typed.fetched

    def table(self, found: list[pa.RecordBatch]) -> pa.Table:
        """Return the batches as one table, with the columns in the order of the caller."""
        import pyarrow as pa

        table = pa.Table.from_batches(found, schema=_schema(self.fetched, has_partition=self.has_partition))
        if self._names is None:
            return table
        hidden = () if self._typed is None else [name for name in table.column_names if name not in self._names]
        return table.select([*self._names, *hidden])

    def decoded(self, table: pa.Table) -> tuple[pa.Table, JsonReport | DecodeReport | None]:
        """Return the table with its values as columns, if that is wanted, and what of them is in no column."""
        if self._typed is not None:
            return self._typed.table(table), self._typed.report
        return json_table(table) if self._is_json else (table, None)

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a reader's batch with the column `partition`, if that is wanted."""
        import pyarrow as pa

        if not self.has_partition:
            return batch
        number = pa.repeat(pa.scalar(batches.partition_of(batch) or 0, pa.int32()), batch.num_rows)
        schema = _schema(self.fetched, has_partition=True)
        return pa.RecordBatch.from_arrays([*batch.columns, number], schema=schema)


class Gathering:
    """Gathers the batches of `reader`: `with`, `add` for each answer, then `table`."""

    def __init__(self, reader: Reader, wanted: WantedColumns, limit: int | None, progress: bool | None) -> None:
        self._reader = reader
        self._wanted = wanted
        self._limit = limit
        self._found: list[pa.RecordBatch] = []
        self._rows = 0
        total = reader.offsets_to_read if limit is None else min(limit, reader.offsets_to_read)
        self._bar = ProgressBar(f"Reading {wanted.stream}", total, progress)

    async def reader(self) -> Reader:
        """Return the reader, for `answers`."""
        return self._reader

    def __enter__(self) -> Gathering:
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def add(self, found: Iterable[pa.RecordBatch]) -> None:
        """Add the batches of an answer, or of all answers."""
        for batch in found:
            self._found.append(self._wanted.batch(batch))
            self._rows += batch.num_rows
            self._bar.update(self._reader.offsets_read if self._limit is None else self._rows)

    def gathered(self) -> tuple[pa.Table, JsonReport | DecodeReport | None]:
        """Return the table, and what of its values is in no column. It may run in another thread: it may take long."""
        return self._wanted.decoded(self._wanted.table(self._found))

    def table(self, found: Generator[pa.RecordBatch, None, None]) -> pa.Table:
        """Add all of `found` and return the table, with a warning about values that are in no column."""
        with self, closing(found):
            self.add(found)
        return warned(*self.gathered())


def warned(table: pa.Table, report: JsonReport | DecodeReport | None) -> pa.Table:
    """Return the table; warn the caller outside this package of values that are in no column."""
    if report:
        warn_caller(DecodeWarning(report))
    return table


def table_of(messages: Iterable[Message], *, has_partition: bool, decode: object = None) -> pa.Table:
    """Return messages as a table with the columns of `Client.to_table`. ValueError: `decode` is "schema"."""
    import pyarrow as pa

    rows = list(messages)
    names = ("offset", "timestamp_us", "subject", "key", "value", "header_block", PARTITION)
    schema = _schema(None, has_partition=has_partition)
    columns = [
        pa.array([getattr(one, name) for one in rows], field.type) for name, field in zip(names, schema, strict=False)
    ]
    table = pa.Table.from_arrays(columns, schema=schema)
    wanted = decode_of(decode)
    if wanted == "schema":
        raise ValueError("a table does not ask for schemas: give it those of Client.schemas(stream) as decode")
    if wanted == "json":
        return warned(*json_table(table))
    if wanted is None:
        return table
    typed = TypedColumns(wanted)
    return warned(typed.table(table), typed.report)


def pandas_of(table: pa.Table) -> pandas.DataFrame:
    """Return a table as a pandas DataFrame. ImportError without the extra `pandas`."""
    require("pandas")
    return table.to_pandas()


def polars_of(table: pa.Table) -> polars.DataFrame:
    """Return a table as a Polars DataFrame. ImportError without the extra `polars`."""
    require("polars")
    import polars as pl

    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _schema(columns: list[str] | None, *, has_partition: bool) -> pa.Schema:
    import pyarrow as pa

    from penstock.batch.schema import arrow_schema

    schema = arrow_schema()
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    return schema.append(pa.field(PARTITION, pa.int32(), nullable=False)) if has_partition else schema
