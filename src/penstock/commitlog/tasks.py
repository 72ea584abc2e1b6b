"""What a log hands to a disk thread: flushing and removing. Each task touches only what it was given.

Rules: the log goes on while a task runs. A flush that fails is not tried again: after a failed fdatasync the kernel may
have dropped the bytes and still report success the next time. So nothing else may make it fail: all that it must sync
is open before its bytes are accepted. What only saves work at the next start (the index, the checkpoint) may fail
without consequence. A file that was removed or moved under a running broker takes no acked rows with it: no later start
would find them.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import NamedTuple

from penstock.commitlog import files
from penstock.commitlog.index import ENTRY_BYTES, pack_entries
from penstock.commitlog.segment import Places, Segment
from penstock.vfs import File, Folder, Vfs


class DirtyFile(NamedTuple):
    """A segment with bytes that may not be on the disk, and the entries that its index lacks.

    `sealed` is the segment as readers see it, once it is sealed; its file is closed after the flush. With `has_news`
    some of its rows were never synced; of a file without, retention may take the name at any time.
    """

    file: File
    first_entry: int
    places: Places
    sealed: Segment | None
    has_news: bool


class Flush:
    """Makes all that was appended before it durable: up to the offset `end`, at `end_position` of `segment_base`.

    Run it in a disk thread, once; then hand it to `Log.flushed` or, with the OSError, to `Log.flush_failed`.
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
        """`lineage` and `names` are open, and closed by `run`."""
        self._vfs = vfs
        self.dirty = dirty
        self._lineage = lineage
        self._names = names
        self._sync_last = sync_last
        self._indexes = indexes
        self.end = end
        self.end_position = end_position
        self.segment_base = segment_base
        self.indexed: frozenset[str] = frozenset()  # paths of segments whose index file has all their entries now

    def run(self) -> None:
        """Sync; OSError if the disk refuses, and then nothing is known of what was to be flushed."""
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
            return False  # a later flush brings what it lacks
        try:
            return write_entries(
                self._vfs, dirty.file, dirty.first_entry, dirty.places, with_sync=dirty.sealed is not None
            )
        except OSError:
            return False


def write_entries(vfs: Vfs, segment: File, first_entry: int, places: Places, *, with_sync: bool = False) -> bool:
    """Write entries, from number `first_entry` on, to a segment's index file; False if that was removed. OSError."""
    if not segment.has_its_name():
        return False
    file = vfs.open(files.index_path(segment.path), create=True, make_folders=False)
    try:
        file.write_at(first_entry * ENTRY_BYTES, pack_entries(places))
        if with_sync:
            file.sync()
    finally:
        file.close()
    return True


class Removal:
    """Makes a move of log_start durable, then deletes the segments below it. The log has forgotten them already.

    Run it in a disk thread. If it raises OSError, hand it to `Log.removal_failed`: the files are tried again later.
    """

    __slots__ = ("_directory", "_sync_first", "_vfs", "is_void", "paths")

    def __init__(self, vfs: Vfs, directory: str, paths: tuple[str, ...], sync_first: Callable[[], None]) -> None:
        self._vfs = vfs
        self._directory = directory
        self._sync_first = sync_first
        self.paths = paths  # of segments, oldest first
        self.is_void = False  # the log began anew meanwhile: it has removed them, and one of the names may be in use

    def run(self) -> None:
        """Sync the checkpoint, and the name of the segment that goes on; remove; sync the names."""
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
