"""Decoding of values to typed columns: JSON by Spark's own reader, Avro by fastavro. Invalid values are rejected.

Rules: the archive keeps each value as published, beside the struct `data` with the decoded value. So the archive stays
equal to the log, and a wrong schema loses nothing. The `data` of a tombstone is null, and that is no error. If a value
cannot be decoded, its `data` is null, and the table of rejects gets a row with the reason; the job continues. The first
run fixes the schema, and the archive stores it.

Cost: Java decodes JSON, without Python per row; Avro takes a call of fastavro per row.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base import limits
from penstock.base.errors import ConfigError, OperationalError
from penstock.base.extras import how_to_install
from penstock.spark.columns import arrow_schema, default_columns, in_utc
from penstock.spark.lake.data_files import LakeWriter, Writing, told_files
from penstock.spark.lake.table import LakeFile
from penstock.spark.reading import fetching
from penstock.spark.reading.planning import Piece
from penstock.spark.runtime.sessions import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = default_columns(headers=True)
"""The columns of an archive: all."""
DECODERS = ("json", "avro")
DATA, REASON = "data", "reason"
_CORRUPT = "_penstock_corrupt"
_REJECTED = ("topic", "partition", "offset", "timestamp", "subject", "key", "value")
_NOT_JSON = "it is not JSON of the archive's schema"
_SINGLE_OBJECT = b"\xc3\x01"
_FINGERPRINT_BYTES = 8

Decode = Callable[[pa.Array], tuple[pa.Array, pa.Array]]
"""Function from values to (structs, null where a value is null or invalid; reasons of failures, or null)."""


def rejects_schema() -> pa.Schema:
    """Return the columns of the table of rejects."""
    fields = arrow_schema(_REJECTED)
    return pa.schema([*fields, pa.field(REASON, pa.string())])


def rows_schema(decode: str, schema: str) -> pa.Schema:
    """Return the columns of an archive, with `data` if `decode` is given. Raise ConfigError for an invalid schema."""
    if not decode:
        return arrow_schema(COLUMNS)
    return pa.schema([*arrow_schema(COLUMNS), pa.field(DATA, data_type(decode, schema))])


def data_type(decode: str, schema: str) -> pa.DataType:
    """Return the Arrow type of `data`. Raise ConfigError if the schema is invalid."""
    return avro_type(parsed_avro(schema)) if decode == "avro" else _json_type(schema)


# JSON, in Spark


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


def _json_type(ddl: str) -> pa.DataType:
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


# Avro, in the tasks


def parsed_avro(schema: str) -> Any:
    """Parse an Avro schema. Raise ConfigError if it is invalid, OperationalError if fastavro is not installed."""
    try:
        import fastavro
    except ImportError:
        raise OperationalError(f"fastavro is not installed: {how_to_install('lake')}") from None
    try:
        found = fastavro.parse_schema(json.loads(schema))
    except (ValueError, TypeError, KeyError, AttributeError, fastavro.schema.SchemaParseException) as error:
        raise ConfigError([f"schema: it is no Avro schema: {type(error).__name__}: {error}"]) from None
    if not isinstance(found, dict) or found.get("type") != "record" or not found.get("fields"):
        raise ConfigError(["schema: it is not that of an Avro record with fields"])
    return found


def avro_decoder(schema: str) -> Decode:
    """Return a decoder of Avro datums, bare or in the single-object encoding with the schema's fingerprint."""
    import fastavro
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    parsed = parsed_avro(schema)
    kind = avro_type(parsed)
    mark = bytes.fromhex(fingerprint(to_parsing_canonical_form(json.loads(schema)), "CRC-64-AVRO"))
    begins = {_SINGLE_OBJECT + mark, _SINGLE_OBJECT + mark[::-1]}

    def one(value: bytes) -> Any:
        start = len(_SINGLE_OBJECT) + _FINGERPRINT_BYTES if value[: 2 + _FINGERPRINT_BYTES] in begins else 0
        source = io.BytesIO(value[start:])
        found = fastavro.schemaless_reader(source, parsed, None)
        if source.read(1):
            raise ValueError("there are bytes behind it")
        return found

    def decode(values: pa.Array) -> tuple[pa.Array, pa.Array]:
        data, reasons = [], []
        for value in values.to_pylist():
            made, reason = None, None
            try:
                made = None if value is None else one(value)
            except Exception as error:  # noqa: BLE001 (fastavro raises many kinds of errors for invalid bytes)
                reason = f"{type(error).__name__}: {error}"
            data.append(made)
            reasons.append(reason)
        return pa.array(data, kind), pa.array(reasons, pa.string())

    return decode


