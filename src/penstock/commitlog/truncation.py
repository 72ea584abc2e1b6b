"""Truncation: cut a log off at an offset, or reset it to begin at another offset. Runs in a disk thread.

Rules: before any byte is removed, the files on disk must describe a log without it, or the next start would take the
missing part for corruption. So the steps below are synced one after the other, and a crash after any of them leaves a
consistent log: all of the old one, or less of it down to the cut, without a gap. Meanwhile the log accepts and flushes
nothing. A failed lookup or corruption changes nothing; after the first change, a failure fences the log.

| step                                                            | a crash after it leaves                       |
|-----------------------------------------------------------------|-----------------------------------------------|
| 1. checkpoint: flushed_end, committed_end at most at the cut    | all batches, none beyond the cut promised     |
| 2. lineage, without leaderships that begin behind the cut       | the same; the batches carry their epochs      |
| 3. segments behind the cut, the last one first                  | fewer batches                                 |
| 4. the segment that holds the cut, and its index                | the truncated log                             |
| 5. checkpoint again, in its other slot                          |                                               |
| for a reset (the cut is the begin of the first segment):        |                                               |
| 6. an empty segment of the new name                             | the old log, empty: it has no batches         |
| 7. checkpoint: the log begins and ends at the new offset        | the new log; other files do not belong to it  |
| 8. all other segments; the checkpoint's other slot              | the new log                                   |

A cut inside a batch moves to the begin of that batch, even if that is below log_start: then the log is empty and begins
there. A segment of which nothing is left is removed, except the first one.
"""

from __future__ import annotations

import contextlib
import errno
from typing import NamedTuple

from penstock.base.errors import CorruptionError
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog.files import files, index
from penstock.commitlog.files import lineage as lineages
from penstock.commitlog.files.checkpoint import Checkpoint, CheckpointFile
from penstock.commitlog.files.files import LogFolder
from penstock.commitlog.files.index import PackedEntries
from penstock.commitlog.files.lineage import LineageEntry
from penstock.commitlog.segment import segment, segment_scan
from penstock.commitlog.segment.segment import ActiveSegment, Segment
from penstock.commitlog.segment.segment_scan import SegmentScan
from penstock.commitlog.view import LogView
from penstock.vfs import File


class _Cut(NamedTuple):
    """Place of the cut: a byte and an offset in the last of the `kept` segments."""

    kept: tuple[Segment, ...]
    position: int
    offset: int


class TruncatedLog(NamedTuple):
    """The rest of the log. All of it is on disk, and so is `checkpoint`."""

    sealed: tuple[Segment, ...]
    active: ActiveSegment
    lineage: tuple[LineageEntry, ...]
    checkpoint: Checkpoint


