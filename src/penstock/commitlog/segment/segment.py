"""Segments: the active one, and the sealed ones before it.

Rules: only the active segment grows, at its end. A sealed one never changes until it is removed as a whole. A flushed
segment costs no open file and no memory per batch: readers open it, and its index, by name.

| kind           | entries of its batches                                    | open file |
|----------------|-----------------------------------------------------------|-----------|
| active         | arrays in memory                                          | yes       |
| active, resumed| its index file; arrays of what was written since          | yes       |
| active, idle   | its index file                                            | no        |
| sealed         | the active one's arrays, until its index file is written  | until then|
| sealed, flushed| its index file                                            | no        |
| corrupt        | in memory, from a scan; gaps where the corruption is      | no        |

The cleaner rewrites a sealed segment under another name. Older views have the old one, whose `successor` is then the
new one: a reader that does not find the old file continues there. A view from before it was sealed has it in part only,
and no successor: its `file_state` says that the file was rewritten, and its reader reads again.
"""

from __future__ import annotations

import contextlib
import errno
from array import array
from bisect import bisect_right
from typing import NamedTuple

from penstock.base import limits
from penstock.batch.header import BatchHeader
from penstock.batch.schema import SCHEMA_BYTES, schema_message
from penstock.commitlog.errors import FileMistake
from penstock.commitlog.files import files
from penstock.commitlog.files.files import LogFolder
from penstock.commitlog.files.index import (
    ENTRY_BYTES,
    ActiveEntries,
    BatchExtent,
    Columns,
    Entries,
    IndexHead,
    PackedEntries,
    ResumedEntries,
)
from penstock.commitlog.segment.damage import Damage
from penstock.commitlog.subjects.blocks import SubjectRows
from penstock.commitlog.subjects.kept_filters import KeptFilter
from penstock.commitlog.subjects.layout import Trailer
from penstock.live.row_set import RowSet
from penstock.vfs import File, Vfs
from penstock.vfs.keys import NoHeaderError


class Erased(NamedTuple):
    """Hidden rows whose content a segment's file does not have: of a set of hidden rows, all in the segment's range."""

    rows: RowSet
    covers: RowSet  # of these, the rows that are there, without content, as nothing else could cover their offsets


def live_bytes(size_bytes: int, begin: int, end: int, erased: Erased | None, hidden: RowSet) -> int:
    """Return the size of a file with the rows from `begin` to `end`, less the share of the hidden rows that it holds.

    An estimate: all its rows count alike.
    """
    gone = 0 if erased is None else erased.rows.count
    rows, held = end - begin - gone, hidden.count_in(begin, end) - gone
    return size_bytes if held <= 0 or rows <= 0 else size_bytes * max(0, rows - held) // rows


class ReadBatch(NamedTuple):
    """A batch of which single rows were looked up: where it is, and the CRC-32C of each of its blocks."""

    extent: BatchExtent
    sums: array[int]


def _base_offset(read: ReadBatch) -> int:
    return read.extent.base_offset


class SubjectMemory:
    """Knowledge of readers by subject about a segment; see `subject_queries`. Each value is replaced as a whole.

    `trailer`: that of its subject index, once it was compared with the segment. `filter`: what is kept of that index.
    `begin`, `end`, `parts` of `summed`: sums of the rows from one offset to another, in no index file. `batches`: large
    ones that were read, by base offset; see `single_rows`. An outdated one costs reading its batch. `gone`: a few
    hidden rows of it, and the sum of those that its file holds. `reads`: how often its rows were read for want of an
    index.
    """

    __slots__ = ("batches", "filter", "gone", "reads", "summed", "trailer")

    def __init__(self) -> None:
        self.trailer: Trailer | None = None
        self.filter: KeptFilter | None = None
        self.reads = 0
        self.summed: tuple[int, int, tuple[SubjectRows, ...]] | None = None
        self.batches: tuple[ReadBatch, ...] = ()
        self.gone: tuple[RowSet, SubjectRows] | None = None

    def forget_index(self) -> None:
        """Forget what was read of the subject index: it is gone, or in error."""
        self.trailer = self.filter = None

    def read_batch_at(self, offset: int) -> ReadBatch | None:
        """Return the batch that holds an offset, if it is among `batches`."""
        batches = self.batches
        number = bisect_right(batches, offset, key=_base_offset) - 1
        return batches[number] if number >= 0 and offset < batches[number].extent.end_offset else None

    def remember(self, read: ReadBatch) -> None:
        """Add to `batches`, in place of outdated ones, up to the limit."""
        extent = read.extent
        others = [
            one
            for one in self.batches
            if one.extent.end_offset <= extent.base_offset or extent.end_offset <= one.extent.base_offset
        ]
        if len(others) < limits.READ_BATCHES_MAX:
            self.batches = tuple(sorted((*others, read), key=_base_offset))


