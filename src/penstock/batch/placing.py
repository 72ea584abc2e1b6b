"""Computes the partition of each row of a batch from its content, in one pass over Arrow's buffers.

| `partition_by`        | decided by                                    |
|-----------------------|-----------------------------------------------|
| `token:N`, `range:N`  | the Nth token of the subject                  |
| `key`, `range`        | the key; without one, the subject             |
| anything else         | the key; without one, the caller              |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.base.partitioning import PartitionBy, PartitionSplit
from penstock.batch import codec
from penstock.batch.keys import without_empty
from penstock.hot.keymap import KeyMap

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa


def by_content(
    split: PartitionSplit,
    key_map: KeyMap,
    rows: int,
    keys: Any,
    subjects: Callable[[], Any],
    keyless: Callable[[], Any],
) -> pa.Int32Array:
    """Return the partition of each row.

    `keys`: a column of bytes with 32-bit value offsets, None if all are null. `subjects` returns a column of text
    without nulls. `keyless` returns the partitions of rows without a key if the subject does not decide.
    """
    import pyarrow.compute as pc

    if keys is not None:
        keys = without_empty(keys)
    if split.token:
        pattern = rf"^(?:[^.]*\.){{{split.token - 1}}}(?P<token>[^.]*)"
        tokens = pc.extract_regex(subjects(), pattern)
        return placed(pc.fill_null(pc.struct_field(tokens, "token"), ""), key_map, rows)
    if keys is not None and not keys.null_count:
        return placed(keys, key_map, rows)
    by_subject = split.how in (PartitionBy.KEY, PartitionBy.RANGE)
    found = placed(subjects(), key_map, rows) if by_subject else keyless()
    if keys is not None:
        found = pc.if_else(keys.is_valid(), placed(keys, key_map, rows), found)
    return found


def placed(column: Any, key_map: KeyMap, rows: int) -> pa.Int32Array:
    """Return the partition of each value of a column, with null as empty bytes. `column` None: all null."""
    import pyarrow as pa

    if column is None:
        return pa.repeat(pa.scalar(key_map.partition_of(b""), pa.int32()), rows)
    packed = codec.var_column(column.fill_null(b"") if column.null_count else column)  # a null may cover bytes
    found = key_map.partitions_of(packed.data, packed.offsets)
    return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(found)])
