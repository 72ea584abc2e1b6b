"""A folder of this machine for tools without keys: encrypted files raise KeyMissingError and do not look corrupt."""

from __future__ import annotations

import os
from collections.abc import Callable

from penstock.vfs.keys import ENCRYPTED_BEGIN, KeyMissingError, NoHeaderError
from penstock.vfs.real import RealFile, RealVfs


class UnkeyedVfs(RealVfs):
    """The folder `root`. KeyMissingError for encrypted files; NoHeaderError for plain files that `is_secret` selects,
    which should be encrypted.
    """

    def __init__(self, root: str | os.PathLike[str], is_secret: Callable[[str], bool] | None = None) -> None:
        super().__init__(root)
        self._is_secret = is_secret

    def open(self, path: str, *, create: bool = False, make_folders: bool = True, read_only: bool = False) -> RealFile:
        file = super().open(path, create=create, make_folders=make_folders, read_only=read_only)
        try:
            begin = file.read_at(0, len(ENCRYPTED_BEGIN))
            if begin == ENCRYPTED_BEGIN:
                raise KeyMissingError("it is encrypted, and no keys are given (--encryption-keys-file)", path)
            if any(begin) and self._is_secret is not None and self._is_secret(path):
                raise NoHeaderError("it is not encrypted, and its stream is", path)
        except BaseException:
            file.close()
            raise
        return file