class SegmentRows:
    """Numbers of rows of a segment that were counted before; see `live_counts`. Each value is replaced as a whole.

    `marks`: offsets, with the number of stored rows from the base offset to each. `gaps`: offsets without a stored row,
    from the base offset to an end.
    """

    __slots__ = ("gaps", "marks")

    def __init__(self) -> None:
        self.marks: tuple[tuple[int, int], ...] = ()
        self.gaps: tuple[int, RowSet] | None = None


class FileState:
    """State of a segment's file, shared by the active segment, the sealed one, and all that readers saw of them."""

    __slots__ = ("is_rewritten",)

    def __init__(self) -> None:
        self.is_rewritten = False  # by the cleaner, which is about to remove it


class Segment:
    """One segment as readers see it. Immutable except for `entries`, `damage`, `successor`, `erased`, `subjects` and
    `rows`.

    `entries` None: they are in the index file.
    """

    __slots__ = ("base_offset", "damage", "end_offset", "entries", "erased", "file_state", "last_timestamp_us", "path",
                 "rows", "size_bytes", "subjects", "successor")  # fmt: skip

    def __init__(
        self,
        path: str,
        base_offset: int,
        end_offset: int,
        size_bytes: int,
        last_timestamp_us: int,
        entries: Entries | ResumedEntries | None,
        damage: tuple[Damage, ...] = (),
        subjects: SubjectMemory | None = None,
        file_state: FileState | None = None,
        rows: SegmentRows | None = None,
    ) -> None:
        self.path = path
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.size_bytes = size_bytes
        self.last_timestamp_us = last_timestamp_us
        self.entries = entries
        self.damage = damage
        self.successor: Segment | None = None
        self.erased: Erased | None = None  # None: not known
        self.subjects = SubjectMemory() if subjects is None else subjects
        self.rows = SegmentRows() if rows is None else rows
        self.file_state = FileState() if file_state is None else file_state

    @property
    def latest(self) -> Segment:
        """The latest rewrite of this segment, or itself."""
        one = self
        while one.successor is not None:
            one = one.successor
        return one


Places = list[tuple[int, BatchHeader]]
"""Positions and headers of batches, in order."""


_NO_COLUMNS = Columns.empty()


