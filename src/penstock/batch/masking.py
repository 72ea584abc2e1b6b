"""Masking: takes hidden rows out of messages on their way to readers.

Rules: rows keep their offsets and timestamps, and a message the offsets that it covers; it gets a header and a CRC-32C
of its own. A message without a hidden row is returned as it is. Rows are compared with the set of hidden ones as bits,
many at a time; only where a message has gaps, chunk by chunk.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from penstock.batch import codec
from penstock.batch.codec import Buffer
from penstock.batch.header import BatchHeader
from penstock.batch.thinning import SealedMessage, message_of
from penstock.live.row_set import RowSet

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK = 1 << 16
_FEW = 16  # rows of a chunk that are looked up one by one


def shown(offsets: pa.Int64Array, hidden: RowSet) -> pa.BooleanArray | None:
    """Return, per row, True if it is not hidden; None: no row is. The offsets rise and have no nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(offsets)
    if not count:
        return None
    first, end = offsets[0].as_py(), offsets[-1].as_py() + 1
    if not hidden.any_in(first, end):
        return None
    if end - first == count:
        return pc.invert(_bits(hidden, first, end))
    numbers = memoryview(offsets.buffers()[1]).cast("B").cast("q")[offsets.offset : offsets.offset + count]
    parts: list[pa.BooleanArray] = []
    row = 0
    while row < count:
        chunk = numbers[row] - numbers[row] % _CHUNK
        stop = bisect_left(numbers, chunk + _CHUNK, row)
        if stop - row <= _FEW:
            parts.append(pa.array([one in hidden for one in numbers[row:stop]], pa.bool_()))
        else:
            places = pc.subtract(offsets.slice(row, stop - row), pa.scalar(chunk, pa.int64()))
            parts.append(_bits(hidden, chunk, chunk + _CHUNK).take(places))
        row = stop
    found = pc.invert(pa.concat_arrays(parts))
    return found if found.false_count else None


def _bits(hidden: RowSet, begin: int, end: int) -> pa.BooleanArray:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.bool_(), end - begin, [None, pa.py_buffer(hidden.bits(begin, end))])


def shown_of(data: Buffer, hidden: RowSet) -> pa.BooleanArray | None:
    """Return the same for the rows of a verified, plain message."""
    import pyarrow as pa

    offsets = codec.offsets(data)
    return shown(pa.Array.from_buffers(pa.int64(), len(offsets), [None, pa.py_buffer(offsets)]), hidden)


def masked(data: Buffer, header: BatchHeader, hidden: RowSet) -> SealedMessage | None:
    """Return a verified, plain message without its hidden rows; None if no row is left. CorruptionError."""
    if (keep := shown_of(data, hidden)) is None:
        return SealedMessage(data, header)
    if not keep.true_count:
        return None
    return message_of(codec.check_rows(data).filter(keep), header, (header.base_offset, header.end_offset))
