"""A stream's messages as columns of a table, with Kafka's names and types where they mean the same.

Rules: Spark accepts a batch only if its schema is exactly the announced one: names, order, types, every field nullable.
Only requested columns are fetched. No Python runs per row. Column names are not case-sensitive, as in Spark; a batch
uses the user's spelling.

| column          | content                                                                               |
|-----------------|---------------------------------------------------------------------------------------|
| `key`, `value`  | as published; a `value` of null is a tombstone                                        |
| `topic`         | name of the stream                                                                    |
| `partition`     | number of the partition                                                               |
| `offset`        | position of the message in its partition                                              |
| `timestamp`     | time at which the leader appended it; never decreases within a partition              |
| `timestampType` | 1, Kafka's number for the append time                                                 |
| `subject`       | the NATS subject                                                                      |
| `headers`       | with `includeHeaders`: name and value of each header in order; null if there are none |
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from penstock.base.errors import ConfigError

LOG_APPEND_TIME = 1
"""Kafka's `timestampType` of a time that the broker sets."""

HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
"""One header. A name may occur several times, and a value need not be text."""


class RowOrigin(NamedTuple):
    """The partition whose rows a batch holds."""

    stream: str
    partition: int


class Column(NamedTuple):
    """One column: its type in DDL and in Arrow, the log's column `of` that `make` converts, or None for a constant."""

    ddl: str
    arrow: pa.DataType
    of: str | None
    make: Callable[[pa.RecordBatch, RowOrigin], pa.Array]


def _as_it_is(name: str) -> Callable[[pa.RecordBatch, RowOrigin], pa.Array]:
    return lambda batch, _: batch.column(name)


def _repeated(value: Callable[[RowOrigin], pa.Scalar]) -> Callable[[pa.RecordBatch, RowOrigin], pa.Array]:
    return lambda batch, place: pa.repeat(value(place), batch.num_rows)


# pa.scalar imports pandas, if it is installed: 0.3 s of CPU in each worker of Spark, which needs it for nothing else.


def _text_scalar(value: str) -> pa.StringScalar:
    data = value.encode()
    ends = pa.py_buffer(b"".join(end.to_bytes(4, sys.byteorder) for end in (0, len(data))))
    return pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(data)])[0]


def _int32_scalar(value: int) -> pa.Int32Scalar:
    return pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(value.to_bytes(4, sys.byteorder, signed=True))])[0]


COLUMNS = {
    "key": Column("BINARY", pa.binary(), "key", _as_it_is("key")),
    "value": Column("BINARY", pa.binary(), "value", _as_it_is("value")),
    "topic": Column("STRING", pa.string(), None, _repeated(lambda place: _text_scalar(place.stream))),
    "partition": Column("INT", pa.int32(), None, _repeated(lambda place: _int32_scalar(place.partition))),
    "offset": Column("BIGINT", pa.int64(), "offset", _as_it_is("offset")),
    "timestamp": Column("TIMESTAMP", pa.timestamp("us", "UTC"), "timestamp", _as_it_is("timestamp")),
    "timestampType": Column("INT", pa.int32(), None, _repeated(lambda _: _int32_scalar(LOG_APPEND_TIME))),
    "subject": Column("STRING", pa.string(), "subject", _as_it_is("subject")),
    "headers": Column(
        "ARRAY<STRUCT<key: STRING, value: BINARY>>",
        pa.list_(HEADER),
        "headers",
        lambda batch, _: parsed_headers(batch.column("headers")),
    ),
}
"""All columns, in their order."""

_BY_FOLDED = {name.lower(): name for name in COLUMNS}

_DEFAULT = tuple(name for name in COLUMNS if name != "headers")


def default_columns(*, headers: bool) -> tuple[str, ...]:
    """Return the columns of a reader without the option `columns`."""
    return (*_DEFAULT, "headers") if headers else _DEFAULT


def ddl_of(names: Sequence[str]) -> str:
    """Return the schema of these columns as Spark DDL."""
    return ", ".join(f"{name} {COLUMNS[name].ddl}" for name in names)


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of these columns; element fields have Spark's names."""
    return pa.schema([pa.field(name, _arrow_type(name)) for name in names])


def _arrow_type(name: str) -> pa.DataType:
    if name == "headers":
        return pa.list_(pa.field("element", HEADER))
    return COLUMNS[name].arrow


def log_columns(names: Sequence[str]) -> list[str]:
    """Return the log's columns to fetch for these columns; at least one, which gives the number of rows."""
    wanted = {COLUMNS[name].of for name in names}
    return [name for name in ("offset", "timestamp", "subject", "key", "value", "headers") if name in wanted] or [
        "offset"
    ]


