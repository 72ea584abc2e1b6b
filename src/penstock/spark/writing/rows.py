"""Converts Spark's rows to rows of the log. The driver checks the columns once; no Python runs per row.

Rules: column names are not case-sensitive, as in Spark. Two names that differ only by case are refused, and so is a
name in another case if `spark.sql.caseSensitive` is set; only tasks can read that setting. A header that NATS cannot
carry fails the write, or is left out and counted. A null header value, as Spark's Kafka source has, becomes empty.

| column    | types                                 | if it is missing or null                      |
|-----------|---------------------------------------|-----------------------------------------------|
| `value`   | binary or string; null: a tombstone   | required                                      |
| `key`     | binary or string                      | no key                                        |
| `subject` | string                                | the stream's own, if that has no wildcard     |
| `headers` | as a reader returns them              | none; a null value becomes an empty one       |
| `topic`   | string                                | the option `stream`, also if it is empty      |
| `partition` | int                                 | by the stream's partitioning                  |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import ConfigError, PenstockError
from penstock.base.subjects import is_wildcard
from penstock.client.append.partitioning import partitions_of
from penstock.messages import StreamInfo

_TEXT = ("binary", "string")
_HEADERS = "array<struct<key:string,value:binary>>"
_INVALID_HEADERS = (
    "set the option invalidHeaders to drop to leave out such headers (of the jobs replay and run: invalid_headers, or "
    "--invalid-headers), or take them out before"
)
COLUMNS = {
    "value": _TEXT,
    "key": _TEXT,
    "subject": ("string",),
    "headers": (_HEADERS, "array<struct<key:string,value:string>>"),
    "topic": ("string",),
    "partition": ("int",),
}
"""The columns of a writer and their allowed types, as Spark names them."""

_LOG_SCHEMA = pa.schema(
    [("subject", pa.string()), ("key", pa.binary()), ("value", pa.binary()), ("headers", pa.binary())]
)
_NAME_LINE = rb"\A[!-9;-~]+\z"  # printable ASCII without a colon
_BROKEN_VALUE = rb"[\r\n\x00]"


class BadRowsError(PenstockError):
    """Raised for rows that cannot be stored in their stream."""


class Share(NamedTuple):
    """Rows for one partition of one stream, in order."""

    stream: str
    partition: int
    rows: pa.RecordBatch


_GIVEN_BY_LOG = ("offset", "timestamp", "timestamptype")
_TABLES_ARE_READ = (
    "drop it; INSERT INTO cannot write: a table of SQL is for reading, and rows are written with df.write"
)
CASE_SENSITIVE = "spark.sql.caseSensitive"


def check_columns(types: Mapping[str, str], *, stream: str) -> None:
    """Raise ConfigError if columns are missing, unknown or of a wrong type. `types`: Spark's type of each column."""
    mistakes = []
    found = {name.lower() for name in types}
    if "value" not in found:
        mistakes.append("value: the column is missing; what is to be written has it as binary or string")
    if not stream and "topic" not in found:
        mistakes.append(
            "stream: it is missing, and there is no column topic that says it row by row; SQL tables are for reading"
        )
    seen: dict[str, str] = {}
    for name, kind in types.items():
        known = name.lower()
        if known in _GIVEN_BY_LOG:
            mistakes.append(f"{name}: the log gives it to each message; {_TABLES_ARE_READ}")
        elif known not in COLUMNS:
            mistakes.append(f"{name}: a message has no such column; it has {', '.join(COLUMNS)}: drop or rename it")
        elif known in seen:
            mistakes.append(f"{name}: {seen[known]} is given, too: drop or rename one")
        elif kind.lower() not in COLUMNS[known]:
            hint = "; to_json, or a cast, is yours to choose" if known in ("value", "key") else ""
            mistakes.append(f"{name}: it is of type {kind}, not {' or '.join(COLUMNS[known])}{hint}")
        seen.setdefault(known, name)
    if mistakes:
        raise ConfigError(mistakes)


def named(batch: pa.RecordBatch, *, is_case_sensitive: bool = False) -> pa.RecordBatch:
    """Rename the columns from the user's spelling to the names of a message's columns.

    Raise BadRowsError if a name is in another case and Spark's names are case-sensitive.
    """
    names = [name.lower() for name in batch.schema.names]
    if names == batch.schema.names:
        return batch
    if is_case_sensitive:
        other = next(one for one, name in zip(batch.schema.names, names, strict=True) if one != name)
        text = f"a message has no such column, with {CASE_SENSITIVE}; it has {', '.join(COLUMNS)}: drop or rename it"
        raise BadRowsError(f"{other}: {text}")
    return batch.rename_columns(names)


