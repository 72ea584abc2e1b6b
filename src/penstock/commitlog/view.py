"""A snapshot of a log for any thread: lookups, slices and batches.

Rules: a view is immutable, and the log never waits for it. Files are opened by name for one lookup and closed again, so
a kept view costs nothing, and a segment that retention removed meanwhile is reported as out of range. A corrupt index
is rebuilt from its segment on the way, for all views of the log. If the cleaner rewrote a segment, a view continues
with the old file or, once that is removed, with the new one.

A view for readers has the set of hidden rows (`hiding`): `readable`, `batches` and what builds on them leave those out.
`slice` and `replica_range` are bytes as stored.

Theory: offsets, timestamps and positions rise together, so every lookup is two binary searches: over the segments (in
memory), then over the entries of one segment (in its index).
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import NamedTuple, TypeVar

from penstock.base import limits
from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.base.units import format_offsets
from penstock.batch import codec, compression, masking
from penstock.batch.header import BatchHeader
from penstock.commitlog.errors import FileMistake, IndexDamagedError, IndexShortError, LogCutError, mistake_of
from penstock.commitlog.files import files, index
from penstock.commitlog.files.batch_walk import Window
from penstock.commitlog.files.index import (
    ActiveEntries,
    BatchExtent,
    Entries,
    FileEntries,
    IndexHead,
    PackedEntries,
    ResumedEntries,
)
from penstock.commitlog.segment.damage import Damage
from penstock.commitlog.segment.index_check import IndexCheck
from penstock.commitlog.segment.segment import Erased, Segment, live_bytes
from penstock.commitlog.segment.segment_scan import (
    RebuiltIndexes,
    rebuild_entries,
    rebuild_head,
    rebuild_index,
    write_while,
)
from penstock.commitlog.subjects.kept_filters import LogFilters
from penstock.live.row_set import NONE, RowSet
from penstock.vfs import Buffer, File, Vfs
from penstock.vfs.page_cache import CachedVfs, ColdError

_T = TypeVar("_T")
Wants = Callable[[BatchHeader], bool]
NEVER_OFFSET = 2**63  # beyond every offset
_EXTENTS_AT_ONCE = 256  # upper bound: a request for one message reads one extent, and long reads grow to this
_EXTENTS_GROWTH = 16
_base_offset = attrgetter("base_offset")
_last_timestamp_us = attrgetter("last_timestamp_us")


class ViewValidity:
    """Offsets that existing views may still read after a truncation or retention, shared by a log and its views.

    The log lowers the end before it truncates, so a view that then finds a file changed knows that it is no corruption.
    Views from before a truncation are also bound by later ones.
    """

    __slots__ = ("of_later_views", "own_end", "own_start")

    def __init__(self) -> None:
        self.own_end = NEVER_OFFSET
        self.own_start = 0
        self.of_later_views: ViewValidity | None = None

    def cut(self, end_offset: int) -> None:
        """Limit the views: the log is about to be truncated to `end_offset`."""
        self.own_end = end_offset

    def give_up(self, log_start: int) -> None:
        """Limit the views: messages below `log_start` are about to be removed."""
        self.own_start = log_start

    @property
    def start_offset(self) -> int:
        """Offset from which segment files still exist, unless removed by others."""
        start_offset, one = self.own_start, self.of_later_views
        while one is not None:
            start_offset, one = max(start_offset, one.own_start), one.of_later_views
        return start_offset

    def later(self) -> ViewValidity:
        """Return the object for views taken after a truncation."""
        self.of_later_views = ViewValidity()
        return self.of_later_views

    @property
    def end_offset(self) -> int:
        """End of the offsets that a view may still read."""
        end_offset, one = self.own_end, self.of_later_views
        while one is not None:
            end_offset, one = min(end_offset, one.own_end), one.of_later_views
        return end_offset

    @property
    def is_whole(self) -> bool:
        """True if the log was not truncated, so that files are what the views assume."""
        return self.own_end == NEVER_OFFSET


class Slice(NamedTuple):
    """Whole batches of one segment, as a byte range of its file. `base_offset` is the first batch's."""

    path: str
    position: int
    length: int
    base_offset: int
    end_offset: int


class Masked(NamedTuple):
    """Whole batches without their hidden rows, copied. No data: all rows from `base_offset` to `end_offset` are hidden.

    `data` covers these offsets without gaps: a batch covers the ones before it that have no row left.
    """

    data: bytes
    base_offset: int
    end_offset: int

    @property
    def length(self) -> int:
        return len(self.data)


class _IndexFindings(NamedTuple):
    """Result of checking an index file up to a batch and its end. `lacks`: the last entries are missing."""

    mistakes: list[FileMistake]
    lacks: bool
    end_position: int
    end_offset: int


