"""The file system as the log sees it: six methods, so that tests can crash it at any byte.

Rules: paths are relative to the root of the file system, with `/`. Written bytes survive a power loss only after
`File.sync`; a created, renamed or removed *name* survives only after `sync_dir` of its folder. Every failure is an
OSError, as the operating system gives it.

| implementation           | what it is for                                                                  |
|--------------------------|---------------------------------------------------------------------------------|
| `real.RealVfs`           | a folder of this machine                                                        |
| `memory.MemoryVfs`       | tests and memory streams; `crash_clone()` is what a power loss would leave      |
| `faulty.FaultyVfs`       | wraps another one and makes chosen operations fail                              |
| `encrypted.EncryptedVfs` | wraps another one, and encrypts what files hold                                 |

On top of it: `mark.Mark`, up to where a log was synced, and `reserve.Reserve`, room for what must go through.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

NFS_LEFTOVER = r"\.nfs[0-9a-f]+"
"""What NFS calls a file that was removed while it was open: it cannot be removed, and goes when it is closed."""
_NFS_LEFTOVER = re.compile(NFS_LEFTOVER)

Buffer = bytes | bytearray | memoryview


def is_nfs_leftover(name: str) -> bool:
    """Whether a file of this name is what NFS keeps of one that was removed while it was open."""
    return _NFS_LEFTOVER.fullmatch(name) is not None


class File(Protocol):
    """One open file. Reads and writes name their position; there is no cursor."""

    @property
    def path(self) -> str:
        """Path within the file system."""

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file."""

    def write_at(self, position: int, *buffers: Buffer) -> None:
        """Write all buffers one after the other from `position`, or raise OSError (a part may then be written)."""

    def truncate(self, length: int) -> None:
        """Cut (or extend with zeros) to `length` bytes. OSError: it may be cut, to no less."""

    def size(self) -> int:
        """Length in bytes."""

    def sync(self) -> None:
        """Return once all bytes written so far survive a power loss (fdatasync)."""

    def has_its_name(self) -> bool:
        """Whether its path still leads to it: False once it, or a folder above it, was removed, moved or replaced."""

    def fileno(self) -> int | None:
        """The descriptor for sendfile, or None where there is none (memory), or it gives other bytes (encrypted)."""

    @property
    def takes_work(self) -> bool:
        """Whether to read takes the processor long enough that an event loop has it done by a thread."""

    def close(self) -> None:
        """Give the file back. Twice is fine."""


class Folder(Protocol):
    """One open folder: what has to sync its names later needs nothing more for it."""

    def sync(self) -> None:
        """Return once the names in it survive a power loss. Its own name is another folder's."""

    def close(self) -> None:
        """Give the folder back. Twice is fine."""


class Vfs(Protocol):
    """A file system. See the module's rules."""

    def open(self, path: str, *, create: bool = False, make_folders: bool = True, read_only: bool = False) -> File:
        """Open for reading and writing. With `create`, make the file where missing, and its folders if `make_folders`.

        `read_only` opens a file that this process may not write to; writing to it is then an OSError.
        """

    def open_folder(self, path: str) -> Folder:
        """Open a folder that is there."""

    def list(self, path: str) -> Sequence[str]:
        """Names in a folder, sorted, folders with a trailing `/`; empty if it is missing."""

    def rename(self, old: str, new: str) -> None:
        """Move a file or folder, replacing a file that is there; makes the new parent folders where missing."""

    def remove(self, path: str) -> None:
        """Delete a file, or a folder with all that it holds. Missing is fine."""

    def sync_dir(self, path: str) -> None:
        """Return once the names in this folder, and the folder's own name up to the root, survive a power loss."""