class TruncationTask:
    """Truncates a log to the offset `end` or, with `start`, discards all of it and resets it to begin at `start`.

    Run it once in a disk thread; then call `Log.truncated` or, with the error, `Log.truncate_failed`.
    """

    __slots__ = ("_checkpoint", "_end", "_files", "_folder", "_lineage", "_values", "_vfs", "_view", "has_changed",
                 "left", "start")  # fmt: skip

    def __init__(
        self,
        folder: LogFolder,
        view: LogView,
        end: int,
        *,
        start: int | None,
        checkpoint: CheckpointFile,
        values: Checkpoint,
        lineage: tuple[LineageEntry, ...],
        unsynced: tuple[File, ...],
    ) -> None:
        """`values`: the current checkpoint values. `unsynced`: open segment files that may need a sync."""
        self._folder = folder
        self._vfs = folder.vfs
        self._view = view
        self._end = end
        self.start = start
        self._checkpoint = checkpoint
        self._values = values
        self._lineage = lineage
        self._files = {file.path: file for file in unsynced}
        self.has_changed = False  # files changed in a way that the log cannot continue from
        self.left: TruncatedLog | None = None  # set at the end

    def run(self) -> None:
        """Find the cut, then truncate. OSError; RemoteError or CorruptionError if the log cannot be read there."""
        cut = self._find_cut()
        scan = self._scan(cut)
        left = self._cut(cut, scan)
        self.left = left if self.start is None else self._begin_anew(self.start, left)

    # Finding the cut.

    def _find_cut(self) -> _Cut:
        segments = self._view.segments
        if self.start is not None:
            return _Cut(segments[:1], SCHEMA_BYTES, segments[0].base_offset)
        number, extent = self._view.batch_at(self._end)
        if extent.position == SCHEMA_BYTES and number > 0:
            last = segments[number - 1]
            return _Cut(segments[:number], last.size_bytes, last.end_offset)
        return _Cut(segments[: number + 1], extent.position, extent.base_offset)

    def _scan(self, cut: _Cut) -> SegmentScan:
        """Scan the segment that stays active as recovery would; CorruptionError if it is corrupt."""
        last = cut.kept[-1]
        file = self._vfs.open(last.path, read_only=True)
        try:
            scan = segment_scan.scan_segment(
                self._vfs,
                file,
                base_offset=last.base_offset,
                size_bytes=cut.position,
                flushed_position=cut.position,
                end_offset=cut.offset,
                vouched=segment_scan.vouched_head(
                    self._vfs, file, base_offset=last.base_offset, flushed_position=cut.position
                ),
            )
        finally:
            file.close()
        scan.complete_damage(last.path, cut.offset)
        if scan.damage:
            damage = scan.damage[0]
            self._view.on_damage(damage)
            raise CorruptionError(last.path, damage.position, damage.expected, damage.found)
        return scan

    # Truncating.

    def _cut(self, cut: _Cut, scan: SegmentScan) -> TruncatedLog:
        *sealed, last = cut.kept
        kept_epochs = self._lineage if self.start is None else ()  # a reset log gets its history from the leader
        lineage = tuple(entry for entry in kept_epochs if entry.start_offset < cut.offset)
        end_values = self._values._replace(
            leader_epoch=lineage[-1].leader_epoch if lineage else 0,
            flushed_end=cut.offset,
            segment_base=last.base_offset,
            segment_position=cut.position,
            log_start=min(self._values.log_start, cut.offset),
            last_timestamp_us=scan.last_timestamp_us or (sealed[-1].last_timestamp_us if sealed else 0),
            committed_end=min(self._values.committed_end, cut.offset),
        )
        values = end_values
        # Compare positions, not offsets: a segment without a batch may not have been synced at all.
        if (self._values.segment_base, self._values.segment_position) < (last.base_offset, cut.position):
            values = end_values._replace(
                flushed_end=min(self._values.flushed_end, cut.offset),
                segment_base=self._values.segment_base,
                segment_position=self._values.segment_position,
            )
        self._write_checkpoint(values)
        lineages.write_new(self._vfs, self._folder.path, lineage)
        self.has_changed = True
        lineages.put_in_place(self._vfs, self._folder.path)
        self._sync_kept(sealed)
        for one in reversed(self._view.segments[len(cut.kept) :]):
            self._remove(one)
        is_indexed = self._cut_segment(last.path, cut.position, scan)
        self._write_checkpoint(end_values)
        active = ActiveSegment(last.path, last.base_offset, cut.position, last.file_state)
        active.resume(scan.head, PackedEntries(bytes(scan.entries)), is_indexed=is_indexed)
        return TruncatedLog(tuple(sealed), active, lineage, end_values)

    def _write_checkpoint(self, values: Checkpoint) -> None:
        self._checkpoint.write(values)
        self._checkpoint.sync()

    def _sync_kept(self, sealed: list[Segment]) -> None:
        for one in sealed:
            if (file := self._files.get(one.path)) is not None:
                _sync(file)

    def _remove(self, one: Segment) -> None:
        # Remove all generations; otherwise an older one would come back in its place.
        names = self._vfs.list(self._folder.path)
        generations = sorted(
            found for name in names if (found := files.parsed(name)) is not None and found[0] == one.base_offset
        )
        for base_offset, generation in generations:
            path = self._folder.segment_path(base_offset, generation)
            self._vfs.remove(path)
            files.remove_beside(self._vfs, path)
        self._folder.sync()

    def _cut_segment(self, path: str, position: int, scan: SegmentScan) -> bool:
        """Truncate the segment; return True if its index is complete. An index with more entries must not stay."""
        opened = None if path in self._files else self._vfs.open(path)
        file = self._files[path] if opened is None else opened
        try:
            self._vfs.remove(files.subjects_path(path))
            file.truncate(position)
            _sync(file)
        finally:
            if opened is not None:
                opened.close()
        is_indexed = False
        if position > SCHEMA_BYTES:
            with contextlib.suppress(OSError):  # a reader rebuilds it
                index.write_index(self._vfs, path, scan.entries, 0 if scan.head is None else scan.head.count)
                index_file = self._vfs.open(files.index_path(path))
                try:
                    index_file.sync()
                finally:
                    index_file.close()
                is_indexed = True
        if not is_indexed:
            self._vfs.remove(files.index_path(path))
        self._folder.sync()
        return is_indexed or position == SCHEMA_BYTES

    # Reset.

    def _begin_anew(self, start: int, left: TruncatedLog) -> TruncatedLog:
        old, active = left.active, left.active
        self._remove_all_but(old.base_offset)  # leftovers of retention belong neither to the old log nor to the new one
        if start != old.base_offset:
            segment.clear_the_way(self._folder, start)
            active = segment.create(self._folder, start)
            try:
                active.opened(self._vfs).sync()
            finally:
                active.close()
            self._folder.sync()
        values = left.checkpoint._replace(
            flushed_end=start, segment_base=start, segment_position=SCHEMA_BYTES, log_start=start, committed_end=start
        )
        self._write_checkpoint(values)
        self._remove_all_but(start)
        self._write_checkpoint(values)  # no slot may describe the old log any more
        return TruncatedLog((), active, (), values)

    def _remove_all_but(self, base_offset: int) -> None:
        for name in self._vfs.list(self._folder.path):
            owner = files.owner_of(name)
            if owner is not None and owner != base_offset:
                self._vfs.remove(f"{self._folder.path}/{name}")
        self._folder.sync()


def _sync(file: File) -> None:
    file.sync()
    if not file.has_its_name():
        raise FileNotFoundError(errno.ENOENT, "the file was removed or moved", file.path)
