"""From what a caller has (Arrow, pandas, Polars, dicts) to batch messages that a broker takes.

| column    | types taken                     | where it is missing                                         |
|-----------|---------------------------------|-------------------------------------------------------------|
| `value`   | binary or text; null: tombstone | refused, since that would append nothing but tombstones      |
| `subject` | text, never null                | the stream's own subject, if that has no wildcard             |
| `key`     | binary or text                  | no keys                                                     |
| `headers` | binary: the NATS header block   | no headers; a dict in a list of dicts is written as a block  |

`offset`, `timestamp` and `partition`, as a reader yields them, are left out: the broker gives new ones. Any other
column is refused.
Where there are no rows nothing is appended, and no column is missing.
"""

from __future__ import annotations

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
_NO_VALUE = "the column 'value' is missing; to append tombstones, give it with nulls"
_BATCH_OVERHEAD_BYTES = 64 * limits.KIB  # header, metadata and padding of one batch message, generously


def to_table(data: Any, *, stream_subject: str) -> pa.Table:
    """`data` as subject, key, value and headers in the log's types; ValueError or TypeError if it cannot be."""
    import pyarrow as pa

    table = _as_arrow(data)
    _check_names(table.column_names)
    if len(set(table.column_names)) != len(table.column_names):
        raise ValueError(f"a column is there twice: {', '.join(table.column_names)}")
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
    return pa.table(columns)


def _check_names(names: Iterable[object]) -> None:
    unknown = [str(name) for name in names if name not in _WRITTEN and name not in _IGNORED]
    if unknown:
        raise ValueError(f"unknown columns {', '.join(unknown)}; an append takes {', '.join(_WRITTEN)}")


def _as_arrow(data: Any) -> pa.Table:
    import pyarrow as pa

    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, Sequence) and not isinstance(data, str | bytes | bytearray):
        return _from_dicts(data)
    if hasattr(data, "__arrow_c_stream__"):  # Polars, DuckDB, pandas, …
        return pa.table(data)
    if hasattr(data, "columns") and hasattr(data, "dtypes"):
        return pa.Table.from_pandas(data, preserve_index=False)
    raise TypeError(f"cannot append {a_kind(data)}: give a pyarrow, pandas or Polars table, or a list of dicts")


def _from_dicts(rows: Sequence[Any]) -> pa.Table:
    import pyarrow as pa

    names: dict[str, None] = {}
    for position, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeError(f"row {position} is {a_kind(row)}, not a dict of {', '.join(_WRITTEN)}")
        names.update(dict.fromkeys(row))
    _check_names(names)  # before their types: a column that is not wanted needs none
    if "value" in names:
        absent = next((position for position, row in enumerate(rows) if "value" not in row), None)
        if absent is not None:
            raise ValueError(f"row {absent} has no 'value'; a tombstone has None")
    columns: dict[str, pa.Array] = {}
    for name in names:
        if name in _IGNORED:
            continue
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
        raise TypeError(
            f"the column {name!r} is {kind}; it must be text or binary (a cast, or JSON, is yours to choose)"
        )
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid as error:
        raise ValueError(f"the column {name!r} cannot be {wanted}: {error}") from None


def decoded(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """A column without its dictionary. Arrow decodes none of views, as a categorical column of Polars has."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        return column
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    kind = plain.get(column.type.value_type, column.type.value_type)
    pieces = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    made = [pa.DictionaryArray.from_arrays(one.indices, one.dictionary.cast(kind)).cast(kind) for one in pieces]
    return pa.chunked_array(made, kind)


def batch_messages(table: pa.Table, *, bytes_max: int, bytes_wanted: int | None = None) -> Iterator[bytearray]:
    """Batch messages of at most `bytes_max` bytes that hold the rows of `to_table`'s table, in order; of no more than
    `bytes_wanted` where a row on its own does not pass that.

    RemoteError (too_large) for a row that does not fit on its own; what was before it has then been yielded.
    """
    for batch in table.to_batches(max_chunksize=limits.BATCH_ROWS_MAX):
        yield from _split(batch, bytes_max, bytes_max if bytes_wanted is None else min(bytes_wanted, bytes_max))


def _split(batch: pa.RecordBatch, bytes_max: int, bytes_wanted: int) -> Iterator[bytearray]:
    # A stack rather than recursion: halves of halves, the first half on top.
    waiting = [batch]
    while waiting:
        part = waiting.pop()
        if part.num_rows == 0:
            continue
        # Offsets and timestamps are added, 8 bytes each per row.
        size = part.nbytes + 16 * part.num_rows + _BATCH_OVERHEAD_BYTES
        if size > bytes_wanted and part.num_rows > 1:
            half = part.num_rows // 2
            waiting += (part.slice(half), part.slice(0, half))
            continue
        message = codec.encode_arrow(part)
        if len(message) > bytes_max:
            text = f"one row needs {len(message)} bytes; an append takes at most {bytes_max}"
            raise RemoteError(ErrorCode.TOO_LARGE, text, size_bytes=len(message), bytes_max=bytes_max)
        yield message
