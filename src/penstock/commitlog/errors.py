"""What can go wrong with a log: the disk, or the log's own state.

| error                | what it means                                        | what the caller may do   |
|----------------------|------------------------------------------------------|--------------------------|
| `StorageFullError`   | no room; the log is as it was before                 | refuse, try later        |
| `ShortageError`      | no descriptor, memory or key; as it was before       | refuse, try later        |
| `StorageFailedError` | another error; as it was before, unless it is fenced | refuse, tell an operator |
| `NotWritableError`   | read-only or fenced until a restart, or truncating   | refuse everything        |
| `RangeRefusedError`  | what a leader sent is broken, or does not go on here | ask again, or truncate   |
| `LogCutError`        | the log was cut while somebody read it               | look again               |
| `LogMissingError`    | a log that was made has no files; nothing is written | tell an operator         |
"""

from __future__ import annotations

import errno

from penstock.base.errors import CorruptionError, OperationalError
from penstock.vfs.keys import is_missing_key

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_SHORT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class StorageFailedError(OperationalError):
    """The disk refused an operation."""


class StorageFullError(StorageFailedError):
    """The disk (or the quota) has no room."""


class ShortageError(StorageFailedError):
    """This process is at a limit of its own; the disk is well."""


class NotWritableError(OperationalError):
    """The log takes no messages in its present state."""


class RangeRefusedError(OperationalError):
    """What a leader sent is broken, or does not go on where this log ends: nothing was written, and the log is well.

    `position` is the byte in the range. `truncate_to`: cut the log there, which is before log_end, and append the range
    as a whole, or what there is `instead` of it; None: the range is wrong.
    """

    def __init__(self, position: int, reason: str, *, truncate_to: int | None = None, instead: bytes = b"") -> None:
        super().__init__(f"the leader's batches are refused: at byte {position}: {reason}")
        self.position = position
        self.reason = reason
        self.truncate_to = truncate_to
        self.instead = instead


class LogCutError(OperationalError):
    """The log was cut, or began anew, while it was read: what a view shows of it is not all there any more."""


class LogMissingError(OperationalError):
    """A log that must be there is not. A new one in its place would give its offsets to other messages."""


class IndexDamagedError(CorruptionError):
    """An index file cannot be trusted. Harmless: it is rebuilt from its segment."""


class IndexShortError(IndexDamagedError):
    """An index file lacks its last entries, as a crash or a full disk leaves it: no damage."""


def is_shortage(error: OSError) -> bool:
    """Whether this process, not the file, is at fault: it may work later."""
    return error.errno in _SHORT or is_missing_key(error)


def is_full(error: OSError) -> bool:
    """Whether the disk, or our share of it, has no room."""
    return error.errno in _FULL


def storage_error(doing: str, error: OSError) -> StorageFailedError:
    """`error` as ours; `doing` says what failed, with the path."""
    text = f"{doing}: {error.strerror or error}"
    if is_shortage(error):
        return ShortageError(text)
    return StorageFullError(text) if is_full(error) else StorageFailedError(text)
