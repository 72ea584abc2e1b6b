"""What a log hands to a disk thread: flushing and removing. Each task touches only what it was given.

Rules: the log goes on while a task runs. A flush that fails is not tried again: after a failed fdatasync the kernel may
have dropped the bytes and still report success the next time. What only saves work at the next start (the index, the
checkpoint) may fail without consequence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple

from penstock.commitlog import files
from penstock.commitlog.index import ENTRY_BYTES, pack_entries
from penstock.commitlog.segment import Places, Segment
from penstock.vfs import File, Vfs


class DirtyFile(NamedTuple):
    """A segment with bytes that may not be on the disk, and the entries that its index lacks.

    `sealed` is the segment as readers see it, once it is sealed; its file is closed after the flush.
    """

    file: File
    first_entry: int
    places: Places
    sealed: Segment | None


class Flush:
    """Makes all that was appended before it durable: up to the offset `end`, at `end_position` of `segment_base`.

    Run it in a disk thread, once; then hand it to `Log.flushed` or, with the OSError, to `Log.flush_failed`.
    """

    __slots__ = ("_directory", "_dirty", "_indexes", "_sync_first", "_sync_last", "_sync_names", "_vfs", "end",
                 "end_position", "indexed", "segment_base")  # fmt: skip

    def __init__(
        self,
        vfs: Vfs,
        directory: str,
        dirty: tuple[DirtyFile, ...],
        *,
        end: int,
        end_position: int,
        segment_base: int,
        sync_first: Callable[[], None] | None,
        sync_names: bool,
        sync_last: Callable[[], None] | None,
        indexes: bool,
    ) -> None:
        self._vfs = vfs
        self._directory = directory
        self._dirty = dirty
        self._sync_first = sync_first
        self._sync_names = sync_names
        self._sync_last = sync_last
        self._indexes = indexes
        self.end = end
        self.end_position = end_position
        self.segment_base = segment_base
        self.indexed: frozenset[str] = frozenset()  # paths of segments whose index file has all their entries now

    @property
    def sealed(self) -> tuple[DirtyFile, ...]:
        """The segments in it that will not be written again."""
        return tuple(dirty for dirty in self._dirty if dirty.sealed is not None)

    def run(self) -> None:
        """Sync; OSError if the disk refuses, and then nothing is known of what was to be flushed."""
        if self._sync_first is not None:
            self._sync_first()
        for dirty in self._dirty:
            dirty.file.sync()
        if self._sync_names:
            self._vfs.sync_dir(self._directory)
        if self._indexes:
            self.indexed = frozenset(dirty.file.path for dirty in self._dirty if self._write_index(dirty))
        if self._sync_last is not None:
            with contextlib.suppress(OSError):
                self._sync_last()

    def _write_index(self, dirty: DirtyFile) -> bool:
        try:
            file = self._vfs.open(files.index_path(dirty.file.path), create=True)
            try:
                file.write_at(dirty.first_entry * ENTRY_BYTES, pack_entries(dirty.places))
                if dirty.sealed is not None:
                    file.sync()
            finally:
                file.close()
        except OSError:
            return False
        return True


class Removal:
    """Makes a move of log_start durable, then deletes the segments below it. The log has forgotten them already.

    Run it in a disk thread. If it raises OSError, hand it to `Log.removal_failed`: the files are tried again later.
    """

    __slots__ = ("_directory", "_sync_first", "_vfs", "paths")

    def __init__(self, vfs: Vfs, directory: str, paths: tuple[str, ...], sync_first: Callable[[], None]) -> None:
        self._vfs = vfs
        self._directory = directory
        self._sync_first = sync_first
        self.paths = paths  # of segments, oldest first

    def run(self) -> None:
        """Sync the checkpoint, and the name of the segment that goes on; remove; sync the names."""
        self._sync_first()
        if self.paths:
            self._vfs.sync_dir(self._directory)
        for path in self.paths:
            self._vfs.remove(path)
            self._vfs.remove(files.index_path(path))
        if self.paths:
            self._vfs.sync_dir(self._directory)
