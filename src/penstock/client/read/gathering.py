"""Gathers what a reader reads into one table, with its JSON values as columns if that is wanted."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from typing import TYPE_CHECKING

from penstock.client.checks import require, wanted_columns
from penstock.client.errors import warn_caller
from penstock.client.read import batches
from penstock.client.read.json_columns import JsonReport, json_table
from penstock.client.read.progress_bar import ProgressBar
from penstock.client.read.reading import Reader
from penstock.client.values import Message
from penstock.messages import StreamInfo

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

PARTITION = "partition"
"""Column with the partition number in a table of several partitions: an offset is unique only within one."""


class JsonWarning(UserWarning):
    """Values that were to become columns of JSON are in none of them. `report` counts them, with the first offset."""

    def __init__(self, report: JsonReport) -> None:
        super().__init__("; ".join(report.sentences()))
        self.report = report


class WantedColumns:
    """The columns of a table, as its caller gave them. ValueError: one does not exist, or is missing for `json`."""

    def __init__(self, info: StreamInfo, columns: Iterable[str] | None, *, json: bool) -> None:
        names = None if columns is None else [columns] if isinstance(columns, str) else list(columns)
        if json and names is not None and "value" not in names:
            raise ValueError(f"columns are {names}; json=True needs the column 'value'")
        self.stream = info.name
        self.json = json
        self.has_partition = len(info.partitions) > 1 if names is None else PARTITION in names
        self._names = names
        self.fetched = wanted_columns(names if not names else [one for one in names if one != PARTITION] or ["offset"])

    def table(self, found: list[pa.RecordBatch]) -> pa.Table:
        """Return the batches as one table, with the columns in the order of the caller."""
        import pyarrow as pa

        table = pa.Table.from_batches(found, schema=_schema(self.fetched, has_partition=self.has_partition))
        return table if self._names is None else table.select(self._names)

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

    def gathered(self) -> tuple[pa.Table, JsonReport | None]:
        """Return the table, and what of its JSON is in no column. It may run in another thread, as it may take long."""
        table = self._wanted.table(self._found)
        return json_table(table) if self._wanted.json else (table, None)

    def table(self, found: Generator[pa.RecordBatch, None, None]) -> pa.Table:
        """Add all of `found` and return the table, with a warning about JSON that is in no column."""
        with self, closing(found):
            self.add(found)
        return warned(*self.gathered())


def warned(table: pa.Table, report: JsonReport | None) -> pa.Table:
    """Return the table; warn the caller outside this package of JSON that is in no column."""
    if report:
        warn_caller(JsonWarning(report))
    return table


def table_of(messages: Iterable[Message], *, has_partition: bool, json: bool) -> pa.Table:
    """Return messages as a table with the columns of `Client.to_table`."""
    import pyarrow as pa

    rows = list(messages)
    names = ("offset", "timestamp_us", "subject", "key", "value", "header_block", PARTITION)
    schema = _schema(None, has_partition=has_partition)
    columns = [
        pa.array([getattr(one, name) for one in rows], field.type) for name, field in zip(names, schema, strict=False)
    ]
    table = pa.Table.from_arrays(columns, schema=schema)
    return warned(*json_table(table)) if json else table


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
