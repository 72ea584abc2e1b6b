"""A folder of this machine as a Vfs.

Rules: nothing outside the root is reached by name; child processes do not inherit descriptors; a partial write is
continued, so that `write_at` has written all or raised.

Only regular files are opened: a FIFO, a socket or a device in their place is refused without waiting for its other end.

Theory: `fdatasync` is enough for a file (it also writes the length that is needed to read the data back). A name is
part of its folder's data, so it takes an fsync of the folder. On macOS only F_FULLFSYNC reaches the medium. A folder's
own name needs a sync of its parents only once, so the first sync of a folder syncs them, and the later ones do not.

| if folders cannot be synced (CIFS, 9p, some of FUSE)     | a sync                                                |
|----------------------------------------------------------|-------------------------------------------------------|
| a broker's data: RealVfs, `sync_folder`                  | raises OSError: a power loss could take names         |
| a user's own files: `sync_folder_if_possible`            | does nothing; the file system decides about names     |

NFS keeps a file that is removed while open as `.nfs…` in its folder, and removes it when it is closed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from penstock.vfs import Buffer, is_nfs_leftover
from penstock.vfs.page_cache import CachedVfs

LASTING_FOLDERS_MAX = 4_096
"""Folders whose names are known to be on the disk; all are forgotten beyond it, which costs syncs."""
FolderIdentity = tuple[int, int]
"""Device and inode."""
_NAME = r"(?!\.{1,2}(?:/|\Z))[^/\0]+"
_PLAIN = re.compile(f"{_NAME}(?:/{_NAME})*/*", re.DOTALL)
_BUFFERS_MAX = 1024  # IOV_MAX of Linux and macOS
_CANNOT_SYNC_FOLDERS = frozenset({errno.EINVAL, errno.ENOTSUP})  # errors of an fsync on a folder
_FILE_MODE = 0o640
_FOLDER_MODE = 0o750
_LEADS_NOWHERE = frozenset({errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG})  # for example a symbolic link to itself
_NO_FILE = frozenset({errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP})  # errors of an open on something that is no file
_STAYS = frozenset({errno.EBUSY, errno.ENOTEMPTY, errno.EEXIST})  # errors of a remove on files kept by NFS
_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

if sys.platform == "darwin":
    import fcntl

    def _sync(descriptor: int) -> None:
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)

else:
    _sync = os.fdatasync


def _open_regular(full: str, flags: int) -> int:
    """Open a regular file. OSError: IsADirectoryError for a folder, ENXIO for anything else."""
    try:
        descriptor = os.open(full, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, _FILE_MODE)
    except OSError as error:
        if error.errno in _NO_FILE:  # a socket, or a device without a driver
            raise _not_regular(full, os.stat(full).st_mode) from None
        raise
    try:
        if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
            raise _not_regular(full, mode)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make_folders(folder: str) -> None:
    """Create a folder and its parents, all with _FOLDER_MODE; `os.makedirs` applies the mode to the last one only."""
    try:
        os.mkdir(folder, _FOLDER_MODE)
    except FileNotFoundError:
        _make_folders(os.path.dirname(folder))
        with contextlib.suppress(FileExistsError):  # another thread was quicker
            os.mkdir(folder, _FOLDER_MODE)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise


def _not_regular(full: str, mode: int) -> OSError:
    if stat.S_ISDIR(mode):
        return OSError(errno.EISDIR, os.strerror(errno.EISDIR), full)
    kind = next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")
    return OSError(errno.ENXIO, f"not a regular file, but {kind}", full)


def read_whole(path: Path, bytes_max: int) -> bytes:
    """Return the content of a small file. OSError if it is larger, or no regular file."""
    descriptor = _open_regular(str(path), os.O_RDONLY)
    with open(descriptor, "rb", buffering=0) as file:
        if (size := os.fstat(descriptor).st_size) > bytes_max:
            raise OSError(errno.EFBIG, f"{size} bytes, more than the {bytes_max} that such a file may have", str(path))
        return file.read(size)


class RealFile:
    """One open descriptor."""

    __slots__ = ("_descriptor", "_full", "_path")

    def __init__(self, path: str, full: str, descriptor: int) -> None:
        self._path = path
        self._full = full
        self._descriptor = descriptor

    @property
    def path(self) -> str:
        return self._path

    def read_at(self, position: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, position)
        if len(data) == length or not data:
            return data
        # Linux returns at most 2 GiB per read, and a signal may interrupt one: read until nothing comes.
        parts = [data]
        while data := os.pread(self._descriptor, length - sum(map(len, parts)), position + sum(map(len, parts))):
            parts.append(data)
        return b"".join(parts)

    def write_at(self, position: int, *buffers: Buffer) -> None:
        if len(buffers) == 1:  # the common case
            written, wanted = os.pwrite(self._descriptor, buffers[0], position), len(buffers[0])
        else:
            written = os.pwritev(self._descriptor, buffers, position) if len(buffers) <= _BUFFERS_MAX else 0
            wanted = sum(map(len, buffers))
        if written != wanted:
            self._continue_write(position, written, b"".join(buffers))

    def _continue_write(self, position: int, written: int, data: bytes) -> None:
        rest = memoryview(data)
        while written < len(rest):
            step = os.pwrite(self._descriptor, rest[written:], position + written)
            if step == 0:
                raise OSError(errno.EIO, "the kernel takes no more bytes", self._path)
            written += step

    def truncate(self, length: int) -> None:
        os.ftruncate(self._descriptor, length)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def sync(self) -> None:
        _sync(self._descriptor)

    def has_its_name(self) -> bool:
        mine = os.fstat(self._descriptor)
        try:
            named = os.stat(self._full)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return mine.st_nlink > 0  # undecidable from here on
        return os.path.samestat(mine, named)

    def fileno(self) -> int | None:
        return self._descriptor

    def sync_fileno(self) -> int | None:
        return self._descriptor if _sync is os.fdatasync else None

    @property
    def takes_work(self) -> bool:
        return False

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class RealFolder:
    """One open descriptor of a folder."""

    __slots__ = ("_descriptor", "_full")

    def __init__(self, full: str) -> None:
        self._descriptor = -1
        self._full = full
        self._descriptor = os.open(full, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def identity(self) -> FolderIdentity:
        """Device and inode: another folder of the same name has others."""
        found = os.fstat(self._descriptor)
        return found.st_dev, found.st_ino

    def sync(self) -> None:
        """Sync the names in it. OSError with the folder's name."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            text = error.strerror
            if error.errno in _CANNOT_SYNC_FOLDERS:
                text = "its file system cannot sync folders, so a power loss could take files: use a local one, or NFS"
            raise OSError(error.errno, text, self._full) from None

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class RealVfs:
    """The folder `root`, created durably if it is missing."""

    file_type: ClassVar[type[RealFile]] = RealFile
    folder_type: ClassVar[type[RealFolder]] = RealFolder

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(os.fspath(root))
        self._lasting = _LastingFolders()
        self._make_root()

    @property
    def root(self) -> str:
        """Absolute path of the root folder."""
        return self._root

    def open(self, path: str, *, create: bool = False, make_folders: bool = True, read_only: bool = False) -> RealFile:
        full = self._full(path)
        flags = (os.O_RDONLY if read_only else os.O_RDWR) | (os.O_CREAT if create else 0)
        try:
            return self.file_type(path, full, _open_regular(full, flags))
        except FileNotFoundError:
            if not (create and make_folders):
                raise
        _make_folders(os.path.dirname(full))
        return self.file_type(path, full, _open_regular(full, flags))

    def open_folder(self, path: str) -> RealFolder:
        return self.folder_type(self._full(path))

    def list(self, path: str) -> Sequence[str]:
        try:
            with os.scandir(self._full(path)) as entries:
                return sorted(f"{entry.name}/" if _is_folder(entry) else entry.name for entry in entries)
        except FileNotFoundError:
            return []

    def rename(self, old: str, new: str) -> None:
        target = self._full(new)
        _make_folders(os.path.dirname(target))
        source = self._full(old)
        self._lasting.forget(source)
        self._lasting.forget(target)
        os.replace(source, target)

    def remove(self, path: str) -> None:
        """Delete a file, or a folder with its content, except files that NFS keeps. A missing one is no error."""
        full = self._full(path)
        assert full != self._root, "the root is not removed"
        self._lasting.forget(full)
        try:
            if os.path.isdir(full) and not os.path.islink(full):
                _remove_tree(full)
            else:
                os.unlink(full)
        except FileNotFoundError:
            return

    def sync_dir(self, path: str) -> None:
        full = self._full(path)
        opened: list[tuple[str, RealFolder]] = []
        try:
            while True:
                opened.append((full, RealFolder(full)))
                if full == self._root:
                    break
                full = os.path.dirname(full)
            known = [(name, folder.identity) for name, folder in opened[:-1]]
            lasting = next((n for n, one in enumerate(known) if self._lasting.has(*one)), len(known))
            self.together(*(folder.sync for _, folder in opened[: lasting + 1]))
        finally:
            for _, folder in opened:
                folder.close()
        self._lasting.add(known)

    def together(self, *syncs: Callable[[], None]) -> None:
        """Run syncs, each in a thread: a disk does several that wait in the time of one."""
        errors: list[BaseException] = []

        def run(sync: Callable[[], None]) -> None:
            try:
                sync()
            except BaseException as error:  # noqa: BLE001 (raised below)
                errors.append(error)

        threads = []
        for sync in syncs[1:]:
            thread = threading.Thread(target=run, args=(sync,))
            try:
                thread.start()
            except RuntimeError:  # no thread is to be had
                run(sync)
            else:
                threads.append(thread)
        run(syncs[0])
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def cached(self, *, reads_max: int, bytes_max: int) -> CachedVfs:
        return CachedVfs(self, reads_max=reads_max, bytes_max=bytes_max)

    def _full(self, path: str) -> str:
        if not path:
            return self._root
        if _PLAIN.fullmatch(path) is None:
            raise OSError(errno.EINVAL, "a path must stay within its root, in plain names", path)
        return os.path.join(self._root, path.rstrip("/"))

    def _make_root(self) -> None:
        made = []
        folder = self._root
        while not os.path.isdir(folder):
            made.append(folder)
            folder = os.path.dirname(folder)
        if made:
            os.makedirs(self._root, _FOLDER_MODE, exist_ok=True)
            for folder in made:
                sync_folder(os.path.dirname(folder))


