"""The mark: up to which index a log has been synced, in a file of its own.

Rules: written and synced after each sync of the log and before anything is acted on; it never goes back. It has two
slots in sectors of their own, written in turn, so that a torn write leaves the other.

Theory: until a sync a disk may lose any part of what was written, so a damaged last entry of a log does not tell
whether it is a torn tail, which nobody was told of, or damage to what somebody relies on. The mark tells.

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


class Mark:
    """The open mark of the log that has its mark at `path`. One writer at a time."""

    def __init__(self, vfs: Vfs, path: str) -> None:
        self._vfs = vfs
        self._path = path
        self._file: File | None = None
        self._next_slot = 0
        self.index = 0  # nothing is known to have been synced
        self.is_there = False  # there is a file, whatever is in it
        self.damaged_at: int | None = None  # the byte of a slot that holds something else than an index
        try:
            self._file = vfs.open(path)
        except FileNotFoundError:
            return
        self.is_there = True
        indexes = []
        for slot in _SLOTS:
            content = self._file.read_at(slot * _SECTOR_BYTES, _SLOT.size)
            indexes.append(_index_in(content))
            if not indexes[slot] and any(content):
                self.damaged_at = slot * _SECTOR_BYTES
        first, second = indexes
        self._next_slot = 1 if first > second else 0
        self.index = max(first, second)

    def move(self, index: int) -> None:
        """Note that all up to `index` is on the disk; returns once that note is, too. OSError."""
        if index > self.index:
            self._write(index)

    def mend(self) -> None:
        """Write the index into the slot that is damaged. OSError."""
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
        """Give the file back."""
        if self._file is not None:
            self._file.close()


def _index_in(data: bytes) -> int:
    if len(data) < _SLOT.size:
        return 0
    magic, crc, content = _SLOT.unpack(data)
    index: int = _INDEX.unpack(content)[0]
    return index if magic == _MAGIC and crc32c(content) == crc else 0
