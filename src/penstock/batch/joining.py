"""Joins several small batch messages into one Arrow batch.

Rules: `gather` verifies layout, CRC-32C, offsets and timestamps; `join` copies the messages and has Arrow check every
value offset and subject of the result once. In a log of single messages each has 720 bytes of metadata: returning them
one by one would dominate a reader's cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.batch.codec import LAYOUT
from penstock.batch.schema import arrow_schema
from penstock.hot.join import BytesColumn, Gathered, Joiner
from penstock.hot.message import MessageChecker

if TYPE_CHECKING:
    import pyarrow as pa

SMALL_MESSAGE_BYTES = 128 * limits.KIB
"""Smaller messages are copied; larger ones are cheaper to return as they are."""

_JOINER = Joiner(LAYOUT, MessageChecker(LAYOUT))


def gather(raw: memoryview, position: int, base_offset: int, wanted: tuple[int, int], rows_max: int) -> Gathered:
    """Return the small, valid messages from `position` on whose offsets follow `base_offset` and lie within `wanted`.

    There may be none: the message that ends them may be large, corrupt, out of order or only partly wanted.
    """
    return _JOINER.gather(
        raw, position, base_offset, wanted, rows_max, limits.COALESCED_BATCH_BYTES_MAX, SMALL_MESSAGE_BYTES
    )


def join(raw: memoryview, gathered: Gathered, *, file: str = "") -> pa.RecordBatch:
    """Copy gathered messages into one Arrow batch; CorruptionError if a row is invalid."""
    joined = _JOINER.join(raw, gathered)
    if isinstance(joined, int):
        raise _wrong_offsets(file, joined)
    columns: list[bytearray | BytesColumn] = [joined.offsets, joined.timestamps, *joined.columns]
    return _checked(columns, arrow_schema(), gathered, file)


def gather_all(raw: memoryview, position: int, base_offset: int, wanted: tuple[int, int]) -> Gathered:
    """Like `gather`, for messages of any size, up to the row limit of one batch."""
    return _JOINER.gather(raw, position, base_offset, wanted, limits.BATCH_ROWS_MAX, len(raw), limits.BATCH_BYTES_MAX)


def join_some(
    raw: memoryview, gathered: Gathered, numbers: tuple[int, ...], schema: pa.Schema, *, file: str = ""
) -> pa.RecordBatch:
    """Like `join`, with only the columns of these numbers, in this order and with this `schema`."""
    columns = _JOINER.join_some(raw, gathered, numbers)
    if isinstance(columns, int):
        raise _wrong_offsets(file, columns)
    return _checked(columns, schema, gathered, file)


def _checked(
    columns: Sequence[bytearray | BytesColumn], schema: pa.Schema, gathered: Gathered, file: str
) -> pa.RecordBatch:
    import pyarrow as pa

    rows = gathered.rows
    arrays = []
    for column_type, column in zip(schema.types, columns, strict=True):
        if isinstance(column, bytearray):
            arrays.append(pa.Array.from_buffers(column_type, rows, [None, pa.py_buffer(column)]))
            continue
        buffers = [
            pa.py_buffer(column.validity) if column.null_count else None,
            pa.py_buffer(column.value_offsets),
            pa.py_buffer(column.data),
        ]
        arrays.append(pa.Array.from_buffers(column_type, rows, buffers, null_count=column.null_count))
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptionError(file, gathered.begins[0], "batches that Arrow can read", str(error)) from None
    return batch


def _wrong_offsets(file: str, position: int) -> CorruptionError:
    return CorruptionError(file, position, "value offsets from 0 to the end of the values", "others")


def last_begin(raw: memoryview) -> int:
    """Return the position of the last message in `raw`, or of the first invalid or incomplete one."""
    return _JOINER.last(raw)
