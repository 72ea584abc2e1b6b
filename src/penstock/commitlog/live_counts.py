"""Counts of the live rows of a view: exact, and without a walk over all batches.

Rules: a row is live if it is stored, from log_start on and below `end`, and no mark hides it. Rows that compaction has
removed are not stored; a row without content that only covers offsets is hidden. Each segment remembers what was
counted (`SegmentRows`): a sealed segment is summed up once by its index, later counts add only what is new.

    live rows = stored rows - hidden rows that are stored

Where a segment has gaps, because rows left its file, and hidden rows, it must be known which rows are gone: all of them
are hidden if the cleaner has noted so (`Erased`), otherwise the batches with gaps are read, once. A count reads at most
ROW_COUNT_BYTES_MAX of them; the next one goes on from there. Run it in a disk thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from penstock.base import limits
from penstock.batch import codec
from penstock.commitlog.files.index import BatchExtent, Entries
from penstock.commitlog.segment.segment import Segment
from penstock.commitlog.view import LogView, ReplacedError
from penstock.live.row_set import NONE, RowSet
from penstock.vfs import Buffer, File

_T = TypeVar("_T")


class TooManyRowsError(Exception):
    """More than ROW_COUNT_BYTES_MAX would have to be read; the next count goes on from there."""


class LiveState(NamedTuple):
    """The live rows of a log. `size_bytes`: of the batches from log_start on, as this replica stores them.

    `deleted`: offsets between the first and the last one that have no live row. `live_bytes`: `size_bytes` without the
    share of the hidden rows that are still in the files; an estimate: all rows count alike.
    """

    rows: int
    size_bytes: int
    deleted: int = 0
    first_offset: int | None = None  # None: there is no live row
    first_us: int | None = None
    last_offset: int | None = None
    last_us: int | None = None
    live_bytes: int = 0


class LiveCounts:
    """Counts the live rows of one view up to `end`. `tell` is called with the bytes read.

    RemoteError corrupt_range, TooManyRowsError, LogCutError, OSError.
    """

    def __init__(self, view: LogView, end: int, tell: Callable[[int], None] = lambda _: None) -> None:
        assert view.log_start <= end <= view.log_end, (view.log_start, end, view.log_end)
        self._view = view
        self._end = end
        self._tell = tell
        self._read_bytes = 0

    def state(self) -> LiveState:
        """Return the counts, and the first and the last live row."""
        view, end = self._view, self._end
        rows, size_bytes = self.rows(), 0 if view.log_start == end else view.bytes_between(view.log_start, end)
        if not rows:
            return LiveState(0, size_bytes)
        hidden = NONE if view.hidden is None else view.hidden
        begin = hidden.first_absent(view.log_start)
        first_offset, first_us = self._edge(begin, end, is_last=False)
        last_offset, last_us = self._edge(begin, hidden.last_absent(end), is_last=True)
        deleted = last_offset + 1 - first_offset - rows
        live_bytes = size_bytes * rows // self._stored_rows()
        return LiveState(rows, size_bytes, deleted, first_offset, first_us, last_offset, last_us, live_bytes)

    def _edge(self, begin: int, end: int, *, is_last: bool) -> tuple[int, int]:
        """Return the first or last live row between two offsets, of which there is one."""
        for _, data in self._view.batches(begin, end, reverse=is_last):
            self._tell(len(data))
            offsets = codec.offsets(data)
            row = bisect_left(offsets, end) - 1 if is_last else bisect_left(offsets, begin)
            if 0 <= row < len(offsets) and begin <= offsets[row] < end:
                return offsets[row], codec.timestamps(data)[row]
        raise AssertionError((begin, end))

    def rows(self) -> int:
        """Return the number of live rows."""
        return sum(self._rows_of(*piece) for piece in self._pieces())

    def _stored_rows(self) -> int:
        """Return the number of rows in the files, the hidden ones included."""
        return sum(
            _retried(segment, lambda one: self._stored(one, begin, stop))  # noqa: B023
            for segment, begin, stop in self._pieces()
        )

    def gone(self) -> RowSet:
        """Return the offsets without a live row between log_start and the end."""
        view = self._view
        found = NONE if view.hidden is None else view.hidden.between(view.log_start, self._end)
        for segment, begin, stop in self._pieces():
            found |= _retried(segment, lambda one: self._gaps(one, begin, stop))  # noqa: B023
        return found

    def _pieces(self) -> Iterator[tuple[Segment, int, int]]:
        view = self._view
        for segment in view.segments:
            begin, stop = max(view.log_start, segment.base_offset), min(self._end, segment.end_offset)
            if begin < stop:
                yield segment, begin, stop

    def _rows_of(self, segment: Segment, begin: int, stop: int) -> int:
        stored = _retried(segment, lambda one: self._stored(one, begin, stop))
        hidden = self._view.hidden
        if hidden is None or not (covered := hidden.count_in(begin, stop)):
            return stored
        if stored == stop - begin:
            return stored - covered
        gaps = _retried(segment, lambda one: self._gaps(one, begin, stop))
        return stop - begin - (gaps | hidden.between(begin, stop)).count

    # Stored rows.

    def _stored(self, segment: Segment, begin: int, stop: int) -> int:
        """Return the number of stored rows between two offsets of a segment."""
        if segment.damage:
            raise self._view.corrupt(segment, max(begin, segment.damage[0].base_offset))
        low, high = self._rows_before(segment, begin), self._rows_before(segment, stop)
        segment.rows.marks = ((begin, low), (stop, high))
        return high - low

    def _rows_before(self, segment: Segment, offset: int) -> int:
        known = ((segment.base_offset, 0), *segment.rows.marks)
        at, rows = min(known, key=lambda mark: abs(offset - mark[0]))
        if offset > at:
            return rows + self._counted(segment, at, offset)
        return rows - self._counted(segment, offset, at) if offset < at else rows

    def _counted(self, segment: Segment, begin: int, stop: int) -> int:
        """Count the stored rows between two offsets by the segment's entries; batches that are cut may be read."""

        def of_entries(_: Segment, entries: Entries) -> tuple[int, list[tuple[BatchExtent, int]]]:
            first, last = max(0, entries.last_at_or_below(begin)), entries.last_at_or_below(stop - 1)
            counts = entries.rows(first, last + 1)
            return sum(counts), [(entries.extent(number), counts[number - first]) for number in {first, last}]

        rows, edges = self._view.with_entries_of(segment, of_entries)
        for extent, count in edges:
            base, end = extent.base_offset, extent.end_offset
            outside = [(low, high) for low, high in ((base, begin), (stop, end)) if low < high]
            if not outside:
                continue
            if count == end - base:
                rows -= sum(high - low for low, high in outside)
                continue
            offsets = self._offsets(segment, extent)
            rows -= sum(bisect_left(offsets, high) - bisect_left(offsets, low) for low, high in outside)
        return rows

    def _offsets(self, segment: Segment, extent: BatchExtent, file: File | None = None) -> Sequence[int]:
        opened = self._view.open_exactly(segment) if file is None else file
        try:
            data: Buffer = self._view.read_batch(segment, opened, extent)[1]
        finally:
            if file is None:
                opened.close()
        self._tell(len(data))
        self._read_bytes += len(data)
        return codec.offsets(data)

    # Gaps.

    def _gaps(self, segment: Segment, begin: int, stop: int) -> RowSet:
        """Return the offsets in a part of a segment that have no stored row, perhaps also some that are hidden."""
        if self._stored(segment, begin, stop) == stop - begin:
            return NONE
        if (erased := segment.erased) is not None:
            whole = self._rows_before(segment, segment.end_offset)
            if segment.end_offset - segment.base_offset - whole == erased.rows.count - erased.covers.count:
                return erased.rows.between(begin, stop)
        end, gaps = segment.rows.gaps or (segment.base_offset, NONE)
        if end < stop:
            gaps = self._read_gaps(segment, end, stop, gaps)
        return gaps.between(begin, stop)

    def _read_gaps(self, segment: Segment, begin: int, stop: int, gaps: RowSet) -> RowSet:
        """Read the batches with gaps; what was found is remembered also if it is too much for one count."""

        def gapped(_: Segment, entries: Entries) -> list[BatchExtent]:
            first, last = max(0, entries.last_at_or_below(begin)), entries.last_at_or_below(stop - 1)
            extents = ((entries.extent(first + at), count) for at, count in enumerate(entries.rows(first, last + 1)))
            return [one for one, count in extents if count != one.end_offset - one.base_offset]

        extents = self._view.with_entries_of(segment, gapped)
        runs: list[tuple[int, int]] = []
        reached = stop
        file = self._view.open_exactly(segment)
        try:
            for extent in extents:
                if self._read_bytes > limits.ROW_COUNT_BYTES_MAX:
                    reached = extent.base_offset
                    break
                at = extent.base_offset
                for offset in self._offsets(segment, extent, file):
                    if offset > at:
                        runs.append((at, offset))
                    at = offset + 1
                if at < extent.end_offset:
                    runs.append((at, extent.end_offset))
        finally:
            file.close()
        gaps = gaps | RowSet.of_runs(runs)
        segment.rows.gaps = reached, gaps
        if reached < stop:
            raise TooManyRowsError
        return gaps


def start_of_newest(view: LogView, end: int, rows: int) -> int:
    """Return the offset from which on the newest `rows` live rows before `end` are; at least `log_start`.

    Run it in a disk thread. RemoteError corrupt_range, LogCutError, OSError.
    """
    while True:
        try:
            gone = LiveCounts(view, end).gone()
            break
        except TooManyRowsError:  # it goes on where it has stopped
            continue
    start = view.log_start
    below, above = start, end  # at or below `below` there are enough, from `above` on too few
    if end - start - gone.count_in(start, end) <= rows:
        return start
    while above - below > 1:
        middle = (below + above) // 2
        if end - middle - gone.count_in(middle, end) >= rows:
            below = middle
        else:
            above = middle
    return below


def _retried(segment: Segment, use: Callable[[Segment], _T]) -> _T:
    """Call `use` with the latest rewrite of a segment, again if it is replaced meanwhile."""
    while True:
        try:
            return use(segment.latest)
        except ReplacedError:
            continue
