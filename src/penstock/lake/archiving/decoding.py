"""Decoding of values to typed columns: the rows of the archive and the rejects, and Avro by fastavro.

Rules: the archive keeps each value as published, beside the struct `data` with the decoded value. So the archive stays
equal to the log, and a wrong schema loses nothing. The `data` of a tombstone is null, and that is no error. If a value
cannot be decoded, its `data` is null, and the table of rejects gets a row with the reason; the job continues. The first
run fixes the schema, and the archive stores it.

Cost: Avro takes a call of fastavro per row. JSON is decoded by Spark (`penstock.spark.jobs.archive_json`).
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import ConfigError, OperationalError
from penstock.base.extras import how_to_install
from penstock.lake.reading.columns import arrow_schema, default_columns
from penstock.lake.reading.positions import Key
from penstock.lake.tables.data_files import LakeWriter, Writing
from penstock.lake.tables.table import LakeFile

COLUMNS = default_columns(headers=True)
"""The columns of an archive: all."""
DECODERS = ("json", "avro")
DATA, REASON = "data", "reason"
_REJECTED = ("topic", "partition", "offset", "timestamp", "subject", "key", "value")
_SINGLE_OBJECT = b"\xc3\x01"
_FINGERPRINT_BYTES = 8

Decode = Callable[[pa.Array], tuple[pa.Array, pa.Array]]
"""Function from values to (structs, null where a value is null or invalid; reasons of failures, or null)."""


def rejects_schema() -> pa.Schema:
    """Return the columns of the table of rejects."""
    fields = arrow_schema(_REJECTED)
    return pa.schema([*fields, pa.field(REASON, pa.string())])


def rows_schema(data: pa.DataType | None) -> pa.Schema:
    """Return the columns of an archive. `data`: the type of the decoded values; None: nothing is decoded."""
    fields = arrow_schema(COLUMNS)
    return fields if data is None else pa.schema([*fields, pa.field(DATA, data)])


# Avro


def parsed_avro(schema: str) -> Any:
    """Parse an Avro schema. Raise ConfigError if it is invalid, OperationalError if fastavro is not installed."""
    try:
        import fastavro
    except ImportError:
        raise OperationalError(f"fastavro is not installed: {how_to_install('lake')}") from None
    try:
        found = fastavro.parse_schema(_known_logical(json.loads(schema)))
    except (ValueError, TypeError, KeyError, AttributeError, fastavro.schema.SchemaParseException) as error:
        raise ConfigError([f"schema: it is no Avro schema: {type(error).__name__}: {error}"]) from None
    if not isinstance(found, dict) or found.get("type") != "record" or not found.get("fields"):
        raise ConfigError(["schema: it is not that of an Avro record with fields"])
    return found


def _known_logical(schema: Any) -> Any:
    """Return an Avro schema without the logical types that have no column type: such values are of their plain type."""
    if isinstance(schema, list):
        return [_known_logical(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    is_kept = _logical(schema) in (*_LOGICAL, *_DECIMAL)
    return {name: _known_logical(one) for name, one in schema.items() if is_kept or name != "logicalType"}


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
        return _array(data, reasons, kind), pa.array(reasons, pa.string())

    return decode


def _array(data: list[Any], reasons: list[str | None], kind: pa.DataType) -> pa.Array:
    """Return decoded values as an array. Replace those that do not fit by None, and add the reason to `reasons`."""
    try:
        return pa.array(data, kind)
    except Exception:  # noqa: BLE001 (Arrow's errors, and those of Python's types in between)
        for row, one in enumerate(data):
            try:
                pa.array([one], kind)
            except Exception as error:  # noqa: BLE001 (as above)
                data[row], reasons[row] = None, f"{type(error).__name__}: {error}"
    return pa.array(data, kind)


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
    "int-date": pa.date32(),
    "int-time-millis": pa.time64("us"),
    "long-time-micros": pa.time64("us"),
    "long-timestamp-millis": pa.timestamp("us", "UTC"),
    "long-timestamp-micros": pa.timestamp("us", "UTC"),
    "long-local-timestamp-millis": pa.timestamp("us"),
    "long-local-timestamp-micros": pa.timestamp("us"),
}
_DECIMAL = ("bytes-decimal", "fixed-decimal")
_DECIMAL_DIGITS_MAX = 38  # of a column in Parquet's readers, Delta and Iceberg


def _logical(schema: Mapping[str, Any]) -> str:
    return f"{schema.get('type')}-{schema.get('logicalType')}"


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
    if (logical := _logical(schema)) in _DECIMAL:
        digits = schema.get("precision")
        if not isinstance(digits, int) or not 1 <= digits <= _DECIMAL_DIGITS_MAX:
            raise ConfigError([f"schema: the precision of a decimal is {digits}; give 1 to {_DECIMAL_DIGITS_MAX}"])
        return pa.decimal128(digits, schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    kind = schema["type"]
    if kind == "record":
        if not schema["fields"]:
            raise ConfigError([f"schema: the record {schema.get('name')!r} has no fields, and so no column type"])
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

    def __init__(self, rows: Writing, rejects: Writing, begins: Mapping[Key, int]) -> None:
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

    def drop(self) -> None:
        """Delete all files."""
        self._rows.drop()
        self._rejects.drop()
