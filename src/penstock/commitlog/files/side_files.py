"""Checks the files beside a log's segments, for `penstock verify` and for a running broker.

Rules: only bytes without another writer are written. An error in a file that its owner may be writing counts only
after a second read. The log's own task repairs what it owns: see `Log.repair_side_files`.

| file       | checked by                                  | repaired by                                        |
|------------|---------------------------------------------|----------------------------------------------------|
| index      | `index_check.IndexCheck`, batch by batch    | `LogView.check_indexes`, from the segment          |
| checkpoint | `checked_checkpoint`: slots, unused bytes   | `SideFiles` the unused bytes, the log the slots    |
| lineage    | `lineage.read`; `segment_check.Epochs`      | the log, from memory; a start, from the batches    |
"""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

from penstock.base.errors import CorruptionError
from penstock.commitlog.errors import FileMistake, mistake_of, unreadable
from penstock.commitlog.files import checkpoint as checkpoints
from penstock.commitlog.files import files
from penstock.commitlog.files import lineage as lineages
from penstock.commitlog.files.checkpoint import Checkpoint
from penstock.commitlog.files.lineage import LineageEntry
from penstock.vfs import Vfs


class _ReadCheckpoint(NamedTuple):
    newest: Checkpoint | None
    mistakes: list[FileMistake]
    bad_slots: tuple[int, ...] = ()
    has_unused: bool = False  # the unused bytes have an error


def _read_checkpoint(vfs: Vfs, directory: str) -> _ReadCheckpoint:
    try:
        found = checkpoints.read(vfs, directory)
    except OSError as error:
        wrong = unreadable(f"{directory}/{files.CHECKPOINT}", 0, error)
        return _ReadCheckpoint(None, [wrong], tuple(range(checkpoints.SLOTS)))
    mistakes = [mistake_of(one) for one in found.all_mistakes]
    return _ReadCheckpoint(found.newest, mistakes, found.bad_slots, found.unused is not None)


def checked_checkpoint(vfs: Vfs, directory: str) -> tuple[Checkpoint | None, list[FileMistake]]:
    """Return the checkpoint and its errors. OSError."""
    found = _settled_checkpoint(vfs, directory)
    return found.newest, found.mistakes


def _settled_checkpoint(vfs: Vfs, directory: str) -> _ReadCheckpoint:
    found = _read_checkpoint(vfs, directory)
    return (
        _read_checkpoint(vfs, directory) if found.mistakes else found
    )  # the first read may have met a concurrent write


class SideFiles:
    """A check of a running log's checkpoint and lineage; afterwards call `Log.repair_side_files`."""

    __slots__ = ("_directory", "_vfs", "bad_slots", "lineage", "mistakes", "said")

    def __init__(self, vfs: Vfs, directory: str, lineage: tuple[LineageEntry, ...]) -> None:
        """`lineage`: the log's entries when the check begins."""
        self._vfs = vfs
        self._directory = directory
        self.lineage = lineage
        self.mistakes: list[FileMistake] = []  # errors of the checkpoint
        self.bad_slots: tuple[int, ...] = ()
        self.said: tuple[LineageEntry, ...] | CorruptionError | OSError = lineage  # content of the lineage file

    def run(self) -> None:
        """Run the check in a disk thread. OSError."""
        found = _settled_checkpoint(self._vfs, self._directory)
        self.mistakes, self.bad_slots = found.mistakes, found.bad_slots
        if found.newest is None and not found.mistakes:
            path = f"{self._directory}/{files.CHECKPOINT}"
            self.mistakes = [FileMistake(path, 0, None, None, "a checkpoint", "none")]
            self.bad_slots = tuple(range(checkpoints.SLOTS))
        if found.has_unused:
            checkpoints.clear_unused(self._vfs, self._directory)
        self.said = self._lineage()
        if self.said != self.lineage:  # the first read may have met a concurrent write
            self.said = self._lineage()

    def _lineage(self) -> tuple[LineageEntry, ...] | CorruptionError | OSError:
        try:
            found = lineages.read(self._vfs, self._directory)
        except OSError as error:
            return error
        return found.entries if found.mistake is None else found.mistake

    def lineage_mistake(self) -> FileMistake | None:
        """Return how the file differs from the log's entries; re-raise an OSError that is not the file's fault."""
        path = f"{self._directory}/{files.LINEAGE}"
        if isinstance(self.said, OSError):
            return unreadable(path, 0, self.said)
        if isinstance(self.said, CorruptionError):
            return mistake_of(self.said)
        if self.said == self.lineage:
            return None
        same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(self.said, self.lineage, strict=False))))
        position = same * lineages.ENTRY_BYTES
        wanted, got = (_shown(entries[same:]) for entries in (self.lineage, self.said))
        return FileMistake(path, position, None, None, wanted, got)


def _shown(entries: tuple[LineageEntry, ...]) -> str:
    if not entries:
        return "the end of the file"
    return f"leader epoch {entries[0].leader_epoch} from offset {entries[0].start_offset} on"
