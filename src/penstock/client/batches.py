"""From the raw bytes of a response to Arrow batches that can be trusted not to crash their reader.

Rules: no byte reaches pyarrow before `verify` has compared the batch's metadata with the one layout there is and
checked its CRC-32C; then `validate(full=True)` looks at every value offset and every subject, because a CRC only says
that the bytes are those that the sender meant. (Measured on batches of 1,000 and 10,000 messages of 256 bytes: verify
takes 16 and 100 µs, validate 5 and 44 µs.)
Batches follow each other without a hole: each begins where the one before it ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.base.ids import LeaderEpoch
from penstock.batch import codec
from penstock.batch.header import BatchHeader
from penstock.batch.schema import FORMAT_VERSION, arrow_schema
from penstock.client.values import Message
from penstock.hot import row_objects

if TYPE_CHECKING:
    import pyarrow as pa

_MESSAGES_AT_ONCE = 512
_SMALL_BATCH_BYTES = 128 * limits.KIB  # from here on it costs less to hand a batch over than to copy it


class Range(NamedTuple):
    """Offsets, half-open."""

    start: int
    end: int


def check_format(format_version: int) -> None:
    """RemoteError (unsupported_version) if a newer broker sends batches that this client cannot read."""
    if format_version > FORMAT_VERSION:
        raise RemoteError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"the broker sends batches of format {format_version}; this client reads up to {FORMAT_VERSION}: "
            "upgrade it",
            format_version=format_version,
        )


def split(raw: bytes | memoryview, covers: Range, *, source: str) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Each verified batch message in `raw`, which must cover exactly `covers`; CorruptionError names `source`."""
    view = memoryview(raw)
    position = 0
    expected_base = covers.start
    while position < len(view):
        header = codec.read_header(view[position:], file=source, position=position)
        message = view[position : position + header.size_bytes]
        codec.verify(message, file=source, position=position)
        if header.base_offset != expected_base:
            raise CorruptionError(
                source, position, f"a batch from offset {expected_base}", f"from {header.base_offset}"
            )
        yield header, message
        expected_base = header.end_offset
        position += header.size_bytes
    if len(view) and expected_base != covers.end:
        raise CorruptionError(source, position, f"batches up to offset {covers.end}", f"up to {expected_base}")


def last_epoch(raw: bytes | memoryview, *, source: str) -> LeaderEpoch:
    """The leader epoch of the last batch in `raw`, of which only the headers are looked at; CorruptionError."""
    view = memoryview(raw)
    position = leader_epoch = 0
    while position < len(view):
        header = codec.read_header(view[position:], file=source, position=position)
        leader_epoch = header.leader_epoch
        position += header.size_bytes
    return LeaderEpoch(leader_epoch)


def rows(header: BatchHeader, message: memoryview, wanted: Range, *, source: str) -> pa.RecordBatch:
    """The rows of a verified message that lie in `wanted`, without copying; perhaps none."""
    import pyarrow as pa

    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), arrow_schema())
        batch.validate(full=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptionError(source, 0, "a batch that Arrow can read", str(error)) from None
    if wanted.start <= header.base_offset and header.end_offset <= wanted.end:
        return batch
    if header.end_offset - header.base_offset == header.count:  # no gaps: rows can be counted
        first = max(0, wanted.start - header.base_offset)
        end = min(header.count, wanted.end - header.base_offset)
    else:
        offsets = codec.offsets(message)
        first, end = bisect_left(offsets, wanted.start), bisect_left(offsets, wanted.end)
    return batch.slice(first, max(0, end - first))


def coalesce(sized: Iterable[tuple[pa.RecordBatch, int]], rows_max: int) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order: small batches copied together, none above `rows_max` rows, none empty.

    Each batch comes with its size in bytes, which is known where it comes from and slow to ask it for.
    """
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    waiting_rows = waiting_bytes = 0
    for batch, size in sized:
        if waiting and (
            waiting_rows + batch.num_rows > rows_max or waiting_bytes + size > limits.COALESCED_BATCH_BYTES_MAX
        ):
            yield pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]
            waiting, waiting_rows, waiting_bytes = [], 0, 0
        if batch.num_rows <= rows_max and size <= _SMALL_BATCH_BYTES:
            if batch.num_rows:
                waiting.append(batch)
                waiting_rows += batch.num_rows
                waiting_bytes += size
            continue
        if waiting:
            yield pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]
            waiting, waiting_rows, waiting_bytes = [], 0, 0
        for start in range(0, batch.num_rows, rows_max):
            yield batch.slice(start, rows_max)
    if waiting:
        yield pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]


def messages_of(batch: pa.RecordBatch) -> Iterator[Message]:
    """Each row of a batch with the log's six columns."""
    import pyarrow as pa

    columns = (
        batch.column("offset"),
        batch.column("timestamp").cast(pa.int64()),
        *(batch.column(name) for name in ("subject", "key", "value", "headers")),
    )
    # A few at a time: the next ones are then made in the memory, and in the processor's cache, that these leave.
    for first in range(0, batch.num_rows, _MESSAGES_AT_ONCE):
        lists = (column.slice(first, _MESSAGES_AT_ONCE).to_pylist() for column in columns)
        yield from row_objects.rows(Message, *lists)


def one_message(raw: bytes | memoryview, offset: int, *, source: str) -> Message:
    """The message at `offset` of the one batch in `raw`."""
    header = codec.verify(raw, file=source)
    batch = rows(header, memoryview(raw), Range(offset, offset + 1), source=source)
    if batch.num_rows != 1:
        raise CorruptionError(source, 0, f"a batch that holds offset {offset}", f"{batch.num_rows} such rows")
    return next(messages_of(batch))
