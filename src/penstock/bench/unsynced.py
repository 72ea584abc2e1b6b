"""A folder of this machine whose files are synced by somebody else: for making much of them at once.

Rules: whoever makes them syncs the whole file system before he relies on them.
"""

from __future__ import annotations

from penstock.vfs.real import RealFile, RealFolder, RealVfs


class UnsyncedFile(RealFile):
    """One whose bytes are synced by somebody else."""

    __slots__ = ()

    def sync(self) -> None:
        """Nothing."""


class UnsyncedFolder(RealFolder):
    """The same for names."""

    __slots__ = ()

    def sync(self) -> None:
        """Nothing."""


class UnsyncedVfs(RealVfs):
    """One that syncs nothing: for making much at once, whose maker then syncs the whole file system."""

    file_type = UnsyncedFile
    folder_type = UnsyncedFolder

    def sync_dir(self, path: str) -> None:
        """Nothing."""
