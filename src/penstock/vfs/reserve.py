"""The reserve: disk space kept for the metadata, so that a full disk can be freed through the broker.

Rules: the file's content means nothing, and it may be removed or truncated at any time. It is released block by block,
only for commands that must succeed, and refilled as soon as there is space. Errors only make it smaller.

Theory: deleting a stream, shortening its retention and each start append a command: without space for a few hundred
bytes a full disk could only be freed by hand. The first entry that finds no space releases one block; the next ones fit
into the rest of it. (Where a file system compresses zeros, the reserve holds nothing.)
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from penstock.vfs import File, Vfs

RESERVE_BYTES = 64 * 1024
_BLOCK_BYTES = 4096
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Reserve:
    """The reserve file. One owner; its calls are short writes."""

    def __init__(self, vfs: Vfs, path: str) -> None:
        """Open an existing reserve; `fill` creates a missing one."""
        self._vfs = vfs
        self._path = path
        self._file: File | None = None
        self._filled = False  # since this start: a copied file may be sparse
        self.size_bytes = 0
        try:
            self._file = vfs.open(path)
            self.size_bytes = self._file.size()
        except OSError:
            return

    @property
    def is_whole(self) -> bool:
        """True if the reserve has its full size."""
        return self._filled and self.size_bytes == RESERVE_BYTES

    def fill(self) -> None:
        """Refill the reserve as far as there is space."""
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
                self.size_bytes = self._file.size()  # as much as there was space for
        except OSError:
            return

    def make_room(self, size_bytes: int, write: Callable[[], None]) -> None:
        """Call `write`, releasing `size_bytes` of reserve while the disk is full; raise its last OSError."""
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
        """Close the file."""
        if self._file is not None:
            self._file.close()
