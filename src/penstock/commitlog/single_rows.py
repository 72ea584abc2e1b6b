"""One row of a view, by its offset.

Rules: what is read was verified. Of a large batch in a segment whose blocks have checksums (`block_sums`) only the
blocks of the row are read; any other batch is read as a whole. What does not fit there is no error: the batch is read
as a whole, whose own checksum decides. Files are read: run it in a disk thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError, RemoteError
from penstock.batch.header import BatchHeader
from penstock.batch.picking import PickedRow, RowPicker
from penstock.commitlog.errors import LogCutError
from penstock.commitlog.files.index import BatchExtent
from penstock.commitlog.segment.segment import Segment
from penstock.commitlog.subject_queries import SegmentReplacedError, open_index
from penstock.commitlog.subjects.block_sums import VerifiedBlocks
from penstock.commitlog.view import LogView


class FoundRow(NamedTuple):
    """A row, and the header of its batch."""

    row: PickedRow
    header: BatchHeader


def row_at(view: LogView, offset: int, tell: Callable[[int], None] = lambda _: None) -> FoundRow | None:
    """Return the row at an offset below log_end; None: there is none, or the view hides it.

    `tell` is called with the bytes read. RemoteError as in `LogView.batches`; LogCutError, OSError.
    """
    if view.hidden is not None and offset in view.hidden:
        return None
    found = _picked(view, offset, tell) or _of_whole_batch(view, offset, tell)
    # Later than the read: the cleaner may have left the row blank meanwhile.
    if found is None or found.row.subject is None or offset in (view.hidden_at(offset) or ()):
        return None
    return found


def has_blocks(segment: Segment) -> bool:
    """True if the blocks of a segment have checksums, as far as its subject index was looked into before."""
    return segment.subjects.trailer is not None and segment.subjects.trailer.sum_pages > 0


@contextlib.contextmanager
def picking(view: LogView, segment: Segment, extent: BatchExtent) -> Iterator[tuple[RowPicker, VerifiedBlocks] | None]:
    """Open one batch of a segment that `has_blocks`; None: it cannot be read so.

    A segment that was removed, rewritten or is corrupt ends the block: a read of the whole batch says so. OSError.
    """
    with (
        contextlib.suppress(SegmentReplacedError, LogCutError, RemoteError, CorruptionError, FileNotFoundError),
        open_index(view, segment) as index,
    ):
        if index is None:
            yield None
            return
        file = view.vfs.open(segment.path, read_only=True)
        try:
            blocks = VerifiedBlocks(file, index)
            batch = RowPicker(lambda begin, length: blocks.read(extent.position + begin, length), extent.size_bytes)
            fits = (batch.header.base_offset, batch.header.end_offset) == (extent.base_offset, extent.end_offset)
            yield (batch, blocks) if fits else None
        finally:
            file.close()


def _picked(view: LogView, offset: int, tell: Callable[[int], None]) -> FoundRow | None:
    """Return the row, read block by block; None: read the whole batch."""
    segment = view.segment_of(offset).latest
    if not has_blocks(segment):
        return None
    extent = view.extent_in(segment, offset)
    if extent is None or extent.size_bytes < limits.PICKED_BATCH_BYTES:
        return None
    with picking(view, segment, extent) as opened:
        if opened is not None and (place := opened[0].find(offset)) is not None:
            batch, blocks = opened
            found = FoundRow(batch.row(place), batch.header)
            view.check_not_cut(extent.end_offset)
            tell(blocks.read_bytes)
            return found
    return None


def _of_whole_batch(view: LogView, offset: int, tell: Callable[[int], None]) -> FoundRow | None:
    for header, data in view.as_stored().batches(offset, offset + 1):
        tell(len(data))
        batch = RowPicker.of(data)
        place = batch.find(offset)
        return None if place is None else FoundRow(batch.row(place), header)
    return None
