"""What is wrong in a file of a log: one place, as `penstock verify` shows it."""

from __future__ import annotations

import errno
from typing import NamedTuple

from penstock.base.errors import CorruptionError

# That bytes cannot be read; all else, as a want of descriptors or of permission, is this process's own affair.
_UNREADABLE = frozenset({errno.EIO, errno.ENXIO, errno.EISDIR, errno.ELOOP, errno.ENOTDIR})


class Mistake(NamedTuple):
    """What is wrong at one byte. Offsets as of `Damage`; None, None: no rows are lost with it."""

    file: str
    position: int
    base_offset: int | None
    end_offset: int | None
    expected: str
    found: str


def mistake_of(error: CorruptionError, base_offset: int | None = None, end_offset: int | None = None) -> Mistake:
    """The mistake that an error tells of."""
    return Mistake(error.file, error.position, base_offset, end_offset, str(error.expected), str(error.found))


def unreadable(path: str, position: int, error: OSError, lost: tuple[int | None, int | None] = (None, None)) -> Mistake:
    """The mistake that a file cannot be read from there on; OSError, the one that came, if that is no fault of it."""
    if error.errno not in _UNREADABLE:
        raise error
    return Mistake(path, position, *lost, "bytes", error.strerror or str(error))
