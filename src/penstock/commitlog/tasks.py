"""Tasks that a log hands to a disk thread: flush and removal. Each task touches only what it was given.

Rules: the log continues while a task runs. A failed flush is not retried: after a failed fdatasync the kernel may have
dropped the dirty pages and still report success the next time. So nothing else may make a flush fail: all files that it
syncs are open before their bytes are accepted. Work that only speeds up the next start (the index, the checkpoint) may
fail without consequence. A flush fails if a file was removed or moved under the running broker: no later start would
find its acked rows.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from penstock.base import limits
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog.errors import IndexDamagedError
from penstock.commitlog.files import files
from penstock.commitlog.files.index import ENTRY_BYTES, pack_entries, pack_entry, unpack_entry
from penstock.commitlog.files.scan import Walk
from penstock.commitlog.segment.segment import Places, Segment
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
    """Makes everything appended before it durable: up to offset `end`, at `end_position` of segment `segment_base`.

    Run it once in a disk thread; then call `Log.flushed` or, with the OSError, `Log.flush_failed`.
    """

    __slots__ = ("_indexes", "_lineage", "_names", "_sync_last", "_vfs", "dirty", "end", "end_position", "indexed",
                 "segment_base")  # fmt: skip

    def __init__(
        self,
        vfs: Vfs,
        dirty: tuple[DirtyFile, ...],
        *,
        end: int,
        end_position: int,
        segment_base: int,
        lineage: File | None,
        names: Folder | None,
        sync_last: Callable[[], None] | None,
        indexes: bool,
    ) -> None:
        """`lineage` and `names` are open; `run` closes them."""
        self._vfs = vfs
        self.dirty = dirty
        self._lineage = lineage
        self._names = names
        self._sync_last = sync_last
        self._indexes = indexes
        self.end = end
        self.end_position = end_position
        self.segment_base = segment_base
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
        if self._sync_last is not None:
            with contextlib.suppress(OSError):
                self._sync_last()

    def _sync(self) -> None:
        if self._lineage is not None:
            self._lineage.sync()
        for dirty in self.dirty:
            dirty.file.sync()
        if self._names is not None:
            self._names.sync()
        for dirty in self.dirty:
            if dirty.has_news and not dirty.file.has_its_name():
                raise FileNotFoundError(errno.ENOENT, "the file was removed or moved", dirty.file.path)

    def _write_index(self, dirty: DirtyFile) -> bool:
        if not dirty.places and dirty.sealed is None:
            return False  # a later flush writes its missing entries
        sealed = dirty.sealed
        end_position = None if sealed is None else sealed.size_bytes
        try:
            return write_entries(self._vfs, dirty.file, dirty.first_entry, dirty.places, sealed_bytes=end_position)
        except OSError:
            return False


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
        gap = index_gap_of(file, segment, first_entry, position)
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


class IndexGap(NamedTuple):
    """Entries that an index file lacks, from number `first_entry` on. `is_filled`: these are all."""

    first_entry: int
    entries: bytes
    is_filled: bool


def index_gap_of(index_file: File, segment: File, end_entry: int, end_position: int) -> IndexGap:
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
    return IndexGap(have, b"".join(entries), is_filled)


class Removal:
    """Makes a move of log_start durable, then deletes the segments below it, which the log has already dropped.

    Run it in a disk thread. If it raises OSError, call `Log.removal_failed`: the removal is retried later.
    """

    __slots__ = ("_directory", "_sync_first", "_vfs", "is_void", "paths")

    def __init__(self, vfs: Vfs, directory: str, paths: tuple[str, ...], sync_first: Callable[[], None]) -> None:
        self._vfs = vfs
        self._directory = directory
        self._sync_first = sync_first
        self.paths = paths  # segment paths, oldest first
        self.is_void = False  # the log was reset meanwhile: the files are removed, and a name may be in use again

    def run(self) -> None:
        """Sync the checkpoint and the next segment's name, remove the files, and sync their folder."""
        self._sync_first()
        if self.paths:
            self._vfs.sync_dir(self._directory)
        for path in self.paths:
            if self.is_void:
                return
            self._vfs.remove(path)
            self._vfs.remove(files.index_path(path))
        if self.paths:
            self._vfs.sync_dir(self._directory)
