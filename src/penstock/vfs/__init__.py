"""The file system interface of the log: a few methods, so that tests can simulate a crash at any byte.

Rules: paths are relative to the root of the file system, with `/`. Written bytes survive a power loss only after
`File.sync`; a created, renamed or removed *name* survives only after `sync_dir` of its folder. Every failure is an
OSError of the operating system.

| implementation           | purpose                                                                         |
|--------------------------|---------------------------------------------------------------------------------|
| `real.RealVfs`           | a folder of this machine                                                        |
| `memory.MemoryVfs`       | tests and memory streams; `crash_clone()` is the state after a power loss       |
| `faulty.FaultyVfs`       | wraps another one and makes chosen operations fail                              |
| `encrypted.EncryptedVfs` | wraps another one, and encrypts the files' content                              |

Built on it: `page_cache.CachedVfs` reads what needs no disk, `synced_mark.SyncedMark` records up to where a log was
synced, and `reserve.Reserve` keeps disk space for metadata.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Protocol

NFS_LEFTOVER = r"\.nfs[0-9a-f]+"
"""Pattern of the name under which NFS keeps a file that was removed while open, until it is closed."""
_NFS_LEFTOVER = re.compile(NFS_LEFTOVER)

Buffer = bytes | bytearray | memoryview


def is_nfs_leftover(name: str) -> bool:
    """True if NFS keeps a removed but open file under this name."""
    return _NFS_LEFTOVER.fullmatch(name) is not None


class File(Protocol):
    """One open file. Reads and writes name their position; there is no cursor."""

    @property
    def path(self) -> str:
        """Path within the file system."""

    def read_at(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes from `position`; fewer only at the end of the file."""

    def write_at(self, position: int, *buffers: Buffer) -> None:
        """Write all buffers one after the other from `position`, or raise OSError (a part may then be written)."""

    def truncate(self, length: int) -> None:
        """Truncate (or extend with zeros) to `length` bytes. OSError: it may be cut, but not below `length`."""

    def size(self) -> int:
        """Length in bytes."""

    def sync(self) -> None:
        """Return once all bytes written so far survive a power loss (fdatasync)."""

    def has_its_name(self) -> bool:
        """True if its path still leads to it; False if it, or a folder above it, was removed, moved or replaced."""

    def fileno(self) -> int | None:
        """Return the descriptor for sendfile; None if there is none (memory) or it gives other bytes (encrypted)."""

    def sync_fileno(self) -> int | None:
        """Return the descriptor whose fdatasync is all that `sync` does; None if there is none."""

    @property
    def takes_work(self) -> bool:
        """True if reads take so much CPU time that an event loop should run them in a thread."""

    def close(self) -> None:
        """Close the file. Idempotent."""


class Folder(Protocol):
    """One open folder: its names can be synced later without opening anything."""

    def sync(self) -> None:
        """Return once the names in it survive a power loss. The folder's own name belongs to its parent."""

    def close(self) -> None:
        """Close the folder. Idempotent."""


class Vfs(Protocol):
    """A file system. See the module's rules."""

    def open(self, path: str, *, create: bool = False, make_folders: bool = True, read_only: bool = False) -> File:
        """Open for reading and writing. With `create`, create a missing file, and its folders if `make_folders`.

        `read_only`: open a file that this process may not write to; writes then raise OSError.
        """

    def open_folder(self, path: str) -> Folder:
        """Open an existing folder."""

    def list(self, path: str) -> Sequence[str]:
        """Return the names in a folder, sorted, folders with a trailing `/`; empty if the folder is missing."""

    def rename(self, old: str, new: str) -> None:
        """Move a file or folder, replacing an existing file; create missing parent folders."""

    def remove(self, path: str) -> None:
        """Delete a file, or a folder with its content. A missing one is no error."""

    def sync_dir(self, path: str) -> None:
        """Return once the names in this folder, and the folder's own name up to the root, survive a power loss."""

    def together(self, *syncs: Callable[[], None]) -> None:
        """Run syncs of its files and folders, in any order or at once. Raise the first failure after all have run."""

    def cached(self, *, reads_max: int, bytes_max: int) -> Vfs | None:
        """Return the same files for an event loop, whose reads raise `page_cache.ColdError` rather than wait for a
        disk, and beyond these limits. None: it cannot tell what needs one, or reads take work.
        """


def in_turn(syncs: Sequence[Callable[[], None]]) -> None:
    """Run syncs one after the other; raise the first failure after all have run."""
    errors: list[OSError] = []
    for sync in syncs:
        try:
            sync()
        except OSError as error:
            errors.append(error)
    if errors:
        raise errors[0]