class _LastingFolders:
    """Folders whose own names are on the disk, up to the root: a sync of them need not sync their parents again.

    Each with its identity, for another process may remove a folder and make another one of its name. If a folder is
    known, then its parents are known, too. Disk threads share it: each method is one step for them.
    """

    def __init__(self) -> None:
        self._known: dict[str, FolderIdentity] = {}

    def has(self, full: str, identity: FolderIdentity) -> bool:
        return self._known.get(full) == identity

    def add(self, synced: Iterable[tuple[str, FolderIdentity]]) -> None:
        """Note a folder and all its parents below the root after a sync of those that were not known."""
        if len(self._known) >= LASTING_FOLDERS_MAX:
            self._known = {}
        self._known.update(synced)

    def forget(self, full: str) -> None:
        """Forget a folder that is about to be removed or renamed, and the folders in it."""
        known = self._known
        if full in known:
            inside = f"{full}/"
            for name in list(known):
                if name == full or name.startswith(inside):
                    known.pop(name, None)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno in _LEADS_NOWHERE:
            return False
        raise


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Return once the names in a folder survive a power loss. OSError, also if its file system cannot sync folders."""
    opened = RealFolder(os.fspath(folder))
    try:
        opened.sync()
    finally:
        opened.close()


def sync_folder_if_possible(folder: str | os.PathLike[str]) -> None:
    """Sync a folder of a user's own files; do nothing if its file system cannot sync folders."""
    try:
        sync_folder(folder)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_FOLDERS:
            raise


def _remove_tree(full: str) -> None:
    """Delete a folder, except open files that NFS keeps, and their folders. OSError."""

    def failed(_function: object, path: str, failure: Any) -> None:
        error = failure if isinstance(failure, BaseException) else failure[1]
        if isinstance(error, FileNotFoundError):  # NFS was quicker
            return
        if not (isinstance(error, OSError) and error.errno in _STAYS and _is_kept_by_nfs(path)):
            raise error

    if sys.version_info >= (3, 12):
        shutil.rmtree(full, onexc=failed)
    else:
        shutil.rmtree(full, onerror=failed)


def _is_kept_by_nfs(path: str) -> bool:
    """True if NFS keeps this removed file; for a folder, True if it holds nothing else."""
    if is_nfs_leftover(os.path.basename(path)):
        return True
    return os.path.isdir(path) and all(is_nfs_leftover(name) for _, _, names in os.walk(path) for name in names)
