"""A file system that syncs nothing, for making many files at once.

Rules: The caller syncs the whole file system (`os.sync`) before it relies on the files.
"""

from __future__ import annotations

from penstock.vfs.real import RealFile, RealFolder, RealVfs


class UnsyncedFile(RealFile):
    """A file that ignores syncs."""

    __slots__ = ()

    def sync(self) -> None:
        """Do nothing."""


class UnsyncedFolder(RealFolder):
    """A folder that ignores syncs."""

    __slots__ = ()

    def sync(self) -> None:
        """Do nothing."""


class UnsyncedVfs(RealVfs):
    """A file system that ignores syncs."""

    file_type = UnsyncedFile
    folder_type = UnsyncedFolder

    def sync_dir(self, path: str) -> None:
        """Do nothing."""
