"""Reads by subject of a view: which parts of it may hold rows whose subjects match, so that the rest is not read.

Rules: only a sealed segment with a sound subject index is skipped, in whole or in part; no index is made here, and no
filter kept, since a reader that passes once gains nothing by it; a filter that look-ups keep is asked. An index knows
the first and the last row of each subject: one or two rows in a segment cost their batches, more cost all batches from
first to last. Hidden rows are in an index like others. Files are read: run it in a disk thread.

Of a large batch only the rows that may match are read, where its segment's blocks have checksums (`block_sums`): one or
two by their offsets, more by the column of subjects. What does not fit is no error: the batch is read as a whole.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError, RemoteError
from penstock.base.subjects import is_wildcard
from penstock.batch.picking import RowPicker
from penstock.batch.projecting import Projection
from penstock.commitlog.errors import LogCutError
from penstock.commitlog.segment.segment import Segment
from penstock.commitlog.single_rows import has_blocks, picking
from penstock.commitlog.subject_queries import SegmentReplacedError, SubjectFilter, may_hold, open_index
from penstock.commitlog.subjects.reading import SubjectIndex, WantedSubjects
from penstock.commitlog.view import LogView

if TYPE_CHECKING:
    import pyarrow as pa

_Range = tuple[int, int]
_base_offset = attrgetter("base_offset")
_end_of_range = itemgetter(1)


class Picked(NamedTuple):
    """All rows of a batch that match, and what the batch covers."""

    rows: pa.RecordBatch
    end_offset: int
    leader_epoch: int
    read_bytes: int


class SubjectRanges:
    """Ranges of offsets outside which no row of a view matches, for a reader that goes forward."""

    def __init__(self, view: LogView, patterns: Sequence[str]) -> None:
        self.looked_segments = 0  # whose indexes were looked into
        self.looked_bytes = 0  # read for that, about
        self._view = view
        self._plain = [one.encode() for one in patterns if not is_wildcard(one)]
        self._wanted = WantedSubjects(self._plain)
        wild = [one for one in patterns if is_wildcard(one)]
        self._wild = SubjectFilter(wild) if wild else None
        self._of: Segment | None = None
        self._indexed: Segment | None = None  # the same or its latest rewrite, if its index says more than "somewhere"
        self._ranges: list[_Range] = []

    def at(self, offset: int) -> _Range:
        """Return a range at or behind `offset`, which is below log_end: rows before it do not match.

        It is empty at the end of a segment without another match; the next call goes on there. OSError.
        """
        segments = self._view.segments
        number = max(0, bisect_right(segments, offset, key=_base_offset) - 1)
        segment = segments[number]
        if number == len(segments) - 1:
            return offset, self._view.log_end
        if segment is not self._of:
            self._of, self._ranges = segment, self._ranges_of(segment)
        place = bisect_right(self._ranges, offset, key=_end_of_range)
        if place == len(self._ranges):
            return segment.end_offset, segment.end_offset
        low, high = self._ranges[place]
        return max(low, offset), high

    def pick(self, offset: int, end: int, projection: Projection) -> Picked | None:
        """Read the matching rows from `offset`, which `at` returned, to `end` of one batch; None: read it as a whole.

        The batch must end at `end` or before. OSError.
        """
        segment = self._indexed
        if segment is None or not has_blocks(segment):
            return None
        extent = self._view.extent_in(segment, offset)
        if extent is None or extent.size_bytes < limits.SUMMED_BATCH_BYTES or extent.end_offset > end:
            return None
        found: Picked | None = None
        with picking(self._view, segment, extent) as opened:
            if opened is not None:
                batch, blocks = opened
                places = self._places(batch, max(offset, extent.base_offset), projection)
                if places is not None:
                    rows = projection.of_rows(batch, places)
                    found = Picked(rows, extent.end_offset, batch.header.leader_epoch, blocks.read_bytes)
        return found

    def _places(self, batch: RowPicker, begin: int, projection: Projection) -> list[int] | None:
        """Return the places of the rows from offset `begin` on that may match; None: it is not worth it."""
        most = batch.header.size_bytes // limits.PICKED_ROW_BYTES
        offsets: list[int] = []
        for number in range(bisect_right(self._ranges, begin, key=_end_of_range), len(self._ranges)):
            low, high = self._ranges[number]
            low, high = max(low, begin), min(high, batch.header.end_offset)
            if low >= high:
                break
            if len(offsets) + high - low > most:
                if batch.subject_bytes > batch.header.size_bytes // limits.PICKED_SUBJECTS_SHARE:
                    return None
                places = [place for place in projection.places(batch) if batch.offset(place) >= begin]
                return places if len(places) <= most else None
            offsets += range(low, high)
        return [batch.place_of(offset) for offset in offsets]

    def _ranges_of(self, segment: Segment) -> list[_Range]:
        self._indexed = None
        latest = segment.latest
        if self._wild is None and not may_hold(latest, self._wanted):
            return []
        self.looked_segments += 1
        found: list[_Range] | None = None
        # If the segment was removed, rewritten or is corrupt, a read of its rows says so.
        with (
            contextlib.suppress(SegmentReplacedError, LogCutError, RemoteError, CorruptionError, FileNotFoundError),
            open_index(self._view, latest) as index,
        ):
            if index is not None and (found := self._matching(index)) is not None:
                self._indexed = latest
        return [(segment.base_offset, segment.end_offset)] if found is None else found

    def _matching(self, index: SubjectIndex) -> list[_Range] | None:
        """Return ranges that hold all matches; None: so many rows match that reading parts is not worth it."""
        most = index.trailer.rows // limits.SKIPPED_ROWS_PER_MATCH
        rows = 0
        ranges: list[_Range] = []
        for count, first, last in self._subjects(index):
            rows += count
            if rows > most:
                return None
            ranges += [(first, first + 1), (last, last + 1)] if count <= 2 else [(first, last + 1)]
        ranges.sort()
        return _union(ranges)

    def _subjects(self, index: SubjectIndex) -> Iterator[tuple[int, int, int]]:
        """Yield number, first and last of the rows of each matching subject."""
        for subject in self._plain:
            if (found := index.find(subject)) is not None:
                self.looked_bytes += limits.SUBJECT_BLOCK_TEXT_BYTES
                yield found[1:]
        if self._wild is not None:
            self.looked_bytes += index.trailer.directory_bytes
            for batch in self._wild.select(index):
                self.looked_bytes += batch.nbytes
                yield from zip(*(column.to_pylist() for column in batch.columns[1:]), strict=True)


def _union(ranges: list[_Range]) -> list[_Range]:
    """Join sorted ranges that touch."""
    joined: list[_Range] = []
    for low, high in ranges:
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return joined
