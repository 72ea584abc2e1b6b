"""File names of one log, and side files: bytes that are kept although the log has no use for them.

| name                          | content                                                                        |
|-------------------------------|--------------------------------------------------------------------------------|
| `<base offset>.arrows`        | a segment; 20 digits, so that names sort as offsets do                         |
| `<base offset>.<n>.arrows`    | the same, rewritten by the cleaner for the n-th time: the highest n counts     |
| `<base offset>[.<n>].index`   | its index; can be deleted, is rebuilt                                          |
| `<base offset>[.<n>].subjects`| its subject index; can be deleted, is rebuilt                                  |
| `<any of these>.new`          | an unfinished subject index; removed at start                                  |
| `<base offset>.<n>.cleaned`   | an unfinished rewrite by the cleaner; removed at start                         |
| `<base offset>.<n>.mended`    | an unfinished repair of a segment; removed at start                            |
| `checkpoint`                  | flushed_end, committed_end and log_start                                       |
| `lineage`                     | leader epoch history                                                           |
| `<any of them>.cut-<position>`| bytes that recovery cut off from that position on, or repair replaced; never   |
|                               | read, and removed only where they may hold messages that are erased            |
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from penstock.base import limits
from penstock.vfs import File, Vfs, is_nfs_leftover

CHECKPOINT = "checkpoint"
LINEAGE = "lineage"
_FIXED = frozenset({CHECKPOINT, LINEAGE})
_SEGMENT = re.compile(r"(\d{20})(?:\.([1-9]\d{0,8}))?\.arrows")
_UNFINISHED = re.compile(r"\d{20}(\.[1-9]\d{0,8}\.(cleaned|mended)|(\.[1-9]\d{0,8})?\.subjects\.new)")
_OFFSET_END = 2**63
_KNOWN = re.compile(
    r"\d{20}(\.[1-9]\d{0,8})?\.(index|subjects|subjects\.new|cleaned|mended)|checkpoint|lineage(\.new)?|.+\.cut-\d+(\.\d+)?"
)


def segment_path(directory: str, base_offset: int, generation: int = 0) -> str:
    """Return the path of a segment. `generation`: how many times the cleaner has rewritten it."""
    middle = f".{generation}" if generation else ""
    return f"{directory}/{base_offset:020d}{middle}.arrows"


def cleaned_path(segment: str) -> str:
    """Return the path of the cleaner's unfinished rewrite of a segment."""
    return f"{segment.removesuffix('.arrows')}.cleaned"


def repaired_path(segment: str) -> str:
    """Return the path of a segment's unfinished repair; it differs from the cleaner's."""
    return f"{segment.removesuffix('.arrows')}.mended"


def index_path(segment: str) -> str:
    """Return the path of a segment's index."""
    return f"{segment.removesuffix('.arrows')}.index"


def subjects_path(segment: str) -> str:
    """Return the path of a segment's subject index."""
    return f"{segment.removesuffix('.arrows')}.subjects"


def remove_beside(vfs: Vfs, segment: str) -> None:
    """Remove the files made of a segment that is removed or replaced. OSError."""
    vfs.remove(index_path(segment))
    vfs.remove(subjects_path(segment))


@dataclass(frozen=True, slots=True)
class LogFolder:
    """The folder of one log, and the ids that each of its segments begins with."""

    vfs: Vfs
    path: str
    stream_id: int
    partition: int

    @property
    def ids(self) -> tuple[int, int]:
        """Stream id and partition."""
        return self.stream_id, self.partition

    def segment_path(self, base_offset: int, generation: int = 0) -> str:
        """Return the path of a segment; see the function."""
        return segment_path(self.path, base_offset, generation)

    def sync(self) -> None:
        """Make the names of the files durable. OSError."""
        self.vfs.sync_dir(self.path)


class SegmentName(NamedTuple):
    """Parts of a segment's file name."""

    base_offset: int
    generation: int


def parsed(name: str) -> SegmentName | None:
    """Parse a segment's file name; None if it is none."""
    match = _SEGMENT.fullmatch(name)
    if match is None or int(match.group(1)) >= _OFFSET_END:
        return None
    return SegmentName(int(match.group(1)), int(match.group(2) or 0))


def base_offset_of(name: str) -> int | None:
    """Return the base offset of a segment's file name; None if it is none."""
    segment = parsed(name)
    return None if segment is None else segment.base_offset


