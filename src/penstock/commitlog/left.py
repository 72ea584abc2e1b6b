"""What is left of a damaged segment: its sound batches, and the bytes that nobody understands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.base.errors import CorruptionError, RemoteError
from penstock.batch.schema import SCHEMA_BYTES, check_schema_message
from penstock.commitlog import rebuild
from penstock.commitlog.errors import is_shortage
from penstock.commitlog.index import PackedEntries
from penstock.commitlog.mended_file import MendingError
from penstock.commitlog.segment import Segment
from penstock.vfs import File, Vfs


class Old(NamedTuple):
    """What is left of a damaged segment."""

    file: File | None
    sound: PackedEntries
    aside: tuple[tuple[int, int], ...]  # positions from where to where nothing can be understood
    size_bytes: int


def look_into(vfs: Vfs, segment: Segment, ids: tuple[int, int]) -> Old:
    """Its file is open, if there is one. MendingError if it is of a format that this version does not know."""
    try:
        file = vfs.open(segment.path, read_only=True)
    except FileNotFoundError:
        return Old(None, PackedEntries(b""), (), 0)
    except OSError as error:
        if is_shortage(error):
            raise  # the disk is well
        return Old(None, PackedEntries(b""), ((0, 1),), 0)
    try:
        return _understood(vfs, segment, file, ids)
    except OSError as error:
        file.close()
        if is_shortage(error):
            raise
        return Old(None, PackedEntries(b""), ((0, 1),), 0)
    except BaseException:
        file.close()
        raise


def _understood(vfs: Vfs, segment: Segment, file: File, ids: tuple[int, int]) -> Old:
    size_bytes = file.size()
    head = file.read_at(0, SCHEMA_BYTES)
    aside: list[tuple[int, int]] = []
    newer = ""
    try:
        if check_schema_message(head, file=file.path) != ids:  # another stream's: none of it is ours
            return Old(file, PackedEntries(b""), ((0, size_bytes),), size_bytes)
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
        by_marks=False,  # else a message that holds batches could be taken for them
    )
    entries = PackedEntries(bytes(scan.entries))
    if newer and not entries.count:  # with batches of ours, it is the number of the format that is damaged
        raise MendingError(f"{file.path} cannot be mended: {newer}")
    return Old(file, entries, (*aside, *_between(entries, size_bytes)), size_bytes)


def _between(entries: PackedEntries, size_bytes: int) -> Iterator[tuple[int, int]]:
    """The positions of what lies between the batches that were found, and behind them."""
    position = SCHEMA_BYTES
    for number in range(entries.count):
        extent = entries.extent(number)
        if extent.position > position:
            yield position, extent.position
        position = extent.end_position
    if position < size_bytes:
        yield position, size_bytes
