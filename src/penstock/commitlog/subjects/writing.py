"""Writes a subject index: blocks in order, then filter, directory and trailer.

Rules: the file is complete only with its trailer, so what a crash leaves is no index. Two threads may write the same
file at once, as both write the same bytes; if they did not, its checksums tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.base import limits
from penstock.commitlog.subjects import blocks, layout
from penstock.commitlog.subjects.blocks import SubjectRows
from penstock.commitlog.subjects.layout import BlockPlace, FilterBits, SegmentIdentity, Trailer
from penstock.commitlog.subjects.summing import SubjectSum, cut_to_blocks, joined
from penstock.hot.crc import crc32c
from penstock.hot.subject_filter import BITS_BYTES
from penstock.vfs import File

_PAGE_BITS = 8 * BITS_BYTES
_ROWS_AT_ONCE = 16 * limits.SUBJECT_BLOCK_ROWS


class IndexTooLargeError(ValueError):
    """The segment has more, or longer, subjects than an index can hold."""


def write(file: File, total: SubjectSum, segment: SegmentIdentity, sum_pages: Sequence[bytes] = ()) -> Iterator[int]:
    """Write the index of a segment whose rows are summed up, at least one; yield the bytes written, now and then.

    `sum_pages`: those of `BlockSums`, if its blocks have checksums. OSError; IndexTooLargeError.
    """
    pages = -(-total.subjects_max * limits.SUBJECT_FILTER_BITS // _PAGE_BITS)
    bits = FilterBits(pages)
    file.write_at(0, layout.SCHEMA)
    position, subjects = layout.BLOCKS_POSITION, 0
    places: list[BlockPlace] = []
    firsts: list[bytes] = []
    for rows, first, count in _cut(total.parts()):
        data = blocks.encode(rows, first, count)
        if len(data) > limits.SUBJECT_BLOCK_BYTES_MAX:
            raise IndexTooLargeError(f"{file.path}: a block of {len(data)} bytes")
        file.write_at(position, data)
        bits.add(count, *rows.text(first, count))
        places.append(BlockPlace(position, len(data), count, crc32c(data)))
        firsts.append(rows.subject(first))
        position += len(data)
        subjects += count
        yield len(data)
    directory = layout.pack_directory(places, firsts)
    if len(directory) > limits.SUBJECT_DIRECTORY_BYTES_MAX:
        raise IndexTooLargeError(f"{file.path}: a directory of {len(directory)} bytes")
    numbers = (subjects, total.rows, len(places), pages, len(directory), crc32c(directory))
    trailer = layout.pack_trailer(Trailer(segment, *numbers, 0, len(sum_pages)))
    sums = (layout.with_crc(page, pages + number) for number, page in enumerate(sum_pages))
    tail = (layout.END_OF_STREAM, *map(bits.page, range(pages)), *sums, directory, trailer)
    file.write_at(position, *tail)
    file.truncate(position + sum(map(len, tail)))


def _cut(parts: Iterator[SubjectRows]) -> Iterator[tuple[SubjectRows, int, int]]:
    """Yield the blocks of all parts: rows, the first of them and their number."""
    waiting: list[SubjectRows] = []
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) >= _ROWS_AT_ONCE:
            rows = joined(waiting)
            end = 0
            for first, count in cut_to_blocks(rows):
                if first + count < len(rows):  # the last one may take rows of the next part
                    yield rows, first, count
                    end = first + count
            waiting = [SubjectRows(rows.batch.slice(end))]
    if waiting:
        rows = joined(waiting)
        for first, count in cut_to_blocks(rows):
            yield rows, first, count
