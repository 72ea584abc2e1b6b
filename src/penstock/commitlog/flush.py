"""Flush: makes what was appended durable (group commit), and tracks what of a log is not yet synced.

Rules: the log continues while a flush runs, and at most one runs. A failed flush is not retried: after a failed
fdatasync the kernel may have dropped the dirty pages and still report success the next time. So nothing else may make a
flush fail: all files that it syncs are open before their bytes are accepted. Work that only speeds up the next start
(the index, the checkpoint) may fail without consequence. A flush fails if a file was removed or moved under the running
broker: no later start would find its acked rows. Only the log's own task uses `FlushState`; the `Flush` runs in a disk
thread and touches only what it was given.
"""

from __future__ import annotations

import contextlib
import errno
from itertools import islice
from typing import NamedTuple

from penstock.base import limits
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog.errors import IndexDamagedError
from penstock.commitlog.files import files
from penstock.commitlog.files.batch_walk import Walk
from penstock.commitlog.files.checkpoint import CheckpointFile
from penstock.commitlog.files.files import LogFolder
from penstock.commitlog.files.index import ENTRY_BYTES, pack_entries, pack_entry, unpack_entry
from penstock.commitlog.segment.segment import ActiveSegment, Places, Segment
from penstock.vfs import File, Folder, Vfs


class DirtyFile(NamedTuple):
    """A segment that may have unsynced bytes, and the entries that its index lacks.

    `sealed`: the sealed segment as readers see it; its file is closed after the flush. `has_news`: some of its rows
    were never synced; a file without may be removed by retention at any time.
    """

    file: File
    first_entry: int
    places: Places
    sealed: Segment | None
    has_news: bool


class Flush:
    """Makes everything appended before it durable: up to offset `end`, at `end_place`: a segment and a position in it.

    Run it once in a disk thread; then call `Log.flushed` or, with the OSError, `Log.flush_failed`.
    """

    __slots__ = (
        "_checkpoint",
        "_indexes",
        "_lineage",
        "_names",
        "_vfs",
        "dirty",
        "end",
        "end_place",
        "has_looked",
        "indexed",
    )

    def __init__(
        self,
        vfs: Vfs,
        dirty: tuple[DirtyFile, ...],
        *,
        end: int,
        end_place: tuple[int, int],
        lineage: File | None,
        names: Folder | None,
        checkpoint: CheckpointFile | None,
        indexes: bool,
    ) -> None:
        """`lineage` and `names` are open; `run` closes them. `checkpoint`: to be synced last; None: it is not due."""
        self._vfs = vfs
        self.dirty = dirty
        self._lineage = lineage
        self._names = names
        self._checkpoint = checkpoint
        self._indexes = indexes
        self.end = end
        self.end_place = end_place
        self.has_looked = False  # at the names
        self.indexed: frozenset[str] = frozenset()  # paths of segments whose index file is now complete

    def run(self) -> None:
        """Sync. OSError if the disk fails; then the state of all bytes to be flushed is unknown."""
        try:
            self._sync()
        finally:
            for opened in (self._lineage, self._names):
                if opened is not None:
                    opened.close()
        if self._indexes:
            self.indexed = frozenset(dirty.file.path for dirty in self.dirty if self._write_index(dirty))
        if self._checkpoint is not None:
            with contextlib.suppress(OSError):
                self._checkpoint.sync()

    @property
    def only_file(self) -> File | None:
        """The file, if all that `run` does is to sync it and to check its name; None if there is more to do."""
        if len(self.dirty) != 1 or self._lineage is not None or self._names is not None or self._checkpoint is not None:
            return None
        (dirty,) = self.dirty
        is_plain = dirty.sealed is None and not (self._indexes and dirty.places)
        return dirty.file if is_plain else None

    def check_names(self) -> None:
        """Raise FileNotFoundError if a file with news was removed or moved."""
        self.has_looked = True
        for dirty in self.dirty:
            if dirty.has_news and not dirty.file.has_its_name():
                raise FileNotFoundError(errno.ENOENT, "the file was removed or moved", dirty.file.path)

    def _sync(self) -> None:
        if self._lineage is not None:
            self._lineage.sync()
        for dirty in self.dirty:
            dirty.file.sync()
        if self._names is not None:
            self._names.sync()
        self.check_names()

    def close_sealed(self) -> int:
        """Close the sealed segments; return their number."""
        sealed = [dirty.file for dirty in self.dirty if dirty.sealed is not None]
        for file in sealed:
            file.close()
        return len(sealed)

    def _write_index(self, dirty: DirtyFile) -> bool:
        if not dirty.places and dirty.sealed is None:
            return False  # a later flush writes its missing entries
        sealed = dirty.sealed
        end_position = None if sealed is None else sealed.size_bytes
        try:
            return write_entries(self._vfs, dirty.file, dirty.first_entry, dirty.places, sealed_bytes=end_position)
        except OSError:
            return False


