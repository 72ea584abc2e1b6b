"""Decoding of values to typed columns: the rows of the archive and the rejects, and Avro by a schema of the user's.

Rules: the archive keeps each value as published, beside the struct `data` with the decoded value. So the archive stays
equal to the log, and a wrong schema loses nothing. The `data` of a tombstone is null, and that is no error. If a value
cannot be decoded, its `data` is null, and the table of rejects gets a row with the reason; the job continues. The first
run fixes the schema, and the archive stores it: with `schema` the registered ones of the streams, whose newer versions
do not change the columns.

| `decode` | by                                                                                     |
|----------|----------------------------------------------------------------------------------------|
| `schema` | the registered schemas of the streams (`penstock.lake.reading.typed`)                  |
| `avro`   | the schema that is given, in compiled code; fastavro checks it, and has no part in rows |
| `json`   | Spark (`penstock.spark.jobs.archive_json`)                                             |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import ConfigError, OperationalError
from penstock.base.extras import how_to_install
from penstock.client.blocking.client import Client
from penstock.lake.reading.columns import arrow_schema, default_columns
from penstock.lake.reading.data_loss import warn
from penstock.lake.reading.positions import Key
from penstock.lake.reading.typed import DECODE_ERROR, Typed, TypedColumns, newer_than, registered, typed_by
from penstock.lake.tables.data_files import LakeWriter, Writing
from penstock.lake.tables.table import LakeFile
from penstock.schemas.as_json import schemas_of_json
from penstock.schemas.avro import avro_decoder as avro_columns
from penstock.schemas.avro import avro_plan
from penstock.schemas.plans import EnumStyle
from penstock.schemas.projection import projected
from penstock.schemas.registry import StreamSchemas

COLUMNS = default_columns(headers=True)
"""The columns of an archive: all."""
DECODERS = ("schema", "json", "avro")
DATA, REASON = "data", "reason"
_REJECTED = ("topic", "partition", "offset", "timestamp", "subject", "key", "value")
_SINGLE_OBJECT = b"\xc3\x01"
_VALUE_END = 1 << 30  # beyond the bytes of any value
_NO_FIT = "a value does not fit its column"

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
    from fastavro.schema import fingerprint, to_parsing_canonical_form

    kind = avro_type(parsed_avro(schema))
    decoder = avro_columns(avro_plan(json.dumps(_known_logical(json.loads(schema))), EnumStyle.STRING))
    mark = bytes.fromhex(fingerprint(to_parsing_canonical_form(json.loads(schema)), "CRC-64-AVRO"))

    def decode(values: pa.Array) -> tuple[pa.Array, pa.Array]:
        for begin in (_SINGLE_OBJECT + mark, _SINGLE_OBJECT + mark[::-1]):
            values = _without(values, begin)
        found = decoder.decode(values)
        data, lost = projected(found.columns, kind)
        reasons = found.refused.reasons().cast(pa.string()).combine_chunks()
        if lost is not None:
            data = pc.if_else(lost, pa.scalar(None, kind), data)
            reasons = pc.if_else(lost, pa.scalar(_NO_FIT), reasons)
        return data, reasons

    return decode


def _without(values: pa.Array, begin: bytes) -> pa.Array:
    """Return values without these bytes before them; others as they are."""
    has_it = pc.starts_with(values, begin)
    if not pc.any(has_it).as_py():
        return values
    # Without an end, Arrow 26 fails if each value has the beginning: "Negative buffer resize".
    return pc.if_else(has_it, pc.binary_slice(values, len(begin), _VALUE_END), values)


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
_DECIMAL_BYTES_MAX = 16
_DECIMAL_DIGITS_MAX = 38  # of a column in Parquet's readers, Delta and Iceberg


def _logical(schema: Mapping[str, Any]) -> str:
    return f"{schema.get('type')}-{schema.get('logicalType')}"


def avro_type(schema: Any) -> pa.DataType:
    """Return the Arrow type of an Avro schema. Raise ConfigError for a union of several types or an unknown type."""
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1 or len(schema) != 2:
            raise ConfigError([f"schema: the union {schema} has no column type; give one type, or one and null"])
        return avro_type(others[0])
    if isinstance(schema, str):
        if schema not in _AVRO:
            raise ConfigError([f"schema: the type {schema!r} has no column type, or is used a second time by its name"])
        return _AVRO[schema]
    if (logical := _logical(schema)) in _DECIMAL:
        digits = schema.get("precision")
        if schema.get("size", 0) > _DECIMAL_BYTES_MAX:
            raise ConfigError([f"schema: a decimal of {schema['size']} bytes; give up to {_DECIMAL_BYTES_MAX}"])
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


# By registered schemas


def archived_types(client: Client, streams: Iterable[str], timeout_s: float, first: str) -> tuple[str, Typed]:
    """Return the schemas that an archive keeps, as text, and what its rows are decoded by.

    `first`: what the first run has kept; empty: this is the first run. Rows of a newer version are decoded by it, and
    get the columns of the first run. Streams that were added since are decoded if they have these columns.
    """
    now = {one.stream: one for one in registered(client, streams, timeout_s)}
    if not first:
        typed = typed_by(list(now.values()))
        return typed.schemas, typed
    before = {one.stream: one for one in schemas_of_json(first)}
    pins = {name: {subject: each.number for subject, each in one.newest().items()} for name, one in before.items()}
    used = {name: now[name] if name in now and _continues(now[name], one) else one for name, one in before.items()}
    typed = typed_by(list(used.values()), (), pins)
    for name in sorted(now.keys() - before.keys()):
        try:
            typed = typed_by([*used.values(), now[name]], (), pins)
            used[name] = now[name]
        except ConfigError as error:
            warn(f"values of stream {name}, which is new in this archive, are not decoded: {error.mistakes[0]}")
    for name, numbers in newer_than(typed, used.values()).items():
        for subject, number in numbers.items():
            text = f"stream {name}: version {number} of the schema for {subject} is registered; the archive keeps the"
            warn(f"{text} columns of version {pins[name][subject]}; archive elsewhere to have those of the newer one")
    return first, typed


def _continues(now: StreamSchemas, before: StreamSchemas) -> bool:
    """True if a stream still has all schemas that it had."""
    there = {(each.typed, each.number, each.hash) for each in now.versions}
    known = all((each.typed, each.number, each.hash) in there for each in before.versions)
    return known and now.stream_id == before.stream_id


def data_columns(typed: Typed) -> tuple[str, ...]:
    """Return the columns to fetch for an archive with typed columns."""
    return (*COLUMNS, *TypedColumns(typed).schema.names)


def data_of(typed: Typed) -> pa.DataType:
    """Return the type of the column `data`."""
    return pa.struct([field for field in TypedColumns(typed).schema if field.name != DECODE_ERROR])


def struct_of(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array, pa.Array]:
    """Return rows with typed columns as (the columns of an archive, `data`, the reasons)."""
    reasons = rows.column(DECODE_ERROR)
    fields = [field for field in rows.schema if field.name not in COLUMNS and field.name != DECODE_ERROR]
    arrays = [rows.column(field.name) for field in fields]
    mask = pc.or_(rows.column("value").is_null(), reasons.is_valid())
    return rows.select(list(COLUMNS)), pa.StructArray.from_arrays(arrays, fields=fields, mask=mask), reasons


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