class ReplacedError(Exception):
    """The cleaner rewrote the segment, and the old file is removed."""


class LogView:
    """An immutable snapshot of one log. `on_damage` is called when a read finds corruption; it must be thread-safe.

    Every method may also raise OSError if the disk fails, and LogCutError if the data was truncated meanwhile, or if
    the view is from before a segment was sealed, which is rewritten by now. A slice
    may be truncated while it is sent: the receiver checks each batch.
    """

    __slots__ = (
        "_rebuilt_indexes",
        "_validity",
        "_vfs",
        "filters",
        "hidden",
        "log_end",
        "log_start",
        "on_damage",
        "segments",
        "wrong_indexes",
    )  # fmt: skip

    def __init__(
        self,
        vfs: Vfs,
        segments: tuple[Segment, ...],
        log_start: int,
        log_end: int,
        on_damage: Callable[[Damage], None],
        rebuilt_indexes: RebuiltIndexes,
        validity: ViewValidity,
        filters: LogFilters,
        hidden: RowSet | None = None,
    ) -> None:
        self._vfs = vfs
        self.filters = filters
        self.hidden = hidden  # rows that readers are not shown; None: the view is not for readers, but as stored
        self._rebuilt_indexes = rebuilt_indexes
        self._validity = validity
        self.segments = segments
        self.on_damage = on_damage
        self.log_start = log_start
        self.log_end = log_end
        self.wrong_indexes: list[FileMistake] = []  # errors in index files, which are then rebuilt

    @property
    def vfs(self) -> Vfs:
        """The file system of the log."""
        return self._vfs

    @property
    def is_cached(self) -> bool:
        """True if it reads what is in the page cache only, for an event loop."""
        return isinstance(self._vfs, CachedVfs)

    def starting_at(self, log_start: int) -> LogView:
        """Return the same view with this log_start."""
        return self._with(log_start, self.hidden)

    def hiding(self, hidden: RowSet | None) -> LogView:
        """Return the same view for readers, without these rows."""
        return self._with(self.log_start, hidden or NONE)

    def as_stored(self) -> LogView:
        """Return the same view with all rows, and what the cleaner has left of hidden ones."""
        return self if self.hidden is None else self._with(self.log_start, None)

    def reading(self, vfs: Vfs) -> LogView:
        """Return the same view on the same files through another Vfs."""
        return self._with(self.log_start, self.hidden, vfs)

    def _with(self, log_start: int, hidden: RowSet | None, vfs: Vfs | None = None) -> LogView:
        vfs, on_damage, rebuilt = vfs or self._vfs, self.on_damage, self._rebuilt_indexes
        own = self._validity, self.filters
        return LogView(vfs, self.segments, log_start, self.log_end, on_damage, rebuilt, *own, hidden)

    def bytes_between(self, start: int, end: int) -> int:
        """Return the number of bytes between the batches that hold these offsets. RemoteError as in `slice`."""
        return self._position_of(end) - self._position_of(start)

    def _position_of(self, offset: int) -> int:
        if offset == self.log_end:
            return sum(segment.latest.size_bytes for segment in self.segments)
        number, extent = self.batch_at(offset)
        return sum(segment.latest.size_bytes for segment in self.segments[:number]) + extent.position

    def slice(self, offset: int, *, end: int, bytes_max: int, wanted_end: int = NEVER_OFFSET) -> Slice | None:
        """Return whole batches, the first one holding `offset`, the last one ending at or before `end`; at most
        `bytes_max` bytes, but at least one batch. None if there is nothing (yet) between `offset` and `end`.

        None of them begins at or behind `wanted_end`, except for the first one.
        RemoteError: offset_out_of_range (details log_start, log_end), corrupt_range (file, position, base_offset,
        end_offset).
        """
        if offset < self.log_start or offset > self.log_end:
            raise self._out_of_range(offset)
        if offset >= min(end, self.log_end):
            return None
        self.check_not_cut(offset + 1)
        end = min(end, self._validity.end_offset)
        segment = self.segment_of(offset)
        return self._with_entries(
            segment, lambda one, entries: self._cut(one, entries, offset, end, bytes_max, wanted_end)
        )

    def readable(self, offset: int, *, end: int, bytes_max: int) -> Slice | Masked | None:
        """As `slice`, without hidden rows: a byte range where there are none, and copies of batches where there are.

        Where all rows from `offset` on are hidden, the answer is what they cover; a reader goes on behind it.
        """
        hidden = self.hidden
        if hidden is None or offset < self.log_start or offset >= min(end, self.log_end):
            return self.slice(offset, end=end, bytes_max=bytes_max)
        begin = min(hidden.first_absent(offset), end, self.log_end)
        found = None if begin == end else self.slice(begin, end=end, bytes_max=bytes_max)
        if found is None or found.base_offset > offset:
            return Masked(b"", offset, begin if found is None else found.base_offset) if begin > offset else None
        if self.shows_all(found):
            return found
        first = hidden.first_present(begin)
        whole = self.slice(begin, end=min(end, first or end), bytes_max=bytes_max)
        if whole is not None and whole.length >= limits.MASKED_BYTES_MAX and self.shows_all(whole):
            return whole
        return self._masked(found, offset, begin, end, bytes_max)

    def shows_all(self, found: Slice) -> bool:
        """True if no row of a slice is hidden, so that its bytes can be sent as they are."""
        hidden = self.hidden
        if hidden is None:
            return True
        segment: Segment | None = self.segment_of(found.base_offset)
        while segment is not None and segment.path != found.path:
            segment = segment.successor
        if segment is not None and (erased := segment.erased) is not None:
            more = self._more_than(erased, segment)
            hidden = erased.covers if not more else hidden if more > 0 else hidden | erased.covers
        return not hidden.any_in(found.base_offset, found.end_offset)

    def _more_than(self, erased: Erased, segment: Segment) -> int:
        """Return how many rows of a segment the view hides more than were hidden when its file was written.

        Below 0: the view is older. Hidden rows only grow, but for those below the log start, which are forgotten: of
        two sets one holds the other.
        """
        assert self.hidden is not None
        begin, end = max(segment.base_offset, self.log_start), segment.end_offset
        return self.hidden.count_in(begin, end) - erased.rows.count_in(begin, end)

    def hidden_in(self, segment: Segment) -> RowSet | None:
        """Return the hidden rows of a segment of this view; None: as stored. Call it once the file is chosen.

        The cleaner may have rewritten the segment since the view was made: what is left of the rows that were hidden
        meanwhile is hidden, too.
        """
        erased = segment.latest.erased
        if self.hidden is None or erased is None or self._more_than(erased, segment) >= 0:
            return self.hidden
        return self.hidden | erased.rows

    def hidden_at(self, offset: int) -> RowSet | None:
        """Return the same for the segment that holds an offset."""
        return self.hidden_in(self.segment_of(offset))

    def _masked(self, found: Slice, offset: int, begin: int, end: int, bytes_max: int) -> Masked | None:
        """Read the batches of a slice that may have hidden rows, from the one that holds `begin` on."""
        assert self.hidden is not None
        parts: list[Buffer] = []
        size_bytes = looked_bytes = 0
        cover, reached, shown_end = min(found.base_offset, offset), begin, offset
        base_offset = cover
        bytes_max = min(bytes_max, limits.MASKED_BYTES_MAX)
        segment = self.segment_of(begin)
        for header, data in self._segment_batches(
            segment, begin, found.end_offset, reverse=False, wants=None, hidden=self.hidden
        ):
            looked_bytes += len(data)
            hidden = self.hidden_in(segment)
            assert hidden is not None
            if not parts and header.base_offset < cover:  # the cleaner has merged batches meanwhile
                cover = base_offset = header.base_offset
            if header.end_offset > end or (parts and size_bytes + len(data) > bytes_max):
                break
            reached = header.end_offset
            if (message := masking.masked(data, header, hidden)) is not None:
                size_bytes += len(message.data)
                if cover != header.base_offset:
                    covering = bytearray(message.data)
                    codec.covering(covering, cover, header.end_offset)
                    parts.append(covering)
                else:
                    parts.append(message.data)
                cover = shown_end = header.end_offset
            if looked_bytes > limits.MASKED_BYTES_MAX:
                break
        else:
            reached = found.end_offset
        # Offsets behind the last row that is shown may be of a later leader epoch, which its batch must not cover.
        if parts:
            return Masked(b"".join(parts), base_offset, shown_end)
        return Masked(b"", offset, reached) if reached > offset else None

    def replica_range(self, offset: int, *, bytes_max: int) -> Slice | None:
        """Return what a replica with log end `offset` lacks: as `slice`, but up to log_end, committed or not.

        A replica's log may begin with the batch that holds log_start, whose earlier rows are then included. RemoteError
        as in `slice`; offset_out_of_range has the detail `replica_start`, the begin of that batch.
        """
        if self.log_start <= offset <= self.log_end:
            return self.slice(offset, end=self.log_end, bytes_max=bytes_max)
        first = self.batch_at(self.log_start)[1].base_offset if self.log_start < self.log_end else self.log_start
        if not first <= offset < self.log_start:
            error = self._out_of_range(offset)
            error.details["replica_start"] = first
            raise error
        return self.slice(self.log_start, end=self.log_end, bytes_max=bytes_max)

    def batch_at(self, offset: int) -> tuple[int, BatchExtent]:
        """Return the number of the segment that holds `offset`, and its batch's place. RemoteError as in `slice`."""
        if not self.log_start <= offset < self.log_end:
            raise self._out_of_range(offset)
        number = self._number_of(offset)
        segment = self.segments[number]
        extent = self._with_entries(segment, lambda _, entries: extent_of(entries, offset))
        if extent is None or extent.end_offset <= offset:
            raise self.corrupt(segment, offset)
        return number, extent

    def extent_in(self, segment: Segment, offset: int) -> BatchExtent | None:
        """Return the place of the batch with `offset` in exactly this segment; None: it is rewritten or corrupt."""
        try:
            extent = self.with_entries_of(segment, lambda _, entries: extent_of(entries, offset))
        except ReplacedError:
            return None
        return None if segment.damage or extent is None or extent.end_offset <= offset else extent

    def in_memory(self, offset: int) -> bool:
        """Return True if `slice` from `offset` on reads no file; otherwise run it in a disk thread.

        The log's own task may rely on it until the next `Log.flushed`; for other threads it is a guess.
        """
        if not self.log_start <= offset < self.log_end:
            return True
        entries = self.segment_of(offset).entries
        return entries.in_memory(offset) if isinstance(entries, ResumedEntries) else entries is not None

    def offset_at(self, timestamp_us: int, *, end: int) -> int:
        """Return the offset of the first message at or after `timestamp_us`; `end` if there is none before it."""
        return self.first_at(timestamp_us, end=end)[0]

    def first_at(self, timestamp_us: int, *, end: int) -> tuple[int, int | None]:
        """Return the same offset, and its timestamp if its batch had to be read to find it."""
        number = bisect_left(self.segments, timestamp_us, key=_last_timestamp_us)
        if number == len(self.segments):
            return end, None
        segment = self.segments[number]
        offset, found_us = self._with_entries(segment, lambda one, entries: self._first_in(one, entries, timestamp_us))
        clamped = min(max(offset, self.log_start), end)
        return clamped, found_us if clamped == offset != end else None

    def start_keeping(self, bytes_max: int, hidden: RowSet = NONE) -> int:
        """Return the smallest batch base offset from which the log has at most `bytes_max` bytes.

        The share of hidden rows does not count: see `segment.live_bytes`. The newest batch is kept, whatever its size.
        """
        kept = 0
        for segment in reversed([segment.latest for segment in self.segments]):
            base, end = segment.base_offset, segment.end_offset
            size_bytes = live_bytes(segment.size_bytes, base, end, segment.erased, hidden)
            if kept + size_bytes > bytes_max and base < end:
                room = (bytes_max - kept) * segment.size_bytes // size_bytes
                found, newest = self._with_entries(segment, lambda one, entries: _keeping(one, entries, room))  # noqa: B023
                return found if found < self.log_end else newest
            kept += size_bytes
        return self.log_start

    def timestamp_us_at(self, offset: int) -> int | None:
        """Return the first timestamp of the batch that holds `offset`; None if there is none, or it is corrupt."""
        if offset >= self.log_end:
            return None
        segment = self.segment_of(offset)
        extent = self._with_entries(segment, lambda _, entries: extent_of(entries, offset))
        return None if extent is None else extent.min_timestamp_us

    def batches(
        self, start: int, end: int, *, reverse: bool = False, wants: Wants | None = None
    ) -> Iterator[tuple[BatchHeader, Buffer]]:
        """Yield the verified batches that hold offsets from `start` to `end`, as header and bytes, one in memory at a
        time. Compressed batches come uncompressed, with a matching header. Hidden rows are left out.

        With `wants`, yield only batches whose header it accepts, reading no more than the header of the others.
        RemoteError as in `slice`, raised when the iteration gets there.
        """
        if start < self.log_start or end > self.log_end:
            raise self._out_of_range(min(start, end))
        if start >= end:
            return
        first = self._number_of(start)
        last = self._number_of(end - 1)
        numbers = range(last, first - 1, -1) if reverse else range(first, last + 1)
        for number in numbers:
            segment = self.segments[number]
            begin, stop = max(start, segment.base_offset), min(end, segment.end_offset)
            if begin >= stop:
                continue
            if self.hidden is None:
                yield from self._segment_batches(segment, begin, stop, reverse=reverse, wants=wants)
            else:
                yield from self._shown_batches(segment, begin, stop, self.hidden, reverse=reverse, wants=wants)

    def _shown_batches(
        self, segment: Segment, begin: int, stop: int, hidden: RowSet, *, reverse: bool, wants: Wants | None
    ) -> Iterator[tuple[BatchHeader, Buffer]]:
        """Yield the batches without hidden rows, and none that would have no row."""
        if hidden.first_absent(begin) >= stop:
            return
        for header, data in self._segment_batches(segment, begin, stop, reverse=reverse, wants=wants, hidden=hidden):
            now = self.hidden_in(segment)
            assert now is not None
            if not now:
                yield header, data
            elif (message := masking.masked(data, header, now)) is not None:
                yield message.header, message.data

    def check_indexes(self, begin: int, end: int, flushed_end: int) -> None:
        """Check the index files against the batches from `begin` to `end`, which were read and are valid.

        Errors are added to `wrong_indexes`. A wrong index is rebuilt from its segment, and so is one that a sealed
        segment lacks, in part or as a whole, which is no error. No index gets entries of unflushed batches or of a
        corrupt segment.
        """
        end = min(end, flushed_end)
        if begin >= end:
            return
        for number in range(self._number_of(begin), self._number_of(end - 1) + 1):
            segment = self.segments[number].latest
            start, stop = max(begin, segment.base_offset), min(end, segment.end_offset)
            if start < stop and not segment.damage:
                is_sealed = number < len(self.segments) - 1 and segment.end_offset <= flushed_end
                self._check_index(segment, start, stop, is_sealed=is_sealed)

    def _check_index(self, segment: Segment, start: int, stop: int, *, is_sealed: bool) -> None:
        segment, file = self.open_latest(segment)
        try:
            findings = self._compare_index(segment, file, start, stop, is_sealed=is_sealed)
            if findings.mistakes:  # the first read may have met a concurrent write
                findings = self._compare_index(segment, file, start, stop, is_sealed=is_sealed)
            if findings.mistakes or (is_sealed and findings.lacks):
                self._mend_index(segment, file, findings, is_sealed=is_sealed)
            self.wrong_indexes += findings.mistakes
        finally:
            file.close()

    def _compare_index(self, segment: Segment, file: File, start: int, stop: int, *, is_sealed: bool) -> _IndexFindings:
        def first(_: Segment, entries: Entries) -> tuple[int, BatchExtent] | None:
            number = max(0, entries.last_at_or_below(start))
            return (number, entries.extent(number)) if entries.count else None

        found_first = self.with_entries_of(segment, first, file)
        if found_first is None or segment.damage:  # found corrupt just now
            return _IndexFindings([], False, 0, start)
        number, extent = found_first
        position, offset = extent.position, extent.base_offset
        check = IndexCheck(self._vfs, files.index_path(segment.path), number)
        try:
            found: list[FileMistake] = []
            window = Window(file, segment.size_bytes)
            while position < segment.size_bytes and offset < stop:
                header = codec.read_header(window.read(position, codec.PREFIX_BYTES), file=file.path, position=position)
                found += check.batch(position, header)
                position, offset = position + header.size_bytes, header.end_offset
                number += 1
            if is_sealed and offset == segment.end_offset:
                found += check.finish(position, is_last=False)
            elif not check.count:
                found += check.finish(position, is_last=True)  # reports an index that cannot be opened
            return _IndexFindings(found, check.count < number, position, offset)
        except CorruptionError:
            return _IndexFindings([], False, position, offset)  # the batch is corrupt: a reader reports it
        finally:
            check.close()

    def _mend_index(self, segment: Segment, file: File, findings: _IndexFindings, *, is_sealed: bool) -> None:
        end_position = segment.size_bytes if is_sealed else findings.end_position
        end_offset = segment.end_offset if is_sealed else findings.end_offset
        entries, damage = rebuild_entries(
            self._vfs, file, base_offset=segment.base_offset, end_position=end_position, end_offset=end_offset
        )
        if damage:  # an index would hide corruption from the next start; a reader reports it
            return
        write_while(lambda: self.is_still(segment), self._vfs, segment.path, entries, are_last=is_sealed)

    def sound_end(self, found: Slice) -> int:
        """Verify the batches of a slice; return the end offset of the valid ones. Corruption is reported.

        RemoteError corrupt_range if the first batch is corrupt.
        """
        end = found.base_offset
        try:
            for header, _ in self.batches(max(found.base_offset, self.log_start), found.end_offset):
                end = header.end_offset
        except RemoteError as error:
            if error.code != ErrorCode.CORRUPT_RANGE or end == found.base_offset:
                raise
        return end

    def _segment_batches(
        self,
        segment: Segment,
        start: int,
        end: int,
        *,
        reverse: bool,
        wants: Wants | None,
        hidden: RowSet | None = None,
    ) -> Iterator[tuple[BatchHeader, Buffer]]:
        """Yield batches as stored. `hidden`: those are not read whose rows all are in it."""
        # Use one file throughout: a rewrite that replaces it meanwhile has other batches.
        segment, file = self.open_latest(segment)
        at = end if reverse else start
        wanted = 1
        try:
            while (at > start) if reverse else (at < end):
                extents = self.with_entries_of(
                    segment,
                    lambda _, entries: (
                        _extents_before(entries, start, at, wanted)  # noqa: B023
                        if reverse
                        else _extents_from(entries, at, end, wanted)  # noqa: B023
                    ),
                    file,
                )
                wanted = min(wanted * _EXTENTS_GROWTH, _EXTENTS_AT_ONCE)
                # An offset in no extent is lost: in a valid segment, entries cover the offsets without gaps.
                if not extents:
                    raise self.corrupt(segment, at - 1 if reverse else at)
                for extent in extents:
                    covered = extent.end_offset >= at if reverse else extent.base_offset <= at
                    if not covered:
                        raise self.corrupt(segment, at - 1 if reverse else at)
                    is_shown = hidden is None or hidden.first_absent(extent.base_offset) < extent.end_offset
                    if is_shown and (wants is None or _is_wanted(file, extent, wants)):
                        yield self.read_batch(segment, file, extent)
                    at = extent.base_offset if reverse else extent.end_offset
        finally:
            file.close()

    def read_batch(self, segment: Segment, file: File, extent: BatchExtent) -> tuple[BatchHeader, Buffer]:
        """Return one batch of the segment's open file, verified and uncompressed. RemoteError corrupt_range."""
        data = file.read_at(extent.position, extent.size_bytes)
        try:
            header = codec.verify(data, file=segment.path, position=extent.position)
            if header.base_offset != extent.base_offset or header.end_offset != extent.end_offset:
                raise CorruptionError(
                    segment.path, extent.position, f"offset {extent.base_offset}", str(header.base_offset)
                )
            self.check_not_cut(extent.end_offset)  # after a truncation, other batches may be there
            if self.is_cached and compression.is_compressed(data):
                raise ColdError("a batch is unpacked by a disk thread, as that may take long")
            plain = codec.uncompressed(data, file=segment.path, position=extent.position)
        except CorruptionError as error:
            self.check_not_cut(extent.end_offset)
            damage = Damage.of(error, extent.position, extent.base_offset, extent.end_offset)
            if not segment.file_state.is_rewritten:  # otherwise the file is superseded, and its successor was verified
                self.on_damage(damage)
                # With an index, the next start would trust the corrupt batch.
                with contextlib.suppress(OSError):
                    self._vfs.remove(files.index_path(segment.path))
            raise _corrupt_range(damage) from error
        return (header, data) if plain is data else (codec.read_header(plain), plain)

    def _cut(
        self, segment: Segment, entries: Entries, offset: int, end: int, bytes_max: int, wanted_end: int
    ) -> Slice | None:
        number = entries.last_at_or_below(offset)
        first = entries.extent(number) if number >= 0 else None
        if first is None or first.end_offset <= offset or any(damage.holds(offset) for damage in segment.damage):
            raise self.corrupt(segment, offset)
        if first.end_offset > end:
            return None
        limit = first.position + max(bytes_max, first.size_bytes)
        for damage in segment.damage:
            if damage.position > first.position:
                limit = min(limit, damage.position)
        last_number = entries.count - 1
        if wanted_end < segment.end_offset:
            last_number = max(number, entries.last_at_or_below(wanted_end - 1))
        last = entries.extent(last_number)
        if last.end_position > limit:
            last_number = index.last_ending_at_or_below_position(entries, limit, number)
            last = entries.extent(last_number)
        if last.end_offset > end:
            last = entries.extent(min(last_number, index.last_ending_at_or_below(entries, end, number)))
        return Slice(
            segment.path, first.position, last.end_position - first.position, first.base_offset, last.end_offset
        )

    def _first_in(self, segment: Segment, entries: Entries, timestamp_us: int) -> tuple[int, int | None]:
        number = index.first_not_before(entries, timestamp_us)
        if number == entries.count:
            return segment.end_offset, None
        extent = entries.extent(number)
        if extent.min_timestamp_us >= timestamp_us:
            return extent.base_offset, None
        file = self.open_exactly(segment)
        try:
            _, data = self.read_batch(segment, file, extent)
        finally:
            file.close()
        timestamps = codec.timestamps(data)
        row = bisect_left(timestamps, timestamp_us)
        return codec.offsets(data)[row], timestamps[row]

    def _number_of(self, offset: int) -> int:
        return max(0, bisect_right(self.segments, offset, key=_base_offset) - 1)

    def segment_of(self, offset: int) -> Segment:
        """Return the segment that holds an offset, as the view knows it."""
        last = self.segments[-1]
        return last if offset >= last.base_offset else self.segments[self._number_of(offset)]

    def damage_from(self, path: str, position: int, reason: str) -> Damage | None:
        """Return the offsets lost if this file is unreadable from `position` on; None if it is not in the log.

        The segment remembers the corruption. Without a valid index the whole segment counts as lost.
        """
        segment = next((one for one in self.segments if one.path == path), None)
        if segment is None:
            return None
        lost = Damage(path, position, segment.base_offset, segment.end_offset, reason)
        with contextlib.suppress(OSError, IndexDamagedError):
            extent = self._with_sound_entries(segment, lambda _, entries: _extent_across(entries, position))
            if extent is not None:
                lost = Damage(path, extent.position, extent.base_offset, segment.end_offset, reason)
        if not any(one.position == lost.position for one in segment.damage):
            segment.damage = (*segment.damage, lost)
        return lost

    def _with_entries(self, segment: Segment, use: Callable[[Segment, Entries], _T]) -> _T:
        """Call `use` with the entries of the segment or of its latest rewrite, whichever has a file."""
        while True:
            segment = segment.latest
            try:
                return self.with_entries_of(segment, use)
            except ReplacedError:
                continue

    def with_entries_of(self, segment: Segment, use: Callable[[Segment, Entries], _T], file: File | None = None) -> _T:
        """Call `use` with the entries of exactly this segment, whose file may be open already."""
        try:
            return self._with_sound_entries(segment, use)
        except (FileNotFoundError, IndexDamagedError) as error:
            self.check_not_cut(segment.end_offset)
            if isinstance(error, IndexDamagedError) and not isinstance(error, IndexShortError):
                self.wrong_indexes.append(mistake_of(error))
            if not isinstance(resumed := segment.entries, ResumedEntries):
                return use(segment, self._rebuilt_indexes.entries(segment.path, lambda: self._rebuild(segment, file)))
            self._rebuild_head(segment, resumed.head)
            with resumed.opened(self._vfs, segment.path) as entries:
                return use(segment, entries)

    def _with_sound_entries(self, segment: Segment, use: Callable[[Segment, Entries], _T]) -> _T:
        # Read the attribute once: the log's task clears it as soon as the index file has the entries.
        if isinstance(entries := segment.entries, ResumedEntries):
            with entries.opened(self._vfs, segment.path) as joined:
                return use(segment, joined)
        if entries is None and (kept := segment.subjects.filter) is not None:
            entries = kept.entries
        if entries is not None:
            return use(segment, entries)
        file = self._vfs.open(files.index_path(segment.path), read_only=True)
        try:
            return use(segment, FileEntries(file, end_position=segment.size_bytes, end_offset=segment.end_offset))
        finally:
            file.close()

    def entries_to_keep(self, segment: Segment) -> ActiveEntries | None:
        """Return a sealed segment's entries in memory; None if they are many, there already, or in error. OSError."""
        try:
            return self._with_sound_entries(
                segment,
                lambda _, entries: (
                    entries.in_memory()
                    if isinstance(entries, FileEntries) and entries.count <= limits.KEPT_ENTRIES_MAX
                    else None
                ),
            )
        except (FileNotFoundError, IndexDamagedError):
            return None  # a look-up rebuilds them

    def _rebuild(self, segment: Segment, opened: File | None) -> PackedEntries:
        file = self.open_exactly(segment) if opened is None else opened
        try:
            entries, damage = rebuild_index(self._vfs, file, segment, may_write=lambda: self.is_still(segment))
        finally:
            if opened is None:
                file.close()
        if damage:
            self.check_not_cut(segment.end_offset)
            # An index would hide the corruption from the next start, so none is written; the segment remembers it.
            segment.damage = (*segment.damage, *damage)
            segment.entries = entries
            for one in damage:
                self.on_damage(one)
        return entries

    def _rebuild_head(self, segment: Segment, head: IndexHead) -> None:
        file = self.open_exactly(segment)
        try:
            damage = rebuild_head(self._vfs, file, segment.base_offset, head, may_write=lambda: self.is_still(segment))
        finally:
            file.close()
        if damage:
            self.check_not_cut(segment.end_offset)
        segment.damage = (*segment.damage, *damage)
        for one in damage:
            self.on_damage(one)

    def is_still(self, segment: Segment) -> bool:
        """True if the segment file is unchanged: the log was not truncated, nor the segment rewritten."""
        return self._validity.is_whole and not segment.file_state.is_rewritten

    def check_not_cut(self, end_offset: int) -> None:
        """Raise LogCutError if the log was truncated below this offset: data read there now is not this view's."""
        if end_offset > self._validity.end_offset:
            raise LogCutError("the log was truncated or reset while it was read: read again")

    def open_exactly(self, segment: Segment) -> File:
        """Open the file of this segment. ReplacedError: the cleaner has removed it. RemoteError, LogCutError."""
        try:
            return self._vfs.open(segment.path, read_only=True)
        except FileNotFoundError:
            self.check_not_cut(segment.end_offset)
            if segment.successor is not None:
                raise ReplacedError from None
            if segment.file_state.is_rewritten:  # the view is from before the segment was sealed
                raise LogCutError("the segment was rewritten while it was read: read again") from None
            if segment.end_offset > self._validity.start_offset:  # nothing here removed it
                raise self._lost(segment) from None
            raise RemoteError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the offsets {segment.base_offset} to {segment.end_offset - 1} were removed by retention meanwhile",
                log_start=segment.end_offset,
                log_end=self.log_end,
            ) from None

    def _lost(self, segment: Segment) -> RemoteError:
        """Report a missing segment file: the whole segment is corrupt."""
        lost = Damage(segment.path, 0, segment.base_offset, segment.end_offset, "the segment file is missing")
        segment.damage = (lost,)
        self.on_damage(lost)
        return _corrupt_range(lost)

    def open_latest(self, segment: Segment) -> tuple[Segment, File]:
        """Open the file of the segment or of its latest rewrite, whichever has one, and return both."""
        while True:
            segment = segment.latest
            try:
                return segment, self.open_exactly(segment)
            except ReplacedError:
                continue

    def _out_of_range(self, offset: int) -> RemoteError:
        return RemoteError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is out of range: the log holds the offsets from {self.log_start} up to, but not "
            f"including, {self.log_end}",
            log_start=self.log_start,
            log_end=self.log_end,
        )

    def corrupt(self, segment: Segment, offset: int) -> RemoteError:
        """Return the error for an offset of the segment that no valid batch holds."""
        for damage in segment.damage:
            if damage.holds(offset):
                return _corrupt_range(damage)
        return _corrupt_range(Damage(segment.path, 0, offset, segment.end_offset, "no batch holds this offset"))


