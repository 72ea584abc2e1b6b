"""Lineage: which leader epoch began at which offset.

Rules: epochs rise, offsets do not fall. An epoch that wrote nothing is replaced by the next one. What cannot be read is
copied aside before the file is written anew. The batches themselves carry their epoch too, and of those that were not
flushed a start believes nothing else: an entry and its batches reach the disk in any order. So two replicas whose
batches are the same have the same lineage, but for an epoch at its very end that wrote nothing yet. What comes behind
LINEAGE_ENTRIES_READ_MAX entries is a mistake; memory is bounded by them, whatever the size of the file.

One entry, 24 bytes, little-endian, at byte 24 · n:

| byte | type | field        |
|------|------|--------------|
| 0    | u64  | leader epoch |
| 8    | u64  | start offset |
| 16   | u32  | zeros        |
| 20   | u32  | CRC-32C of the bytes 0 to 19 |
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.commitlog import files, remains
from penstock.commitlog.errors import is_full
from penstock.hot.crc import crc32c
from penstock.vfs import File, Vfs

ENTRY_BYTES = 24
_PIECE_BYTES = limits.SCAN_READ_BYTES // ENTRY_BYTES * ENTRY_BYTES
_BODY = struct.Struct("<QQ4x")
_CRC = struct.Struct("<I")
_EPOCH_END = 2**32
_leader_epoch = attrgetter("leader_epoch")


class LineageEntry(NamedTuple):
    """One leadership."""

    leader_epoch: int
    start_offset: int


def pack_entry(entry: LineageEntry) -> bytes:
    """The ENTRY_BYTES bytes of an entry."""
    body = _BODY.pack(*entry)
    return body + _CRC.pack(crc32c(body))


def unpack_entry(data: bytes, *, file: str = "", position: int = 0) -> LineageEntry:
    """The entry in `data`, or CorruptionError."""
    if len(data) != ENTRY_BYTES:
        raise CorruptionError(file, position, f"a lineage entry of {ENTRY_BYTES} bytes", f"{len(data)} bytes")
    (wanted,) = _CRC.unpack_from(data, _BODY.size)
    if (crc := crc32c(data[: _BODY.size])) != wanted:
        raise CorruptionError(file, position, f"CRC-32C {wanted:08x}", f"{crc:08x}")
    entry = LineageEntry._make(_BODY.unpack_from(data))
    if entry.leader_epoch >= _EPOCH_END or entry.start_offset > limits.OFFSET_MAX:
        raise CorruptionError(file, position, "a leader epoch below 2**32, from an offset on", str(entry))
    return entry


class Read(NamedTuple):
    """The entries before the first mistake; `size_bytes` is the whole file's."""

    entries: tuple[LineageEntry, ...]
    size_bytes: int
    mistake: CorruptionError | None


def read(vfs: Vfs, directory: str) -> Read:
    """Read the lineage of a log; a missing file has no entries."""
    try:
        file = vfs.open(f"{directory}/{files.LINEAGE}", read_only=True)
    except FileNotFoundError:
        return Read((), 0, None)
    entries: list[LineageEntry] = []
    mistake = None
    try:
        size = file.size()
        for piece in range(0, size, _PIECE_BYTES):
            _take(entries, file, piece, min(_PIECE_BYTES, size - piece))
    except CorruptionError as error:
        mistake = error
    finally:
        file.close()
    return Read(tuple(entries), size, mistake)


def _take(entries: list[LineageEntry], file: File, begin: int, length: int) -> None:
    """Add those of a piece of the file, up to a mistake: CorruptionError."""
    data = file.read_at(begin, length)
    for place in range(0, len(data), ENTRY_BYTES):
        position = begin + place
        if len(entries) >= limits.LINEAGE_ENTRIES_READ_MAX:
            raise CorruptionError(file.path, position, f"at most {len(entries)} entries", "more of them")
        entry = unpack_entry(data[place : place + ENTRY_BYTES], file=file.path, position=position)
        if entries and (entry.leader_epoch <= entries[-1][0] or entry.start_offset < entries[-1][1]):
            raise CorruptionError(file.path, position, f"more than {entries[-1]}", str(entry))
        entries.append(entry)


