"""Errors of a log: the disk, the log's own state, and what is wrong in its files.

| error                | meaning                                              | what the caller may do   |
|----------------------|------------------------------------------------------|--------------------------|
| `StorageFullError`   | no room; the log is as it was before                 | refuse, try later        |
| `ShortageError`      | no descriptor, memory or key; as it was before       | refuse, try later        |
| `StorageFailedError` | another error; as it was before, unless it is fenced | refuse, tell an operator |
| `NotWritableError`   | read-only or fenced until a restart, or truncating   | refuse everything        |
| `RangeRefusedError`  | fetched batches are invalid or do not fit here       | fetch again, or truncate |
| `LogCutError`        | the log was truncated, or rewritten, during a read   | read again               |
| `LogMissingError`    | the files of an existing log are missing             | tell an operator         |
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from penstock.base.errors import CorruptionError, OperationalError
from penstock.vfs.keys import is_missing_key

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
# Errors of the file itself. Others, such as a lack of descriptors or permissions, concern this process.
_UNREADABLE = frozenset({errno.EIO, errno.ENXIO, errno.EISDIR, errno.ELOOP, errno.ENOTDIR})


class StorageFailedError(OperationalError):
    """The disk refused an operation."""


class StorageFullError(StorageFailedError):
    """The disk (or the quota) has no room."""


class ShortageError(StorageFailedError):
    """This process is at one of its own limits; the disk is fine."""


class NotWritableError(OperationalError):
    """The log accepts no messages in its present state."""


class RangeRefusedError(OperationalError):
    """The leader's batches are invalid, or do not continue this log: nothing was written, the log is intact.

    `position` is the byte in the fetched range. `truncate_to`: truncate the log to this offset, below log_end, and
    append the whole range, or `instead` if it is not empty; None: the range is invalid.
    """

    def __init__(self, position: int, reason: str, *, truncate_to: int | None = None, instead: bytes = b"") -> None:
        super().__init__(f"the leader's batches are refused: at byte {position}: {reason}")
        self.position = position
        self.reason = reason
        self.truncate_to = truncate_to
        self.instead = instead


class LogCutError(OperationalError):
    """The log was truncated or reset during a read: part of what the view shows is gone."""


class LogMissingError(OperationalError):
    """The files of an existing log are missing. Creating a new log would reuse its offsets for other messages."""


class IndexDamagedError(CorruptionError):
    """An index file is corrupt. Harmless: it is rebuilt from its segment."""


class IndexShortError(IndexDamagedError):
    """An index file lacks its last entries, as after a crash or on a full disk; not corruption."""


def is_shortage(error: OSError) -> bool:
    """True if this process, not the file, is at fault, so that a retry may succeed."""
    return error.errno in _SHORT or is_missing_key(error)


def is_full(error: OSError) -> bool:
    """True if the disk, or our quota, has no room."""
    return error.errno in _FULL


def storage_error(doing: str, error: OSError) -> StorageFailedError:
    """Convert an OSError. `doing` says what failed, with the path."""
    text = f"{doing}: {error.strerror or error}"
    if is_shortage(error):
        return ShortageError(text)
    return StorageFullError(text) if is_full(error) else StorageFailedError(text)


class FileMistake(NamedTuple):
    """An error at one byte of a file, as `penstock verify` shows it.

    Lost offsets as in `Damage`; None, None: no rows are lost.
    """

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
