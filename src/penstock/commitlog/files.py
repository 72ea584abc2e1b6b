"""The files of one log, by name.

| name                          | what it is                                                                     |
|-------------------------------|--------------------------------------------------------------------------------|
| `<base offset>.arrows`        | a segment; 20 digits, so that names sort as offsets do                         |
| `<base offset>.<n>.arrows`    | the same, written anew by the cleaner for the n-th time: the highest n counts  |
| `<base offset>[.<n>].index`   | its index; can be deleted, is rebuilt                                          |
| `<base offset>.<n>.cleaned`   | a segment that the cleaner has not finished: a start removes it                |
| `<base offset>.<n>.mended`    | a segment that is being mended: a start removes it                             |
| `checkpoint`                  | how far the log is on the disk, and where it starts                            |
| `lineage`                     | which leader epoch began where                                                 |
| `<any of them>.cut-<position>`| bytes that recovery took out from that position on; nobody reads or deletes it |
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import NamedTuple

from penstock.base import limits
from penstock.vfs import Vfs, is_nfs_leftover

CHECKPOINT = "checkpoint"
LINEAGE = "lineage"
_FIXED = frozenset({CHECKPOINT, LINEAGE})
_SEGMENT = re.compile(r"(\d{20})(?:\.([1-9]\d{0,8}))?\.arrows")
_UNFINISHED = re.compile(r"\d{20}\.[1-9]\d{0,8}\.(cleaned|mended)")
_OFFSET_END = 2**63
_KNOWN = re.compile(r"\d{20}(\.[1-9]\d{0,8})?\.(index|cleaned|mended)|checkpoint|lineage(\.new)?|.+\.cut-\d+(\.\d+)?")


def segment_path(directory: str, base_offset: int, generation: int = 0) -> str:
    """Path of the segment that begins with `base_offset`; `generation`: how often the cleaner has written it anew."""
    middle = f".{generation}" if generation else ""
    return f"{directory}/{base_offset:020d}{middle}.arrows"


def cleaned_path(segment: str) -> str:
    """Path under which the cleaner writes the segment at path `segment`, until that is whole."""
    return f"{segment.removesuffix('.arrows')}.cleaned"


def mended_path(segment: str) -> str:
    """Path under which the segment at path `segment` is mended, until that is whole: never the cleaner's."""
    return f"{segment.removesuffix('.arrows')}.mended"


def index_path(segment: str) -> str:
    """Path of the index of the segment at path `segment`."""
    return f"{segment.removesuffix('.arrows')}.index"


class SegmentName(NamedTuple):
    """What the name of a segment says."""

    base_offset: int
    generation: int


def parsed(name: str) -> SegmentName | None:
    """The name of a segment in its parts, or None if it names no segment."""
    match = _SEGMENT.fullmatch(name)
    if match is None or int(match.group(1)) >= _OFFSET_END:
        return None
    return SegmentName(int(match.group(1)), int(match.group(2) or 0))


def base_offset_of(name: str) -> int | None:
    """The base offset of a segment's file name, or None if it names no segment."""
    segment = parsed(name)
    return None if segment is None else segment.base_offset


def following(segment: str) -> str:
    """Path of the segment at path `segment` once the cleaner has written it anew."""
    directory, _, name = segment.rpartition("/")
    found = parsed(name)
    assert found is not None, segment
    return segment_path(directory, found.base_offset, found.generation + 1)


def is_unfinished(name: str) -> bool:
    """Whether it is a segment that was not finished, by the cleaner or while it was mended."""
    return _UNFINISHED.fullmatch(name) is not None


def owner_of(name: str) -> int | None:
    """The base offset of the segment, of whatever generation, that a file of this name is or belongs to, or None."""
    for suffix in (".index", ".cleaned", ".mended"):
        name = f"{name.removesuffix(suffix)}.arrows" if name.endswith(suffix) else name
    return base_offset_of(name)


def side_path(vfs: Vfs, path: str, position: int) -> str:
    """A path for the bytes that are cut out of the file at `path` from `position` on; OSError if there are too many."""
    directory = path.rpartition("/")[0]
    there = set(vfs.list(directory))
    for side in _side_names(path, position):
        if side not in there:
            return f"{directory}/{side}"
    raise OSError(errno.EEXIST, f"there are {limits.CUT_FILES_MAX} side files of byte {position} already", path)


def side_files(vfs: Vfs, path: str, position: int) -> list[str]:
    """Paths of the side files that there are of the file at `path` and of that position."""
    directory = path.rpartition("/")[0]
    there = set(vfs.list(directory))
    return [f"{directory}/{side}" for side in _side_names(path, position) if side in there]


def _side_names(path: str, position: int) -> Iterator[str]:
    name = path.rpartition("/")[2]
    for number in range(limits.CUT_FILES_MAX):
        yield f"{name}.cut-{position}" + (f".{number}" if number else "")


def is_known(name: str) -> bool:
    """Whether a log may have a file of this name."""
    return name in _FIXED or base_offset_of(name) is not None or _KNOWN.fullmatch(name) is not None


def holds_messages(path: str) -> bool:
    """Whether there may be anything of a message in the file at `path`: the others hold numbers only."""
    name = path.rpartition("/")[2]
    has_none = name in _FIXED or name.endswith(".index") or name == f"{LINEAGE}.new"
    return not has_none and not is_nfs_leftover(name)
