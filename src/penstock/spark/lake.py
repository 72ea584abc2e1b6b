"""Lake: the files of an archive and its end offsets, independent of the table format.

Rules: the archive's table holds the end offset of each partition. One commit makes files and end offsets durable, so
the next run continues from the table's end offsets after any crash. No file with rows is deleted: a file without a
commit is not part of the table.

| file                            | content                                                           |
|---------------------------------|-------------------------------------------------------------------|
| `date=2026-11-20/topic=orders/` | rows, by the UTC date of `timestamp` and by stream                |
| `_penstock/archive.json`        | table format, streams, decoder                                    |
| `_rejects/`                     | another table: values that could not be decoded, with the reasons |
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import pyarrow as pa

from penstock.base.errors import ConfigError, CorruptionError, OperationalError
from penstock.base.extras import how_to_install
from penstock.spark.places import Key, Position
from penstock.vfs.real import sync_folder_if_possible

FORMATS = ("parquet", "delta", "iceberg")
OWN = "_penstock"
"""Folder of Penstock's metadata in an archive. Readers of Hive folders ignore names that begin with an underscore."""
REJECTS = "_rejects"


class OvertakenError(OperationalError):
    """Another job writes the same archive or table."""


class Range(NamedTuple):
    """Offsets `[start, end)` of one partition in a file; compaction may have removed some."""

    partition: int
    start: int
    end: int


class LakeFile(NamedTuple):
    """One file of a lake: its path, relative to the lake's folder, and its content."""

    path: str
    topic: str
    date: str
    rows: int
    size_bytes: int
    ranges: tuple[Range, ...]
    is_rejects: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form for commits and for a task's result."""
        return self._asdict()

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> LakeFile:
        """Parse the result of `to_json`."""
        ranges = tuple(Range(*one) for one in found["ranges"])
        return cls(**{**{name: found[name] for name in cls._fields}, "ranges": ranges})


class Commit(NamedTuple):
    """One atomic change of an archive: new files, and the ends of the partitions before (`begins`) and after (`ends`).

    Each end has the leader epoch under which it was read: an offset alone does not identify a message.
    """

    files: tuple[LakeFile, ...]
    begins: Mapping[Key, Position]
    ends: Mapping[Key, Position]


class Table(Protocol):
    """One lake table. One job writes it at a time; commits of another job are detected."""

    def finish(self) -> None:
        """Complete the last commit of a job that was killed."""

    def ends(self, keys: Iterable[Key]) -> dict[Key, Position]:
        """Return the table's end of each partition, without the partitions that no commit names."""

    def commit(self, commit: Commit) -> None:
        """Commit atomically and idempotently. Raise OvertakenError if another job has committed meanwhile."""

    def files(self, topics: Iterable[str] | None = None) -> list[LakeFile]:
        """Return the committed files of these streams, or of all."""


class ArchiveManifest(NamedTuple):
    """The content of `_penstock/archive.json`: the streams with their ids and start positions, and the options."""

    format: str
    stream_ids: Mapping[str, int]
    starts: Mapping[Key, Position]
    decode: str = ""
    schema: str = ""
    name: str = ""  # the archive's name at the brokers
    cluster: str = ""  # cluster id of these streams

    def to_json(self) -> dict[str, Any]:
        """Return the content of `archive.json`, sorted."""
        starts = sorted(self.starts.items())
        streams = {
            name: {
                "id": self.stream_ids[name],
                "starts": {str(key.partition): at.offset for key, at in starts if key.stream == name},
                "epochs": {str(key.partition): at.leader_epoch for key, at in starts if key.stream == name},
            }
            for name in sorted(self.stream_ids)
        }
        how = {"format": self.format, "decode": self.decode, "schema": self.schema}
        return {"version": 1, "name": self.name, "cluster": self.cluster, **how, "streams": streams}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> ArchiveManifest:
        """Parse `archive.json`. Raise KeyError, TypeError or ValueError if it is invalid or of a newer version."""
        if found["version"] != 1:
            raise ValueError(f"version {found['version']} is newer than this Penstock")
        streams = found["streams"]
        return cls(
            found["format"],
            {name: int(one["id"]) for name, one in streams.items()},
            {
                Key(name, int(number)): Position(at, one.get("epochs", {}).get(number, 0))
                for name, one in streams.items()
                for number, at in one["starts"].items()
            },
            found["decode"],
            found["schema"],
            found.get("name", ""),
            found.get("cluster", ""),
        )


