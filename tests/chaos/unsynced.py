"""A disk that has forgotten, once the power is back, what was not synced: real files, and a log of how to undo.

Rules: `install` is for a broker that a test starts, `power_fails` for the test once that broker was killed. What is to
be written, made, renamed or removed is noted first, in a folder beside the data directory, and done then; what a sync
covers that began later need not be undone any more. When the sync of a file begins is noted, too. A process that is
killed loses nothing by that: the notes of the next one follow. As with a disk, bytes are a file's, whatever its name
is; names are a folder's.

| noted                     | final after                         | undone by                                    |
|---------------------------|-------------------------------------|----------------------------------------------|
| bytes over others, behind the end, cut off | a sync of the file | the old bytes, the old length                |
| a file or folder is made  | a sync of the folder that it is in  | removing it                                  |
| a name is moved, removed  | the same, of either folder          | the old name, and what had the new one       |

Theory: a second name of each file lies in the folder of notes, under the file's number. So its bytes can be found
whatever became of its name, and its number is not given to another file. Of what is not final a power loss may leave
some: for each file and each folder what was first, the last write of it perhaps torn.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from penstock.vfs import Buffer, real

_FILES = "files"
_REMOVED = "removed"
_NOTES = "notes"

Note = dict[str, Any]


def notes_lie_at(root: Path, path: Path) -> None:
    """Have the notes themselves at another place, before a process begins them: on a disk that has room."""
    beside(root).mkdir(parents=True, exist_ok=True)
    link = beside(root) / _NOTES
    if not link.is_symlink():
        link.symlink_to(path)


def beside(root: str | os.PathLike[str]) -> Path:
    """The folder of the notes about a data directory."""
    path = Path(root)
    return path.with_name(f"{path.name}.unsynced")


class _Notes:
    """What one process writes down, each note before what it is about."""

    def __init__(self, root: str) -> None:
        self.lock = threading.RLock()
        self._root = root
        self._folder = beside(root)
        for name in (_FILES, _REMOVED):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._folder / _NOTES, flags, 0o600)
        self._last_ns = 0
        self.note(op="begun")  # the syncs of the process before will not end
        self._gone: list[tuple[int, set[str], Path]] = []  # when, in which folders, and where what is gone is kept

    def now(self) -> int:
        """The moment; each one is later than the one before."""
        self._last_ns = max(self._last_ns + 1, time.monotonic_ns())
        return self._last_ns

    def note(self, **what: object) -> None:
        """One more. OSError: there is no room, so nothing is done either."""
        line = b"\n" + json.dumps({"at": self.now(), **what}).encode()  # a torn one before it is a line of its own
        if os.write(self._descriptor, line) != len(line):
            raise OSError(28, "no room for the notes", self._root)

    def keep(self, full: str) -> int:
        """The number of a file, which stays findable by it."""
        number = os.stat(full).st_ino
        with contextlib.suppress(FileExistsError):
            os.link(full, self._folder / _FILES / str(number))
        return number

    def place_for_removed(self) -> str:
        """Where a folder goes that is removed."""
        return str(self._folder / _REMOVED / str(self.now()))

    def goes(self, folders: list[str], kept: int | str) -> None:
        """What is kept under that number, or there, has no name any more, once that is final."""
        path = self._folder / _FILES / str(kept) if isinstance(kept, int) else Path(kept)
        self._gone.append((self.now(), set(folders), path))

    def named(self, folders: list[str], until: int) -> None:
        """The names in these folders are on the disk; what has gone from them gives its room back."""
        self.note(op="named", folders=folders, until=until)
        final = [one for one in self._gone if one[0] <= until and one[1] & set(folders)]
        self._gone = [one for one in self._gone if one not in final]
        for _, _, path in final:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def relative(self, full: str) -> str:
        """Its path within the data directory."""
        return os.path.relpath(full, self._root)


_notes: dict[str, _Notes] = {}


def _of(root: str) -> _Notes:
    if root not in _notes:
        _notes[root] = _Notes(root)
    return _notes[root]


class UnsyncedFile(real.RealFile):
    """Notes what it overwrites."""

    __slots__ = ("_about", "_number")

    def __init__(self, path: str, full: str, descriptor: int) -> None:
        super().__init__(path, full, descriptor)
        self._about = _of(full[: -len(path) - 1])
        self._number = os.fstat(descriptor).st_ino

    def _note(self, position: int, length: int) -> None:
        size = self.size()
        old = self.read_at(position, min(length, size - position)) if position < size else b""
        text = base64.b64encode(old).decode()
        self._about.note(op="write", file=self._number, size=size, position=position, length=length, old=text)

    def write_at(self, position: int, *buffers: Buffer) -> None:
        with self._about.lock:
            self._note(position, sum(map(len, buffers)))
            super().write_at(position, *buffers)

    def truncate(self, length: int) -> None:
        with self._about.lock:
            self._note(length, max(0, self.size() - length))
            super().truncate(length)

    def sync(self) -> None:
        with self._about.lock:
            until = self._about.now()
            self._about.note(op="syncing", file=self._number, until=until)
        super().sync()
        with self._about.lock:
            self._about.note(op="synced", file=self._number, until=until)

    def sync_fileno(self) -> int | None:
        """None: a sync by the kernel would not be noted."""
        return None


class UnsyncedFolder(real.RealFolder):
    """Notes that its names are on the disk."""

    __slots__ = ("_about", "_path")

    def __init__(self, full: str) -> None:
        super().__init__(full)
        self._about = next(notes for root, notes in _notes.items() if full == root or full.startswith(f"{root}/"))
        self._path = self._about.relative(full)

    def sync(self) -> None:
        with self._about.lock:
            until = self._about.now()
        super().sync()
        with self._about.lock:
            self._about.named([self._path], until)


class UnsyncedVfs(real.RealVfs):
    """Notes which names it makes, moves and removes."""

    file_type = UnsyncedFile
    folder_type = UnsyncedFolder

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self._about = _of(self.root)

    def open(
        self, path: str, *, create: bool = False, make_folders: bool = True, read_only: bool = False
    ) -> real.RealFile:
        with self._about.lock:
            full = self._full(path)
            if create and not os.path.exists(full):
                self._note_new_folders(os.path.dirname(full))
                self._about.note(op="made", folders=[os.path.dirname(self._about.relative(full)) or "."], path=path)
            file = super().open(path, create=create, make_folders=make_folders, read_only=read_only)
            if not read_only:
                self._about.keep(full)
            return file

    def _note_new_folders(self, folder: str) -> None:
        missing = []
        while not os.path.isdir(folder):
            missing.append(self._about.relative(folder))
            folder = os.path.dirname(folder)
        for path in reversed(missing):
            self._about.note(op="made", folders=[os.path.dirname(path) or "."], path=path)

    def rename(self, old: str, new: str) -> None:
        with self._about.lock:
            source, target = self._full(old), self._full(new)
            self._note_new_folders(os.path.dirname(target))
            replaced = self._about.keep(target) if os.path.isfile(target) else None
            paths = [self._about.relative(source), self._about.relative(target)]
            folders = [os.path.dirname(path) or "." for path in paths]
            moved = os.stat(source).st_ino
            self._about.note(op="moved", folders=folders, old=paths[0], new=paths[1], file=moved, replaced=replaced)
            super().rename(old, new)
            if replaced is not None:
                self._about.goes(folders, replaced)

    def remove(self, path: str) -> None:
        with self._about.lock:
            full = self._full(path)
            if not os.path.lexists(full):
                return
            relative = self._about.relative(full)
            folders = [os.path.dirname(relative) or "."]
            if os.path.isdir(full) and not os.path.islink(full):
                kept = self._about.place_for_removed()
                self._about.note(op="removed folder", folders=folders, path=relative, kept=kept)
                os.rename(full, kept)
                self._about.goes(folders, kept)
            else:
                number = self._about.keep(full)
                self._about.note(op="removed", folders=folders, path=relative, file=number)
                super().remove(path)
                self._about.goes(folders, number)

    def sync_dir(self, path: str) -> None:
        with self._about.lock:
            until = self._about.now()
        super().sync_dir(path)
        parts = path.rstrip("/").split("/") if path else []
        folders = ["/".join(parts[:count]) or "." for count in range(len(parts) + 1)]
        with self._about.lock:
            self._about.named(folders, until)


def install() -> None:
    """Have every data directory of this process on such a disk. Before anything of the broker is imported."""
    real.RealVfs = UnsyncedVfs  # type: ignore[misc]


# After the broker was killed


@dataclass(slots=True)
class _Unsynced:
    """What is not final."""

    writes: dict[int, list[Note]] = field(default_factory=lambda: defaultdict(list))  # file → in their order
    names: list[Note] = field(default_factory=list)
    syncing: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # file → when each sync began


def _noted(root: Path) -> Iterator[Note]:
    path = beside(root) / _NOTES
    if not path.exists():
        return
    for line in path.read_bytes().split(b"\n"):
        with contextlib.suppress(ValueError):  # empty, or torn: then what it was about was not begun
            yield json.loads(line)


def _not_final(root: Path) -> _Unsynced:
    left = _Unsynced()
    for note in _noted(root):
        if note["op"] == "synced":
            left.writes[note["file"]] = [one for one in left.writes[note["file"]] if one["at"] > note["until"]]
            left.syncing[note["file"]] = [one for one in left.syncing[note["file"]] if one != note["until"]]
        elif note["op"] == "syncing":
            left.syncing[note["file"]].append(note["until"])
        elif note["op"] == "begun":
            left.syncing.clear()
        elif note["op"] == "named":
            done = set(note["folders"])
            left.names = [one for one in left.names if one["at"] > note["until"] or not done & set(one["folders"])]
        elif note["op"] == "write":
            left.writes[note["file"]].append(note)
        else:
            left.names.append(note)
    return left


class Waiting(NamedTuple):
    """What a log has that is not on the disk, in seconds of the clock of the notes."""

    since_s: float  # when the first bytes or names of it were written
    syncing_since_s: float | None  # when the oldest sync of the log began that is under way; None: there is none

    def waited_s(self, until_s: float) -> float:
        """For how long nothing was done about it until then; a sync under way lets what comes after it wait, too."""
        return (until_s if self.syncing_since_s is None else min(until_s, self.syncing_since_s)) - self.since_s


def unsynced(root: Path, folder: str) -> Waiting | None:
    """What of the segments of that folder is not final; None: all is."""
    left = _not_final(root)
    segments = {path.stat().st_ino for path in (root / folder).glob("*.arrows")}
    times = [note["at"] for number in segments for note in left.writes.get(number, ())]
    for note in left.names:  # of what is moved or removed there the bytes are on the disk, under one name or the other
        path = str(note.get("path"))
        is_segment = path.startswith(f"{folder}/") and path.endswith(".arrows")
        if note["op"] == "made" and (is_segment or f"{folder}/".startswith(f"{path}/")):
            times.append(note["at"])
    if not times:
        return None
    syncing = [at for number in segments for at in left.syncing.get(number, ())]
    return Waiting(min(times) / 1e9, min(syncing) / 1e9 if syncing else None)


def power_fails(root: Path, chance: random.Random | None = None) -> int:
    """Undo what is not final, all of it, or without the first of it that `chance` leaves; how much was undone."""
    left = _not_final(root)
    undone = 0
    for number, writes in left.writes.items():
        kept = 0 if chance is None else chance.randint(0, len(writes))
        undone += len(writes) - kept
        _undo_writes(beside(root) / _FILES / str(number), writes[kept:], chance)
    undone += _undo_names(root, left.names, chance)
    (beside(root) / _NOTES).resolve().unlink(missing_ok=True)
    shutil.rmtree(beside(root), ignore_errors=True)  # what is there now is on the disk
    return undone


def _undo_writes(path: Path, writes: list[Note], chance: random.Random | None) -> None:
    if not writes or not path.exists():  # it is gone for good
        return
    with path.open("r+b") as file:
        first = writes[0]
        file.seek(first["position"])
        torn = file.read(chance.randint(0, first["length"])) if chance is not None and chance.random() < 0.5 else b""
        for note in reversed(writes):
            file.seek(note["position"])
            file.write(base64.b64decode(note["old"]))
            file.truncate(note["size"])
        file.seek(first["position"])
        file.write(torn)


def _undo_names(root: Path, names: list[Note], chance: random.Random | None) -> int:
    by_folder: dict[str, int] = defaultdict(int)
    for note in names:
        by_folder[note["folders"][-1]] += 1
    left = {folder: 0 if chance is None else chance.randint(0, count) for folder, count in by_folder.items()}
    undo = []
    for note in names:
        folder = note["folders"][-1]
        if left[folder] > 0:
            left[folder] -= 1
        else:
            undo.append(note)
    for note in reversed(undo):
        _undo_name(root, note)
    return len(undo)


def _undo_name(root: Path, note: Note) -> None:
    files = beside(root) / _FILES
    if note["op"] == "made":
        path = root / note["path"]
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    elif note["op"] == "removed":
        path = root / note["path"]
        if path.parent.is_dir() and not path.exists():
            os.link(files / str(note["file"]), path)
    elif note["op"] == "removed folder":
        if os.path.isdir(note["kept"]) and not (root / note["path"]).exists():
            os.rename(note["kept"], root / note["path"])
    else:
        old, new = root / note["old"], root / note["new"]
        if new.exists() and new.stat().st_ino == note["file"]:
            if old.parent.is_dir():
                os.rename(new, old)
            if note["replaced"] is not None:
                os.link(files / str(note["replaced"]), new)
