"""Lineage: which leader epoch began at which offset (Kafka's leader epoch cache).

Rules: epochs rise, offsets do not fall. An epoch that wrote nothing is replaced by the next one. Unreadable content is
copied to a side file before the file is rewritten. The batches carry their epochs, too, and for unflushed batches a
start trusts nothing else, since an entry and its batches reach the disk in any order. So replicas with the same batches
have the same lineage, except for a last epoch that wrote nothing yet. More than LINEAGE_ENTRIES_READ_MAX entries are an
error; this bounds the memory, whatever the size of the file.

One entry, 24 bytes, little-endian, at byte 24 · n:

| byte | type | field                        |
|------|------|------------------------------|
| 0    | u64  | leader epoch                 |
| 8    | u64  | start offset                 |
| 16   | u32  | zeros                        |
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
from penstock.commitlog.errors import is_full
from penstock.commitlog.files import files
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
    """Return the ENTRY_BYTES bytes of an entry."""
    body = _BODY.pack(*entry)
    return body + _CRC.pack(crc32c(body))


def unpack_entry(data: bytes, *, file: str = "", position: int = 0) -> LineageEntry:
    """Parse an entry; raise CorruptionError if it is invalid."""
    if len(data) != ENTRY_BYTES:
        raise CorruptionError(file, position, f"a lineage entry of {ENTRY_BYTES} bytes", f"{len(data)} bytes")
    (wanted,) = _CRC.unpack_from(data, _BODY.size)
    if (crc := crc32c(data[: _BODY.size])) != wanted:
        raise CorruptionError(file, position, f"CRC-32C {wanted:08x}", f"{crc:08x}")
    entry = LineageEntry._make(_BODY.unpack_from(data))
    if entry.leader_epoch >= _EPOCH_END or entry.start_offset > limits.OFFSET_MAX:
        raise CorruptionError(file, position, "a leader epoch below 2**32, from an offset on", str(entry))
    return entry


class LineageRead(NamedTuple):
    """The entries before the first error. `size_bytes`: of the whole file."""

    entries: tuple[LineageEntry, ...]
    size_bytes: int
    mistake: CorruptionError | None


def read(vfs: Vfs, directory: str) -> LineageRead:
    """Read the lineage of a log; a missing file has no entries."""
    try:
        file = vfs.open(f"{directory}/{files.LINEAGE}", read_only=True)
    except FileNotFoundError:
        return LineageRead((), 0, None)
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
    return LineageRead(tuple(entries), size, mistake)


def _take(entries: list[LineageEntry], file: File, begin: int, length: int) -> None:
    """Append the entries of one piece of the file, up to an error: CorruptionError."""
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
    """Replace the file atomically and durably."""
    write_new(vfs, directory, entries)
    put_in_place(vfs, directory)


def write_new(vfs: Vfs, directory: str, entries: Iterable[LineageEntry]) -> None:
    """Write the new file beside the old one: the first half of `rewrite`."""
    file = vfs.open(f"{directory}/{files.LINEAGE}.new", create=True, make_folders=False)
    try:
        file.truncate(0)
        file.write_at(0, b"".join(map(pack_entry, entries)))
        file.sync()
    finally:
        file.close()


def put_in_place(vfs: Vfs, directory: str) -> None:
    """Rename the new file over the old one: the second half of `rewrite`."""
    path = f"{directory}/{files.LINEAGE}"
    vfs.rename(f"{path}.new", path)
    vfs.sync_dir(directory)


class BatchLineage(NamedTuple):
    """First offset of each epoch among the batches from offset `begin` up to `end`, as the batches say.

    `epoch_before` is the epoch of the batch that ends at `begin`; 0: not known.
    """

    begin: int
    end: int
    epoch_before: int
    entries: tuple[LineageEntry, ...]


def is_in_doubt(found: LineageRead, told: Iterable[BatchLineage], log_start: int, log_end: int) -> bool:
    """True if the lineage must be rebuilt from all batches: it contradicts those that were scanned, or begins after
    the log: it was rebuilt from the batches that were left, and then a lost checkpoint brought earlier ones back.
    """
    if found.mistake is not None:
        return True
    if found.entries and log_start < min(found.entries[0].start_offset, log_end):
        return True
    return any(one.epoch_before not in (0, _epoch_below(found.entries, one.begin)) for one in told)


def _epoch_below(entries: Iterable[LineageEntry], offset: int) -> int:
    return max((entry.leader_epoch for entry in entries if entry.start_offset < offset), default=0)


def recover(
    vfs: Vfs,
    directory: str,
    found: LineageRead,
    log_start: int,
    log_end: int,
    told: Iterable[BatchLineage] = (),
    known: tuple[LineageEntry, ...] | None = None,
) -> tuple[LineageEntry, ...]:
    """Return the lineage of a log from `log_start` to `log_end`, and repair the file. `found` is the file's content,
    `told` what the scanned batches say, and `known` the epochs of all batches if they were read. OSError.
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
    """Make the last entries durable: a run killed before its sync leaves them in the page cache only.

    Their batches are about to count as flushed, and then no start would read the entries from them again. If a sync of
    that run failed, a later sync without a write would prove nothing. The write takes no room; a disk that still
    reports itself full must not prevent the start.
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


def amended(entries: Sequence[LineageEntry], told: BatchLineage) -> tuple[LineageEntry, ...]:
    """Return the lineage corrected by these batches. A lost epoch begins at the earliest possible offset."""
    out = [entry for entry in entries if entry.start_offset < told.begin]
    if told.epoch_before > (out[-1].leader_epoch if out else 0):
        out.append(LineageEntry(told.epoch_before, out[-1].start_offset if out else 0))
    later = [entry for entry in entries if entry.start_offset >= max(told.end, told.begin)]
    for entry in (*told.entries, *later):
        if not out or entry.leader_epoch > out[-1].leader_epoch:
            out.append(entry)
    return tuple(out)


def _mend(vfs: Vfs, directory: str, found: LineageRead, entries: Iterable[LineageEntry]) -> None:
    """Rewrite the file with `entries`; keep its unreadable part in a side file."""
    path = f"{directory}/{files.LINEAGE}"
    position = len(found.entries) * ENTRY_BYTES
    if found.size_bytes - position >= ENTRY_BYTES:
        file = vfs.open(path)
        try:
            if not files.is_zeros(file, position, found.size_bytes):
                files.copy_aside(vfs, file, position, found.size_bytes)
        finally:
            file.close()
    rewrite(vfs, directory, entries)


class Lineage:
    """Leader epoch history of one log, in memory and in its file."""

    __slots__ = ("_directory", "_vfs", "entries")

    def __init__(self, vfs: Vfs, directory: str, entries: Iterable[LineageEntry]) -> None:
        self._vfs = vfs
        self._directory = directory
        self.entries = tuple(entries)

    def start(self, entry: LineageEntry) -> File:
        """Record a leadership that begins at `entry.start_offset`, or raise OSError.

        Return the file, which the caller must sync and close.
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
        """Rewrite the file and return it; the caller must sync and close it. OSError."""
        file = self._vfs.open(f"{self._directory}/{files.LINEAGE}", create=True, make_folders=False)
        try:
            file.write_at(0, b"".join(map(pack_entry, self.entries)))
            file.truncate(len(self.entries) * ENTRY_BYTES)
        except OSError:
            file.close()
            raise
        return file

    def says(self, leader_epoch: int, offset: int) -> bool:
        """True if a batch at `offset`, the end of the log, is already known to belong to this epoch."""
        last = self.entries[-1] if self.entries else None
        return last is not None and last.leader_epoch == leader_epoch and last.start_offset <= offset

    def epoch_before(self, offset: int) -> int:
        """Return the epoch that wrote the batch before `offset`; 0 if there was none."""
        return next((one.leader_epoch for one in reversed(self.entries) if one.start_offset < offset), 0)

    def epoch_end(self, leader_epoch: int, log_end: int) -> LineageEntry:
        """Return the last known epoch up to `leader_epoch`, and its end offset; see `Log.epoch_end`."""
        number = bisect_right(self.entries, leader_epoch, key=_leader_epoch)
        end = self.entries[number].start_offset if number < len(self.entries) else log_end
        return LineageEntry(self.entries[number - 1].leader_epoch if number else 0, end)


def still_needed(entries: tuple[LineageEntry, ...], log_start: int, log_end: int) -> tuple[LineageEntry, ...]:
    """Return the entries that a log from `log_start` to `log_end` needs: none that begins beyond its end and, beyond
    LINEAGE_ENTRIES_MAX entries, none that ended before its start.
    """
    kept = tuple(entry for entry in entries if entry.start_offset <= log_end)
    if len(kept) <= limits.LINEAGE_ENTRIES_MAX:
        return kept
    first = max((n for n, entry in enumerate(kept) if entry.start_offset <= log_start), default=0)
    return kept[first:]
