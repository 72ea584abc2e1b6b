"""Decides which batches of a sealed segment the cleaner compresses, and compresses them.

Rules: a batch is compressed once; a change of the configured codec affects only later writes. A batch that gains next
to nothing is marked permanently, so that no later start tries again. Small batches stay plain and unmarked, as they may
be merged later.
"""

from __future__ import annotations

from collections.abc import Generator

from penstock.base import limits
from penstock.base.config import Compression
from penstock.base.errors import CorruptionError
from penstock.batch import codec
from penstock.batch.header import COMPRESSION_FLAGS, BatchHeader
from penstock.batch.schema import SCHEMA_BYTES
from penstock.batch.thinning import SealedMessage
from penstock.commitlog.segment.segment import Segment
from penstock.vfs import Vfs

_HEADERS_AT_ONCE = 1_024


def is_sought(header: BatchHeader) -> bool:
    """True if the batch was never compressed or marked, and is large enough."""
    return not header.flags & COMPRESSION_FLAGS and header.size_bytes >= limits.COMPRESSED_BATCH_BYTES_MIN


def has_sought(vfs: Vfs, segment: Segment) -> Generator[int, None, bool]:
    """Return True if the segment has a batch to compress, by its headers; yield the bytes read now and then.

    OSError.
    """
    position, count = SCHEMA_BYTES, 0
    file = vfs.open(segment.path, read_only=True)
    try:
        while position < segment.size_bytes:
            try:
                header = codec.read_header(file.read_at(position, codec.PREFIX_BYTES))
            except CorruptionError:
                return True  # the rewrite reports the corruption
            if is_sought(header):
                return True
            position += header.size_bytes
            count += 1
            if count % _HEADERS_AT_ONCE == 0:
                yield _HEADERS_AT_ONCE * codec.PREFIX_BYTES
    finally:
        file.close()
    return False


def compressed(message: SealedMessage, wished: Compression) -> SealedMessage:
    """Return the message compressed, or marked as incompressible; unchanged if it is not to be compressed."""
    if wished is Compression.NONE or not is_sought(message.header):
        return message
    return SealedMessage(*codec.compressed(message.data, wished))