def about_file(root: Path) -> Path:
    """Return the path of `archive.json`."""
    return root / OWN / "archive.json"


def read_about(root: Path) -> ArchiveManifest | None:
    """Return the content of `archive.json`; None if there is no archive. Raise CorruptionError if it is invalid."""
    file = about_file(root)
    try:
        return ArchiveManifest.of_json(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptionError(
            str(file), 0, "what an archive says of itself", f"{type(error).__name__}: {error}"
        ) from None


def write_about(root: Path, about: ArchiveManifest) -> None:
    """Write `archive.json` atomically and durably."""
    write_durably(about_file(root), json.dumps(about.to_json(), indent=1).encode() + b"\n")


def other_in(root: Path) -> str:
    """Return a name in a folder that readers would take for data; empty if none. Raise ConfigError for a file."""
    if not root.exists():
        return ""
    if not root.is_dir():
        raise ConfigError([f"to: {root} is no folder"])
    if any((root / "_delta_log").glob("*.json")):
        return "_delta_log"
    return min((one.name for one in root.iterdir() if not one.name.startswith(("_", ".", "lost+found"))), default="")


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """Lock an archive for one job. Raise OvertakenError if another job, perhaps on another machine, has the lock."""
    with held(root / OWN / "LOCK", f"another job writes the archive in {root}"):
        yield


@contextmanager
def held(file: Path, otherwise: str) -> Iterator[None]:
    """Lock a file, created if missing. Raise OvertakenError(`otherwise`) if another process holds the lock."""
    make_folder(file.parent)
    with file.open("ab") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OvertakenError(otherwise) from None
        yield


def check_new(root: Path | str, known: Mapping[Key, Position], commit: Commit) -> bool:
    """True if a commit is new for a table with the ends `known`; False if it was made before.

    Raise OvertakenError if another job has committed a part of it.
    """
    if all(key in known and known[key].offset >= end.offset for key, end in commit.ends.items()):
        return False
    if any(known.get(key, begin).offset != begin.offset for key, begin in commit.begins.items()):
        raise OvertakenError(f"{root}: another job has archived some of this batch")
    return True


def open_table(root: Path, format: str, columns: pa.Schema | None) -> Table:  # noqa: A002 (Spark's word)
    """Return the table in a folder. `columns`: of its files, including `topic`; None: the table is only read.

    Raise ConfigError if the format is unknown, OperationalError if its package is not installed.
    """
    place = root
    if format == "parquet":
        from penstock.spark.lake_parquet import ParquetTable

        return ParquetTable(place)
    if format == "delta":
        _check_installed("deltalake", "Delta")
        from penstock.spark.lake_delta import DeltaLake

        return DeltaLake(place, columns)
    if format == "iceberg":
        _check_installed("pyiceberg", "Iceberg")
        from penstock.spark.lake_iceberg import IcebergLake

        return IcebergLake(place, columns)
    raise ConfigError([f"format: it is {format!r}; there are {', '.join(FORMATS)}"])


def _check_installed(module: str, what: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise OperationalError(f"{module} is not installed, which {what} needs: {how_to_install('lake')}")


def folder_of(topic: str, date: str) -> str:
    """Return the Hive-style folder of a stream's rows of one day."""
    return f"date={date}/topic={quote(topic, safe='')}"


def covered(files: Sequence[LakeFile]) -> int:
    """Return the total number of rows in files."""
    return sum(one.rows for one in files)


def write_durably(file: Path, data: bytes) -> None:
    """Replace a file atomically and durably."""
    make_folder(file.parent)
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    with new.open("wb") as target:
        target.write(data)
        target.flush()
        os.fsync(target.fileno())
    new.replace(file)
    sync_folder_if_possible(file.parent)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents durably."""
    missing = [folder]
    while not (above := missing[-1].parent).exists():
        missing.append(above)
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        sync_folder_if_possible(one.parent)


def sync_up(folders: Iterable[Path], root: Path) -> None:
    """Sync folders and their parents up to an archive's root.

    Existing folders are synced, too: another task may have created one and not synced it yet.
    """
    above = {one for folder in folders for one in (folder, *folder.parents) if one.is_relative_to(root)}
    for one in sorted(above, key=lambda folder: len(folder.parts), reverse=True):
        sync_folder_if_possible(one)
