"""Convert the caller's data (Arrow, pandas, Polars, dicts) to batch messages that a broker accepts.

| column    | types taken                     | where it is missing                                         |
|-----------|---------------------------------|-------------------------------------------------------------|
| `value`   | binary or text; null: tombstone | refused, since that would append nothing but tombstones     |
| `subject` | text, never null                | the stream's own subject, if that has no wildcard           |
| `key`     | binary or text                  | no keys                                                     |
| `headers` | binary: the NATS header block   | no headers; a dict in a list of dicts is encoded as a block |

`offset`, `timestamp` and `partition` of a table, as a reader yields them, are dropped: the broker assigns new ones. In
a dict they are dropped if it has both of the first two; else they are refused like any unknown column. Rows that were
read may hold invalid header blocks, because nats-server does not check them. The index of a pandas DataFrame is not a
column. Without rows nothing is appended and no column is required.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.subjects import is_wildcard
from penstock.batch import codec
from penstock.client.publish_format import a_kind
from penstock.client.values import encode_headers

if TYPE_CHECKING:
    import pyarrow as pa

_WRITTEN = ("subject", "key", "value", "headers")
_IGNORED = ("offset", "timestamp", "partition")
_OF_A_READER = frozenset(("offset", "timestamp"))  # a row with both comes from a reader
_WANTED = "give a pyarrow, pandas or Polars table, or a list of dicts"
_NO_VALUE = "the column 'value' is missing; to append tombstones, give it with nulls"
_VERSION, _BLOCK_END = b"NATS/1.0", b"\r\n\r\n"  # begin (a status may follow) and end of a header block
_EXAMPLE = b"NATS/1.0\r\nName: value\r\n\r\n"
_SHOWN_BYTES = 80
_BATCH_OVERHEAD_BYTES = 64 * limits.KIB  # header, metadata and padding of one batch message: an upper bound


def to_table(data: Any, *, stream_subject: str) -> pa.Table:
    """Return `data` as subject, key, value and headers in the log's types. ValueError or TypeError if impossible."""
    table = as_arrow(data)
    return log_rows(table, stream_subject=stream_subject, were_read=were_read(data, table))


def log_rows(table: pa.Table, *, stream_subject: str, were_read: bool) -> pa.Table:
    """Return the rows of `as_arrow` as `to_table` does. `were_read`: their headers are not validated."""
    import pyarrow as pa

    _check_names(table.column_names)
    if len(set(table.column_names)) != len(table.column_names):
        raise ValueError(f"a column occurs twice: {', '.join(table.column_names)}")
    if table.num_rows == 0:
        return pa.table({name: pa.array([], pa.utf8() if name == "subject" else pa.binary()) for name in _WRITTEN})
    if "value" not in table.column_names:
        raise ValueError(_NO_VALUE)
    if "subject" not in table.column_names:
        if is_wildcard(stream_subject):
            text = f"the column 'subject' is missing, and the stream's subject {stream_subject!r} is a pattern"
            raise ValueError(f"{text}: say which subject each row has")
        table = table.append_column("subject", pa.array([stream_subject] * table.num_rows, pa.utf8()))
    columns = {name: _cast(table, name, pa.utf8() if name == "subject" else pa.binary()) for name in _WRITTEN}
    if columns["subject"].null_count:
        raise ValueError("the column 'subject' holds nulls; each row needs a subject")
    if not were_read:
        columns["headers"] = _header_blocks(columns["headers"])
    return pa.table(columns)


def were_read(data: Any, table: pa.Table) -> bool:
    """True if a reader yielded these rows."""
    if isinstance(data, Sequence):
        return all(row.keys() >= _OF_A_READER for row in data)
    return set(table.column_names) >= _OF_A_READER


def _check_names(names: Iterable[object]) -> None:
    unknown = [str(name) for name in names if name not in _WRITTEN and name not in _IGNORED]
    if unknown:
        raise ValueError(_unknown(unknown))


def _unknown(names: Sequence[str]) -> str:
    return f"unknown columns {', '.join(names)}; an append takes {', '.join(_WRITTEN)}"


