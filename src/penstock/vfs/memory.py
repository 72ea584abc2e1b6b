"""A file system in memory: for memory streams, and for tests that cut the power.

Rules: the state after a power loss depends on what was synced, not on what happened to be written. `crash_clone` never
changes its source.

Theory: a disk guarantees sectors and nothing else. So a file remembers the synced content of overwritten sectors, every
version in between (any of them may have reached the disk), and the synced length. Bytes behind the synced length need
no versions: they are there or not. A failed sync drops its dirty pages, as Linux does: a later sync succeeds without
them until they are written again. Names are a tree in two versions, as programs see it and as it is on disk; the steps
between them are kept in order, and each step is atomic, even a rename.

| `Keep`   | content of a clone                                                                            |
|----------|-----------------------------------------------------------------------------------------------|
| SYNCED   | synced bytes and synced names only                                                            |
| SUBSET   | those, and any choice of unsynced sectors (512 bytes), lengths and names: torn and reordered  |
| ALL      | everything: the process died, the machine did not                                             |
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from penstock.vfs import Buffer, in_turn

if TYPE_CHECKING:
    from random import Random

SECTOR_BYTES = 512
_PATHS_KEPT = 1_024  # cached path lookups
_VERSIONS_MAX = 8  # of one overwritten sector; the synced one and the newest are kept


class Keep(Enum):
    """Content that survives in a crash clone. See the module's table."""

    SYNCED = "synced"
    SUBSET = "subset"
    ALL = "all"


