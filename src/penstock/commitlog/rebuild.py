"""Scan one segment: for recovery, and for an index that is lost.

Rules: nothing is changed here but an index file, which holds nothing that the segment does not. Below the flushed
position a mistake is damage, and the scan goes on behind it; from there on it is a torn tail, and the scan ends.
What was flushed and what the index vouches for is not read again: a start costs what was written since the last flush,
and a flipped bit there is found by whoever reads it, as in a segment that was sealed long ago.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.batch import codec
from penstock.batch.schema import SCHEMA_BYTES
from penstock.commitlog import files, index
from penstock.commitlog.errors import IndexDamagedError
from penstock.commitlog.index import ENTRY_BYTES, PackedEntries
from penstock.commitlog.lineage import LineageEntry, Told
from penstock.commitlog.resumed import Head, ResumedEntries
from penstock.commitlog.scan import Beyond, Found, Walk, find_behind
from penstock.commitlog.segment import Damage, Segment
from penstock.vfs import Buffer, File, Vfs


@dataclass(slots=True)
class Torn:
    """Where a segment stops making sense beyond what was flushed. `whole` is a verified batch from there on, if any."""

    position: int
    reason: str
    whole: Found | None


@dataclass(slots=True)
class Scan:
    """What the batches of one segment are. `entries` are those behind the `head`, if the index vouches for one."""

    head: Head | None = None
    entries: bytearray = field(default_factory=bytearray)
    epochs: list[LineageEntry] = field(default_factory=list)  # behind the head, as their first batches say
    begin_offset: int = 0  # of the first batch behind the head
    head_epoch: int = 0  # of the last batch of the head
    end_position: int = SCHEMA_BYTES
    end_offset: int = 0
    last_timestamp_us: int = 0
    leader_epoch: int = 0
    damage: list[Damage] = field(default_factory=list)
    torn: Torn | None = None

    def told(self) -> tuple[Told, ...]:
        """What its batches say of the lineage, if there are any."""
        if not (self.epochs or self.head_epoch):
            return ()
        return (Told(self.begin_offset, self.end_offset, self.head_epoch, tuple(self.epochs)),)

    def all_entries(self) -> PackedEntries | ResumedEntries:
        """Those of the head, too."""
        entries = PackedEntries(bytes(self.entries))
        return entries if self.head is None else ResumedEntries(self.head, entries)


def vouched_head(vfs: Vfs, file: File, *, base_offset: int, flushed_position: int) -> tuple[Head, int] | None:
    """What the index says of the batches of a segment below `flushed_position`, and the leader epoch of the last one.

    None if the last batch that it names is not there as it says: then it may be another segment's.
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
    head = Head(count, last.end_offset, end_position, first.min_timestamp_us, last.max_timestamp_us)
    return head, last.leader_epoch


def scan_segment(
    vfs: Vfs,
    file: File,
    *,
    base_offset: int,
    size_bytes: int,
    flushed_position: int | None,
    end_offset: int | None,
    vouched: tuple[Head, int] | None = None,
    by_marks: bool = True,
) -> Scan:
    """Verify every batch of a segment behind those that are `vouched` for; `by_marks` as of `find_behind`.

    `end_offset`: where it must end at the latest, None if not known. `flushed_position` None: not known; a mistake is
    then damage if something verified lies behind it.
    """
    scan = Scan(end_offset=base_offset)
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
            # Whatever verifies counts here, also a batch that does not fit on.
            whole = find_behind(file, Beyond(walk.position - 1, size_bytes, 0, None))
            if whole is None or flushed_position is not None:
                scan.torn = Torn(walk.position, str(walk.mistake), whole)
                return scan
        beyond = Beyond(walk.position, size_bytes, walk.offset, end_offset)
        found = find_behind(file, beyond, _hints(vfs, file.path, walk.position), by_marks=by_marks)
        lost_end = None if found is None else found.base_offset
        scan.damage.append(Damage(file.path, walk.position, walk.offset, lost_end, str(walk.mistake)))
        if found is None:
            return scan
        position, scan.end_offset = found.position, found.base_offset


def _hints(vfs: Vfs, path: str, position: int) -> Iterator[int]:
    """Positions behind `position` that the index file names, as far as it can be trusted."""
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


def rebuild_index(
    vfs: Vfs, file: File, segment: Segment, *, may_write: Callable[[], bool]
) -> tuple[PackedEntries, tuple[Damage, ...]]:
    """The entries of a sealed segment, from the segment itself; if all is sound, its index file gets them, too.

    `may_write`: whether the segment is still the one that was read; asked in this thread, while others may cut the log.
    """
    entries, damage = rebuild_entries(
        vfs, file, base_offset=segment.base_offset, end_position=segment.size_bytes, end_offset=segment.end_offset
    )
    if not damage:
        write_while(may_write, vfs, file.path, entries)
    return entries, damage


