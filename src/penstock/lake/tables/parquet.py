"""A lake of plain Parquet files: pyarrow, pandas, Polars, DuckDB and Spark read every row once, without a catalog.

Rules: tasks write staged files, under names that no reader takes for data. A commit creates one numbered file with the
final paths of the staged files and the ends of all partitions. Then the driver moves the staged files to their final
paths. If a job is killed in between, the next run moves the rest. A commit number is used once.

| file                          | content                                       |
|-------------------------------|-----------------------------------------------|
| `_penstock/commits/0…12.json` | a commit, with the ends of all partitions     |
| `_penstock/staged/*.part`     | uncommitted files, or files of the last commit |
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from penstock.base.errors import CorruptionError
from penstock.lake.reading.positions import Key, Position
from penstock.lake.tables.data_files import staged
from penstock.lake.tables.folder import OWN, OvertakenError, sync_up
from penstock.lake.tables.table import Commit, LakeFile, check_new

Move = Callable[[Path, Path], Any]


class ParquetTable:
    """`Table` of plain Parquet files. `move` renames a file."""

    def __init__(self, root: Path, move: Move = os.replace) -> None:
        self._root = root
        self._commits = root / OWN / "commits"
        self._move = move
        self._known: tuple[int, dict[str, Any] | None] = (-1, None)  # the last commit when it was read

    def ends(self, keys: Iterable[Key]) -> dict[Key, Position]:
        """Return the ends from the last commit."""
        known = _ends(self._last()[1])
        return {key: known[key] for key in keys if key in known}

    def commit(self, commit: Commit) -> None:
        """Create the commit file, then move the data files."""
        number, last = self._last()
        self._publish(last)
        known = _ends(last)
        if not check_new(self._root, known, commit):
            return
        ends = known | dict(commit.ends)
        listed: dict[str, dict[str, int]] = {}
        epochs: dict[str, dict[str, int]] = {}
        for key, end in sorted(ends.items()):
            listed.setdefault(key.stream, {})[str(key.partition)] = end.offset
            epochs.setdefault(key.stream, {})[str(key.partition)] = end.leader_epoch
        made = {"version": 1, "ends": listed, "epochs": epochs, "files": [one.to_json() for one in commit.files]}
        self._write(number + 1, made)
        self._publish(made)

    def _write(self, number: int, made: dict[str, Any]) -> None:
        self._commits.mkdir(parents=True, exist_ok=True)
        new = self._commits / f".{number:020d}.{os.getpid()}.new"
        with new.open("w", encoding="utf-8") as file:
            json.dump(made, file)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(new, self._commits / _name(number))  # unlike a rename, a link fails if the name exists
        except FileExistsError:
            raise OvertakenError(f"{self._root}: another job has committed at the same time") from None
        finally:
            new.unlink()
        sync_up([self._commits], self._root)

    def _publish(self, made: dict[str, Any] | None) -> None:
        folders = set()
        for one in (made or {}).get("files", ()):
            place, aside = self._root / one["path"], self._root / staged(one["path"])
            if not aside.exists():
                continue  # it was moved already
            place.parent.mkdir(parents=True, exist_ok=True)
            self._move(aside, place)
            folders.add(place.parent)
        sync_up(folders, self._root)

    def finish(self) -> None:
        """Move files of the last commit that are still staged. Raise CorruptionError if a commit is missing."""
        last = self._last()[1]
        if last is not None:  # the last job may have been killed between its commit and the sync
            sync_up([self._commits], self._root)
        self._publish(last)
        self._check_whole()

    def _check_whole(self) -> None:
        """Raise CorruptionError if a file that readers see is in no commit: its rows would be archived again.

        Files of a lost later commit are younger than the last commit, so only such files are checked.
        """
        number, last = self._last()
        since = 0.0 if last is None else (self._commits / _name(number)).stat().st_mtime
        folders = (one for one in self._root.glob("date=*/topic=*") if one.stat().st_mtime >= since)
        young = [file for one in folders for file in one.glob("*.parquet") if file.stat().st_mtime >= since]
        if not young:
            return
        named = {one.path for one in self.files()}
        for file in sorted(young):
            if str(file.relative_to(self._root)) not in named:
                raise CorruptionError(str(file), 0, f"a file that a commit in {self._commits} names", "none that does")

    def files(self, topics: Iterable[str] | None = None) -> list[LakeFile]:
        """Return the files of all commits; a file that was not moved yet has its staged path."""
        wanted = None if topics is None else set(topics)
        out = []
        for number in self._numbers():
            for found in self._read(number)["files"]:
                one = LakeFile.of_json(found)
                if wanted is not None and one.topic not in wanted:
                    continue
                is_aside = not (self._root / one.path).exists() and (self._root / staged(one.path)).exists()
                out.append(one._replace(path=staged(one.path)) if is_aside else one)
        return out

    def _numbers(self) -> list[int]:
        if not self._commits.is_dir():
            return []
        found = self._listed()
        if found != list(range(len(found))):
            found = self._listed()  # a listing during another job's commits may have the second and lack the first
        for wanted, number in enumerate(found):
            if number != wanted:
                raise CorruptionError(str(self._commits / _name(wanted)), 0, "a commit of an archive", "no file")
        return found

    def _listed(self) -> list[int]:
        return sorted(int(one.stem) for one in self._commits.glob("[0-9]*.json"))

    def _last(self) -> tuple[int, dict[str, Any] | None]:
        """Return the last commit with its number. Only the first call lists all commits."""
        number = self._known[0]
        if number < 0:
            number = next(reversed(self._numbers()), -1)
        while (self._commits / _name(number + 1)).exists():
            number += 1
        if number != self._known[0]:
            self._known = (number, self._read(number))
        return self._known

    def _read(self, number: int) -> dict[str, Any]:
        file = self._commits / _name(number)
        try:
            found: dict[str, Any] = json.loads(file.read_bytes())
            if found["version"] != 1:
                raise ValueError(f"version {found['version']}")
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(str(file), 0, "a commit of an archive", f"{error}") from None
        return found


def _name(number: int) -> str:
    return f"{number:020d}.json"


def _ends(made: dict[str, Any] | None) -> dict[Key, Position]:
    if made is None:
        return {}
    epochs = made.get("epochs", {})
    return {
        Key(name, int(number)): Position(end, epochs.get(name, {}).get(number, 0))
        for name, one in made["ends"].items()
        for number, end in one.items()
    }