def _is_wanted(file: File, extent: BatchExtent, wants: Wants) -> bool:
    """True if `wants` accepts the header; also if the header is invalid, since reading the batch reports the error."""
    try:
        header = codec.read_header(file.read_at(extent.position, codec.PREFIX_BYTES))
    except CorruptionError:
        return True
    return header.base_offset != extent.base_offset or wants(header)


def _keeping(segment: Segment, entries: Entries, room: int) -> tuple[int, int]:
    """Return the base offsets of the first batch from which at most `room` bytes remain, and of the newest batch."""
    # The first batch at or behind this position starts such a rest.
    number = bisect_left(
        range(entries.count), segment.size_bytes - room, key=lambda number: entries.extent(number).position
    )
    found = segment.end_offset if number == entries.count else entries.extent(number).base_offset
    return found, entries.extent(entries.count - 1).base_offset


def _corrupt_range(damage: Damage) -> RemoteError:
    offsets = format_offsets(damage.base_offset, damage.end_offset)
    return RemoteError(
        ErrorCode.CORRUPT_RANGE,
        f"{damage.file} is damaged at byte {damage.position}; offsets that cannot be read: {offsets}; {damage.reason}",
        file=damage.file,
        position=damage.position,
        base_offset=damage.base_offset,
        end_offset=damage.end_offset,
        expected=damage.expected,
        found=damage.found,
    )


