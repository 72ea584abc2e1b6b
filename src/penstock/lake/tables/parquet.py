"""A lake of plain Parquet files: pyarrow, pandas, Polars, DuckDB and Spark read every row once, without a catalog.

Rules: tasks write staged files, under names that no reader takes for data. A commit creates one numbered file with the
final paths of the staged files and the ends of all partitions. Then the driver moves the staged files to their final
paths. If a job is killed in between, the next run moves the rest, and removes staged files that are in no commit. A
commit number is used once.

| file                          | content                                        |
|-------------------------------|------------------------------------------------|
| `_penstock/commits/0…12.json` | a commit, with the ends of all partitions      |
| `_penstock/staged/*.part`     | uncommitted files, or files of the last commit |
| `_penstock/moved`             | the last commit, once all its files are moved  |

`moved` has number and checksum of the commit, since an older copy of an archive uses a number again. It is written
after the moves are on disk, and is not synced: if it is missing, older or torn, they are done again.

A commit also has the number of all data files so far, a digest of their paths and sizes, and a CRC-32C of itself
(version 2; version 1 has none of the three). So a run reads one commit and lists the folder to know that no commit and
no data file is missing, too much or cut: 0.3 s for 35,000 files. Only if the two differ it reads all commits.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from penstock.base.errors import CorruptionError, OperationalError
from penstock.hot.crc import crc32c
from penstock.lake.reading.data_loss import warn
from penstock.lake.reading.positions import Key, Position
from penstock.lake.tables.data_files import folder_of, staged
from penstock.lake.tables.folder import OWN, RESTORE, OvertakenError, naming, sync_up
from penstock.lake.tables.table import Commit, LakeFile, check_new

Move = Callable[[Path, Path], Any]

_MOVED = f"{OWN}/moved"
_LISTINGS_MAX = 100  # of the commits, as long as their number grows meanwhile
_NAME = re.compile(r"[0-9]{20}\.json")
_IS_WHAT = "a commit of an archive"


class _Contents(NamedTuple):
    """Number of data files, and a digest of their paths and sizes that does not depend on their order."""

    files: int = 0
    digest: int = 0

    def plus(self, sizes: Iterable[tuple[str, int]]) -> _Contents:
        """Return the contents with these (path, size) added."""
        files, digest = self
        for path, size in sizes:
            files += 1
            named = f"{size} {path}".encode(errors="surrogateescape")
            digest += int.from_bytes(hashlib.blake2b(named, digest_size=8).digest())
        return _Contents(files, digest % 2**64)


class _Stored(NamedTuple):
    """The content of a commit file. `contents`: of the archive after it; None in version 1."""

    ends: Mapping[Key, Position]
    files: tuple[LakeFile, ...]
    contents: _Contents | None

    def to_json(self) -> dict[str, Any]:
        """Return version 2 of the JSON form, with its checksum."""
        listed: dict[str, dict[str, int]] = {}
        epochs: dict[str, dict[str, int]] = {}
        for key, end in sorted(self.ends.items()):
            listed.setdefault(key.stream, {})[str(key.partition)] = end.offset
            epochs.setdefault(key.stream, {})[str(key.partition)] = end.leader_epoch
        files = [one.to_json() for one in self.files]
        made = {"version": 2, "ends": listed, "epochs": epochs, "files": files, "contents": self.contents}
        return {**made, "crc32c": _crc(made)}

    @classmethod
    def of_json(cls, found: dict[str, Any]) -> _Stored:
        """Parse either version. Raise AttributeError, KeyError, TypeError or ValueError if it is invalid."""
        if (version := found["version"]) not in (1, 2):
            raise ValueError(f"version {version}, which this Penstock does not know")
        contents = None
        if version == 2:
            if (crc := found.pop("crc32c")) != (now := _crc(found)):
                raise ValueError(f"content with CRC-32C {now}, not {crc}")
            contents = _Contents(*found["contents"])
        elif "crc32c" in found:
            raise ValueError("version 1 with a checksum")
        epochs = found.get("epochs", {})
        ends = {
            Key(name, int(number)): Position(int(end), int(epochs.get(name, {}).get(number, 0)))
            for name, one in found["ends"].items()
            for number, end in one.items()
        }
        return cls(ends, tuple(_checked(LakeFile.of_json(one), ends) for one in found["files"]), contents)


def _crc(made: Mapping[str, Any]) -> str:
    return f"{crc32c(json.dumps(made, sort_keys=True).encode()):08x}"


def _checked(file: LakeFile, ends: Mapping[Key, Position]) -> LakeFile:
    """Return a file of a commit with these ends. Raise KeyError, TypeError or ValueError if they do not agree."""
    if not file.path.startswith(f"{folder_of(file.topic, file.date)}/") or ".." in file.path.split("/"):
        raise ValueError(f"a file in another folder than its stream's: {file.path!r}")
    if min(file.rows, file.size_bytes) < 0:
        raise ValueError(f"{file.rows} rows and {file.size_bytes} bytes in {file.path}")
    for one in file.ranges:
        if one.end > (end := ends[Key(file.topic, one.partition)].offset):
            raise ValueError(f"end {end} of partition {one.partition}, but {file.path} goes up to {one.end}")
    return file


class ParquetTable:
    """`Table` of plain Parquet files. `move` renames a file."""

    def __init__(self, root: Path, move: Move = os.replace) -> None:
        self._root = root
        self._commits = root / OWN / "commits"
        self._move = move
        self._checked: tuple[int, _Contents] | None = None  # what is there, and the commit up to which it is
        self._known: tuple[int, _Stored | None] = (-1, None)  # the last commit when it was read
        self._moved_number = -1  # the commit whose files are at their final paths, on disk

    def ends(self, keys: Iterable[Key]) -> dict[Key, Position]:
        """Return the ends from the last commit."""
        _, last = self._last()
        return {} if last is None else {key: last.ends[key] for key in keys if key in last.ends}

    def commit(self, commit: Commit) -> None:
        """Create the commit file, then move the data files."""
        number, last = self._last()
        if number != self._moved_number:
            self._publish(number, last)
        known = {} if last is None else last.ends
        if not check_new(self._root, known, commit):
            return
        for one in commit.files:
            if _size(aside := self._root / staged(one.path)) != one.size_bytes:
                text = f"{aside} was changed or removed after this run had written it"
                raise OperationalError(f"{text}, and nothing was committed: run it again")
        contents = self._contents(number, last).plus((one.path, one.size_bytes) for one in commit.files)
        made = _Stored({**known, **commit.ends}, commit.files, contents)
        self._write(number + 1, made)
        self._checked = number + 1, contents
        self._publish(number + 1, made)

    def _contents(self, number: int, last: _Stored | None) -> _Contents:
        if self._checked is not None and self._checked[0] == number:
            return self._checked[1]
        if last is not None and last.contents is not None:
            return last.contents
        return _Contents().plus(self._committed().items())

    def _write(self, number: int, made: _Stored) -> None:
        file = self._commits / _name(number)
        new = self._commits / f".{number:020d}.{os.getpid()}.new"
        self._commits.mkdir(parents=True, exist_ok=True)
        try:
            with naming(file), new.open("w", encoding="utf-8") as target:
                json.dump(made.to_json(), target)
                target.flush()
                os.fsync(target.fileno())
            os.link(new, file)  # unlike a rename, a link fails if the name exists
        except FileExistsError:
            raise OvertakenError(f"{self._root}: another job has committed at the same time") from None
        finally:
            new.unlink(missing_ok=True)
        sync_up([self._commits], self._root)

    def _publish(self, number: int, made: _Stored | None) -> None:
        """Move staged files of a commit. Raise CorruptionError if one is neither staged nor moved.

        Once all were moved, users may remove them: what is missing then is told by `_check_whole`.
        """
        if made is None:
            return
        mark = f"{number} {made.to_json()['crc32c']}"
        were_moved = self._moved() == mark
        folders = set()
        for one in made.files:
            place, aside = self._root / one.path, self._root / staged(one.path)
            if (size := _size(aside)) is None:
                if were_moved:
                    continue
                if _size(place) is None:
                    raise _damaged(place, one.size_bytes, None)
                folders.add(place.parent)  # it was moved already, and perhaps not synced
                continue
            if size != one.size_bytes:
                raise _damaged(aside, one.size_bytes, size)
            place.parent.mkdir(parents=True, exist_ok=True)
            self._move(aside, place)
            folders.add(place.parent)
        sync_up(folders, self._root)
        self._moved_number = number
        if folders:
            self._write_moved(mark)

    def _moved(self) -> str:
        """Return the mark of the last commit of which all files were moved; empty if it is not known."""
        try:
            return (self._root / _MOVED).read_text(encoding="ascii", errors="replace")
        except OSError:
            return ""

    def _write_moved(self, mark: str) -> None:
        new = self._root / f"{_MOVED}.new"
        with suppress(OSError):  # then the next run does it again
            new.write_text(mark, encoding="ascii")
            new.replace(self._root / _MOVED)

    def drop_staged(self) -> None:
        """Remove staged files that are in no commit. The caller has called `finish` and holds the archive's lock."""
        for one in (self._root / OWN / "staged").glob("*.part"):
            one.unlink(missing_ok=True)

    def finish(self) -> None:
        """Move files of the last commit that are still staged.

        Raise CorruptionError if a commit or a data file is missing or changed. The caller holds the archive's lock.
        """
        self._known = (-1, None)
        number, last = self._last()
        if last is not None:  # the last job may have been killed between its commit and the sync
            sync_up([self._commits], self._root)
        self._publish(number, last)
        self._check_whole(number, last)

    def _check_whole(self, number: int, last: _Stored | None) -> None:
        """Raise CorruptionError if the data files are not those of the commits: rows are lost, or would come again.

        Folders of a stream's day may be removed.
        """
        found = self._listed_data()
        contents = _Contents().plus(found.items())
        self._checked = number, contents
        if contents == (_Contents() if last is None else last.contents):
            return
        named = self._committed()
        if more := sorted(found.keys() - named.keys()):
            text = f"a file that a commit in {self._commits} names"
            advice = f"{_COMMIT_LOST}, or move the file away if it is none of the archive's."
            raise CorruptionError(str(self._root / more[0]), 0, text, "none that does", advice=advice)
        removed = set()
        for path, size in sorted(named.items()):
            place = self._root / path
            if path not in found and not place.parent.exists():
                removed.add(path.rpartition("/")[0])
            elif found.get(path) != size:
                raise _damaged(place, size, found.get(path))
        if removed:
            some = ", ".join(sorted(removed)[:3])
            warn(f"the archive in {self._root} lacks {len(removed)} folders that it had, such as {some}")

    def _listed_data(self) -> dict[str, int]:
        """Return path and size of each data file that readers see."""
        out = {}
        for folder in self._root.glob("date=*/topic=*/"):
            above = folder.relative_to(self._root)
            with os.scandir(folder) as entries:
                for one in entries:
                    if one.name.endswith(".parquet") and not one.name.startswith((".", "_")):
                        out[f"{above}/{one.name}"] = one.stat().st_size
        return out

    def _committed(self) -> dict[str, int]:
        """Return path and size of the files of all commits."""
        return {one.path: one.size_bytes for number in self._numbers() for one in self._read(number).files}

    def files(self, topics: Iterable[str] | None = None) -> list[LakeFile]:
        """Return the files of all commits; a file that was not moved yet has its staged path."""
        wanted = None if topics is None else set(topics)
        out = []
        for number in self._numbers():
            for one in self._read(number).files:
                if wanted is not None and one.topic not in wanted:
                    continue
                is_aside = not (self._root / one.path).exists() and (self._root / staged(one.path)).exists()
                out.append(one._replace(path=staged(one.path)) if is_aside else one)
        return out

    def _numbers(self) -> list[int]:
        if not self._commits.is_dir():
            return []
        found = self._listed()
        for _ in range(_LISTINGS_MAX):
            if found == list(range(len(found))):
                break
            # A listing during another job's commits may have a later one and lack one before it.
            before, found = found, self._listed()
            if found == before:
                break
        for wanted, number in enumerate(found):
            if number != wanted:
                file = str(self._commits / _name(wanted))
                raise CorruptionError(file, 0, _IS_WHAT, "no file", advice=f"{_COMMIT_LOST}.")
        return found

    def _listed(self) -> list[int]:
        names = [one.name for one in self._commits.glob("[0-9]*.json")]
        for name in names:
            if not _NAME.fullmatch(name):
                text, advice = "no number of 20 digits", "Move it away if it is none of the archive's."
                raise CorruptionError(str(self._commits / name), 0, _IS_WHAT, f"{text} as its name", advice=advice)
        return sorted(int(name.removesuffix(".json")) for name in names)

    def _last(self) -> tuple[int, _Stored | None]:
        """Return the last commit with its number. Only `finish`, or else the first call, lists all commits."""
        number = self._known[0]
        if number < 0:
            number = next(reversed(self._numbers()), -1)
        while (self._commits / _name(number + 1)).exists():
            number += 1
        if number != self._known[0]:
            self._known = (number, self._read(number))
        return self._known

    def _read(self, number: int) -> _Stored:
        file = self._commits / _name(number)
        try:
            return _Stored.of_json(json.loads(file.read_bytes()))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            found = f"{type(error).__name__}: {error}"
            raise CorruptionError(str(file), 0, _IS_WHAT, found, advice=RESTORE) from None


_COMMIT_LOST = f"A commit is missing: restore `{OWN}/commits` from a copy of the archive that has it"


def _damaged(file: Path, size: int, found: int | None) -> CorruptionError:
    told = "no file" if found is None else f"{found} bytes"
    return CorruptionError(str(file), 0, f"a committed file of {size} bytes", told, advice=RESTORE)


def _size(file: Path) -> int | None:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return None


def _name(number: int) -> str:
    return f"{number:020d}.json"