class FlushState:
    """`under_way`: the running flush. `end_place`: segment and position up to which everything is synced."""

    __slots__ = ("_folder", "_lineage_file", "_names", "_sealed", "end_place", "under_way")

    def __init__(self, folder: LogFolder, active: ActiveSegment | None) -> None:
        self._folder = folder
        self.end_place = (0, 0) if active is None else (active.base_offset, active.size_bytes)
        self.under_way: Flush | None = None
        self._sealed: list[tuple[ActiveSegment, Segment]] = []  # sealed since the last flush
        self._names: Folder | None = None
        self._lineage_file: File | None = None

    @property
    def waits(self) -> bool:
        """True if something besides the active segment's bytes needs a sync."""
        return bool(self._sealed) or self._names is not None

    @property
    def unsynced(self) -> tuple[File, ...]:
        """Files of the sealed segments that need a sync."""
        return tuple(one.file for one, _ in self._sealed if one.file is not None)

    def restart(self, active: ActiveSegment) -> None:
        """Reset after a truncation: everything up to the end of `active` is synced."""
        self.close()
        self._sealed = []
        self._names = self._lineage_file = None
        self.end_place = (active.base_offset, active.size_bytes)

    def open_names(self) -> None:
        """Have the next flush sync the folder. Call it before a file is created or renamed. OSError."""
        if self._names is None:
            self._names = self._folder.vfs.open_folder(self._folder.path)

    def add_lineage(self, file: File) -> None:
        """Have the next flush sync and close the lineage file just written."""
        if self._lineage_file is not None:
            self._lineage_file.close()
        self._lineage_file = file

    def add_sealed(self, active: ActiveSegment, sealed: Segment) -> None:
        """Add a segment just sealed, which may have unsynced bytes."""
        self._sealed.append((active, sealed))

    def begin(
        self,
        active: ActiveSegment,
        checkpoint: CheckpointFile,
        *,
        log_end: int,
        flushed_end: int,
        with_index: bool,
        indexes: bool,
    ) -> Flush | None:
        """Return a flush of everything appended so far; None if there is nothing to flush.

        `with_index`: write missing index entries; otherwise only one flush in many does. `indexes` False: write none at
        all.
        """
        has_bytes = log_end != flushed_end or bool(self._sealed)
        is_due = checkpoint.is_due
        has_rolled = active.base_offset != self.end_place[0]  # the sealed one's index is written as well
        with_index = with_index or is_due or has_rolled or active.is_index_behind
        has_entries = with_index and bool(active.places)
        if not (has_bytes or has_entries or self._names is not None or is_due):
            return None
        dirty = [
            DirtyFile(file, *one.take_places(), sealed, has_news=sealed.end_offset > flushed_end)
            for one, sealed in self._sealed
            if (file := one.file) is not None
        ]
        if active.file is not None and (has_bytes or has_entries or self._names is not None):
            has_news = log_end > max(flushed_end, active.base_offset)
            entries = active.take_places() if with_index else (active.count, [])
            dirty.append(DirtyFile(active.file, *entries, None, has_news=has_news))
        self.under_way = Flush(
            self._folder.vfs,
            tuple(dirty),
            end=log_end,
            end_place=(active.base_offset, active.size_bytes),
            lineage=self._lineage_file,
            names=self._names,
            checkpoint=checkpoint if is_due else None,
            indexes=indexes,
        )
        self._sealed = []
        self._names = self._lineage_file = None
        checkpoint.is_due = False
        return self.under_way

    def ended(self, flush: Flush, active: ActiveSegment | None) -> int:
        """Record a successful flush; return how many sealed segments were closed."""
        self._end(flush)
        self.end_place = flush.end_place
        for dirty in flush.dirty:
            is_indexed = dirty.file.path in flush.indexed
            if dirty.sealed is not None:
                if is_indexed:
                    dirty.sealed.entries = None
            elif is_indexed and active is not None and active.path == dirty.file.path:
                active.indexed(dirty.first_entry + len(dirty.places))
        return flush.close_sealed()

    def failed(self, flush: Flush) -> int:
        """Record a failed flush; return how many sealed segments were closed."""
        self._end(flush)
        return flush.close_sealed()

    def _end(self, flush: Flush) -> None:
        assert flush is self.under_way
        self.under_way = None

    def close_segments(self) -> None:
        """Close the sealed segments without syncing them."""
        for one, _ in self._sealed:
            if one.file is not None:
                one.file.close()
                one.file = None

    def close(self) -> None:
        """Close all files."""
        self.close_segments()
        for opened in (self._names, self._lineage_file):
            if opened is not None:
                opened.close()