def as_arrow(data: Any) -> pa.Table:
    """Return the caller's rows as a table, in the caller's types. TypeError or ValueError if they are no rows."""
    import pyarrow as pa

    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Sequence) and not isinstance(data, str | bytes | bytearray):
        return _from_dicts(data)
    if (advice := _advice(data)) is not None:
        raise TypeError(f"cannot append {advice}")
    try:
        if _is_pandas(data):  # first: read as an Arrow stream, its index would be a column
            return _from_pandas(data)
        if hasattr(data, "__arrow_c_stream__"):  # Polars, DuckDB, …
            return pa.table(data)
        if hasattr(data, "columns") and hasattr(data, "dtypes"):  # pandas-like
            return _from_pandas(data)
    except pa.ArrowException as error:
        raise TypeError(f"cannot append {a_kind(data)}: {'; '.join(map(str, error.args))}") from None
    raise TypeError(f"cannot append {a_kind(data)}: {_WANTED}")


def _is_pandas(data: object) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def _from_pandas(data: Any) -> pa.Table:
    import pyarrow as pa

    _check_names(data.columns)  # before the types: an unwanted column needs no valid type
    if len(data) and "value" not in data.columns and "value" in data.index.names:
        raise ValueError(f"{_NO_VALUE}; here it is the index; make it a column with .reset_index()")
    return pa.Table.from_pandas(data, preserve_index=False)


def _advice(data: object) -> str | None:
    """Return advice for data that has no rows yet or is not a table; None if it may be a table."""
    import pyarrow as pa

    kind = type(data)
    if kind.__module__.startswith("pyspark."):
        return f'{a_kind(data)} of Spark: write it with .write.format("penstock"), or give .toPandas() or .toArrow()'
    for name, also in (("collect", "collect_schema"), ("to_table", "scanner"), ("compute", "dtypes")):
        if hasattr(kind, name) and hasattr(kind, also):  # lazy: Polars, an Arrow dataset, Dask
            return f"{a_kind(data)}: call .{name}() first"
    if isinstance(data, Iterator) and not hasattr(data, "__arrow_c_stream__"):
        return f"{a_kind(data)}: give list(…) of it, or of its next thousands of rows"
    if isinstance(data, Mapping):
        return f"{a_kind(data)}: give [row] for one row, or pyarrow.table(…) for columns"
    if isinstance(data, pa.Array | pa.ChunkedArray) or kind.__name__ == "Series":
        return f"{a_kind(data)}: it is one column, not a table; give a table with a column 'value'"
    return None


def _from_dicts(rows: Sequence[Any]) -> pa.Table:
    import pyarrow as pa

    names: dict[str, None] = {}
    for position, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeError(f"row {position} is {a_kind(row)}, not a dict of {', '.join(_WRITTEN)}")
        taken = (*_WRITTEN, *_IGNORED) if row.keys() >= _OF_A_READER else _WRITTEN
        if unknown := [str(name) for name in row if name not in taken]:
            raise ValueError(f"row {position}: {_unknown(unknown)}")
        names.update(dict.fromkeys(name for name in row if name in _WRITTEN))
    if "value" in names:
        absent = next((position for position, row in enumerate(rows) if "value" not in row), None)
        if absent is not None:
            raise ValueError(f"row {absent} has no 'value'; a tombstone has None")
    columns: dict[str, pa.Array] = {}
    for name in names:
        values = [_bytes_of(position, name, row.get(name)) for position, row in enumerate(rows)]
        columns[name] = pa.array(values, pa.binary())
    if rows and not columns:  # as a table it would have no rows
        raise ValueError(_NO_VALUE)
    return pa.table(columns)


def _bytes_of(position: int, name: str, value: Any) -> bytes | None:
    match value:
        case None:
            return None
        case bytes():
            return value
        case str():
            return value.encode()
        case bytearray() | memoryview():
            return bytes(value)
        case Mapping() if name == "headers":
            return encode_headers(value)
    raise TypeError(f"row {position}: {name!r} is {a_kind(value)}; give bytes, text or None")


