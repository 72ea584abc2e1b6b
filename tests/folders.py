"""File systems that cannot sync a folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

_fsync = os.fsync


def without_folders(number: int) -> Callable[[int], None]:
    """An `os.fsync` that fails for folders with this error, as on CIFS."""

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        _fsync(descriptor)

    return fsync