_AVRO = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "uuid": pa.string(),
}


def avro_type(schema: Any) -> pa.DataType:
    """Return the Arrow type of an Avro schema. Raise ConfigError for a union of several types or an unknown type."""
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise ConfigError([f"schema: the union {schema} has no column type; give one type, or one and null"])
        return avro_type(others[0])
    if isinstance(schema, str):
        if schema not in _AVRO:
            raise ConfigError([f"schema: the type {schema!r} has no column type, or is used a second time by its name"])
        return _AVRO[schema]
    if (logical := schema.get("logicalType")) == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL and logical != "uuid":
        return _LOGICAL[logical]
    kind = schema["type"]
    if kind == "record":
        return pa.struct([pa.field(one["name"], avro_type(one["type"])) for one in schema["fields"]])
    if kind == "array":
        return pa.list_(avro_type(schema["items"]))
    if kind == "map":
        return pa.map_(pa.string(), avro_type(schema["values"]))
    if kind == "enum":
        return pa.string()
    if kind == "fixed":
        return pa.binary(schema["size"])
    return avro_type(kind)


# Rows and rejects


class DecodedWriter:
    """Writes all rows to the archive, and rows whose value could not be decoded also to the table of rejects.

    `begins`: the end offset of each partition in the table of rejects: earlier rejects are not written again.
    """

    def __init__(self, rows: Writing, rejects: Writing, begins: dict[tuple[str, int], int]) -> None:
        self._rows = LakeWriter(rows)
        self._rejects = LakeWriter(rejects)
        self._begins = begins

    def add(self, rows: pa.RecordBatch, data: pa.Array, reasons: pa.Array) -> None:
        """Add rows. `data`, `reasons`: the results of decoding them."""
        self._rows.add(rows.append_column(pa.field(DATA, data.type), data))
        if reasons.null_count < len(reasons):
            bad = rows.select(list(_REJECTED)).append_column(pa.field(REASON, pa.string()), reasons)
            self._reject(bad.filter(pc.is_valid(reasons)))

    def _reject(self, bad: pa.RecordBatch) -> None:
        for (topic, partition), begin in self._begins.items():
            here = pc.and_(pc.equal(bad.column("topic"), topic), pc.equal(bad.column("partition"), partition))
            self._rejects.add(bad.filter(pc.and_(here, pc.greater_equal(bad.column("offset"), begin))))

    def finish(self) -> Iterator[LakeFile]:
        """Yield all files, synced to disk."""
        yield from self._rows.finish()
        yield from self._rejects.finish()


def write_json(
    rows: Writing, rejects: Writing, begins: dict[tuple[str, int], int], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In a task: write rows that Spark has read and decoded; yield the files as JSON."""
    writer = DecodedWriter(rows, rejects, begins)
    schema = arrow_schema(COLUMNS)
    for batch in batches:
        plain = [batch.column(field.name).cast(field.type) for field in schema]
        made = pa.RecordBatch.from_arrays(plain, schema=schema)
        writer.add(made, in_utc(batch.select([DATA])).column(0), batch.column(REASON))
    yield told_files(list(writer.finish()))


def write_avro(
    tasks: Sequence[Sequence[Piece]],
    how: fetching.Fetching,
    rows: Writing,
    rejects: Writing,
    begins: dict[tuple[str, int], int],
    schema: str,
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """In a task: fetch, decode and write the ranges of the given task numbers; yield the files as JSON."""
    decode = avro_decoder(schema)
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            writer = DecodedWriter(rows, rejects, begins)
            for piece in tasks[number]:
                for found in fetching.read(how, piece):
                    writer.add(found, *decode(found.column("value")))
            yield told_files(list(writer.finish()))