# Lookups in the entries of one segment.


def extent_of(entries: Entries, offset: int) -> BatchExtent | None:
    """Return the batch that holds `offset`, or the last one before it; None if there is none."""
    number = entries.last_at_or_below(offset)
    return entries.extent(number) if number >= 0 else None


def _extents_from(entries: Entries, start: int, end: int, wanted: int) -> list[BatchExtent]:
    """Return the first batches, at most `wanted`, that hold offsets from `start` to `end`."""
    first = max(0, entries.last_at_or_below(start))
    found = [entries.extent(number) for number in range(first, min(first + wanted, entries.count))]
    return [extent for extent in found if extent.end_offset > start and extent.base_offset < end]


def _extents_before(entries: Entries, start: int, end: int, wanted: int) -> list[BatchExtent]:
    """Return the last batches, at most `wanted`, that hold offsets from `start` to `end`, in reverse order."""
    last = entries.last_at_or_below(end - 1)
    found = [entries.extent(number) for number in range(last, max(last - wanted, -1), -1)]
    return [extent for extent in found if extent.end_offset > start and extent.base_offset < end]


def _extent_across(entries: Entries, position: int) -> BatchExtent | None:
    """Return the first batch that ends behind `position`."""
    number = index.last_ending_at_or_below_position(entries, position) + 1
    return entries.extent(number) if number < entries.count else None
