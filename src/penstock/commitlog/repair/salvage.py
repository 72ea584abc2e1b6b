"""The intact batches of a corrupt segment, and the byte ranges that cannot be parsed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.base.errors import CorruptionError, RemoteError
from penstock.batch.schema import SCHEMA_BYTES, check_schema_message
from penstock.commitlog.errors import is_shortage
from penstock.commitlog.files.index import PackedEntries
from penstock.commitlog.repair.repaired_file import RepairError
from penstock.commitlog.segment import rebuild
from penstock.commitlog.segment.segment import Segment
from penstock.vfs import File, Vfs


class SalvagedSegment(NamedTuple):
    """Remains of a corrupt segment."""

    file: File | None
    sound: PackedEntries
    aside: tuple[tuple[int, int], ...]  # byte ranges that cannot be parsed
    size_bytes: int


def salvage_segment(vfs: Vfs, segment: Segment, ids: tuple[int, int]) -> SalvagedSegment:
    """Scan a corrupt segment; its file, if any, stays open. RepairError if a newer version wrote it."""
    try:
        file = vfs.open(segment.path, read_only=True)
    except FileNotFoundError:
        return SalvagedSegment(None, PackedEntries(b""), (), 0)
    except OSError as error:
        if is_shortage(error):
            raise  # the disk is fine
        return SalvagedSegment(None, PackedEntries(b""), ((0, 1),), 0)
    try:
        return _understood(vfs, segment, file, ids)
    except OSError as error:
        file.close()
        if is_shortage(error):
            raise
        return SalvagedSegment(None, PackedEntries(b""), ((0, 1),), 0)
    except BaseException:
        file.close()
        raise


def _understood(vfs: Vfs, segment: Segment, file: File, ids: tuple[int, int]) -> SalvagedSegment:
    size_bytes = file.size()
    head = file.read_at(0, SCHEMA_BYTES)
    aside: list[tuple[int, int]] = []
    newer = ""
    try:
        if check_schema_message(head, file=file.path) != ids:  # another stream's: none of it belongs here
            return SalvagedSegment(file, PackedEntries(b""), ((0, size_bytes),), size_bytes)
    except CorruptionError:
        aside.append((0, len(head)))
    except RemoteError as error:
        aside.append((0, len(head)))
        newer = error.message
    scan = rebuild.scan_segment(
        vfs,
        file,
        base_offset=segment.base_offset,
        size_bytes=size_bytes,
        flushed_position=size_bytes,
        end_offset=segment.end_offset,
        by_marks=False,  # otherwise batches inside a message could be mistaken for batches of the log
    )
    entries = PackedEntries(bytes(scan.entries))
    if newer and not entries.count:  # it has batches of ours, so only the format number is corrupt
        raise RepairError(f"{file.path} cannot be mended: {newer}")
    return SalvagedSegment(file, entries, (*aside, *_between(entries, size_bytes)), size_bytes)


def _between(entries: PackedEntries, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the byte ranges between and behind the batches found."""
    position = SCHEMA_BYTES
    for number in range(entries.count):
        extent = entries.extent(number)
        if extent.position > position:
            yield position, extent.position
        position = extent.end_position
    if position < size_bytes:
        yield position, size_bytes
