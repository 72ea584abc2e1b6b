"""A lake: what is in the files that an archive is made of, and how far it goes. The same for each table format.

Rules: an archive's own table says how far it goes. Files and ends become durable together, in one commit: whatever is
lost or done twice, the next run goes on from the ends that the table has. Nothing is deleted: what was written and not
committed is not part of the table.

| file                            | what it is                                                |
|---------------------------------|-----------------------------------------------------------|
| `date=2026-11-20/topic=orders/` | rows, by the UTC date of `timestamp` and by stream        |
| `_penstock/archive.json`        | which table format, which streams, how values are decoded |
| `_rejects/`                     | another table: values that could not be decoded, and why  |
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
"""The folder with what is not data. Readers of hive folders pass over names that begin so."""
REJECTS = "_rejects"


class OvertakenError(OperationalError):
    """Another job writes the same archive, or keeps the same table."""


class Range(NamedTuple):
    """Rows of one partition in a file: from the offset `start` up to, not including, `end`; some may be missing."""

    partition: int
    start: int
    end: int


class LakeFile(NamedTuple):
    """One file of a lake: where it is below the lake's folder, and what it holds."""

    path: str
    topic: str
    date: str
    rows: int
    size_bytes: int
    ranges: tuple[Range, ...]
    is_rejects: bool = False

    def to_json(self) -> dict[str, Any]:
        """As it is kept, and as a task tells the driver."""
        return self._asdict()

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> LakeFile:
        """The same again."""
        ranges = tuple(Range(*one) for one in found["ranges"])
        return cls(**{**{name: found[name] for name in cls._fields}, "ranges": ranges})


class Commit(NamedTuple):
    """What becomes part of an archive at once: files, and where each partition ends then. It was at `begins` before.

    With each end goes the leader epoch in which it was told: without that an offset does not say which message it is.
    """

    files: tuple[LakeFile, ...]
    begins: Mapping[Key, Position]
    ends: Mapping[Key, Position]


class Table(Protocol):
    """One lake table. One job writes it at a time; what another one has committed is noticed."""

    def finish(self) -> None:
        """Do what a job that was killed has left of its last commit."""

    def ends(self, keys: Iterable[Key]) -> dict[Key, Position]:
        """Up to where the table holds each partition; those of which it holds nothing are left out."""

    def commit(self, commit: Commit) -> None:
        """All of it, or nothing; a second time changes nothing. OvertakenError: another job was quicker."""

    def files(self, topics: Iterable[str] | None = None) -> list[LakeFile]:
        """Those that count, of these streams or of all."""


class About(NamedTuple):
    """What `_penstock/archive.json` says: of which streams, by id, from which places on, and how it was made."""

    format: str
    stream_ids: Mapping[str, int]
    starts: Mapping[Key, Position]
    decode: str = ""
    schema: str = ""
    name: str = ""  # by which the brokers know it
    cluster: str = ""  # whose streams they are

    def to_json(self) -> dict[str, Any]:
        """Sorted, for people who look."""
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
    def of_json(cls, found: Mapping[str, Any]) -> About:
        """KeyError, TypeError, ValueError: it is none."""
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
    """Where it is said what an archive is."""
    return root / OWN / "archive.json"


def read_about(root: Path) -> About | None:
    """None: there is no archive. CorruptionError: it cannot be understood."""
    file = about_file(root)
    try:
        return About.of_json(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptionError(
            str(file), 0, "what an archive says of itself", f"{type(error).__name__}: {error}"
        ) from None


def write_about(root: Path, about: About) -> None:
    """Durable, all of it or nothing."""
    write_durably(about_file(root), json.dumps(about.to_json(), indent=1).encode() + b"\n")


def other_in(root: Path) -> str:
    """A name in a folder that readers take for data, or for another format's; empty: there is none. ConfigError."""
    if not root.exists():
        return ""
    if not root.is_dir():
        raise ConfigError([f"to: {root} is no folder"])
    if any((root / "_delta_log").glob("*.json")):
        return "_delta_log"
    return min((one.name for one in root.iterdir() if not one.name.startswith(("_", ".", "lost+found"))), default="")


@contextmanager
def locked(root: Path) -> Iterator[None]:
    """One job writes an archive at a time. OvertakenError: another one does; it need not be on this machine."""
    with held(root / OWN / "LOCK", f"another job writes the archive in {root}"):
        yield


@contextmanager
def held(file: Path, otherwise: str) -> Iterator[None]:
    """One process holds a file at a time, made if there is none. OvertakenError, with that text: another one does."""
    make_folder(file.parent)
    with file.open("ab") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OvertakenError(otherwise) from None
        yield


def check_new(root: Path | str, known: Mapping[Key, Position], commit: Commit) -> bool:
    """Whether a commit is still to be made upon a table with these ends. OvertakenError: it cannot be any more."""
    if all(key in known and known[key].offset >= end.offset for key, end in commit.ends.items()):
        return False  # that was done before
    if any(known.get(key, begin).offset != begin.offset for key, begin in commit.begins.items()):
        raise OvertakenError(f"{root}: another job has archived some of this batch")
    return True


def open_table(root: Path, format: str, columns: pa.Schema | None) -> Table:  # noqa: A002 (Spark's word)
    """The table in a folder. `columns`: those of its files, with the streams' names; None: it is read."""
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
    """The folder of a stream's rows of one day, as Hive, Spark, DuckDB and Polars read names from it."""
    return f"date={date}/topic={quote(topic, safe='')}"


def covered(files: Sequence[LakeFile]) -> int:
    """How many rows files have together."""
    return sum(one.rows for one in files)


def write_durably(file: Path, data: bytes) -> None:
    """Replace a file: after a crash it is the old or the new one."""
    make_folder(file.parent)
    new = file.with_name(f".{file.name}.{os.getpid()}.new")
    with new.open("wb") as target:
        target.write(data)
        target.flush()
        os.fsync(target.fileno())
    new.replace(file)
    sync_folder_if_possible(file.parent)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, on the disk."""
    missing = [folder]
    while not (above := missing[-1].parent).exists():
        missing.append(above)
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        sync_folder_if_possible(one.parent)


def sync_up(folders: Iterable[Path], root: Path) -> None:
    """Have names in folders on the disk, and those of the folders themselves, up to an archive's root.

    Whether they are new is not asked: another task may have made one a moment ago and not come to this.
    """
    above = {one for folder in folders for one in (folder, *folder.parents) if one.is_relative_to(root)}
    for one in sorted(above, key=lambda folder: len(folder.parts), reverse=True):
        sync_folder_if_possible(one)