def write_entries(
    vfs: Vfs, segment: File, first_entry: int, places: Places, *, sealed_bytes: int | None = None
) -> bool:
    """Write entries from number `first_entry` on to a segment's index file; return True if it is now complete. OSError.

    The file never has a hole: earlier entries missing after a failed write are rebuilt from the segment. If those are
    more than INDEX_GAP_BATCHES_MAX batches, the next call continues. `sealed_bytes`: the size of a sealed segment,
    whose index file is then synced.
    """
    if not segment.has_its_name():
        return False  # its index is not needed any more
    file = vfs.open(files.index_path(segment.path), create=True, make_folders=False)
    try:
        position = places[0][0] if places else sealed_bytes
        assert position is not None, "there is something to write"
        gap = _index_gap(file, segment, first_entry, position)
        data = gap.entries + (pack_entries(places) if gap.is_filled else b"")
        file.write_at(gap.first_entry * ENTRY_BYTES, data)
        end_position = gap.first_entry * ENTRY_BYTES + len(data)
        if file.size() > end_position:
            file.truncate(end_position)  # stale entries of truncated batches, in a file that could not be truncated
        if sealed_bytes is not None:
            file.sync()
    finally:
        file.close()
    return gap.is_filled


class _IndexGap(NamedTuple):
    """Entries that an index file lacks, from number `first_entry` on. `is_filled`: these are all."""

    first_entry: int
    entries: bytes
    is_filled: bool


def _index_gap(index_file: File, segment: File, end_entry: int, end_position: int) -> _IndexGap:
    """Return the entries missing before entry `end_entry`, which belongs to the batch at `end_position` of the segment.

    Errors as in `File.read_at`.
    """
    base_offset = files.base_offset_of(segment.path.rpartition("/")[2])
    assert base_offset is not None, segment.path
    have = min(index_file.size() // ENTRY_BYTES, end_entry)
    begin, offset = SCHEMA_BYTES, base_offset
    if have:
        try:
            last = unpack_entry(index_file.read_at((have - 1) * ENTRY_BYTES, ENTRY_BYTES))
            begin, offset = last.extent().end_position, last.end_offset
        except IndexDamagedError:
            have = 0
        if begin > end_position or (have == end_entry) != (begin == end_position):
            have, begin, offset = 0, SCHEMA_BYTES, base_offset  # it is the index of another segment
    entries: list[bytes] = []
    walk = Walk(segment, position=begin, end_position=end_position, offset=offset)
    for position, header in islice(walk, limits.INDEX_GAP_BATCHES_MAX):
        entries.append(pack_entry(position, header))
    is_filled = have + len(entries) == end_entry and walk.position == end_position
    return _IndexGap(have, b"".join(entries), is_filled)
