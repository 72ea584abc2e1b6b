"""What Spark writes, as rows of the log: columns are checked once, on the driver; nothing is done row by row.

| column    | types                                 | where it is missing, or null                  |
|-----------|---------------------------------------|-----------------------------------------------|
| `value`   | binary or string; null: a tombstone   | it must be there                              |
| `key`     | binary or string                      | no key                                        |
| `subject` | string                                | the stream's own, if that has no wildcard     |
| `headers` | as a reader gives them                | none                                          |
| `topic`   | string                                | the option `stream`                           |
| `partition` | int                                 | that of the key; without one, of the value    |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import ConfigError, PenstockError
from penstock.base.subjects import is_wildcard
from penstock.client.partitioning import partitions_of
from penstock.messages import StreamInfo

_TEXT = ("binary", "string")
_HEADERS = "array<struct<key:string,value:binary>>"
COLUMNS = {
    "value": _TEXT,
    "key": _TEXT,
    "subject": ("string",),
    "headers": (_HEADERS, "array<struct<key:string,value:string>>"),
    "topic": ("string",),
    "partition": ("int",),
}
"""Those of a writer, and the types that they may have, as Spark names them."""

_LOG_SCHEMA = pa.schema(
    [("subject", pa.string()), ("key", pa.binary()), ("value", pa.binary()), ("headers", pa.binary())]
)
_NAME_LINE = rb"\A[!-9;-~]+\z"  # printable ASCII without a colon
_BROKEN_VALUE = rb"[\r\n\x00]"


class BadRowsError(PenstockError):
    """Rows that no stream can hold."""


class Share(NamedTuple):
    """Rows for one partition of one stream, in their order."""

    stream: str
    partition: int
    rows: pa.RecordBatch


def check_columns(types: Mapping[str, str], *, stream: str) -> None:
    """ConfigError: what is to be written lacks something, or has columns that a message has not. Types are Spark's."""
    mistakes = []
    if "value" not in types:
        mistakes.append("value: the column is missing; what is to be written has it as binary or string")
    if not stream and "topic" not in types:
        mistakes.append(
            "stream: it is missing, and there is no column topic that says it row by row; SQL tables are for reading"
        )
    for name, kind in types.items():
        if name not in COLUMNS:
            mistakes.append(f"{name}: a message has no such column; it has {', '.join(COLUMNS)}: drop or rename it")
        elif kind not in COLUMNS[name]:
            hint = "; to_json, or a cast, is yours to choose" if name in ("value", "key") else ""
            mistakes.append(f"{name}: it is of type {kind}, not {' or '.join(COLUMNS[name])}{hint}")
    if mistakes:
        raise ConfigError(mistakes)


def shares(batch: pa.RecordBatch, streams: Mapping[str, StreamInfo], default: str) -> Iterator[Share]:
    """The rows of a batch by stream and partition, as the log's columns. BadRowsError says what is wrong with some."""
    for stream, rows in _by_stream(batch, default):
        info = streams.get(stream)
        if info is None:
            raise BadRowsError(f"the column topic names stream {stream!r}, which is not there; make it first")
        count = max(1, len(info.partitions))
        try:
            numbers = partitions_of(rows, info)
        except ValueError as error:
            raise BadRowsError(f"rows for stream {stream}: {error}") from None
        for number in sorted(pc.unique(numbers).to_pylist()):
            own = rows if count == 1 else rows.filter(pc.equal(numbers, number))
            yield Share(stream, number, _log_rows(own, info, number))


def streams_of(batch: pa.RecordBatch, default: str) -> list[str]:
    """Which streams a batch is for."""
    if "topic" not in batch.schema.names:
        return [default]
    return sorted(name or default for name in pc.unique(batch.column("topic")).to_pylist())


def _by_stream(batch: pa.RecordBatch, default: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    names = streams_of(batch, default)
    if "topic" not in batch.schema.names or len(names) == 1:
        if names:
            yield names[0], batch
        return
    column = pc.fill_null(batch.column("topic"), default)
    for name in names:
        yield name, batch.filter(pc.equal(column, name))


def _binary(rows: pa.RecordBatch, name: str) -> pa.Array:
    if name not in rows.schema.names:
        return pa.nulls(rows.num_rows, pa.binary())
    column = rows.column(name)
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _log_rows(rows: pa.RecordBatch, info: StreamInfo, partition: int) -> pa.RecordBatch:
    columns = [
        _subjects(rows, info.config.subject_of(partition), info.name),
        _binary(rows, "key"),
        _binary(rows, "value"),
        _blocks(rows),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_LOG_SCHEMA)


def _subjects(rows: pa.RecordBatch, usual: str, stream: str) -> pa.Array:
    given = rows.column("subject") if "subject" in rows.schema.names else pa.nulls(rows.num_rows, pa.string())
    if not given.null_count:
        return given
    if is_wildcard(usual):
        raise BadRowsError(
            f"rows for stream {stream} have no subject, and its own, {usual!r}, is a pattern: give each a subject"
        )
    return pc.fill_null(given, usual)


def _blocks(rows: pa.RecordBatch) -> pa.Array:
    if "headers" not in rows.schema.names:
        return pa.nulls(rows.num_rows, pa.binary())
    return header_blocks(rows.column("headers"))


def header_blocks(headers: pa.ListArray) -> pa.Array:
    """Lists of names and values as NATS header blocks; null for none. BadRowsError: one that would break the block."""
    flat = headers.flatten()
    names, values = flat.field("key").cast(pa.binary()), flat.field("value").cast(pa.binary())
    bad_names = pc.invert(pc.fill_null(pc.match_substring_regex(names, _NAME_LINE), False))
    if (at := pc.index(bad_names, True).as_py()) >= 0:
        text = "a header's name may hold only printable ASCII without spaces and colons"
        raise BadRowsError(f"{text}: one is {names[at].as_py()!r}")
    bad_values = pc.fill_null(pc.match_substring_regex(values, _BROKEN_VALUE), True)
    if (at := pc.index(bad_values, True).as_py()) >= 0:
        text = "a header's value may not be null, nor hold line ends or bytes of zero"
        raise BadRowsError(f"{text}: that of {names[at].as_py().decode()} is {values[at].as_py()!r}")
    lines = pc.binary_join_element_wise(names, pc.binary_join_element_wise(values, b"", b"\r\n"), b": ")
    lengths = headers.value_lengths().fill_null(0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, lines), b"")
    blocks = pc.binary_join_element_wise(b"NATS/1.0\r\n", joined, b"\r\n", b"")
    return pc.if_else(pc.equal(lengths, 0), pa.scalar(None, pa.binary()), blocks)
