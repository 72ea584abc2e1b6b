"""The storage's disk tasks: the only writes to Raft's files while a broker runs.

Rules: a task touches only what it was given, one task at a time. It returns once all of it survives a power loss. It
raises NotWrittenError if nothing was changed, and may then be made and run again; after any other error the state on
the disk is unknown.

Theory: a failed sync may have dropped the pages that it could not write, so it is never retried as if it had worked.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from penstock.base.errors import CorruptionError
from penstock.raft.errors import NotWrittenError
from penstock.raft.records import LogContents, file_bytes
from penstock.raft.snapshot_file import encode_snapshot
from penstock.raft.values import Entry, HardState, Snapshot
from penstock.vfs import Buffer, File, Vfs
from penstock.vfs.reserve import RESERVE_BYTES, Reserve
from penstock.vfs.synced_mark import SyncedMark

FOLDER = "raft"
LOG_PATH = f"{FOLDER}/log"
SNAPSHOT_PATH = f"{FOLDER}/snapshot"
MARK_PATH = f"{FOLDER}/synced"
RESERVE_PATH = f"{FOLDER}/reserve"
NEW_LOG_PATH = f"{LOG_PATH}.new"
NEW_SNAPSHOT_PATH = f"{SNAPSHOT_PATH}.new"


@dataclass(slots=True, eq=False)
class AppendRecords:
    """Appends records to the log."""

    file: File
    mark: SyncedMark
    reserve: Reserve
    position: int
    data: bytes
    last_number: int
    entries: tuple[Entry, ...]
    hard_state: HardState
    may_use_reserve: bool

    def run(self) -> None:
        """Write, sync, then move the mark."""

        def write() -> None:
            self.file.write_at(self.position, self.data)

        try:
            if self.may_use_reserve:
                self.reserve.make_room(len(self.data), write)
            else:
                write()
        except OSError as error:
            self.file.truncate(self.position)
            raise NotWrittenError(f"cannot write {LOG_PATH}: {error}") from error
        self.file.sync()
        if not self.file.has_its_name():
            raise FileNotFoundError(errno.ENOENT, "the file was removed or moved", LOG_PATH)
        self.reserve.make_room(1, lambda: self.mark.move(self.last_number))


@dataclass(slots=True, eq=False)
class RewriteLog:
    """Installs a snapshot and a log that begins after it."""

    vfs: Vfs
    mark: SyncedMark
    reserve: Reserve
    snapshot: Snapshot | None  # None: keep the present one
    contents: LogContents  # of the new log
    synced_number: int
    may_use_reserve: bool
    file: File | None = None  # the new log, once it exists

    def run(self) -> None:
        """Write and sync both files aside; rename the snapshot first, then the log that needs it."""
        data, contents = file_bytes(self.contents, self.synced_number)
        if self.snapshot is not None:
            self._write_aside(NEW_SNAPSHOT_PATH, *encode_snapshot(self.snapshot)).close()
        file = self._write_aside(NEW_LOG_PATH, data)
        try:
            if self.snapshot is not None:
                self.vfs.rename(NEW_SNAPSHOT_PATH, SNAPSHOT_PATH)
                self.vfs.sync_dir(FOLDER)
            self.vfs.rename(NEW_LOG_PATH, LOG_PATH)
            self.vfs.sync_dir(FOLDER)
            file.close()
            file = self.vfs.open(LOG_PATH)
            self.reserve.make_room(1, lambda: self.mark.move(contents.last_number))
        except BaseException:
            file.close()
            raise
        self.contents = contents
        self.file = file

    def _write_aside(self, path: str, *buffers: Buffer) -> File:
        try:
            self.vfs.remove(path)
            file = self.vfs.open(path, create=True)
        except OSError as error:
            raise NotWrittenError(f"cannot make {path}: {error}") from error
        size_bytes = sum(map(len, buffers))
        try:
            if self.may_use_reserve and size_bytes <= RESERVE_BYTES:
                self.reserve.make_room(size_bytes, lambda: file.write_at(0, *buffers))
            else:
                file.write_at(0, *buffers)  # larger than the reserve: giving it up would not help
        except OSError as error:
            file.close()
            self.vfs.remove(path)
            raise NotWrittenError(f"cannot write {path}: {error}") from error
        try:
            file.sync()
        except BaseException:
            file.close()
            raise
        return file


def checked_state(snapshot: Snapshot, contents: LogContents) -> LogContents | None:
    """Return the log if it continues from the snapshot, else None. Raise CorruptionError if a snapshot is missing."""
    if contents.base_index > snapshot.index:
        text = f"the snapshot at {contents.base_index}, where {LOG_PATH} begins"
        raise CorruptionError(SNAPSHOT_PATH, 0, text, f"one at {snapshot.index}")
    if contents.term_at(snapshot.index) == snapshot.term:
        return contents
    if contents.base_index == snapshot.index:
        text = f"a snapshot of term {contents.base_term}, where {LOG_PATH} begins"
        raise CorruptionError(SNAPSHOT_PATH, 0, text, f"one of term {snapshot.term}")
    return None
