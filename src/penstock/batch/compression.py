"""Arrow's own body compression: each buffer of a message separately, in a message with the usual layout.

Rules: lengths from untrusted bytes are bounded before anything is decompressed: each must match the rows where these
determine it, and the total must not exceed that of a plain message. The caller checks the decompressed rows, as it does
for plain ones.

    compressed buffer    | int64: uncompressed bytes, -1: stored as is | bytes, compressed or not | padding |

Theory: Arrow's own reader decompresses, because it makes sure that each buffer is complete. `pyarrow.Codec` leaves that
to its caller, who gets no error for LZ4: memory that a frame does not fill stays uninitialised.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from penstock.base import limits
from penstock.base.config import Compression
from penstock.base.errors import CorruptionError
from penstock.batch import layout
from penstock.batch.header import COMPRESSED_LZ4, COMPRESSED_ZSTD, COMPRESSION_FLAGS, BatchHeader
from penstock.batch.schema import arrow_schema
from penstock.hot.columns import VarColumn

if TYPE_CHECKING:
    import pyarrow as pa

FLAGS = {Compression.NONE: 0, Compression.LZ4: COMPRESSED_LZ4, Compression.ZSTD: COMPRESSED_ZSTD}
"""Header flags of each compression."""

_AS_IT_IS = -1
_PREFIX_BYTES = layout.INT64.size


def template(flags: int) -> bytes:
    """Return the metadata template of a message with these flags."""
    return layout.TEMPLATES[(flags & COMPRESSION_FLAGS) // COMPRESSED_LZ4]


def is_compressed(data: bytes | bytearray | memoryview) -> bool:
    """True if a verified message is compressed."""
    return data[layout.COMPRESSION_FIELD_POSITION] != 0


def of(header: BatchHeader) -> Compression:
    """Return the compression of a batch."""
    flags = header.flags & COMPRESSION_FLAGS
    return next((one for one, its_flags in FLAGS.items() if its_flags == flags), Compression.NONE)


def packed(buffers: Sequence[memoryview], compression: Compression) -> list[bytes] | None:
    """Compress each buffer for a compressed message; return None if they do not shrink by COMPRESSION_SAVING in total.

    A buffer that does not shrink by that much is stored uncompressed behind its prefix.
    """
    codec = _codec(compression)
    parts = []
    size_bytes = limit = 0
    for buffer in buffers:
        limit += layout.padded(len(buffer))
        part = b""
        if buffer:
            content = codec.compress(buffer, asbytes=True)
            if _is_worth_it(len(content), len(buffer)):
                part = layout.INT64.pack(len(buffer)) + content
            else:
                part = layout.INT64.pack(_AS_IT_IS) + bytes(buffer)
        parts.append(part)
        size_bytes += layout.padded(len(part))
    return parts if _is_worth_it(size_bytes + layout.BODY_POSITION, limit + layout.BODY_POSITION) else None


def _is_worth_it(size_bytes: int, plain_bytes: int) -> bool:
    return size_bytes <= plain_bytes - plain_bytes // limits.COMPRESSION_SAVING


@cache
def _codec(compression: Compression) -> Any:
    import pyarrow as pa

    return pa.Codec(compression.value)


def unpacked(
    data: bytes | bytearray | memoryview, header: BatchHeader, *, file: str, position: int
) -> tuple[memoryview, memoryview, list[VarColumn]]:
    """Decompress a verified message into offsets, timestamps and the columns of bytes.

    CorruptionError (with `file` and `position`, for the report) if a length does not match the rows, the total exceeds
    the limit of a message, or decompression fails.
    """
    import pyarrow as pa

    lengths = _lengths(data, header)
    if isinstance(lengths, str):
        raise CorruptionError(file, position, "compressed buffers that unpack to what the rows want", lengths)
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), arrow_schema())
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptionError(file, position, "compressed buffers that unpack", str(error)) from None
    buffers = [buffer for column in batch.columns for buffer in column.buffers()]
    views = [_view(buffer, length) for buffer, length in zip(buffers, lengths, strict=True)]
    nulls = layout.NODES.unpack_from(data, layout.NODES_POSITION)[5::2]
    columns = [VarColumn(count, *views[4 + 3 * number : 7 + 3 * number]) for number, count in enumerate(nulls)]
    return views[1], views[3], columns


def _view(buffer: pa.Buffer | None, length: int) -> memoryview:
    if buffer is None or not length:
        return memoryview(b"")
    view = memoryview(buffer).cast("B")
    assert len(view) >= length, (len(view), length)
    return view[:length]


def _lengths(data: bytes | bytearray | memoryview, header: BatchHeader) -> list[int] | str:
    """Return the declared size of each buffer if all are plausible, otherwise the error as text."""
    body = memoryview(data)[layout.BODY_POSITION :].cast("B")
    places = layout.BUFFERS.unpack_from(data, layout.BUFFERS_POSITION)
    wanted = _wanted(data, header.count)
    lengths = []
    room = limits.BATCH_BYTES_MAX - layout.BODY_POSITION
    for number, (begin, size, exact) in enumerate(zip(places[::2], places[1::2], wanted, strict=True)):
        length = 0
        if size:
            if size <= _PREFIX_BYTES:
                return f"{size} bytes for buffer {number}"
            (length,) = layout.INT64.unpack_from(body, begin)
            if length == _AS_IT_IS:
                length = size - _PREFIX_BYTES
            elif length <= 0:
                return f"{length} bytes out of buffer {number}"
        if exact is not None and length != exact:
            return f"{length} bytes out of buffer {number}, which has {exact}"
        room -= layout.padded(length)
        if room < 0:
            return f"more than {limits.BATCH_BYTES_MAX} bytes"
        lengths.append(length)
    return lengths


def _wanted(data: bytes | bytearray | memoryview, count: int) -> list[int | None]:
    """Return the required size of each buffer for `count` rows; None: not determined by the number of rows."""
    wanted: list[int | None] = [0, 8 * count, 0, 8 * count]
    for nulls in layout.NODES.unpack_from(data, layout.NODES_POSITION)[5::2]:
        wanted += ((count + 7) // 8 if nulls else 0, 4 * (count + 1), None)
    return wanted