class ActiveSegment:
    """The segment that is written, with the entries of its batches.

    `file` is None while the log is idle. `head`: the batches whose entries are in the index file only; the others are
    in memory. `places`: the entries not yet in the index file; `places_from` is the number of the first. The latest
    entries reach the columns only on demand, to keep appends fast.
    """

    __slots__ = ("_columns", "_index_count", "base_offset", "count", "file", "file_state", "head", "path", "places",
                 "places_from", "rows", "size_bytes", "subjects")  # fmt: skip

    def __init__(self, path: str, base_offset: int, size_bytes: int, file_state: FileState | None = None) -> None:
        """`file_state`: that of a sealed segment which becomes the active one again."""
        self.file: File | None = None
        self.path = path
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.count = 0
        self.subjects = SubjectMemory()
        self.rows = SegmentRows()
        self.file_state = FileState() if file_state is None else file_state
        self.head: IndexHead | None = None
        self.places: Places = []
        self.places_from = 0
        self._index_count = 0  # contiguous entries in the index file, from the first on
        self._columns = _NO_COLUMNS  # of the entries in memory

    def opened(self, vfs: Vfs) -> File:
        """Return the file, opened for writing on demand; OSError, also if its size was changed by others."""
        if self.file is None:
            file = vfs.open(self.path)
            try:
                if (size := file.size()) != self.size_bytes:
                    raise OSError(errno.ESTALE, f"it has {size} bytes, it was left with {self.size_bytes}", self.path)
            except OSError:
                file.close()
                raise
            self.file = file
        return self.file

    def add(self, header: BatchHeader) -> None:
        """Record the batch just written at the end of the file."""
        self.places.append((self.size_bytes, header))
        self.size_bytes += header.size_bytes
        self.count += 1

    def _fill_columns(self) -> None:
        missing = self.count - (0 if self.head is None else self.head.count) - len(self._columns[0])
        if not missing:
            return
        if self._columns is _NO_COLUMNS:
            self._columns = Columns.empty()
        bases, positions, mins, maxs, rows = self._columns
        places = self.places[-missing:]
        bases.extend([header.base_offset for _, header in places])
        positions.extend([position for position, _ in places])
        mins.extend([header.min_timestamp_us for _, header in places])
        maxs.extend([header.max_timestamp_us for _, header in places])
        rows.extend([header.count for _, header in places])

    def resume(self, head: IndexHead | None, tail: PackedEntries, *, is_indexed: bool) -> None:
        """Record batches that recovery found. `is_indexed`: the index file has all their entries."""
        self.head = head
        if tail.count:
            self._columns = tail.columns()
        self.count = self.places_from = (0 if head is None else head.count) + tail.count
        self._index_count = self.count if is_indexed else 0

    def take_places(self) -> tuple[int, Places]:
        """Return the number of the first entry missing in the index file, and all missing ones; forget them."""
        self._fill_columns()
        taken = self.places_from, self.places
        self.places_from = self.count
        self.places = []
        return taken

    @property
    def is_index_behind(self) -> bool:
        """True if a start after a crash would have more to scan than the limits allow."""
        places = self.places
        return len(places) >= limits.UNINDEXED_BATCHES_MAX or (
            bool(places) and self.size_bytes - places[0][0] >= limits.UNINDEXED_BYTES_MAX
        )

    def indexed(self, count: int) -> None:
        """Record that the index file has the first `count` entries."""
        self._index_count = count

    def trim_index(self, vfs: Vfs) -> FileMistake | None:
        """Truncate the index file beyond the last batch; return what was wrong."""
        path, end_position = files.index_path(self.path), self.count * ENTRY_BYTES
        try:
            file = vfs.open(path)
        except OSError:
            return None  # the check against the batches reports it
        try:
            if (size := file.size()) <= end_position:
                return None
            with contextlib.suppress(OSError):
                file.truncate(end_position)
        finally:
            file.close()
        return FileMistake(path, end_position, None, None, "the end of the file", f"{size - end_position} bytes more")

    def rest(self, end_offset: int, last_timestamp_us: int) -> None:
        """Close the file, which must be synced, and free the entries if the index file has them all."""
        self.close()
        first_timestamp_us = self.first_timestamp_us()
        if first_timestamp_us is not None and self._index_count == self.count:
            self.head = IndexHead(self.count, end_offset, self.size_bytes, first_timestamp_us, last_timestamp_us)
            self._columns = _NO_COLUMNS

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self.file is not None:
            self.file.close()
            self.file = None

    def first_timestamp_us(self) -> int | None:
        """Timestamp of the first message; None while the segment is empty."""
        if self.head is not None:
            return self.head.first_timestamp_us
        if not self.count:
            return None
        mins = self._columns.min_timestamps_us
        return mins[0] if mins else self.places[0][1].min_timestamp_us

    def seen(self, end_offset: int, last_timestamp_us: int, damage: tuple[Damage, ...] = ()) -> Segment:
        """Return the segment as it is now, for readers."""
        self._fill_columns()
        count = self.count if self.head is None else self.count - self.head.count
        tail = ActiveEntries(self._columns, count, end_offset, self.size_bytes)
        entries = tail if self.head is None else ResumedEntries(self.head, tail)
        numbers = self.base_offset, end_offset, self.size_bytes, last_timestamp_us
        return Segment(self.path, *numbers, entries, damage, self.subjects, self.file_state, self.rows)


def clear_the_way(folder: LogFolder, base_offset: int) -> None:
    """Move aside a file that has the new segment's name, unless it is the remains of an earlier attempt. OSError."""
    vfs, path = folder.vfs, folder.segment_path(base_offset)
    try:
        file = vfs.open(path, read_only=True)
    except FileNotFoundError:
        return
    except NoHeaderError:
        vfs.rename(path, files.side_path(vfs, path, 0))
        return
    try:
        is_ours = is_unfinished(file, file.size(), folder)
    finally:
        file.close()
    if not is_ours:
        vfs.rename(path, files.side_path(vfs, path, 0))


def create(folder: LogFolder, base_offset: int, *, make_folders: bool = False) -> ActiveSegment:
    """Create an empty segment file with its schema message, not synced. OSError.

    An existing file of that name is overwritten: call `clear_the_way` first.
    """
    file = folder.vfs.open(folder.segment_path(base_offset), create=True, make_folders=make_folders)
    try:
        file.truncate(0)
        file.write_at(0, schema_message(*folder.ids))
    except OSError:
        file.close()
        raise
    active = ActiveSegment(file.path, base_offset, SCHEMA_BYTES)
    active.file = file
    return active


def is_unfinished(file: File, end_position: int, folder: LogFolder) -> bool:
    """True if the file holds no more than a crash during `create` leaves, of any of its sectors."""
    head = file.read_at(0, min(SCHEMA_BYTES, end_position))
    is_of_schema = all(found in (0, wanted) for found, wanted in zip(head, schema_message(*folder.ids), strict=False))
    return is_of_schema and files.is_zeros(file, SCHEMA_BYTES, end_position)
