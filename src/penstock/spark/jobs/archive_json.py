"""Decoding of JSON values to typed columns by Spark's own reader, in Java, without Python per row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.base import limits
from penstock.base.errors import ConfigError
from penstock.lake.archiving.decoding import COLUMNS, DATA, REASON, DecodedWriter
from penstock.lake.archiving.tasks import Batch
from penstock.lake.reading.columns import arrow_schema, in_utc
from penstock.lake.tables.data_files import told_files
from penstock.spark.runtime.sessions import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CORRUPT = "_penstock_corrupt"
_NOT_JSON = "it is not JSON of the archive's schema"


def inferred_json(rows: DataFrame) -> str:
    """Infer the schema of the values of some rows, as DDL. Raise ConfigError if no value is a JSON object."""
    spark = rows.sparkSession
    some = rows.where("value IS NOT NULL").limit(limits.DECODE_INFERRED_ROWS)
    texts = some.selectExpr("cast(value AS STRING) AS text")
    # Spark Connect has no RDDs, but its reader accepts a DataFrame. The classic reader of an older Spark does not.
    lines: Any = texts if is_connect(spark) else texts.rdd.map(_text)
    found = spark.read.json(lines, columnNameOfCorruptRecord=_CORRUPT).schema
    fields = [field for field in found.fields if field.name != _CORRUPT]
    if not fields:
        text = "no value of the first messages is a JSON object: give a schema"
        raise ConfigError([f"schema: {text}"])
    return ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in fields)


def _text(row: Any) -> str:
    return str(row[0])


def data_type(ddl: str) -> pa.DataType:
    """Return the Arrow type of `data`. Raise ConfigError if the schema is invalid."""
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(json_type(ddl), timezone="UTC")


def json_type(ddl: str) -> Any:
    """Return Spark's type of a schema in DDL (`amount DOUBLE, city STRING`) or in Spark's JSON.

    Raise ConfigError if the schema is neither.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        return StructType.fromJson(json.loads(ddl)) if ddl.lstrip().startswith("{") else StructType.fromDDL(ddl)
    except (PySparkException, ValueError, KeyError, TypeError) as error:
        raise ConfigError([f"schema: it is neither DDL nor Spark's JSON: {error}"]) from None


def with_json(rows: DataFrame, ddl: str) -> DataFrame:
    """Add the columns `data` and `reason` to the rows."""
    from pyspark.sql import functions as sql
    from pyspark.sql.types import StringType, StructType

    kind = json_type(ddl)
    with_corrupt = StructType([*kind.fields]).add(_CORRUPT, StringType())
    # A time without a zone is in UTC, so that it does not depend on the session's time zone.
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, "timeZone": "UTC"}
    parsed = rows.withColumn("parsed", sql.from_json(sql.col("value").cast("string"), with_corrupt, options))
    is_bad = sql.col("value").isNotNull() & (sql.col("parsed").isNull() | sql.col(f"parsed.{_CORRUPT}").isNotNull())
    fields = sql.struct(*[sql.col("parsed").getField(name).alias(name) for name in kind.fieldNames()])
    data = sql.when(sql.col("value").isNotNull() & ~is_bad, fields)
    reason = sql.when(is_bad, sql.lit(_NOT_JSON))
    return parsed.withColumn(DATA, data).withColumn(REASON, reason).drop("parsed")


def write_json(batch: Batch, found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: write rows that Spark has read and decoded; yield the files as JSON."""
    assert batch.rejects is not None
    writer = DecodedWriter(batch.rows, batch.rejects, batch.rejects_from)
    schema = arrow_schema(COLUMNS)
    for rows in found:
        plain = [rows.column(field.name).cast(field.type) for field in schema]
        made = pa.RecordBatch.from_arrays(plain, schema=schema)
        writer.add(made, in_utc(rows.select([DATA])).column(0), rows.column(REASON))
    yield told_files(list(writer.finish()))
