"""The data source `format("penstock")`.

Rules: Spark pickles the source for other processes, so it holds the options and no connection. Mistakes in the options
are reported when Spark first requests a schema, a reader or a writer; a missing permission to append, before tasks run.
An unsupported version of PySpark or pyarrow is reported before everything else.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from penstock.access import Operation
from penstock.base.errors import ConfigError
from penstock.lake.reading import permissions
from penstock.lake.reading.columns import checked_columns, ddl_of
from penstock.lake.reading.typed import Typed
from penstock.spark import brokers
from penstock.spark.options.options import SinkOptions, SourceOptions, sink_options, source_options
from penstock.spark.options.sql_tables import is_table, options_with, table_schema, with_options
from penstock.spark.options.where import EVERYWHERE
from penstock.spark.reading.typed import announced, planned, requested
from penstock.spark.runtime import worker_garbage
from penstock.spark.runtime.versions import check_versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "penstock"


class DefaultSource(DataSource):
    """Creates readers and writers of streams. Raises OperationalError if PySpark or pyarrow is not supported."""

    def __init__(self, options: dict[str, str]) -> None:
        check_versions()
        super().__init__(options)
        self._typed: Typed | None = None  # with the option `decode`, once Spark has requested the schema
        worker_garbage.exempt_loaded()  # in the worker that answers for the schema, and does nothing else

    @classmethod
    def name(cls) -> str:
        """Return the name for `format("penstock")` and `USING penstock`."""
        return FORMAT

    def schema(self) -> str | StructType:
        """Return the schema of a reader if the user gives none. Raise ConfigError if an option is invalid."""
        options = source_options(self.options)
        names = options.columns
        if options.decode is not None:
            self._typed = planned(options, options.decode)
            made = announced(options, self._typed)
            pins = {"schemaVersions": json.dumps(self._typed.numbers())}
            return with_options(made, self.options, pins) if is_table(self.options) else made
        return table_schema(names, self.options) if is_table(self.options) else ddl_of(names)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of `spark.read`. A user's schema selects the columns to fetch. Raise ConfigError."""
        from penstock.spark.reading.batch_reader import BatchReader

        options = source_options(options_with(self.options, schema))
        typed = self._typed_columns(options)
        return BatchReader(options, *_columns(schema, typed), typed)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of `spark.readStream`. Raise ConfigError, also for options that only `spark.read` takes."""
        from penstock.spark.reading.stream_reader import StreamReader

        if ends := sorted(name for name, text in self.options.items() if name.lower().startswith("ending") and text):
            raise ConfigError(
                [f"{ends[0]}: a query has no end; spark.read has one, and a query's batches are in order"]
            )
        options = source_options(options_with(self.options, schema))
        if options.where != EVERYWHERE:
            raise ConfigError(["where: only spark.read takes it; a query takes assign, subject and startingOffsets"])
        typed = self._typed_columns(options)
        return StreamReader(options, *_columns(schema, typed), typed)

    def _typed_columns(self, options: SourceOptions) -> Typed | None:
        """Return what typed columns are made by: as announced, or with a user's schema as planned now."""
        return self._typed if self._typed or options.decode is None else planned(options, options.decode)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of `df.write`. Raise ConfigError, or NotAuthorized without the permission to append."""
        from penstock.spark.writing.sink import BatchWriter

        return BatchWriter(self._sink_options(schema, overwrite, 'mode("append")'))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of `df.writeStream`. Raise ConfigError or NotAuthorized, as `writer` does."""
        from penstock.spark.writing.sink import StreamWriter

        options = self._sink_options(schema, overwrite, 'outputMode("append")')
        if options.txn_app_id:
            raise ConfigError(["txnAppId: a query is known by its checkpoint; the option is for df.write"])
        return StreamWriter(options)

    def _sink_options(self, schema: StructType, overwrite: bool, instead: str) -> SinkOptions:
        if overwrite:
            raise ConfigError([f"a log is only appended to, and never overwritten: use {instead}"])
        from penstock.spark.writing.rows import check_columns

        options = sink_options(self.options)
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        check_columns(types, stream=options.stream)
        if options.stream and "topic" not in {name.lower() for name in types}:  # else each row names its stream
            client = brokers.client(options.servers, options.timeout_s)
            permissions.check(client, Operation.APPEND, (options.stream,), options.timeout_s)
        return options


def _columns(schema: StructType, typed: Typed | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns to read, and the user's spelling of them, which may differ in case."""
    if typed is not None:
        return requested(schema, typed)
    names = tuple(schema.fieldNames())
    return checked_columns(names, [field.dataType.simpleString() for field in schema.fields]), names


def register(spark: SparkSession) -> None:
    """Register `format("penstock")` with a session. Required unless Penstock is installed beside PySpark."""
    spark.dataSource.register(DefaultSource)
