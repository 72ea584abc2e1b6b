"""What Spark is handed: `format("penstock")`.

Rules: this class crosses to other processes, by Spark's own pickling: it holds the options, and no connection. What is
wrong with the options is said when Spark first asks for a schema or a reader; that nobody may write there, before there
are tasks. A PySpark or pyarrow of another version than those that work is refused before anything else is said.
"""

from __future__ import annotations

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
from penstock.spark import brokers, rights
from penstock.spark.columns import checked_columns, ddl_of
from penstock.spark.options import SinkOptions, sink_options, source_options
from penstock.spark.sql_tables import is_table, options_with, table_schema
from penstock.spark.versions import check_versions
from penstock.spark.where import EVERYWHERE

FORMAT = "penstock"


class DefaultSource(DataSource):
    """The readers and writers of streams. OperationalError: PySpark or pyarrow is too old or too new."""

    def __init__(self, options: dict[str, str]) -> None:
        check_versions()
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """As in `format("penstock")` and `USING penstock`."""
        return FORMAT

    def schema(self) -> str | StructType:
        """The columns of a reader whose user gives no schema."""
        names = source_options(self.options).columns
        return table_schema(names, self.options) if is_table(self.options) else ddl_of(names)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For `spark.read`. A user's schema says which columns are fetched."""
        from penstock.spark.batch import BatchReader

        columns, names = _columns(schema)
        return BatchReader(source_options(options_with(self.options, schema)), columns, names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For `spark.readStream`."""
        from penstock.spark.stream import StreamReader

        if ends := sorted(name for name, text in self.options.items() if name.lower().startswith("ending") and text):
            raise ConfigError(
                [f"{ends[0]}: a query has no end; spark.read has one, and a query's batches are in order"]
            )
        options = source_options(options_with(self.options, schema))
        if options.where != EVERYWHERE:
            raise ConfigError(["where: a query reads what comes; assign, subject and startingOffsets say what of it"])
        return StreamReader(options, *_columns(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """For `df.write`."""
        from penstock.spark.sink import BatchWriter

        return BatchWriter(self._sink_options(schema, overwrite, 'mode("append")'))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """For `df.writeStream`."""
        from penstock.spark.sink import StreamWriter

        options = self._sink_options(schema, overwrite, 'outputMode("append")')
        if options.txn_app_id:
            raise ConfigError(["txnAppId: a query is known by its checkpoint; the option is for df.write"])
        return StreamWriter(options)

    def _sink_options(self, schema: StructType, overwrite: bool, instead: str) -> SinkOptions:
        if overwrite:
            raise ConfigError([f"a log is only appended to, and never overwritten: use {instead}"])
        from penstock.spark.rows import check_columns

        options = sink_options(self.options)
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        check_columns(types, stream=options.stream)
        if options.stream and "topic" not in {name.lower() for name in types}:  # else only the rows say where they go
            client = brokers.client(options.servers, options.timeout_s)
            rights.check(client, Operation.APPEND, (options.stream,), options.timeout_s)
        return options


def _columns(schema: StructType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns that are read, and the names that the user gave them, which may be in another case."""
    names = tuple(schema.fieldNames())
    return checked_columns(names, [field.dataType.simpleString() for field in schema.fields]), names