class _Content:
    """The bytes of one file, and the state needed to simulate a disk."""

    __slots__ = ("data", "given_up", "overwritten", "synced_bytes")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.synced_bytes = len(self.data)
        # Sector number → its versions from the synced one on, without the current one. Only below synced_bytes.
        self.overwritten: dict[int, list[bytes]] = {}
        self.given_up: set[int] = set()  # sectors that syncs skip until they are written again

    def write(self, position: int, buffer: Buffer) -> None:
        end = position + len(buffer)
        if position < self.synced_bytes:
            self._remember(position, end)
        if position > len(self.data):
            self.data.extend(bytes(position - len(self.data)))
        self.data[position:end] = buffer
        if self.given_up:
            self.given_up.difference_update(range(position // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def truncate(self, length: int) -> None:
        if length < self.synced_bytes:
            self._remember(length, len(self.data))
        if length < len(self.data):
            del self.data[length:]
        else:
            self.data.extend(bytes(length - len(self.data)))

    def sync(self) -> None:
        left = {
            sector: self._on_disk(sector) for sector in sorted(self.given_up) if sector * SECTOR_BYTES < len(self.data)
        }
        self.synced_bytes = len(self.data)
        self.overwritten = {sector: [version] for sector, version in left.items()}

    def fail_sync(self) -> None:
        """Fail a sync: dirty sectors are dropped but stay readable."""
        first = self.synced_bytes // SECTOR_BYTES if len(self.data) > self.synced_bytes else 0
        behind = range(first, -(-len(self.data) // SECTOR_BYTES)) if len(self.data) > self.synced_bytes else ()
        self.given_up.update(self.overwritten, behind)

    def _on_disk(self, sector: int) -> bytes:
        if (versions := self.overwritten.get(sector)) is not None:
            return versions[0]
        begin = sector * SECTOR_BYTES
        return bytes(self.data[begin : min(begin + SECTOR_BYTES, max(begin, self.synced_bytes))]).ljust(
            SECTOR_BYTES, b"\0"
        )

    def _remember(self, position: int, end: int) -> None:
        for sector in range(position // SECTOR_BYTES, -(-min(end, self.synced_bytes) // SECTOR_BYTES)):
            versions = self.overwritten.setdefault(sector, [])
            versions.append(bytes(self.data[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES]))
            if len(versions) > _VERSIONS_MAX:
                del versions[1]

    def after_crash(self, keep: Keep, random: Random | None) -> _Content:
        if keep is Keep.ALL:
            return _Content(bytes(self.data))
        on_disk = bytearray(self.synced_bytes)
        shared = min(self.synced_bytes, len(self.data))
        on_disk[:shared] = self.data[:shared]
        for sector, versions in self.overwritten.items():
            self._put(on_disk, sector, versions[0])
        if random is not None and (self.overwritten or len(self.data) != self.synced_bytes):
            self._persist_some(on_disk, random)
        return _Content(bytes(on_disk))

    def _persist_some(self, on_disk: bytearray, random: Random) -> None:
        for sector, versions in self.overwritten.items():
            now = bytes(self.data[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES])
            self._put(on_disk, sector, random.choice([*versions, now]))
        chance = random.choice((0.0, 0.5, 0.9, 1.0))
        low, high = sorted((self.synced_bytes, len(self.data)))
        length = random.choice((low, high, random.randint(low, high)))
        if length < len(on_disk):
            del on_disk[length:]
            return
        first = self.synced_bytes // SECTOR_BYTES
        synced = bytes(on_disk[first * SECTOR_BYTES :])
        on_disk.extend(bytes(length - len(on_disk)))
        for sector in range(first, -(-length // SECTOR_BYTES)):
            if random.random() < chance:
                self._put(on_disk, sector, self.data[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES])
        if first in self.overwritten:
            on_disk[first * SECTOR_BYTES : self.synced_bytes] = synced

    @staticmethod
    def _put(on_disk: bytearray, sector: int, version: Buffer) -> None:
        begin = sector * SECTOR_BYTES
        room = len(on_disk) - begin
        if room > 0:
            on_disk[begin : begin + min(len(version), room)] = version[:room]


class _Folder:
    """One folder: its entries as programs see them, and as they are on disk."""

    __slots__ = ("entries", "on_disk")

    def __init__(self) -> None:
        self.entries: dict[str, _Folder | _Content] = {}
        self.on_disk: dict[str, _Folder | _Content] = {}


_Folders = list[_Folder]


class _NameChange:
    """One step in the tree: a name appears, disappears, or both at once (a rename)."""

    __slots__ = ("added", "removed")

    def __init__(
        self, removed: tuple[_Folder, str] | None, added: tuple[_Folder, str, _Folder | _Content] | None
    ) -> None:
        self.removed = removed
        self.added = added

    def touches(self, folder: _Folder) -> bool:
        return (self.removed is not None and self.removed[0] is folder) or (
            self.added is not None and self.added[0] is folder
        )


class MemoryFile:
    """One open file. It stays usable after its name is removed."""

    __slots__ = ("_content", "_path", "_read_only", "_vfs")

    def __init__(self, vfs: MemoryVfs, path: str, content: _Content, *, read_only: bool) -> None:
        self._vfs = vfs
        self._path = path
        self._content: _Content | None = content
        self._read_only = read_only

    @property
    def path(self) -> str:
        return self._path

    def read_at(self, position: int, length: int) -> bytes:
        if position < 0 or length < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self._path)
        # Two copies: a view of a bytearray would stop a writer in another thread from growing it.
        return bytes(self._open().data[position : position + length])

    def write_at(self, position: int, *buffers: Buffer) -> None:
        content = self._writable()
        for buffer in buffers:
            content.write(position, buffer)
            position += len(buffer)

    def truncate(self, length: int) -> None:
        self._writable().truncate(length)

    def size(self) -> int:
        return len(self._open().data)

    def sync(self) -> None:
        """Make the bytes survive in every crash clone."""
        self._open().sync()

    def has_its_name(self) -> bool:
        return self._vfs.find(self._path) is self._open()

    def fileno(self) -> int | None:
        """None: there is no descriptor."""
        return None

    def sync_fileno(self) -> int | None:
        """None: memory needs no sync."""
        return None

    @property
    def takes_work(self) -> bool:
        return False

    def close(self) -> None:
        self._content = None

    def _open(self) -> _Content:
        if self._content is None:
            raise OSError(errno.EBADF, "the file is closed", self._path)
        return self._content

    def _writable(self) -> _Content:
        if self._read_only:
            raise OSError(errno.EBADF, "the file is open for reading only", self._path)
        return self._open()


class MemoryFolder:
    """One open folder."""

    __slots__ = ("_folder", "_vfs")

    def __init__(self, vfs: MemoryVfs, folder: _Folder) -> None:
        self._vfs = vfs
        self._folder = folder

    def sync(self) -> None:
        """Make the names in it survive in every crash clone."""
        self._vfs.sync_folders([self._folder])

    def close(self) -> None:
        """Close the folder. Idempotent."""


class MemoryVfs:
    """A tree of files in memory."""

    def __init__(self) -> None:
        self._root = _Folder()
        self._changes: list[_NameChange] = []  # unsynced, in order
        self._found: dict[str, tuple[_Folder, str]] = {}  # cached lookups, valid until a folder is moved or removed

    def open(
        self, path: str, *, create: bool = False, make_folders: bool = True, read_only: bool = False
    ) -> MemoryFile:
        folder, name = self._parent(path, create=create and make_folders)
        node = folder.entries.get(name)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            node = _Content()
            self._apply(_NameChange(None, (folder, name, node)))
        if isinstance(node, _Folder):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", path)
        return MemoryFile(self, path, node, read_only=read_only)

    def open_folder(self, path: str) -> MemoryFolder:
        return MemoryFolder(self, self._chain(path)[-1])

    def find(self, path: str) -> object:
        """Return the node at the path, or None."""
        try:
            folder, name = self._parent(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return folder.entries.get(name)

    def list(self, path: str) -> Sequence[str]:
        try:
            *_, folder = self._chain(path)
        except FileNotFoundError:
            return []
        return sorted(f"{name}/" if isinstance(node, _Folder) else name for name, node in folder.entries.items())

    def rename(self, old: str, new: str) -> None:
        source, source_name = self._parent(old)
        node = source.entries.get(source_name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        target, target_name = self._parent(new, create=True)
        there = target.entries.get(target_name)
        if isinstance(there, _Folder) and (there.entries or not isinstance(node, _Folder)):
            raise OSError(errno.ENOTEMPTY, "a folder is in the way", new)
        self._apply(_NameChange((source, source_name), (target, target_name, node)))

    def remove(self, path: str) -> None:
        try:
            folder, name = self._parent(path)
        except FileNotFoundError:
            return
        if name in folder.entries:
            self._apply(_NameChange((folder, name), None))

    def sync_dir(self, path: str) -> None:
        """Make the names in this folder, and its own up to the root, survive in every crash clone."""
        self.sync_folders(self._chain(path))

    def together(self, *syncs: Callable[[], None]) -> None:
        in_turn(syncs)

    def cached(self, *, reads_max: int, bytes_max: int) -> None:
        return None

    def sync_folders(self, folders: _Folders) -> None:
        """Make the names in these folders survive in every crash clone."""
        left = []
        for change in self._changes:
            if any(change.touches(folder) for folder in folders):
                _on_disk(change)
            else:
                left.append(change)
        self._changes = left

    def fail_sync(self, path: str) -> None:
        """Fail a sync of this file: its dirty bytes reach the disk only if they are written again."""
        node = self.find(path)
        assert isinstance(node, _Content), path
        node.fail_sync()

    def crash_clone(self, keep: Keep = Keep.SYNCED, random: Random | None = None) -> MemoryVfs:
        """Return the state that a start would find after a crash now. SUBSET draws its choices from `random`."""
        assert (random is not None) == (keep is Keep.SUBSET), "SUBSET needs `random`, nothing else does"
        clone = MemoryVfs()
        copies: dict[int, _Folder | _Content] = {}
        persisted: dict[int, dict[str, _Folder | _Content]] = {}

        def names(folder: _Folder) -> dict[str, _Folder | _Content]:
            return persisted.setdefault(id(folder), dict(folder.on_disk))

        for change in self._changes:
            if keep is Keep.ALL or (random is not None and random.random() < 0.5):
                if change.removed is not None:
                    names(change.removed[0]).pop(change.removed[1], None)
                if change.added is not None:
                    names(change.added[0])[change.added[1]] = change.added[2]

        def copy(node: _Folder | _Content) -> _Folder | _Content:
            if id(node) not in copies:
                if isinstance(node, _Content):
                    copies[id(node)] = node.after_crash(keep, random)
                else:
                    folder = copies[id(node)] = _Folder()
                    folder.entries = {name: copy(child) for name, child in names(node).items()}
                    folder.on_disk = dict(folder.entries)
            return copies[id(node)]

        root = copy(self._root)
        assert isinstance(root, _Folder)
        clone._root = root
        return clone

    def files(self) -> Iterator[str]:
        """Yield the paths of all files, sorted."""
        yield from self._files("", self._root)

    def _files(self, prefix: str, folder: _Folder) -> Iterator[str]:
        for name, node in sorted(folder.entries.items()):
            if isinstance(node, _Folder):
                yield from self._files(f"{prefix}{name}/", node)
            else:
                yield prefix + name

    def _apply(self, change: _NameChange) -> None:
        if change.removed is not None:
            folder, name = change.removed
            if isinstance(folder.entries.pop(name), _Folder):
                self._found.clear()
        if change.added is not None:
            folder, name, node = change.added
            folder.entries[name] = node
        self._changes.append(change)

    def _chain(self, path: str) -> _Folders:
        folders = [self._root]
        for part in _parts(path):
            node = folders[-1].entries.get(part)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, "no such folder", path)
            if not isinstance(node, _Folder):
                raise NotADirectoryError(errno.ENOTDIR, "it is a file", path)
            folders.append(node)
        return folders

    def _parent(self, path: str, *, create: bool = False) -> tuple[_Folder, str]:
        if (found := self._found.get(path)) is not None:
            return found
        parts = _parts(path)
        folder = self._root
        for part in parts[:-1]:
            node = folder.entries.get(part)
            if node is None:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, "no such folder", path)
                node = _Folder()
                self._apply(_NameChange(None, (folder, part, node)))
            if not isinstance(node, _Folder):
                raise NotADirectoryError(errno.ENOTDIR, "a part of the path is a file", path)
            folder = node
        if len(self._found) >= _PATHS_KEPT:
            self._found.clear()
        self._found[path] = (folder, parts[-1])
        return folder, parts[-1]


def _on_disk(change: _NameChange) -> None:
    if change.removed is not None:
        folder, name = change.removed
        folder.on_disk.pop(name, None)
    if change.added is not None:
        folder, name, node = change.added
        folder.on_disk[name] = node


def _parts(path: str) -> list[str]:
    if not path:
        return []
    parts = path.rstrip("/").split("/")
    if "\0" in path or any(part in {"", ".", ".."} for part in parts):
        raise OSError(errno.EINVAL, "a path must stay within its root, in plain names", path)
    return parts
