"""The reserve: room on the disk that is kept for the metadata, so that a full disk can be emptied through the broker.

Rules: the file's bytes mean nothing, and it may be removed or cut at any time. It is given up block by block, only as a
command needs it that must go through, and taken again as soon as there is room. Whatever goes wrong
with it only makes it smaller.

Theory: to delete a stream, or to shorten its retention, is a command, and so is every start: without room for a few
hundred bytes a full disk could only be emptied by hand. The first entry that finds no room takes one block; the next
ones fit into the rest of it. (Where a file system compresses zeros away, the reserve holds nothing.)
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from penstock.vfs import File, Vfs

RESERVE_BYTES = 64 * 1024
_BLOCK_BYTES = 4096
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Reserve:
    """The open reserve, or none. One owner; its calls are short writes."""

    def __init__(self, vfs: Vfs, path: str) -> None:
        """Take over what is there; `fill` makes it where it is missing."""
        self._vfs = vfs
        self._path = path
        self._file: File | None = None
        self._filled = False  # since this start: a copy of the file may be all holes
        self.size_bytes = 0
        try:
            self._file = vfs.open(path)
            self.size_bytes = self._file.size()
        except OSError:
            return

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return self._filled and self.size_bytes == RESERVE_BYTES

    def fill(self) -> None:
        """Take what is missing, as far as there is room."""
        if self.is_whole:
            return
        start = min(self.size_bytes, RESERVE_BYTES) if self._filled else 0
        self._filled = True
        try:
            if self._file is None:
                self._file = self._vfs.open(self._path, create=True)
            try:
                self._file.write_at(start, bytes(RESERVE_BYTES - start))
                self._file.truncate(RESERVE_BYTES)
            finally:
                self.size_bytes = self._file.size()  # as much as there was room for
        except OSError:
            return

    def make_room(self, size_bytes: int, write: Callable[[], None]) -> None:
        """`write`, giving up room for `size_bytes` as often as it finds none; its OSError if that does not help."""
        while True:
            try:
                write()
            except OSError as error:
                if error.errno not in _FULL or not self._release(size_bytes):
                    raise
            else:
                return

    def _release(self, size_bytes: int) -> bool:
        if self._file is None or not self.size_bytes:
            return False
        blocks = -(-size_bytes // _BLOCK_BYTES)
        try:
            self._file.truncate(max(0, self.size_bytes - blocks * _BLOCK_BYTES))
            self.size_bytes = self._file.size()
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()
