"""One row of a view, by its offset.

Rules: what is read was verified. Of a large batch in a segment whose blocks have checksums (`block_sums`) only the
blocks of the row are read, and so of one that was read before, where the segment has no such checksums; any other batch
is read as a whole. What does not fit there is no error: the batch is read as a whole, whose own checksum decides. Files
are read: run it in a disk thread, or with a file system that reads only what is cached (`vfs.page_cache`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError, RemoteError
from penstock.batch.header import BatchHeader
from penstock.batch.picking import PickedRow, RowPicker
from penstock.commitlog.errors import LogCutError
from penstock.commitlog.files.index import BatchExtent
from penstock.commitlog.segment.segment import ReadBatch, Segment
from penstock.commitlog.subject_queries import SegmentReplacedError, open_index
from penstock.commitlog.subjects.block_sums import IndexedBlocks, VerifiedBlocks, sums_of
from penstock.commitlog.view import LogView, ReplacedError, extent_of
from penstock.vfs import Buffer

Tell = Callable[[int], None]
"""Is called with a number of bytes."""


class FoundRow(NamedTuple):
    """A row, and the header of its batch."""

    row: PickedRow
    header: BatchHeader


def row_at(view: LogView, offset: int, tell: Tell = lambda _: None) -> FoundRow | None:
    """Return the row at an offset below log_end; None: there is none, or the view hides it.

    `tell` is called with the bytes read. RemoteError as in `LogView.batches`; LogCutError, OSError.
    """
    if view.hidden is not None and offset in view.hidden:
        return None
    segment = view.segment_of(offset).latest
    found: FoundRow | None = None
    if has_blocks(segment):
        extent = view.extent_in(segment, offset)
        if extent is not None and extent.size_bytes >= limits.PICKED_BATCH_BYTES:
            found = _of_indexed(view, segment, extent, offset, tell)
    elif (read := segment.subjects.read_batch_at(offset)) is not None:
        found = _of_read_batch(view, segment, read, offset, tell)
    if found is None:
        found = _of_whole_batch(view, offset, tell)
    # Later than the read: the cleaner may have left the row blank meanwhile.
    if found is None or found.row.subject is None or offset in (view.hidden_at(offset) or ()):
        return None
    return found


def rows_at(view: LogView, offsets: Sequence[int], tell: Tell = lambda _: None) -> Iterator[FoundRow | None]:
    """Yield what `row_at` returns for each offset; they rise. Files are opened once for all rows of a segment.

    Each batch is read as its first row is asked for: a caller that has enough stops.
    """
    for _, group in groupby(offsets, view.segment_of):
        these = [*group]
        done = 0
        if len(these) > 1:
            for found in _of_segment(view, these, tell):
                yield row_at(view, these[done], tell) if found is None else found
                done += 1
        for offset in these[done:]:
            yield row_at(view, offset, tell)


def batches_at(view: LogView, offsets: Sequence[int], bytes_max: int) -> Iterator[tuple[BatchHeader, Buffer]]:
    """Yield the batches of at most `bytes_max` that hold these offsets, which rise, as they are stored.

    What is left out has to be read by `row_at`, which tells why. OSError, ColdError.
    """
    for _, group in groupby(offsets, view.segment_of):
        these = [*group]
        segment = view.segment_of(these[0]).latest
        with (
            contextlib.suppress(ReplacedError, LogCutError, RemoteError, CorruptionError, FileNotFoundError),
            contextlib.closing(view.open_exactly(segment)) as file,
        ):
            extents = view.with_entries_of(
                segment,
                lambda _, entries: [extent_of(entries, one) for one in these],  # noqa: B023
                file,
            )
            for extent in dict.fromkeys(extents):
                if extent is not None and extent.size_bytes <= bytes_max:
                    yield view.read_batch(segment, file, extent)


def _of_segment(view: LogView, offsets: Sequence[int], tell: Tell) -> Iterator[FoundRow | None]:
    """Yield rows of small batches of one segment; None, and what is left out, have to be read one by one."""
    segment = view.segment_of(offsets[0]).latest
    hidden = view.hidden
    with (
        contextlib.suppress(ReplacedError, LogCutError, RemoteError, CorruptionError, FileNotFoundError),
        contextlib.closing(view.open_exactly(segment)) as file,
    ):
        extents = view.with_entries_of(segment, lambda _, entries: [extent_of(entries, one) for one in offsets], file)
        batch: RowPicker | None = None
        for offset, extent in zip(offsets, extents, strict=True):
            is_small = extent is not None and extent.size_bytes < limits.PICKED_BATCH_BYTES
            if extent is None or not is_small or not extent.base_offset <= offset < extent.end_offset:
                yield None
                continue
            if hidden is not None and offset in hidden:
                yield None
                continue
            if batch is None or batch.header.end_offset <= offset:
                _, data = view.read_batch(segment, file, extent)
                tell(len(data))
                batch = RowPicker.of(data)
            row = _row_of(batch, offset)
            # Later than the read: the cleaner may have left the row blank meanwhile.
            is_there = row is not None and row.row.subject is not None
            yield row if is_there and offset not in (view.hidden_in(segment) or ()) else None


def has_blocks(segment: Segment) -> bool:
    """True if the blocks of a segment have checksums, as far as its subject index was looked into before."""
    return segment.subjects.trailer is not None and segment.subjects.trailer.sum_pages > 0


@contextlib.contextmanager
def picking(view: LogView, segment: Segment, extent: BatchExtent) -> Iterator[tuple[RowPicker, VerifiedBlocks] | None]:
    """Open one batch of a segment that `has_blocks`; None: it cannot be read so.

    A segment that was removed, rewritten or is corrupt ends the block: a read of the whole batch says so. OSError.
    """
    is_open = False
    with (
        contextlib.suppress(SegmentReplacedError, LogCutError, RemoteError, CorruptionError, FileNotFoundError),
        _blocks_of(view, segment) as blocks,
    ):
        if blocks is not None:
            batch = RowPicker(lambda begin, length: blocks.read(extent.position + begin, length), extent.size_bytes)
            if _fits(batch, extent):
                is_open = True
                yield batch, blocks
    if not is_open:
        yield None


@contextlib.contextmanager
def _blocks_of(view: LogView, segment: Segment) -> Iterator[VerifiedBlocks | None]:
    """Open a segment whose blocks have checksums in memory, or in its index; None: they have none."""
    sums = None if (kept := segment.subjects.filter) is None else kept.sums
    with contextlib.ExitStack() as stack:
        index = None if sums else stack.enter_context(open_index(view, segment))
        if not sums and index is None:
            yield None
            return
        file = view.vfs.open(segment.path, read_only=True)
        stack.callback(file.close)
        if index is not None:
            yield IndexedBlocks(file, index)
        elif sums:
            yield VerifiedBlocks(file, 0, segment.size_bytes, sums.__getitem__)


def _fits(batch: RowPicker, extent: BatchExtent) -> bool:
    return (batch.header.base_offset, batch.header.end_offset) == (extent.base_offset, extent.end_offset)


def _of_indexed(view: LogView, segment: Segment, extent: BatchExtent, offset: int, tell: Tell) -> FoundRow | None:
    """Return the row, read block by block; None: read the whole batch."""
    found: FoundRow | None = None
    with picking(view, segment, extent) as opened:
        if opened is not None:
            batch, blocks = opened
            row = _row_of(batch, offset)
            tell(blocks.read_bytes)
            view.check_not_cut(extent.end_offset)  # ends the block: the row may be another log's
            found = row
    return found


def _of_read_batch(view: LogView, segment: Segment, read: ReadBatch, offset: int, tell: Tell) -> FoundRow | None:
    """Return the row of a batch that was read before, block by block; None: read the whole batch.

    The log may have been truncated since: then the bytes there are other ones.
    """
    found: FoundRow | None = None
    extent = read.extent
    with contextlib.suppress(CorruptionError, FileNotFoundError):
        file = view.vfs.open(segment.path, read_only=True)
        try:
            blocks = VerifiedBlocks(file, extent.position, extent.size_bytes, read.sums.__getitem__)
            batch = RowPicker(blocks.read, extent.size_bytes)
            found = _row_of(batch, offset) if _fits(batch, extent) else None
        finally:
            file.close()
        view.check_not_cut(extent.end_offset)
        tell(blocks.read_bytes)
    return found


def _row_of(batch: RowPicker, offset: int) -> FoundRow | None:
    place = batch.find(offset)
    return None if place is None else FoundRow(batch.row(place), batch.header)


def _of_whole_batch(view: LogView, offset: int, tell: Tell) -> FoundRow | None:
    for _, data in view.as_stored().batches(offset, offset + 1):
        tell(len(data))
        if len(data) >= limits.PICKED_BATCH_BYTES:
            _remember(view, offset, data)
        return _row_of(RowPicker.of(data), offset)
    return None


def _remember(view: LogView, offset: int, data: Buffer) -> None:
    """Remember the checksums of the blocks of a verified batch, of which single rows are looked up.

    They are right of these bytes wherever they are: if other ones are in that place, the blocks have other checksums.
    """
    segment = view.segment_of(offset).latest
    if has_blocks(segment) or (extent := view.extent_in(segment, offset)) is None or extent.size_bytes != len(data):
        return  # it has others, or the batch came from another file, or compressed
    segment.subjects.remember(ReadBatch(extent, sums_of(data)))
