"""The mark: the index up to which a log has been synced, in its own file.

Rules: it is written and synced after each sync of the log, before anything is acted on; it never goes back. It has two
slots in separate sectors, written in turn, so that a torn write leaves the other one.

Theory: before a sync a disk may lose any part of what was written. So an invalid last entry of a log may be a torn
tail, which was never acknowledged, or corruption of data that others rely on. The mark tells them apart.

    file   slot | zeros up to byte 512 | slot                    little-endian
    slot   "PNSM" | u32 CRC-32C of the index | u64 index
"""

from __future__ import annotations

import errno
import struct

from penstock.hot.crc import crc32c
from penstock.vfs import File, Vfs

_MAGIC = b"PNSM"
_SLOT = struct.Struct("<4sI8s")
_INDEX = struct.Struct("<Q")
_SECTOR_BYTES = 512
_SLOTS = (0, 1)


class SyncedMark:
    """The open mark at `path`. One writer at a time."""

    def __init__(self, vfs: Vfs, path: str) -> None:
        self._vfs = vfs
        self._path = path
        self._file: File | None = None
        self._next_slot = 0
        self.index = 0  # 0: nothing is known to be synced
        self.is_there = False  # the file exists, whatever it holds
        self.damaged_at: int | None = None  # position of an invalid slot
        try:
            self._file = file = vfs.open(path)
        except FileNotFoundError:
            return
        self.is_there = True
        indexes = []
        try:
            contents = [file.read_at(slot * _SECTOR_BYTES, _SLOT.size) for slot in _SLOTS]
        except OSError:
            file.close()
            raise
        for slot, content in zip(_SLOTS, contents, strict=True):
            indexes.append(_index_in(content))
            if not indexes[slot] and any(content):
                self.damaged_at = slot * _SECTOR_BYTES
        first, second = indexes
        self._next_slot = 1 if first > second else 0
        self.index = max(first, second)

    def move(self, index: int) -> None:
        """Record that everything up to `index` is on disk; return once the record is, too. OSError."""
        if index > self.index:
            self._write(index)

    def mend(self) -> None:
        """Write the index into the invalid slot. OSError."""
        if self.index and self.damaged_at is not None:
            self._next_slot = self.damaged_at // _SECTOR_BYTES
            self._write(self.index)
            self.damaged_at = None

    def _write(self, index: int) -> None:
        if self._file is None:
            self._file = self._vfs.open(self._path, create=True)
            self._vfs.sync_dir(self._path.rpartition("/")[0])
        content = _INDEX.pack(index)
        self._file.write_at(self._next_slot * _SECTOR_BYTES, _SLOT.pack(_MAGIC, crc32c(content), content))
        self._file.sync()
        if not self._file.has_its_name():
            raise FileNotFoundError(errno.ENOENT, "the file was removed or moved", self._path)
        self._next_slot = 1 - self._next_slot
        self.index = index

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _index_in(data: bytes) -> int:
    if len(data) < _SLOT.size:
        return 0
    magic, crc, content = _SLOT.unpack(data)
    index: int = _INDEX.unpack(content)[0]
    return index if magic == _MAGIC and crc32c(content) == crc else 0
