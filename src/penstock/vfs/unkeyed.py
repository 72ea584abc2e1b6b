"""A folder of this machine for whoever has no keys: what is encrypted is said to be, and not taken for damage."""

from __future__ import annotations

from penstock.vfs.keys import ENCRYPTED_BEGIN, KeyMissingError
from penstock.vfs.real import RealFile, RealVfs


class UnkeyedVfs(RealVfs):
    """The folder `root`; KeyMissingError for a file in it that is encrypted."""

    def open(self, path: str, *, create: bool = False, make_folders: bool = True, read_only: bool = False) -> RealFile:
        """Open a file; see Vfs."""
        file = super().open(path, create=create, make_folders=make_folders, read_only=read_only)
        if file.read_at(0, len(ENCRYPTED_BEGIN)) == ENCRYPTED_BEGIN:
            file.close()
            raise KeyMissingError("it is encrypted, and no keys are given (--encryption-keys-file)", path)
        return file