def rebuild_head(
    vfs: Vfs, file: File, base_offset: int, head: Head, *, may_write: Callable[[], bool]
) -> tuple[Damage, ...]:
    """Give a head the entries that the segment itself says; if all is sound, the index file gets them, too.

    `may_write` as of `rebuild_index`.
    """
    entries, damage = rebuild_entries(
        vfs, file, base_offset=base_offset, end_position=head.end_position, end_offset=head.end_offset
    )
    if not damage:
        write_while(may_write, vfs, file.path, entries, are_last=False)  # a flush may write those behind them meanwhile
    head.entries = entries
    return damage


def write_while(
    may_write: Callable[[], bool], vfs: Vfs, segment_path: str, entries: PackedEntries, *, are_last: bool = True
) -> None:
    """Have the index file hold the entries, if it can be had, and if they are still those of the segment.

    A cut does not wait for readers, and may come at any step of one: it is looked for before and after, and what was
    written behind it goes again. If that was the index of what is left, somebody builds it anew.
    """
    if not may_write():
        return
    with contextlib.suppress(OSError):
        write_index(vfs, segment_path, entries.data, are_last=are_last)
    if not may_write():
        with contextlib.suppress(OSError):
            vfs.remove(files.index_path(segment_path))


def rebuild_entries(
    vfs: Vfs, file: File, *, base_offset: int, end_position: int, end_offset: int
) -> tuple[PackedEntries, tuple[Damage, ...]]:
    """The entries of a segment up to a place where a flushed batch ends, from the segment itself."""
    scan = scan_segment(
        vfs,
        file,
        base_offset=base_offset,
        size_bytes=end_position,
        flushed_position=end_position,
        end_offset=end_offset,
    )
    complete_damage(scan, file.path, end_offset)
    return PackedEntries(bytes(scan.entries)), tuple(scan.damage)


class RebuiltIndexes:
    """Indexes of one log that were lost, for all its views: kept in memory, because they may not get onto the disk.

    For any thread without a lock: what is kept is a value that is replaced as a whole. Of two threads that do so at
    once one is forgotten, which costs another rebuild and nothing else.
    """

    __slots__ = ("_bytes_max", "_kept")

    def __init__(self, bytes_max: int = limits.REBUILT_INDEX_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: tuple[tuple[str, PackedEntries], ...] = ()  # by path of the segment, what was rebuilt last first

    def entries(self, segment_path: str, rebuild: Callable[[], PackedEntries]) -> PackedEntries:
        """Those of one segment; what `rebuild` gives is kept while there is room. Raises what it raises."""
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


def complete_damage(scan: Scan, path: str, end_offset: int) -> None:
    """Give damage of unknown extent its end, and report offsets that are missing before `end_offset`."""
    if scan.damage and scan.damage[-1].end_offset is None:
        last = scan.damage[-1]
        scan.damage[-1] = Damage(path, last.position, last.base_offset, end_offset, last.reason)
    elif scan.end_offset < end_offset:
        reason = str(CorruptionError(path, scan.end_position, f"offset {scan.end_offset}", "the end of the file"))
        scan.damage.append(Damage(path, scan.end_position, scan.end_offset, end_offset, reason))


def write_index(vfs: Vfs, segment_path: str, entries: Buffer, first_entry: int = 0, *, are_last: bool = True) -> None:
    """Make the index file hold `entries` from number `first_entry` on, and none behind if they `are_last`; or OSError.

    It is touched only where it does not. Not synced.
    """
    file = vfs.open(files.index_path(segment_path), create=True, make_folders=False)
    try:
        position = first_entry * ENTRY_BYTES
        end_position = position + len(entries)
        if file.read_at(position, len(entries)) != entries:
            file.write_at(position, entries)
        if are_last and file.size() != end_position:
            file.truncate(end_position)
    finally:
        file.close()


def write_again(vfs: Vfs, path: str, flushed_position: int, size_bytes: int) -> None:
    """Make durable what was not known to be: a sync of pages that an earlier one gave up on would prove nothing."""
    position = min(flushed_position, size_bytes)
    if position >= size_bytes:
        return
    file = vfs.open(path)
    try:
        while position < size_bytes:
            data = file.read_at(position, min(limits.SCAN_READ_BYTES, size_bytes - position))
            file.write_at(position, data)
            position += len(data)
        file.sync()
    finally:
        file.close()
