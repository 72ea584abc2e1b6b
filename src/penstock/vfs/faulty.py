"""A Vfs whose operations can be made to fail, and observed one by one.

Rules: a plan is called before every operation and says whether it fails; a watcher is called after every successful
operation. So a test can fail the third sync, or cut the power between any two operations.

| fault                          | seen by the caller of the operation                      |
|--------------------------------|----------------------------------------------------------|
| `FileFault(errno.EIO)`         | OSError, nothing was done                                |
| `FileFault(errno.ENOSPC, 700)` | OSError; of a write, the first 700 bytes are in the file |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.vfs import Buffer, File, Folder, Vfs, in_turn


class FileOperationKind(Enum):
    """The operations of Vfs and File that can fail."""

    OPEN = "open"
    LIST = "list"
    RENAME = "rename"
    REMOVE = "remove"
    SYNC_DIR = "sync_dir"
    READ = "read"
    WRITE = "write"
    TRUNCATE = "truncate"
    SIZE = "size"
    SYNC = "sync"


CHANGES = frozenset(
    {
        FileOperationKind.OPEN,
        FileOperationKind.RENAME,
        FileOperationKind.REMOVE,
        FileOperationKind.SYNC_DIR,
        FileOperationKind.WRITE,
        FileOperationKind.TRUNCATE,
        FileOperationKind.SYNC,
    }
)
"""Operations that change what a crash leaves."""


@dataclass(frozen=True, slots=True)
class FileOperation:
    """One call. `number` counts all calls of the file system from 0.

    `length`: of a read, write or truncate. `position`: of a write.
    """

    kind: FileOperationKind
    path: str
    number: int
    length: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class FileFault:
    """Failure of an operation. `written_bytes` of a write are written nevertheless."""

    error_number: int
    written_bytes: int = 0


Plan = Callable[[FileOperation], FileFault | None]
Watcher = Callable[[FileOperation], None]


def no_faults(_operation: FileOperation) -> FileFault | None:
    """The plan without faults."""
    return None


def nth(number: int, fault: FileFault, *kinds: FileOperationKind, path_end: str = "") -> Plan:
    """Return a plan that fails call `number` (from 0) among those of `kinds` (none = all) on paths with `path_end`."""
    seen = 0

    def plan(operation: FileOperation) -> FileFault | None:
        nonlocal seen
        if (kinds and operation.kind not in kinds) or not operation.path.endswith(path_end):
            return None
        seen += 1
        return fault if seen == number + 1 else None

    return plan


class FaultyVfs:
    """`inner` with a plan and a watcher, which can be replaced at any time."""

    def __init__(self, inner: Vfs, plan: Plan = no_faults, watcher: Watcher | None = None) -> None:
        self.inner = inner
        self.plan = plan
        self.watcher = watcher
        self._operations = 0

    def open(self, path: str, *, create: bool = False, make_folders: bool = True, read_only: bool = False) -> File:
        operation = self.begin(FileOperationKind.OPEN, path)
        inner = self.inner.open(path, create=create, make_folders=make_folders, read_only=read_only)
        self.end(operation)
        return FaultyFile(self, inner)

    def open_folder(self, path: str) -> Folder:
        operation = self.begin(FileOperationKind.OPEN, path)
        folder = FaultyFolder(self, path, self.inner.open_folder(path))
        self.end(operation)
        return folder

    def list(self, path: str) -> Sequence[str]:
        operation = self.begin(FileOperationKind.LIST, path)
        names = self.inner.list(path)
        self.end(operation)
        return names

    def rename(self, old: str, new: str) -> None:
        """Move a file or folder; see Vfs. The plan gets the old path."""
        operation = self.begin(FileOperationKind.RENAME, old)
        self.inner.rename(old, new)
        self.end(operation)

    def remove(self, path: str) -> None:
        operation = self.begin(FileOperationKind.REMOVE, path)
        self.inner.remove(path)
        self.end(operation)

    def sync_dir(self, path: str) -> None:
        operation = self.begin(FileOperationKind.SYNC_DIR, path)
        self.inner.sync_dir(path)
        self.end(operation)

    def together(self, *syncs: Callable[[], None]) -> None:
        in_turn(syncs)

    def cached(self, *, reads_max: int, bytes_max: int) -> None:
        return None

    def begin(self, kind: FileOperationKind, path: str, length: int = 0, position: int = 0) -> FileOperation | None:
        """Count a call and let the plan fail it, except a write (see `FaultyFile.write_at`).

        None if no watcher needs the operation.
        """
        number = self._operations
        self._operations = number + 1
        if self.plan is no_faults and self.watcher is None:
            return None
        operation = FileOperation(kind, path, number, length, position)
        if kind is not FileOperationKind.WRITE and (fault := self.plan(operation)) is not None:
            raise _error(fault, path)
        return operation

    def end(self, operation: FileOperation | None) -> None:
        """Call the watcher."""
        if operation is not None and self.watcher is not None:
            self.watcher(operation)


class FaultyFile:
    """One open file of a FaultyVfs."""

    __slots__ = ("_inner", "_vfs", "path")

    def __init__(self, vfs: FaultyVfs, inner: File) -> None:
        self._vfs = vfs
        self._inner = inner
        self.path = inner.path  # path in the file system

    def read_at(self, position: int, length: int) -> bytes:
        operation = self._vfs.begin(FileOperationKind.READ, self.path, length)
        data = self._inner.read_at(position, length)
        self._vfs.end(operation)
        return data

    def write_at(self, position: int, *buffers: Buffer) -> None:
        """Write; see File. A fault may write a part."""
        data = b"".join(buffers)
        operation = self._vfs.begin(FileOperationKind.WRITE, self.path, len(data), position)
        fault = None if operation is None else self._vfs.plan(operation)
        if fault is None:
            self._inner.write_at(position, data)
        elif fault.written_bytes:
            self._inner.write_at(position, data[: fault.written_bytes])
        self._vfs.end(operation)
        if fault is not None:
            raise _error(fault, self.path)

    def truncate(self, length: int) -> None:
        operation = self._vfs.begin(FileOperationKind.TRUNCATE, self.path, length)
        self._inner.truncate(length)
        self._vfs.end(operation)

    def size(self) -> int:
        operation = self._vfs.begin(FileOperationKind.SIZE, self.path)
        size = self._inner.size()
        self._vfs.end(operation)
        return size

    def sync(self) -> None:
        """Sync; see File. A failed sync makes nothing durable."""
        operation = self._vfs.begin(FileOperationKind.SYNC, self.path)
        self._inner.sync()
        self._vfs.end(operation)

    def has_its_name(self) -> bool:
        return self._inner.has_its_name()

    def fileno(self) -> int | None:
        return self._inner.fileno()

    def sync_fileno(self) -> int | None:
        """None: only `sync` can be made to fail."""
        return None

    @property
    def takes_work(self) -> bool:
        return self._inner.takes_work

    def close(self) -> None:
        self._inner.close()


class FaultyFolder:
    """One open folder of a FaultyVfs."""

    __slots__ = ("_inner", "_path", "_vfs")

    def __init__(self, vfs: FaultyVfs, path: str, inner: Folder) -> None:
        self._vfs = vfs
        self._path = path
        self._inner = inner

    def sync(self) -> None:
        operation = self._vfs.begin(FileOperationKind.SYNC_DIR, self._path)
        self._inner.sync()
        self._vfs.end(operation)

    def close(self) -> None:
        self._inner.close()


def _error(fault: FileFault, path: str) -> OSError:
    return OSError(fault.error_number, os.strerror(fault.error_number), path)
