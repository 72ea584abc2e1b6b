"""Tracks what of one log is not yet synced to disk, and creates the flushes.

Rules: at most one flush is running. All files that it syncs are open before their bytes are accepted, so that it cannot
fail for lack of descriptors. Only the log's own task uses this class; the flush itself runs in a disk thread.
"""

from __future__ import annotations

from penstock.commitlog.files.checkpoint import CheckpointFile
from penstock.commitlog.segment.segment import ActiveSegment, Segment
from penstock.commitlog.tasks import DirtyFile, Flush
from penstock.vfs import File, Folder, Vfs


class FlushState:
    """`under_way`: the running flush. `end_place`: segment and position up to which everything is synced."""

    __slots__ = ("_directory", "_lineage_file", "_names", "_sealed", "_vfs", "end_place", "under_way")

    def __init__(self, vfs: Vfs, directory: str, active: ActiveSegment | None) -> None:
        self._vfs = vfs
        self._directory = directory
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
            self._names = self._vfs.open_folder(self._directory)

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
            self._vfs,
            tuple(dirty),
            end=log_end,
            end_position=active.size_bytes,
            segment_base=active.base_offset,
            lineage=self._lineage_file,
            names=self._names,
            sync_last=checkpoint.sync if is_due else None,
            indexes=indexes,
        )
        self._sealed = []
        self._names = self._lineage_file = None
        checkpoint.is_due = False
        return self.under_way

    def ended(self, flush: Flush, active: ActiveSegment | None) -> int:
        """Record a successful flush; return how many sealed segments were closed."""
        self._end(flush)
        self.end_place = (flush.segment_base, flush.end_position)
        for dirty in flush.dirty:
            is_indexed = dirty.file.path in flush.indexed
            if dirty.sealed is not None:
                if is_indexed:
                    dirty.sealed.entries = None
            elif is_indexed and active is not None and active.path == dirty.file.path:
                active.indexed(dirty.first_entry + len(dirty.places))
        return _close_sealed(flush)

    def failed(self, flush: Flush) -> int:
        """Record a failed flush; return how many sealed segments were closed."""
        self._end(flush)
        return _close_sealed(flush)

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


def _close_sealed(flush: Flush) -> int:
    closed = 0
    for dirty in flush.dirty:
        if dirty.sealed is not None:
            dirty.file.close()
            closed += 1
    return closed
