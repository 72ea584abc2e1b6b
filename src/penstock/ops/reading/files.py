"""Writes batches to files of other programs: Parquet, CSV, Arrow.

Rules: a file gets its name when it is complete; until then it is `.NAME.part` beside it, and a failure removes that.
Memory holds one row group at most. Columns are those of the log, `partition` if the stream has several, and those of
decoded JSON.

| format        | bytes (key, value)                                     | headers            | structs and lists |
|---------------|--------------------------------------------------------|--------------------|-------------------|
| Parquet, zstd | bytes                                                  | NATS header block  | as they are       |
| Arrow         | bytes                                                  | NATS header block  | as they are       |
| CSV           | text; not UTF-8, or beginning with `base64:`: `base64:`| {"name":["value"]} | JSON              |
|               | and base64; null is empty, the empty text `""`         |                    |                   |

In JSON, also that of CSV, a map is an object at any depth.
"""

from __future__ import annotations

import base64
import errno
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from penstock.client.bulk.ranges import Joining
from penstock.client.read.batches import partition_of
from penstock.client.values import Headers
from penstock.vfs.real import sync_folder_if_possible

if TYPE_CHECKING:
    import pyarrow as pa

_BASE64 = "base64:"
_ROW_GROUP_ROWS = 1 << 20  # or RANGE_BATCH_BYTES_MAX (64 MiB), whichever comes first

_encode = msgspec.json.Encoder(enc_hook=str).encode


@contextmanager
def complete_file(path: Path, *, replace: bool = False) -> Generator[BinaryIO, None, None]:
    """Yield a file that appears as `path`, synced to disk, if the block ends without an error; else it is removed.

    FileExistsError: there is a file, and it is not to be replaced. A device or a pipe is written to directly. A
    symbolic link stays, and the file that it names is written.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        with path.open("wb") as file:
            yield file
        return
    path = Path(os.path.realpath(path))
    _check_free(path, replace=replace)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _check_free(path, replace=replace)
        part.replace(path)
        sync_folder_if_possible(path.parent)
    finally:
        part.unlink(missing_ok=True)


def _check_free(path: Path, *, replace: bool) -> None:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a directory; name a file in it", str(path))
    if path.exists() and not replace:
        raise FileExistsError(errno.EEXIST, "the file exists", str(path))


def plain_schema(schema: pa.Schema, *, has_partition: bool) -> pa.Schema:
    """Return the schema of `plain` batches."""
    import pyarrow as pa

    schema = schema.remove_metadata()
    return schema.append(pa.field("partition", pa.int32(), nullable=False)) if has_partition else schema


def plain(batch: pa.RecordBatch, *, has_partition: bool) -> pa.RecordBatch:
    """Return the batch without metadata; with `has_partition` its partition number is the last column."""
    import pyarrow as pa

    columns = batch.columns
    if has_partition:
        columns = [*columns, pa.repeat(pa.scalar(partition_of(batch) or 0, pa.int32()), batch.num_rows)]
    return pa.RecordBatch.from_arrays(columns, schema=plain_schema(batch.schema, has_partition=has_partition))


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def write_parquet(batches: Iterable[pa.RecordBatch], schema: pa.Schema, out: BinaryIO) -> None:
    """Write a Parquet file; it is valid also without rows."""
    import pyarrow.parquet as pq

    joining = Joining(_ROW_GROUP_ROWS, _ROW_GROUP_ROWS)
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        for batch in batches:
            for group in joining.add(batch):
                writer.write_batch(group)
        for group in joining.end():
            writer.write_batch(group)


def write_arrow(batches: Iterable[pa.RecordBatch], schema: pa.Schema, out: BinaryIO, *, is_stream: bool = True) -> None:
    """Write an Arrow IPC stream, flushed after each batch, or an IPC file (Feather); valid also without rows."""
    import pyarrow as pa

    new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with new(pa.PythonFile(out, mode="w"), schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            out.flush()
    out.flush()


def write_csv(batches: Iterable[pa.RecordBatch], schema: pa.Schema, out: BinaryIO) -> None:
    """Write CSV (RFC 4180, UTF-8, a line of names first), flushed after each batch."""
    import pyarrow as pa
    from pyarrow import csv

    text_schema = pa.schema([pa.field(field.name, _csv_type(field.type)) for field in schema])
    with csv.CSVWriter(out, text_schema) as writer:
        for batch in batches:
            columns = [_csv_column(name, column) for name, column in zip(schema.names, batch.columns, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=text_schema))
            out.flush()
    out.flush()


def values_of(column: pa.Array) -> list[Any]:
    """Return the values of a column as Python's, with maps as dicts at any depth.

    A key that is no text is one as in JSON: `1`, `true`, `{"x":1}`; bytes by the rule of `text_of`. Of equal keys the
    last counts.
    """
    values: list[Any] = column.to_pylist()
    convert = _converter(column.type)
    return values if convert is None else [None if one is None else convert(one) for one in values]


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Return the function that makes dicts of the maps in a value of a type; None: it has none."""
    import pyarrow as pa

    if pa.types.is_map(kind):
        key, item = _converter(kind.key_type), _converter(kind.item_type)
        return lambda pairs: {_key(_in(key, name)): _in(item, one) for name, one in pairs}
    if pa.types.is_struct(kind):
        fields = {field.name: found for field in kind if (found := _converter(field.type)) is not None}
        if not fields:
            return None
        return lambda struct: {name: _in(fields.get(name), one) for name, one in struct.items()}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = _converter(kind.value_type)
        return None if element is None else lambda items: [_in(element, one) for one in items]
    return None


def _in(convert: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    return str(text_of(key)) if isinstance(key, bytes) else _encode(key).decode().strip('"')


def _csv_type(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    return pa.string() if pa.types.is_nested(kind) or _is_bytes(kind) or pa.types.is_null(kind) else kind


def _is_bytes(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _csv_column(name: str, column: pa.Array) -> pa.Array:
    import pyarrow as pa

    if column.type == _csv_type(column.type):
        return column
    if not _is_bytes(column.type):
        return pa.array((None if one is None else _encode(one).decode() for one in values_of(column)), pa.string())
    if name == "headers":
        return pa.array(map(headers_text, column.to_pylist()), pa.string())
    return _texts(column)


def _texts(column: pa.Array) -> pa.Array:
    """Return bytes as text, by the rule of `text_of`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        texts = column.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8
        texts = None
    if texts is None or pc.any(pc.starts_with(texts, _BASE64)).as_py():
        return pa.array(map(text_of, column.to_pylist()), pa.string())
    return texts


def text_of(value: bytes | None) -> str | None:
    """Return UTF-8 as text. Other bytes, and a text that begins so, are `base64:` and their base64."""
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = _BASE64
    return f"{_BASE64}{base64.b64encode(value).decode()}" if text.startswith(_BASE64) else text


def headers_text(block: bytes | None) -> str | None:
    """Return a NATS header block as a JSON object of lists; as `text_of` if it is not UTF-8."""
    if block is None or (text := text_of(block)) is None or text.startswith(_BASE64):
        return text_of(block)
    headers = Headers(block)
    return _encode({name: headers.get_all(name) for name in headers}).decode()