def _cast(table: pa.Table, name: str, wanted: pa.DataType) -> pa.ChunkedArray:
    import pyarrow as pa

    if name not in table.column_names:
        return pa.chunked_array([pa.nulls(table.num_rows, wanted)])
    column = decoded(table.column(name))
    kind = column.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    is_binary = (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
    if not (is_text or is_binary or pa.types.is_null(kind)):
        advice = "it must be text or binary (a cast, or JSON, is yours to choose)"
        if name == "headers":
            advice = "it must be binary, NATS header blocks; a list of dicts takes dicts for headers"
        raise TypeError(f"the column {name!r} is {kind}; {advice}")
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid as error:
        raise ValueError(f"the column {name!r} cannot be {wanted}: {error}") from None


def _header_blocks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Validate header blocks and return them, empty ones as null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.null_count == len(column):
        return column
    column = pc.if_else(pc.equal(column, pa.scalar(b"", pa.binary())), pa.scalar(None, pa.binary()), column)
    is_block = pc.and_(pc.starts_with(column, _VERSION), pc.ends_with(column, _BLOCK_END))
    row = pc.index(is_block, pa.scalar(False)).as_py()
    if row >= 0:
        text = f"row {row}: 'headers' is {column[row].as_py()[:_SHOWN_BYTES]!r}, no NATS header block"
        raise ValueError(f"{text}; give a dict, or a block such as {_EXAMPLE!r}")
    return column


def decoded(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column without dictionary encoding. Arrow cannot decode views, which Polars uses for categoricals."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        return column
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    kind = plain.get(column.type.value_type, column.type.value_type)
    pieces = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    made = [pa.DictionaryArray.from_arrays(one.indices, one.dictionary.cast(kind)).cast(kind) for one in pieces]
    return pa.chunked_array(made, kind)


def batch_messages(table: pa.Table, *, bytes_max: int, bytes_wanted: int | None = None) -> Iterator[bytearray]:
    """Yield batch messages with the rows of `to_table`'s table, in order, each of at most `bytes_max` bytes.

    A message exceeds `bytes_wanted` only if it has a single row.
    RemoteError (too_large) for a row that does not fit on its own; the rows before it have then been yielded.
    """
    for batch in table.to_batches(max_chunksize=limits.BATCH_ROWS_MAX):
        yield from _split(batch, bytes_max, bytes_max if bytes_wanted is None else min(bytes_wanted, bytes_max))


def check_row_sizes(table: pa.Table, bytes_max: int) -> None:
    """Raise RemoteError (too_large) if `batch_messages` would, for a row that does not fit on its own."""
    if table.nbytes <= bytes_max // 2:  # metadata and padding of a row are less than the rest
        return
    for batch in table.to_batches(max_chunksize=limits.BATCH_ROWS_MAX):
        for part in _parts(batch, bytes_max):
            if part.num_rows == 1 and _size_bytes(part) > bytes_max // 2:
                _message(part, bytes_max)


def _split(batch: pa.RecordBatch, bytes_max: int, bytes_wanted: int) -> Iterator[bytearray]:
    for part in _parts(batch, bytes_wanted):
        yield _message(part, bytes_max)


def _size_bytes(part: pa.RecordBatch) -> int:
    # Offsets and timestamps are added later, 8 bytes each per row.
    return int(part.nbytes + 16 * part.num_rows + _BATCH_OVERHEAD_BYTES)


def _message(part: pa.RecordBatch, bytes_max: int) -> bytearray:
    message = codec.encode_arrow(part)
    if len(message) > bytes_max:
        text = f"one row needs {len(message)} bytes; an append takes at most {bytes_max}"
        raise RemoteError(ErrorCode.TOO_LARGE, text, size_bytes=len(message), bytes_max=bytes_max)
    return message


def _parts(batch: pa.RecordBatch, bytes_wanted: int) -> Iterator[pa.RecordBatch]:
    # A stack instead of recursion: halves of halves, the first half on top.
    waiting = [batch]
    while waiting:
        part = waiting.pop()
        if part.num_rows == 0:
            continue
        if _size_bytes(part) > bytes_wanted and part.num_rows > 1:
            half = part.num_rows // 2
            waiting += (part.slice(half), part.slice(0, half))
            continue
        yield part
