"""Scans the batches of one segment: for recovery, a truncation, a repair, a lost index, a lost lineage.

Rules: only the index file is changed, and it never holds more than the segment. Below the flushed position an error is
corruption, and the scan continues behind it; from there on it is a torn tail, and the scan ends. What was flushed and
is covered by the index is not read again: a start costs what was written since the last flush, and a flipped bit there
is found by a reader, as in a segment that was sealed long ago.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.batch import codec
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog.errors import IndexDamagedError
from penstock.commitlog.files import files, index
from penstock.commitlog.files.batch_walk import ResyncBounds, ResyncPoint, Walk, find_behind
from penstock.commitlog.files.index import ENTRY_BYTES, FileEntries, IndexHead, PackedEntries, ResumedEntries
from penstock.commitlog.files.lineage import BatchLineage, LineageEntry
from penstock.commitlog.segment.damage import Damage
from penstock.commitlog.segment.segment import Segment
from penstock.vfs import File, Vfs


@dataclass(slots=True)
class TornTail:
    """End of the valid part of a segment beyond the flushed position. `whole`: a valid batch behind it, if any."""

    position: int
    mistake: CorruptionError
    whole: ResyncPoint | None


@dataclass(slots=True)
class SegmentScan:
    """Batches of one segment. `entries`: those behind the `head`, if the index covers one."""

    head: IndexHead | None = None
    entries: bytearray = field(default_factory=bytearray)
    epochs: list[LineageEntry] = field(default_factory=list)  # behind the head, with their first batches
    begin_offset: int = 0  # of the first batch behind the head
    head_epoch: int = 0  # of the last batch of the head
    end_position: int = SCHEMA_BYTES
    end_offset: int = 0
    last_timestamp_us: int = 0
    leader_epoch: int = 0
    damage: list[Damage] = field(default_factory=list)
    torn: TornTail | None = None

    def batch_lineage(self) -> tuple[BatchLineage, ...]:
        """Return what the batches say about the lineage; empty if there are none."""
        if not (self.epochs or self.head_epoch):
            return ()
        return (BatchLineage(self.begin_offset, self.end_offset, self.head_epoch, tuple(self.epochs)),)

    def complete_damage(self, path: str, end_offset: int) -> None:
        """Set the end of corruption of unknown extent, and report offsets missing before `end_offset`."""
        if self.damage and self.damage[-1].end_offset is None:
            self.damage[-1] = replace(self.damage[-1], end_offset=end_offset)
        elif self.end_offset < end_offset:
            mistake = CorruptionError(path, self.end_position, f"offset {self.end_offset}", "the end of the file")
            self.damage.append(Damage.of(mistake, self.end_position, self.end_offset, end_offset))

    def all_entries(self) -> PackedEntries | ResumedEntries:
        """Return all entries, including those of the head."""
        entries = PackedEntries(bytes(self.entries))
        return entries if self.head is None else ResumedEntries(self.head, entries)


def vouched_head(vfs: Vfs, file: File, *, base_offset: int, flushed_position: int) -> tuple[IndexHead, int] | None:
    """Return the batches below `flushed_position` that the index covers, and the leader epoch of the last one.

    None if the last batch does not match its entry: then the index may belong to another segment.
    """
    try:
        index_file = vfs.open(files.index_path(file.path), read_only=True)
    except OSError:
        return None
    try:
        found = index.last_sound_entry(index_file, base_offset=base_offset, end_position=flushed_position)
    except OSError:
        return None
    finally:
        index_file.close()
    if found is None:
        return None
    count, first, last = found
    try:
        header = codec.verify(file.read_at(last.position, last.size_bytes), file=file.path, position=last.position)
    except CorruptionError:
        return None
    if (header.base_offset, header.end_offset, header.crc) != (last.base_offset, last.end_offset, last.batch_crc):
        return None
    end_position = last.extent().end_position
    head = IndexHead(count, last.end_offset, end_position, first.min_timestamp_us, last.max_timestamp_us)
    return head, last.leader_epoch


def scan_segment(
    vfs: Vfs,
    file: File,
    *,
    base_offset: int,
    size_bytes: int,
    flushed_position: int | None,
    end_offset: int | None,
    vouched: tuple[IndexHead, int] | None = None,
    by_marks: bool = True,
) -> SegmentScan:
    """Verify every batch of a segment behind the `vouched` ones; `by_marks` as in `find_behind`.

    `end_offset`: upper bound of the segment's end; None if unknown. `flushed_position` None: unknown; then an error is
    corruption if a valid batch lies behind it.
    """
    scan = SegmentScan(end_offset=base_offset)
    position = SCHEMA_BYTES
    if vouched is not None:
        scan.head, scan.leader_epoch = vouched
        scan.head_epoch = scan.leader_epoch
        scan.last_timestamp_us = scan.head.last_timestamp_us
        position, scan.end_offset = scan.head.end_position, scan.head.end_offset
    scan.begin_offset = scan.end_offset
    while True:
        walk = Walk(file, position=position, end_position=size_bytes, offset=scan.end_offset)
        for place, header in walk:
            scan.entries += index.pack_entry(place, header)
            scan.last_timestamp_us = max(scan.last_timestamp_us, header.max_timestamp_us)
            scan.leader_epoch = max(scan.leader_epoch, header.leader_epoch)
            if not scan.epochs or scan.epochs[-1].leader_epoch != header.leader_epoch:
                scan.epochs.append(LineageEntry(header.leader_epoch, header.base_offset))
        scan.end_position, scan.end_offset = walk.position, walk.offset
        if walk.mistake is None:
            return scan
        if flushed_position is None or walk.position >= flushed_position:
            # Any valid batch counts here, even if its offsets do not fit.
            whole = find_behind(file, ResyncBounds(walk.position - 1, size_bytes, 0, None))
            if whole is None or flushed_position is not None:
                scan.torn = TornTail(walk.position, walk.mistake, whole)
                return scan
        beyond = ResyncBounds(walk.position, size_bytes, walk.offset, end_offset)
        found = find_behind(file, beyond, _hints(vfs, file.path, walk.position), by_marks=by_marks)
        lost_end = None if found is None else found.base_offset
        scan.damage.append(Damage.of(walk.mistake, walk.position, walk.offset, lost_end))
        if found is None:
            return scan
        position, scan.end_offset = found.position, found.base_offset


def _hints(vfs: Vfs, path: str, position: int) -> Iterator[int]:
    """Yield the positions behind `position` in the index file, as far as it is valid."""
    try:
        file = vfs.open(files.index_path(path), read_only=True)
    except OSError:
        return
    try:
        for number in range(file.size() // ENTRY_BYTES):
            with contextlib.suppress(IndexDamagedError):
                entry = index.unpack_entry(file.read_at(number * ENTRY_BYTES, ENTRY_BYTES))
                if entry.position > position:
                    yield entry.position
    finally:
        file.close()


def lineage_of(vfs: Vfs, segments: Iterable[Segment]) -> tuple[LineageEntry, ...]:
    """Return the first offset of each leader epoch, from the batches, for a lineage that is lost or in doubt. OSError.

    An index is trusted if it matches its segment; otherwise the segment itself is read, without its corrupt parts.
    """
    out: list[LineageEntry] = []
    for segment in segments:
        for entry in _epochs_in(vfs, segment):
            if not out or entry.leader_epoch > out[-1].leader_epoch:  # epochs never decrease
                out.append(entry)
    return tuple(out)


def _epochs_in(vfs: Vfs, segment: Segment) -> list[LineageEntry]:
    try:
        index_file = vfs.open(files.index_path(segment.path), read_only=True)
    except FileNotFoundError:
        return _read_epochs(vfs, segment)
    try:
        end_position, end_offset = segment.size_bytes, segment.end_offset
        return list(_epochs_by_halving(FileEntries(index_file, end_position=end_position, end_offset=end_offset)))
    except IndexDamagedError:
        return _read_epochs(vfs, segment)
    finally:
        index_file.close()


def _epochs_by_halving(entries: FileEntries) -> Iterator[LineageEntry]:
    number = 0
    while number < entries.count:
        first = entries.entry(number)
        yield LineageEntry(first.leader_epoch, first.base_offset)
        numbers = range(number, entries.count)
        number += bisect_right(numbers, first.leader_epoch, key=lambda each: entries.entry(each).leader_epoch)


def _read_epochs(vfs: Vfs, segment: Segment) -> list[LineageEntry]:
    try:
        file = vfs.open(segment.path, read_only=True)
    except FileNotFoundError:
        return []
    try:
        return scan_segment(
            vfs,
            file,
            base_offset=segment.base_offset,
            size_bytes=file.size(),
            flushed_position=file.size(),
            end_offset=segment.end_offset,
            by_marks=False,
        ).epochs
    finally:
        file.close()


def rebuild_index(
    vfs: Vfs, file: File, segment: Segment, *, may_write: Callable[[], bool]
) -> tuple[PackedEntries, tuple[Damage, ...]]:
    """Rebuild the entries of a sealed segment; if it has no corruption, write its index file, too.

    `may_write`: True while the segment is still the one that was read; called in this thread, while others may
    truncate.
    """
    entries, damage = rebuild_entries(
        vfs, file, base_offset=segment.base_offset, end_position=segment.size_bytes, end_offset=segment.end_offset
    )
    if not damage:
        write_while(may_write, vfs, file.path, entries)
    return entries, damage


def rebuild_head(
    vfs: Vfs, file: File, base_offset: int, head: IndexHead, *, may_write: Callable[[], bool]
) -> tuple[Damage, ...]:
    """Rebuild the entries of a head from the segment; if it has no corruption, write the index file, too.

    `may_write` as in `rebuild_index`.
    """
    entries, damage = rebuild_entries(
        vfs, file, base_offset=base_offset, end_position=head.end_position, end_offset=head.end_offset
    )
    if not damage:
        write_while(may_write, vfs, file.path, entries, are_last=False)  # a flush may write the later ones meanwhile
    head.entries = entries
    return damage


def write_while(
    may_write: Callable[[], bool], vfs: Vfs, segment_path: str, entries: PackedEntries, *, are_last: bool = True
) -> None:
    """Write the entries to the index file, ignoring write errors, if they are still those of the segment.

    A truncation does not wait for readers and may happen at any moment: it is checked for before and after, and an
    index written after it is removed. If that was the index of the rest of the segment, a reader rebuilds it.
    """
    if not may_write():
        return
    with contextlib.suppress(OSError):
        index.write_index(vfs, segment_path, entries.data, are_last=are_last)
    if not may_write():
        with contextlib.suppress(OSError):
            vfs.remove(files.index_path(segment_path))


def rebuild_entries(
    vfs: Vfs, file: File, *, base_offset: int, end_position: int, end_offset: int
) -> tuple[PackedEntries, tuple[Damage, ...]]:
    """Rebuild the entries of a segment up to a position where a flushed batch ends."""
    scan = scan_segment(
        vfs,
        file,
        base_offset=base_offset,
        size_bytes=end_position,
        flushed_position=end_position,
        end_offset=end_offset,
    )
    scan.complete_damage(file.path, end_offset)
    return PackedEntries(bytes(scan.entries)), tuple(scan.damage)


class RebuiltIndexes:
    """Rebuilt indexes of one log, shared by its views and kept in memory, as writing them to disk may fail.

    Thread-safe without a lock: the state is one value that is replaced as a whole. If two threads replace it at once,
    one index is forgotten, which only costs another rebuild.
    """

    __slots__ = ("_bytes_max", "_kept")

    def __init__(self, bytes_max: int = limits.REBUILT_INDEX_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: tuple[tuple[str, PackedEntries], ...] = ()  # by path of the segment, the latest first

    def entries(self, segment_path: str, rebuild: Callable[[], PackedEntries]) -> PackedEntries:
        """Return a segment's entries; keep the result of `rebuild` while there is room. Raises its errors."""
        for path, kept in self._kept:
            if path == segment_path:
                return kept
        entries = rebuild()
        room = self._bytes_max - len(entries.data)
        if room < 0:
            return entries
        others = []
        for path, kept in self._kept:
            room -= len(kept.data)
            if path != segment_path and room >= 0:
                others.append((path, kept))
        self._kept = ((segment_path, entries), *others)
        return entries