def shares(batch: pa.RecordBatch, streams: Mapping[str, StreamInfo], default: str) -> Iterator[Share]:
    """Split a batch by stream and partition, with the log's columns. Raise BadRowsError if a row is invalid."""
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
    """Return the names of the streams that a batch has rows for, each once, sorted."""
    topics = _topics(batch, default)
    return [default] if topics is None else sorted(pc.unique(topics).to_pylist())


def _topics(batch: pa.RecordBatch, default: str) -> pa.Array | None:
    """Return each row's stream: an empty or null topic is the default. None if there is no column `topic`."""
    if "topic" not in batch.schema.names:
        return None
    given = batch.column("topic")
    return pc.if_else(pc.fill_null(pc.equal(given, ""), True), default, given)


def _by_stream(batch: pa.RecordBatch, default: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    topics = _topics(batch, default)
    names = streams_of(batch, default)
    if topics is None or len(names) == 1:
        yield from ((name, batch) for name in names)
        return
    for name in names:
        yield name, batch.filter(pc.equal(topics, name))


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


def with_valid_headers(rows: pa.RecordBatch, *, drop: bool) -> tuple[pa.RecordBatch, int]:
    """Return the rows with valid headers only, and the number of dropped headers. Raise BadRowsError."""
    if "headers" not in rows.schema.names:
        return rows, 0
    headers, left_out = valid_headers(rows, drop=drop)
    columns = [headers if name == "headers" else rows.column(name) for name in rows.schema.names]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names), left_out


def valid_headers(rows: pa.RecordBatch, *, drop: bool) -> tuple[pa.ListArray, int]:
    """Return the column `headers` with the headers that NATS can carry, and the number of dropped headers.

    Raise BadRowsError, which names the row, if NATS cannot carry a header and `drop` is not set.
    """
    headers = rows.column("headers")
    flat = headers.flatten()
    names, values = flat.field(0).cast(pa.binary()), flat.field(1).cast(pa.binary())
    is_there = flat.is_valid()
    values = pc.if_else(values.is_valid(), values, pa.scalar(b""))
    is_named = pc.fill_null(pc.match_substring_regex(names, _NAME_LINE), False)
    is_whole = pc.invert(pc.match_substring_regex(values, _BROKEN_VALUE))
    kept = pc.and_(is_named, is_whole)
    lengths = np.asarray(headers.value_lengths().fill_null(0), dtype=np.int64)
    owner = np.repeat(np.arange(len(headers)), lengths)
    bad = pc.and_(is_there, pc.invert(kept))
    if not drop and (at := pc.index(bad, True).as_py()) >= 0:
        text = "a header's value may hold no line ends and no bytes of zero"
        what = f"that of {names[at].as_py()!r} is {values[at].as_py()!r}"
        if not is_named[at].as_py():
            text = "a header's name may hold only printable ASCII without spaces and colons"
            what = f"one is {names[at].as_py()!r}"
        raise BadRowsError(f"{text}: {what}, of the row with {_row_text(rows, int(owner[at]))}; {_INVALID_HEADERS}")
    mask = np.asarray(pc.and_(is_there, kept))
    offsets = np.zeros(len(headers) + 1, dtype=np.int32)
    np.cumsum(np.bincount(owner[mask], minlength=len(headers)), out=offsets[1:])
    parts = pa.StructArray.from_arrays([names.filter(pa.array(mask)), values.filter(pa.array(mask))], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(offsets), parts), int(pc.sum(bad).as_py() or 0)


def _row_text(rows: pa.RecordBatch, at: int) -> str:
    """Return a text that identifies a row."""
    names = [name for name in ("topic", "partition", "subject", "key") if name in rows.schema.names]
    found = [f"{name} {one!r}" for name in names if (one := rows.column(name)[at].as_py()) is not None]
    return ", ".join(found) or "neither key nor subject"


def header_blocks(headers: pa.ListArray) -> pa.Array:
    """Encode lists of valid names and values as NATS header blocks; null for an empty or null list."""
    flat = headers.flatten()
    names, values = flat.field(0).cast(pa.binary()), flat.field(1).cast(pa.binary())
    lines = pc.binary_join_element_wise(names, pc.binary_join_element_wise(values, b"", b"\r\n"), b": ")
    lengths = headers.value_lengths().fill_null(0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, lines), b"")
    blocks = pc.binary_join_element_wise(b"NATS/1.0\r\n", joined, b"\r\n", b"")
    return pc.if_else(pc.equal(lengths, 0), pa.scalar(None, pa.binary()), blocks)
