"""A file system in memory as if all of it were in the page cache: what an event loop may read at once."""

from __future__ import annotations

from penstock.vfs import Vfs
from penstock.vfs.page_cache import CachedFile, CachedVfs


class WarmVfs(CachedVfs):
    """As the page cache of a disk; the budget of reads holds."""

    def open(
        self, path: str, *, create: bool = False, make_folders: bool = True, read_only: bool = False
    ) -> CachedFile:
        return _WarmFile(self, super().open(path, create=create, make_folders=make_folders, read_only=read_only)._file)


def warm(inner: Vfs, *, reads_max: int, bytes_max: int) -> WarmVfs:
    """In place of `Vfs.cached` of a file system in memory."""
    return WarmVfs(inner, reads_max=reads_max, bytes_max=bytes_max)


class _WarmFile(CachedFile):
    __slots__ = ()

    def read_at(self, position: int, length: int) -> bytes:
        self._vfs.spend(length)
        return self._file.read_at(position, length)
