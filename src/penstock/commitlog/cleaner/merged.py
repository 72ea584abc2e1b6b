"""Reads the batches of a sealed segment for the cleaner: merged as far as possible, or only some beyond their headers.

Rules: memory is bounded by one merged batch and its sources, whatever the size of the segment. All batches are
verified. Corruption ends the iteration and is reported to the log as by any reader.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator

from penstock.base import limits
from penstock.base.errors import CorruptionError, PenstockError
from penstock.batch import codec
from penstock.batch.codec import PREFIX_BYTES, read_header
from penstock.batch.header import COMPRESSION_FLAGS, BatchHeader
from penstock.batch.merging import Merged, next_merged
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog.files.batch_walk import Window
from penstock.commitlog.segment.segment import Segment
from penstock.commitlog.view import LogView
from penstock.vfs import File, Vfs


class UnsoundError(Exception):
    """The segment cannot be read to its end, or is not to be cleaned any more."""


def merged_batches(
    vfs: Vfs, segment: Segment, view: LogView, bytes_max: int, *, unpacked: bool = True
) -> Iterator[Merged]:
    """Yield all batches, merged up to `bytes_max` bytes of rows. `view`: a view of the log that has the segment.
    `unpacked`: return compressed batches uncompressed; otherwise they come as they are and are not merged.

    UnsoundError if the segment is corrupt; OSError.
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
                report_damage(segment, view)
                raise UnsoundError from error
            position += merged.size_bytes
            offset = merged.header.end_offset
            yield merged
    finally:
        source.close()
    if offset != segment.end_offset:
        report_damage(segment, view)
        raise UnsoundError


def wanted_batches(
    vfs: Vfs, segment: Segment, view: LogView, wants: Callable[[BatchHeader], bool]
) -> Generator[tuple[BatchHeader, bytes | None], None, None]:
    """Yield all batches as stored; the uncompressed content only of those that are wanted. Of the others only the
    header is read. `view`: a view of the log that has the segment.

    UnsoundError if the segment is corrupt; OSError.
    """
    source = vfs.open(segment.path, read_only=True)
    try:
        yield from _wanted(source, segment, wants)
    except CorruptionError as error:
        report_damage(segment, view)
        raise UnsoundError from error
    finally:
        source.close()


def _wanted(
    source: File, segment: Segment, wants: Callable[[BatchHeader], bool]
) -> Iterator[tuple[BatchHeader, bytes | None]]:
    window = Window(source, segment.size_bytes)
    position, offset = SCHEMA_BYTES, segment.base_offset
    while position < segment.size_bytes:
        header = read_header(window.read(position, PREFIX_BYTES), file=segment.path, position=position)
        if header.base_offset != offset:
            raise CorruptionError(segment.path, position, f"offset {offset}", str(header.base_offset))
        data = None
        if wants(header):
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
    """Read enough bytes for one merged batch if all batches resemble the first one; at least that one."""
    rest = size_bytes - position
    try:
        first = read_header(source.read_at(position, PREFIX_BYTES))
    except CorruptionError:  # the verification reports the error
        return source.read_at(position, min(limits.CLEANING_WINDOW_BYTES, rest))
    wanted = min(first.size_bytes * -(-limits.MERGED_ROWS_MAX // first.count), limits.CLEANING_WINDOW_BYTES)
    return source.read_at(position, min(max(first.size_bytes, wanted), rest))


def report_damage(segment: Segment, view: LogView) -> None:
    """Report the corruption to the log by reading the segment as any reader does."""
    with contextlib.suppress(PenstockError, OSError):
        for _ in view.batches(max(segment.base_offset, view.log_start), segment.end_offset):
            pass
