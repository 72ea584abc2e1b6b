"""The batches of one sealed segment, merged as far as they can be, or of some the headers only: what the cleaner reads.

Rules: memory is bounded by one merged batch and what it is made of, whatever the size of the segment. All is verified.
What is damaged ends it, and the log hears of it as from any reader.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator

from penstock.base import limits
from penstock.base.errors import CorruptionError, PenstockError
from penstock.batch import codec
from penstock.batch.codec import PREFIX_BYTES, read_header
from penstock.batch.header import COMPRESSION_FLAGS, BatchHeader
from penstock.batch.merging import Merged, next_merged
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog.scan import Window
from penstock.commitlog.segment import Segment
from penstock.commitlog.view import LogView
from penstock.vfs import File, Vfs


class UnsoundError(Exception):
    """The segment cannot be read to its end, or is no more to be cleaned."""


def merged_batches(
    vfs: Vfs, segment: Segment, view: LogView, bytes_max: int, *, unpacked: bool = True
) -> Iterator[Merged]:
    """All of them; `bytes_max` is of the rows of one. `view` is of the log, and has the segment. `unpacked`: as they
    were before a cleaner compressed them; else those that are compressed come as they are, and are not merged.

    UnsoundError where the segment is damaged; OSError.
    """
    position, offset = SCHEMA_BYTES, segment.base_offset
    source = vfs.open(segment.path, read_only=True)
    try:
        while position < segment.size_bytes:
            raw = memoryview(_window(source, position, segment.size_bytes))
            try:
                merged = next_merged(raw, offset, rows_max=limits.MERGED_ROWS_MAX, bytes_max=bytes_max)
                if unpacked and merged.header.flags & COMPRESSION_FLAGS:
                    data = codec.as_appended(merged.data)
                    merged = merged._replace(data=data, header=codec.read_header(data))
            except CorruptionError as error:
                tell(segment, view)
                raise UnsoundError from error
            position += merged.size_bytes
            offset = merged.header.end_offset
            yield merged
    finally:
        source.close()
    if offset != segment.end_offset:
        tell(segment, view)
        raise UnsoundError


def flagged_batches(
    vfs: Vfs, segment: Segment, view: LogView, flags: int
) -> Generator[tuple[BatchHeader, bytes | None], None, None]:
    """All batches, as they lie there; with what is in them, unpacked, where they have one of these flags. Of the others
    no more than the header is read. `view` is of the log, and has the segment.

    UnsoundError where the segment is damaged; OSError.
    """
    source = vfs.open(segment.path, read_only=True)
    try:
        yield from _flagged(source, segment, flags)
    except CorruptionError as error:
        tell(segment, view)
        raise UnsoundError from error
    finally:
        source.close()


def _flagged(source: File, segment: Segment, flags: int) -> Iterator[tuple[BatchHeader, bytes | None]]:
    window = Window(source, segment.size_bytes)
    position, offset = SCHEMA_BYTES, segment.base_offset
    while position < segment.size_bytes:
        header = read_header(window.read(position, PREFIX_BYTES), file=segment.path, position=position)
        if header.base_offset != offset:
            raise CorruptionError(segment.path, position, f"offset {offset}", str(header.base_offset))
        data = None
        if header.flags & flags:
            data = window.read(position, header.size_bytes)
            codec.verify(data, file=segment.path, position=position)
            if header.flags & COMPRESSION_FLAGS:
                data = bytes(codec.as_appended(data))
        yield header, data
        position += header.size_bytes
        offset = header.end_offset
    if (position, offset) != (segment.size_bytes, segment.end_offset):
        raise CorruptionError(segment.path, position, f"offset {segment.end_offset}", str(offset))


def _window(source: File, position: int, size_bytes: int) -> bytes:
    """What one merged batch may be made of, from `position` on, if all are like the first one; that one at least."""
    rest = size_bytes - position
    try:
        first = read_header(source.read_at(position, PREFIX_BYTES))
    except CorruptionError:  # whoever reads it says what is wrong
        return source.read_at(position, min(limits.CLEANING_WINDOW_BYTES, rest))
    wanted = min(first.size_bytes * -(-limits.MERGED_ROWS_MAX // first.count), limits.CLEANING_WINDOW_BYTES)
    return source.read_at(position, min(max(first.size_bytes, wanted), rest))


def tell(segment: Segment, view: LogView) -> None:
    """Have the log hear of the damage, as from any reader."""
    with contextlib.suppress(PenstockError, OSError):
        for _ in view.batches(max(segment.base_offset, view.log_start), segment.end_offset):
            pass
