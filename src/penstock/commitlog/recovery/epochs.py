"""The first offset of each leader epoch in a segment, from its batches: used when the lineage is lost or in doubt.

Rules: an index is trusted if it matches its segment; otherwise the segment itself is read. Epochs never decrease.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain

from penstock.commitlog.errors import IndexDamagedError
from penstock.commitlog.files import files
from penstock.commitlog.files.index import FileEntries
from penstock.commitlog.files.lineage import LineageEntry
from penstock.commitlog.segment import rebuild
from penstock.commitlog.segment.segment import Segment
from penstock.vfs import Vfs


def epochs_in(vfs: Vfs, segment: Segment) -> tuple[LineageEntry, ...]:
    """Return the first batch of each epoch in a segment, skipping corrupt parts. OSError."""
    try:
        index_file = vfs.open(files.index_path(segment.path), read_only=True)
    except FileNotFoundError:
        return _read(vfs, segment)
    try:
        end_position, end_offset = segment.size_bytes, segment.end_offset
        return tuple(_by_halving(FileEntries(index_file, end_position=end_position, end_offset=end_offset)))
    except IndexDamagedError:
        return _read(vfs, segment)
    finally:
        index_file.close()


def _by_halving(entries: FileEntries) -> Iterator[LineageEntry]:
    number = 0
    while number < entries.count:
        first = entries.entry(number)
        yield LineageEntry(first.leader_epoch, first.base_offset)
        numbers = range(number, entries.count)
        number += bisect_right(numbers, first.leader_epoch, key=lambda each: entries.entry(each).leader_epoch)


def _read(vfs: Vfs, segment: Segment) -> tuple[LineageEntry, ...]:
    try:
        file = vfs.open(segment.path, read_only=True)
    except FileNotFoundError:
        return ()
    try:
        scan = rebuild.scan_segment(
            vfs,
            file,
            base_offset=segment.base_offset,
            size_bytes=file.size(),
            flushed_position=file.size(),
            end_offset=segment.end_offset,
            by_marks=False,
        )
    finally:
        file.close()
    return tuple(scan.epochs)


def joined(lineages: Iterable[Iterable[LineageEntry]]) -> tuple[LineageEntry, ...]:
    """Concatenate the segments' entries into those of the log."""
    out: list[LineageEntry] = []
    for entry in chain.from_iterable(lineages):
        if not out or entry.leader_epoch > out[-1].leader_epoch:
            out.append(entry)
    return tuple(out)
