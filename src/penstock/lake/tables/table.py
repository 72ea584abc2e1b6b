"""The table of an archive, independent of its format: files, commits, and end offsets of the partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from penstock.lake.reading.positions import Key, Position
from penstock.lake.tables.folder import OvertakenError


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

    def drop_staged(self) -> None:
        """Remove what a killed job has written and not committed."""

    def ends(self, keys: Iterable[Key]) -> dict[Key, Position]:
        """Return the table's end of each partition, without the partitions that no commit names."""

    def commit(self, commit: Commit) -> None:
        """Commit atomically and idempotently. Raise OvertakenError if another job has committed meanwhile."""

    def files(self, topics: Iterable[str] | None = None) -> list[LakeFile]:
        """Return the committed files of these streams, or of all."""


def check_new(root: Path | str, known: Mapping[Key, Position], commit: Commit) -> bool:
    """True if a commit is new for a table with the ends `known`; False if it was made before.

    Raise OvertakenError if another job has committed a part of it.
    """
    if all(key in known and known[key].offset >= end.offset for key, end in commit.ends.items()):
        return False
    if any(known.get(key, begin).offset != begin.offset for key, begin in commit.begins.items()):
        raise OvertakenError(f"{root}: another job has archived some of this batch")
    return True
