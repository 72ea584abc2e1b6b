"""One error in a file of a log, as `penstock verify` shows it."""

from __future__ import annotations

import errno
from typing import NamedTuple

from penstock.base.errors import CorruptionError

# Errors of the file itself. Others, such as a lack of descriptors or permissions, concern this process.
_UNREADABLE = frozenset({errno.EIO, errno.ENXIO, errno.EISDIR, errno.ELOOP, errno.ENOTDIR})


class FileMistake(NamedTuple):
    """An error at one byte. Lost offsets as in `Damage`; None, None: no rows are lost."""

    file: str
    position: int
    base_offset: int | None
    end_offset: int | None
    expected: str
    found: str


def mistake_of(error: CorruptionError, base_offset: int | None = None, end_offset: int | None = None) -> FileMistake:
    """Convert a CorruptionError."""
    return FileMistake(error.file, error.position, base_offset, end_offset, str(error.expected), str(error.found))


def unreadable(
    path: str, position: int, error: OSError, lost: tuple[int | None, int | None] = (None, None)
) -> FileMistake:
    """Return the error of a file that cannot be read from there on; re-raise `error` if the file is not at fault."""
    if error.errno not in _UNREADABLE:
        raise error
    return FileMistake(path, position, *lost, "bytes", error.strerror or str(error))
