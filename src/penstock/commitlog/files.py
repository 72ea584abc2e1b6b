"""The files of one log, by name.

| name                          | what it is                                                                     |
|-------------------------------|--------------------------------------------------------------------------------|
| `<base offset>.arrows`        | a segment; 20 digits, so that names sort as offsets do                         |
| `<base offset>.index`         | its index; can be deleted, is rebuilt                                          |
| `checkpoint`                  | how far the log is on the disk, and where it starts                            |
| `lineage`                     | which leader epoch began where                                                 |
| `<any of them>.cut-<position>`| bytes that recovery took out from that position on; nobody reads or deletes it |
"""

from __future__ import annotations

import errno
import re

from penstock.base import limits
from penstock.vfs import Vfs

CHECKPOINT = "checkpoint"
LINEAGE = "lineage"
_FIXED = frozenset({CHECKPOINT, LINEAGE})
_SEGMENT = re.compile(r"(\d{20})\.arrows")
_OFFSET_END = 2**63
_KNOWN = re.compile(r"\d{20}\.index|checkpoint|lineage(\.new)?|.+\.cut-\d+(\.\d+)?")


def segment_path(directory: str, base_offset: int) -> str:
    """Path of the segment that begins with `base_offset`."""
    return f"{directory}/{base_offset:020d}.arrows"


def index_path(segment: str) -> str:
    """Path of the index of the segment at path `segment`."""
    return f"{segment.removesuffix('.arrows')}.index"


def base_offset_of(name: str) -> int | None:
    """The base offset of a segment's file name, or None if it names no segment."""
    match = _SEGMENT.fullmatch(name)
    offset = int(match.group(1)) if match else _OFFSET_END
    return offset if offset < _OFFSET_END else None


def owner_of(name: str) -> int | None:
    """The base offset of the segment that a file of this name is, or is the index of; None if neither."""
    return base_offset_of(f"{name.removesuffix('.index')}.arrows" if name.endswith(".index") else name)


def side_path(vfs: Vfs, path: str, position: int) -> str:
    """A path for the bytes that are cut out of the file at `path` from `position` on; OSError if there are too many."""
    directory, _, name = path.rpartition("/")
    there = set(vfs.list(directory))
    for number in range(limits.CUT_FILES_MAX):
        side = f"{name}.cut-{position}" + (f".{number}" if number else "")
        if side not in there:
            return f"{directory}/{side}"
    raise OSError(errno.EEXIST, f"there are {limits.CUT_FILES_MAX} side files of byte {position} already", path)


def is_known(name: str) -> bool:
    """Whether a log may have a file of this name."""
    return name in _FIXED or base_offset_of(name) is not None or _KNOWN.fullmatch(name) is not None
