"""Which partition each row of a table belongs to: the same as a publisher's, in one pass over Arrow's own buffers.

| a row has                        | its partition is                                  |
|----------------------------------|---------------------------------------------------|
| a number in the column `partition` | that one                                        |
| a key                            | XXH64(key, seed 0) mod partitions                 |
| none                             | XXH64(value, seed 0) mod partitions, null as `b""` |

So a row that comes again, with the same key and value, comes into the same partition, whoever asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.batch import codec
from penstock.hot import keyhash

if TYPE_CHECKING:
    import pyarrow as pa


def partitions_of(data: pa.RecordBatch | pa.Table, partitions: int) -> pa.Int32Array:
    """The partition of each row, by its columns `partition`, `key` and `value`; others are not looked at.

    `key` and `value` are binary or text, and may be missing. ValueError: a number in `partition` that is none of the
    stream's; TypeError: a column of another type.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if partitions < 1:
        raise ValueError(f"{partitions} partitions; a stream has at least one")
    keys, values = _binary(data, "key"), _binary(data, "value")
    if keys is None or keys.null_count:
        found = _hashed(values, partitions, data.num_rows)
        if keys is not None and keys.null_count < len(keys):
            found = pc.if_else(keys.is_valid(), _hashed(keys, partitions, data.num_rows), found)
    else:
        found = _hashed(keys, partitions, data.num_rows)
    if "partition" not in data.schema.names:
        return found
    wanted = _one(data.column("partition"))
    if not (pa.types.is_integer(wanted.type) or pa.types.is_null(wanted.type)):
        raise TypeError(f"the column 'partition' is {wanted.type}; it must hold whole numbers")
    if wanted.null_count < len(wanted):
        bounds = pc.min_max(wanted).as_py()
        if bounds["min"] < 0 or bounds["max"] >= partitions:
            text = f"the column 'partition' holds {bounds['min']} to {bounds['max']}"
            raise ValueError(f"{text}; the partitions are 0 to {partitions - 1}")
        found = pc.coalesce(wanted.cast(pa.int32()), found)
    return found


def _one(column: Any) -> Any:
    """A column in one piece."""
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _binary(data: pa.RecordBatch | pa.Table, name: str) -> pa.BinaryArray | None:
    """A column of bytes with 32-bit value offsets; None: there is none, or it is all null."""
    import pyarrow as pa

    if name not in data.schema.names:
        return None
    column = _one(data.column(name))
    kind = column.type
    if column.null_count == len(column):
        return None
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        is_other_text = pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
        is_other_bytes = (
            pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind)
        )
        if not (is_other_text or is_other_bytes):
            raise TypeError(f"the column {name!r} is {kind}; it must be text or binary")
        column = column.cast(pa.binary())
    return column


def _hashed(column: pa.BinaryArray | None, partitions: int, rows: int) -> pa.Int32Array:
    import pyarrow as pa

    if column is None:
        return pa.repeat(pa.scalar(keyhash.partition_of(b"", partitions), pa.int32()), rows)
    packed = codec.var_column(column.fill_null(b"") if column.null_count else column)  # bytes may lie under a null
    found = keyhash.partitions_of(packed.data, packed.offsets, partitions)
    return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(found)])