def following(segment: str) -> str:
    """Return the path of a segment after its next rewrite."""
    directory, _, name = segment.rpartition("/")
    found = parsed(name)
    assert found is not None, segment
    return segment_path(directory, found.base_offset, found.generation + 1)


def is_unfinished(name: str) -> bool:
    """True if the file is an unfinished rewrite, repair or subject index of a segment."""
    return _UNFINISHED.fullmatch(name) is not None


def owner_of(name: str) -> int | None:
    """Return the base offset of the segment, of any generation, that a file belongs to; None if there is none."""
    for suffix in (".index", ".subjects", ".subjects.new", ".cleaned", ".mended"):
        name = f"{name.removesuffix(suffix)}.arrows" if name.endswith(suffix) else name
    return base_offset_of(name)


def side_path(vfs: Vfs, path: str, position: int) -> str:
    """Return an unused side file path for bytes cut off from `position` on; OSError if all are used."""
    directory = path.rpartition("/")[0]
    there = set(vfs.list(directory))
    for side in _side_names(path, position):
        if side not in there:
            return f"{directory}/{side}"
    raise OSError(errno.EEXIST, f"there are {limits.CUT_FILES_MAX} side files of byte {position} already", path)


def side_files(vfs: Vfs, path: str, position: int) -> list[str]:
    """Return the paths of the existing side files of a file and position."""
    directory = path.rpartition("/")[0]
    there = set(vfs.list(directory))
    return [f"{directory}/{side}" for side in _side_names(path, position) if side in there]


def _side_names(path: str, position: int) -> Iterator[str]:
    name = path.rpartition("/")[2]
    for number in range(limits.CUT_FILES_MAX):
        yield f"{name}.cut-{position}" + (f".{number}" if number else "")


def is_zeros(file: File, position: int, end_position: int) -> bool:
    """True if all bytes between the two positions are zero."""
    while position < end_position:
        data = file.read_at(position, min(limits.SCAN_READ_BYTES, end_position - position))
        if any(data):
            return False
        position += max(1, len(data))
    return True


def copy_aside(vfs: Vfs, source: File, position: int, end_position: int) -> str:
    """Copy these bytes to a side file, sync it and return its path. The caller must sync its name. OSError.

    A complete or partial copy of an earlier try is reused, so repetition creates no second one.
    """
    kept_path = _begun_copy(vfs, source, position, end_position) or side_path(vfs, source.path, position)
    target = vfs.open(kept_path, create=True, make_folders=False)
    try:
        start = position
        position += target.size()
        while position < end_position:
            data = source.read_at(position, min(limits.SCAN_READ_BYTES, end_position - position))
            if not data:
                raise OSError(errno.EIO, "it is shorter than it was", source.path)
            target.write_at(position - start, data)
            position += len(data)
        target.sync()
    finally:
        target.close()
    return kept_path


def _begun_copy(vfs: Vfs, source: File, position: int, end_position: int) -> str | None:
    """Return the path of a side file that holds a prefix of these bytes, and nothing else; None if there is none."""
    for path in side_files(vfs, source.path, position):
        try:
            file = vfs.open(path, read_only=True)
        except OSError:
            continue  # try another one
        try:
            size_bytes = file.size()
            if size_bytes <= end_position - position and _is_same(file, source, position, size_bytes):
                return path
        except OSError:
            continue
        finally:
            file.close()
    return None


def _is_same(copy: File, source: File, position: int, size_bytes: int) -> bool:
    for begin in range(0, size_bytes, limits.SCAN_READ_BYTES):
        length = min(limits.SCAN_READ_BYTES, size_bytes - begin)
        if copy.read_at(begin, length) != source.read_at(position + begin, length):
            return False
    return True


def may_hold_aside(name: str, end: int) -> bool:
    """True if it is a side file of a segment, or of its subject index, or an unfinished file of either, that may hold
    rows before offset `end`.
    """
    owner, is_side, _ = name.partition(".cut-")
    base_offset = owner_of(owner) if is_side or is_unfinished(name) else None
    return base_offset is not None and base_offset < end


def is_known(name: str) -> bool:
    """True if a log may have a file of this name."""
    return name in _FIXED or base_offset_of(name) is not None or _KNOWN.fullmatch(name) is not None


def holds_messages(path: str) -> bool:
    """True if the file may contain message data; the other files contain numbers only."""
    name = path.rpartition("/")[2]
    has_none = name in _FIXED or name.endswith(".index") or name == f"{LINEAGE}.new"
    return not has_none and not is_nfs_leftover(name)