def lake_batch(batch: pa.RecordBatch, schema: pa.Schema, place: RowOrigin) -> pa.RecordBatch:
    """Convert a batch with the log's columns to one of Spark's `schema`."""
    made = [COLUMNS[name].make(batch, place) for name in schema.names]
    return pa.RecordBatch.from_arrays(
        [one if one.type == field.type else one.cast(field.type) for one, field in zip(made, schema, strict=True)],
        schema=schema,
    )


def known_column(name: str) -> str | None:
    """Return the key in COLUMNS of a name in any case; None if there is none."""
    return _BY_FOLDED.get(name.lower())


def checked_columns(names: Sequence[str], types: Sequence[str]) -> tuple[str, ...]:
    """Return the keys in COLUMNS of the columns of a user's schema. `types`: in the form of Spark's `simpleString`.

    Raise ConfigError if a column is unknown, is given twice or has another type.
    """
    found: dict[str, str] = {}
    mistakes = []
    for name, kind in zip(names, types, strict=True):
        known = known_column(name)
        if known is None:
            mistakes.append(f"{name}: there is no such column; there are {', '.join(COLUMNS)}")
        elif known in found:
            mistakes.append(f"{name}: {found[known]} is given, too: leave out one")
        elif kind != _simple(known):
            mistakes.append(f"{name}: it is of type {_simple(known)}, not {kind}; cast it after reading")
        found.setdefault(known or name, name)
    if mistakes:
        raise ConfigError(mistakes)
    return tuple(found)


def as_announced(batches: Iterator[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Rename the columns of each batch to the names that the user gave them."""
    for batch in batches:
        yield batch if batch.schema.names == list(names) else batch.rename_columns(list(names))


def in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert timestamps to UTC: Spark passes them in the session's time zone, on which files must not depend."""
    schema = pa.schema([field.with_type(_type_in_utc(field.type)) for field in batch.schema])
    return batch if schema == batch.schema else batch.cast(schema)


def _type_in_utc(kind: pa.DataType) -> pa.DataType:
    """Return the type with UTC timestamps, also inside structs, lists and maps."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_type_in_utc(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        key, item = (field.with_type(_type_in_utc(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(key, item)
    return kind


def _simple(name: str) -> str:
    return COLUMNS[name].ddl.lower().replace(": ", ":").replace(", ", ",")


# Headers

_LINE_END = b"\r\n"
_HEADER_LINE = r"(?s)\A(?P<key>[^:]*):[ \t]*(?P<value>.*?)[ \t]*\z"


def parsed_headers(blocks: pa.Array) -> pa.Array:
    """Parse NATS header blocks into list<struct<key: string, value: binary>>, null for null.

    The first line of a block, `NATS/1.0`, is skipped, and so are lines without a colon.
    """
    import pyarrow.compute as pc

    lines = pc.split_pattern(blocks, _LINE_END)
    values, owners = lines.flatten(), pc.list_parent_indices(lines)
    is_first = pa.concat_arrays([pa.array([True])[: len(owners)], pc.not_equal(owners[1:], owners[:-1])])
    kept = pc.and_not(pc.match_substring(values, b":"), is_first)
    parts = pc.extract_regex(values.filter(kept), _HEADER_LINE)
    headers = pa.StructArray.from_arrays([_text(parts.field("key")), parts.field("value")], fields=list(HEADER))
    kept_before = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(kept.cast(pa.int32()))])
    return pa.ListArray.from_arrays(kept_before.take(lines.offsets), headers, mask=blocks.is_null())


def _text(names: pa.Array) -> pa.Array:
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:  # a header's name is not UTF-8: rare, and no reason to fail the query
        return pa.array([None if one is None else one.decode(errors="replace") for one in names.to_pylist()])


_FIRST_LINE = b"NATS/1.0\r\n"


def header_blocks(headers: pa.Array) -> pa.Array:
    """Return NATS header blocks of parsed headers: the reverse of `parsed_headers`."""
    import pyarrow.compute as pc

    pairs = headers.flatten()
    parts = [pairs.field("key").cast(pa.binary()), b": ", pairs.field("value"), _LINE_END]
    lines = pc.binary_join_element_wise(*parts, b"")
    counts = pc.fill_null(pc.list_value_length(headers), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts).cast(pa.int32())])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, lines), b"")
    blocks = pc.binary_join_element_wise(_FIRST_LINE, joined, _LINE_END, b"")
    return pc.if_else(headers.is_valid(), blocks, pa.scalar(None, pa.binary()))
