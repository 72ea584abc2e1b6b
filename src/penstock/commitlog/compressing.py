"""Which batches of a sealed segment are to be compressed, and how the cleaner does it.

Rules: a batch is compressed once, and another codec in the config is no reason to do it again: it holds for what is
written from then on. What gains next to nothing is marked, for good, so that nobody tries again after a start. Small
batches stay plain, and unmarked: they may be merged one day.
"""

from __future__ import annotations

from collections.abc import Generator

from penstock.base import limits
from penstock.base.config import Compression
from penstock.base.errors import CorruptionError
from penstock.batch import codec
from penstock.batch.header import COMPRESSION_FLAGS, BatchHeader
from penstock.batch.schema import SCHEMA_BYTES
from penstock.batch.thinning import Message
from penstock.commitlog.segment import Segment
from penstock.vfs import Vfs

_HEADERS_AT_ONCE = 1_024


def is_sought(header: BatchHeader) -> bool:
    """Whether a batch was never compressed, and is large enough."""
    return not header.flags & COMPRESSION_FLAGS and header.size_bytes >= limits.COMPRESSED_BATCH_BYTES_MIN


def has_sought(vfs: Vfs, segment: Segment) -> Generator[int, None, bool]:
    """Whether a segment has such a batch, by the headers; gives after some of them how many bytes it has read.

    OSError.
    """
    position, count = SCHEMA_BYTES, 0
    file = vfs.open(segment.path, read_only=True)
    try:
        while position < segment.size_bytes:
            try:
                header = codec.read_header(file.read_at(position, codec.PREFIX_BYTES))
            except CorruptionError:
                return True  # whoever writes it anew says what is wrong
            if is_sought(header):
                return True
            position += header.size_bytes
            count += 1
            if count % _HEADERS_AT_ONCE == 0:
                yield _HEADERS_AT_ONCE * codec.PREFIX_BYTES
    finally:
        file.close()
    return False


def compressed(message: Message, wished: Compression) -> Message:
    """The same message, compressed or marked if it is to be; else itself."""
    if wished is Compression.NONE or not is_sought(message.header):
        return message
    return Message(*codec.compressed(message.data, wished))