def rewrite(vfs: Vfs, directory: str, entries: Iterable[LineageEntry]) -> None:
    """Put a new file in the place of the old one, at once and durably."""
    write_new(vfs, directory, entries)
    put_in_place(vfs, directory)


def write_new(vfs: Vfs, directory: str, entries: Iterable[LineageEntry]) -> None:
    """The first half: the new file beside the old one."""
    file = vfs.open(f"{directory}/{files.LINEAGE}.new", create=True, make_folders=False)
    try:
        file.truncate(0)
        file.write_at(0, b"".join(map(pack_entry, entries)))
        file.sync()
    finally:
        file.close()


def put_in_place(vfs: Vfs, directory: str) -> None:
    """The second half."""
    path = f"{directory}/{files.LINEAGE}"
    vfs.rename(f"{path}.new", path)
    vfs.sync_dir(directory)


class Told(NamedTuple):
    """What the batches from offset `begin` up to `end` say: where an epoch has its first batch among them.

    `epoch_before` is the one of the batch that ends at `begin`; 0: not known.
    """

    begin: int
    end: int
    epoch_before: int
    entries: tuple[LineageEntry, ...]


def is_in_doubt(found: Read, told: Iterable[Told]) -> bool:
    """Whether it is not the lineage of these batches, as far as they can say: then all batches are to be asked."""
    if found.mistake is not None:
        return True
    return any(one.epoch_before not in (0, _epoch_below(found.entries, one.begin)) for one in told)


def _epoch_below(entries: Iterable[LineageEntry], offset: int) -> int:
    return max((entry.leader_epoch for entry in entries if entry.start_offset < offset), default=0)


def recover(
    vfs: Vfs,
    directory: str,
    found: Read,
    log_start: int,
    log_end: int,
    told: Iterable[Told] = (),
    known: tuple[LineageEntry, ...] | None = None,
) -> tuple[LineageEntry, ...]:
    """What a log from `log_start` to `log_end` makes of the lineage that was found, and of what those of its batches
    say that were read; or of what is `known` by all of its batches. The file is mended. OSError.
    """
    entries = found.entries if known is None else known
    told = tuple(told)
    for one in told:
        entries = amended(entries, one)
    entries = still_needed(entries, log_start, log_end)
    if found.mistake is not None or entries != found.entries:
        _mend(vfs, directory, found, entries)
    elif entries and any(entries[-1].start_offset >= one.begin for one in told):
        _write_again(vfs, directory, entries)
    return entries


def _write_again(vfs: Vfs, directory: str, entries: Iterable[LineageEntry]) -> None:
    """The run that wrote the last entries may have died before it synced them: the page cache may be all that has them.

    Their batches are about to count as flushed, and nothing would ask them again. Where a sync of that run has failed,
    another one would prove nothing without a write, which takes no room; a disk that refuses it all the same is no
    reason not to read what is there.
    """
    file = vfs.open(f"{directory}/{files.LINEAGE}")
    try:
        try:
            file.write_at(0, b"".join(map(pack_entry, entries)))
        except OSError as error:
            if not is_full(error):
                raise
        file.sync()
    finally:
        file.close()
    vfs.sync_dir(directory)


def amended(entries: Sequence[LineageEntry], told: Told) -> tuple[LineageEntry, ...]:
    """The lineage as these batches tell it. An epoch before them that it has lost begins as early as it may have."""
    out = [entry for entry in entries if entry.start_offset < told.begin]
    if told.epoch_before > (out[-1].leader_epoch if out else 0):
        out.append(LineageEntry(told.epoch_before, out[-1].start_offset if out else 0))
    later = [entry for entry in entries if entry.start_offset >= max(told.end, told.begin)]
    for entry in (*told.entries, *later):
        if not out or entry.leader_epoch > out[-1].leader_epoch:
            out.append(entry)
    return tuple(out)


