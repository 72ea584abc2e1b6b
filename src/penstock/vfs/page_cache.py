"""Files read only as far as no disk is needed, so that an event loop may read them.

Rules: a read that the page cache cannot answer as a whole raises ColdError, and so do changes, a read beyond the budget
and whatever the system cannot tell. Then a disk thread does the same with the files themselves. Opening a file reads no
content; it is as quick as the opening of a file that is sent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NoReturn

from penstock.base.errors import PenstockError
from penstock.vfs import Buffer, File, Folder, Vfs

_NOT_WAITING = getattr(os, "RWF_NOWAIT", None)


class ColdError(PenstockError):
    """The disk is needed, or more reads than an event loop does at once."""


class CachedVfs:
    """`inner`, of which at most `reads_max` reads, of `bytes_max` bytes together, are answered. For one task."""

    def __init__(self, inner: Vfs, *, reads_max: int, bytes_max: int) -> None:
        self._inner = inner
        self._reads = reads_max
        self._bytes = bytes_max

    def open(
        self, path: str, *, create: bool = False, make_folders: bool = True, read_only: bool = False
    ) -> CachedFile:
        if create or not read_only:
            raise ColdError(f"{path} is opened for writing")
        self.spend(0)
        return CachedFile(self, self._inner.open(path, make_folders=make_folders, read_only=True))

    def spend(self, size_bytes: int) -> None:
        """Take one read from the budget. ColdError: it is used up."""
        self._reads -= 1
        self._bytes -= size_bytes
        if self._reads < 0 or self._bytes < 0:
            raise ColdError("so much is read by a disk thread")

    def open_folder(self, path: str) -> Folder:
        _refuse(path)

    def list(self, path: str) -> Sequence[str]:
        _refuse(path)

    def rename(self, old: str, new: str) -> None:
        _refuse(old)

    def remove(self, path: str) -> None:
        _refuse(path)

    def sync_dir(self, path: str) -> None:
        _refuse(path)

    def together(self, *syncs: Callable[[], None]) -> None:
        _refuse("")

    def cached(self, *, reads_max: int, bytes_max: int) -> CachedVfs | None:
        return None


class CachedFile:
    """One open file of a CachedVfs."""

    __slots__ = ("_file", "_vfs", "path")

    def __init__(self, vfs: CachedVfs, file: File) -> None:
        self.path = file.path
        self._vfs = vfs
        self._file = file

    def read_at(self, position: int, length: int) -> bytes:
        """Return exactly `length` bytes. ColdError: not all of them are in the page cache."""
        self._vfs.spend(length)
        descriptor = self._file.fileno()
        if descriptor is None or _NOT_WAITING is None:
            raise ColdError(f"{self.path} is read by a disk thread")
        data = bytearray(length)
        try:
            count = os.preadv(descriptor, [data], position, _NOT_WAITING)
        except (
            OSError
        ) as error:  # BlockingIOError; the file system lacks the flag; an error that the thread will report
            raise ColdError(f"{self.path} is not in the page cache: {error.strerror}") from None
        if count != length:
            raise ColdError(f"{self.path} ends there, or is not in the page cache")
        return bytes(data)

    def size(self) -> int:
        return self._file.size()

    def has_its_name(self) -> bool:
        return self._file.has_its_name()

    def fileno(self) -> int | None:
        return self._file.fileno()

    def sync_fileno(self) -> int | None:
        return None

    @property
    def takes_work(self) -> bool:
        return self._file.takes_work

    def write_at(self, position: int, *buffers: Buffer) -> None:
        _refuse(self.path)

    def truncate(self, length: int) -> None:
        _refuse(self.path)

    def sync(self) -> None:
        _refuse(self.path)

    def close(self) -> None:
        self._file.close()


def _refuse(path: str) -> NoReturn:
    raise ColdError(f"{path} is changed by a disk thread only")