def _mend(vfs: Vfs, directory: str, found: Read, entries: Iterable[LineageEntry]) -> None:
    """Write the file anew with `entries`; what could not be read in it is kept in a side file."""
    path = f"{directory}/{files.LINEAGE}"
    position = len(found.entries) * ENTRY_BYTES
    if found.size_bytes - position >= ENTRY_BYTES:
        file = vfs.open(path)
        try:
            if not remains.is_zeros(file, position, found.size_bytes):
                remains.copy_aside(vfs, file, position, found.size_bytes)
        finally:
            file.close()
    rewrite(vfs, directory, entries)


class Lineage:
    """The leaderships of one log, in memory and in their file."""

    __slots__ = ("_directory", "_vfs", "entries")

    def __init__(self, vfs: Vfs, directory: str, entries: Iterable[LineageEntry]) -> None:
        self._vfs = vfs
        self._directory = directory
        self.entries = tuple(entries)

    def start(self, entry: LineageEntry) -> File:
        """The batches from its start on are of this leadership: write so, or raise OSError.

        Gives the file, which the caller is to sync and to close.
        """
        kept = tuple(one for one in self.entries if one.start_offset < entry.start_offset)
        is_new = not kept or kept[-1].leader_epoch != entry.leader_epoch
        entries = (*kept, entry) if is_new else kept
        file = self._vfs.open(f"{self._directory}/{files.LINEAGE}", create=True, make_folders=False)
        try:
            if is_new:
                file.write_at(len(kept) * ENTRY_BYTES, pack_entry(entry))
            if len(entries) < len(self.entries):
                file.truncate(len(entries) * ENTRY_BYTES)
        except OSError:
            file.close()
            raise
        self.entries = entries
        return file

    def rewritten(self) -> File:
        """Write the file anew; it is the caller's to sync and to close. OSError."""
        file = self._vfs.open(f"{self._directory}/{files.LINEAGE}", create=True, make_folders=False)
        try:
            file.write_at(0, b"".join(map(pack_entry, self.entries)))
            file.truncate(len(self.entries) * ENTRY_BYTES)
        except OSError:
            file.close()
            raise
        return file

    def says(self, leader_epoch: int, offset: int) -> bool:
        """Whether it is known already that what comes at `offset`, the end of the log, is of this leadership."""
        last = self.entries[-1] if self.entries else None
        return last is not None and last.leader_epoch == leader_epoch and last.start_offset <= offset

    def epoch_before(self, offset: int) -> int:
        """The leadership that wrote the batch before `offset`; 0 if there was none."""
        return next((one.leader_epoch for one in reversed(self.entries) if one.start_offset < offset), 0)

    def epoch_end(self, leader_epoch: int, log_end: int) -> LineageEntry:
        """The last known leadership up to `leader_epoch`, and where it ended; see `Log.epoch_end`."""
        number = bisect_right(self.entries, leader_epoch, key=_leader_epoch)
        end = self.entries[number].start_offset if number < len(self.entries) else log_end
        return LineageEntry(self.entries[number - 1].leader_epoch if number else 0, end)


def still_needed(entries: tuple[LineageEntry, ...], log_start: int, log_end: int) -> tuple[LineageEntry, ...]:
    """The entries that a log from `log_start` to `log_end` has a use for: none that began beyond its end,
    and, once there are many, none that ended before its start.
    """
    kept = tuple(entry for entry in entries if entry.start_offset <= log_end)
    if len(kept) <= limits.LINEAGE_ENTRIES_MAX:
        return kept
    first = max((n for n, entry in enumerate(kept) if entry.start_offset <= log_start), default=0)
    return kept[first:]
