"""Durable storage of Raft's log and its last snapshot.

Rules: what a saved task held survives any power loss. A start cuts a torn tail, which no broker was told of, and keeps
its bytes in a side file that is never overwritten. Corruption of synced records raises CorruptionError and nothing is
deleted for it. So does a mark that is missing, zeroed or older than the log: each record holds the mark of the time
when it was written. A full disk leaves everything as it was. After a failed sync nothing is written any more; the next
start writes again what the disk may have dropped. On a full disk, writes that must succeed use the reserve
(`vfs/reserve.py`).

Theory: the log is one file, rewritten with each snapshot. Metadata is small: a rewrite copies only the few entries
after the snapshot, and one file can be in fewer states after a crash than a row of segments. Until a sync a disk may
keep later bytes and lose earlier ones, so only the mark (`vfs/synced_mark.py`) can tell a torn tail from corruption: a
broker that took corruption for a torn tail would forget a vote that it gave or an entry that it acknowledged, and break
the majority that counted on it.

A changed commit index alone is not written: it travels with the next write, and after a start the leader sends it
again.

| file            | contents                                    | how it changes                       |
|-----------------|---------------------------------------------|--------------------------------------|
| `raft/log`      | term, vote, entries (`records`)             | grows; replaced with each snapshot   |
| `raft/snapshot` | the application's state (`snapshot_file`)   | replaced                             |
| `raft/synced`   | the number of the last synced record        | overwritten, in two slots            |
| `raft/reserve`  | space for writes that must succeed          | cut, and filled again                |
| `raft/log.cut-N` | a torn tail that was cut at byte N         | kept for people                      |

A crash between the two renames of a rewrite leaves a snapshot that is newer than the log. If the log has the snapshot's
last entry, it continues from there; otherwise the log is old and is replaced first, because its entries must never be
mixed with newer ones.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.base.errors import CorruptionError, OperationalError
from penstock.raft.disk_state import stored_snapshot
from penstock.raft.errors import NotWrittenError
from penstock.raft.records import LogContents, RecordWriter, read_contents
from penstock.raft.tasks import (
    FOLDER,
    LOG_PATH,
    MARK_PATH,
    NEW_LOG_PATH,
    NEW_SNAPSHOT_PATH,
    RESERVE_PATH,
    SNAPSHOT_PATH,
    AppendRecords,
    RewriteLog,
    checked_state,
)
from penstock.raft.values import NO_SNAPSHOT, HardState, Ready, Snapshot, StoredState
from penstock.vfs import File, Vfs
from penstock.vfs.reserve import Reserve
from penstock.vfs.synced_mark import SyncedMark

SaveTask = AppendRecords | RewriteLog


class RaftStorage:
    """Raft's files, opened. One owner; only a task's `run` is called in another thread, one task at a time."""

    def __init__(self, vfs: Vfs, mark: SyncedMark, reserve: Reserve, snapshot: Snapshot, contents: LogContents) -> None:
        """For `open` only."""
        self._vfs = vfs
        self._mark = mark
        self._reserve = reserve
        self._snapshot = snapshot
        self._contents = contents
        self._file: File | None = None
        self._task: SaveTask | None = None
        self._failed: BaseException | None = None
        self.notices: list[str] = []  # start-up findings for the operator

    @classmethod
    def open(cls, vfs: Vfs, bootstrap: Snapshot | None = None) -> RaftStorage:
        """Open the files, or create them: with `bootstrap` as a first voter, without it as a broker that will join.

        Raise CorruptionError if a synced part is corrupt or lost, RemoteError (unsupported_version) if a newer Penstock
        wrote it, OSError, OperationalError.
        """
        for path in (NEW_LOG_PATH, NEW_SNAPSHOT_PATH):
            vfs.remove(path)  # left by an interrupted rewrite
        mark, reserve = SyncedMark(vfs, MARK_PATH), Reserve(vfs, RESERVE_PATH)
        snapshot = stored_snapshot(vfs)
        try:
            file = vfs.open(LOG_PATH)
        except FileNotFoundError:
            return cls._begin(vfs, mark, reserve, snapshot, bootstrap)
        data = file.read_at(0, file.size())
        contents = read_contents(data, LOG_PATH, mark.index)
        _check_mark(mark, contents)
        if contents.has_snapshot and snapshot is None:
            raise CorruptionError(SNAPSHOT_PATH, 0, f"the snapshot at {contents.base_index}", "no file")
        snapshot = snapshot or NO_SNAPSHOT
        storage = cls(vfs, mark, reserve, snapshot, contents)
        goes_on = checked_state(snapshot, contents)
        if contents.end_position < len(data):
            storage._cut(file, data)
        # The bytes read may be in the page cache only; sync them before anything is built on them. A failed sync may
        # have dropped its pages: write the bytes again, or this sync would prove nothing.
        again = data[contents.synced_position : contents.end_position]
        if again:
            reserve.make_room(len(again), lambda: file.write_at(contents.synced_position, again))
        file.sync()
        storage._file = file
        reserve.make_room(1, lambda: mark.move(contents.last_number))
        if mark.damaged_at is not None:
            storage.notices.append(f"{MARK_PATH}: damaged at byte {mark.damaged_at}; it is written anew")
            reserve.make_room(1, mark.mend)
        if goes_on is None:
            state = contents.hard_state
            if state.term < snapshot.term:
                state = HardState(snapshot.term, None, snapshot.index)
            storage._run(storage._rewrite(None, _contents_behind(snapshot, contents, state)))
        return storage

    @classmethod
    def _begin(
        cls, vfs: Vfs, mark: SyncedMark, reserve: Reserve, snapshot: Snapshot | None, bootstrap: Snapshot | None
    ) -> RaftStorage:
        if mark.index or snapshot != (bootstrap if snapshot else None):
            raise CorruptionError(LOG_PATH, 0, "the log that belongs to the other files here", "no file")
        begin = bootstrap or NO_SNAPSHOT
        storage = cls(vfs, mark, reserve, begin, LogContents())
        contents = _contents_behind(begin, LogContents(), HardState(begin.term, None, begin.index))
        contents.has_snapshot = bootstrap is not None
        vfs.open(MARK_PATH, create=True).close()  # creates the folder, which is synced next
        vfs.sync_dir(FOLDER)
        storage._run(storage._rewrite(bootstrap, contents))
        return storage

    def _run(self, task: SaveTask) -> None:
        task.run()
        self.saved(task)

    def _cut(self, file: File, data: bytes) -> None:
        position = self._contents.end_position
        tail = data[position:]
        text = f"cut an unfinished record of {len(tail)} bytes from {LOG_PATH}"
        if any(tail):
            text += f"; kept in {self._keep_aside(tail, position)}"
        file.truncate(position)
        self.notices.append(text)

    def _keep_aside(self, data: bytes, position: int) -> str:
        taken = set(self._vfs.list(FOLDER))
        name = first_name = f"{LOG_PATH.rpartition('/')[2]}.cut-{position}"
        number = 1
        while name in taken:
            number += 1
            name = f"{first_name}.{number}"
        path = f"{FOLDER}/{name}"
        side = self._vfs.open(path, create=True)
        try:
            self._reserve.make_room(len(data), lambda: side.write_at(0, data))
            side.sync()
        finally:
            side.close()
        self._vfs.sync_dir(FOLDER)
        return path

    @property
    def state(self) -> StoredState:
        """The state from which a `Raft` starts."""
        entries = self._contents.behind(self._snapshot.index)
        return StoredState(self._contents.hard_state, self._snapshot, entries)

    @property
    def log_bytes(self) -> int:
        """The size of the log file; a snapshot makes it small again."""
        return self._contents.end_position

    def save(self, ready: Ready, *, may_use_reserve: bool = True) -> SaveTask | None:
        """Return the task that makes `ready` durable; None if nothing has to be written.

        Run it in a disk thread, then call `saved` or `save_failed`. Raise OperationalError once the storage has failed.
        """
        if not ready.must_sync:
            return None
        self._check()
        hard_state = ready.hard_state or self._contents.hard_state
        if ready.snapshot is not None:
            contents = _contents_behind(ready.snapshot, self._contents, hard_state)
            contents.entries = list(ready.entries)
            self._task = self._rewrite(ready.snapshot, contents, may_use_reserve=may_use_reserve)
            return self._task
        contents = self._contents
        writer = RecordWriter(contents.last_number, self._mark.index)
        for entry in ready.entries:
            writer.entry(entry)
        if hard_state != contents.hard_state:
            writer.hard_state(hard_state)
        assert self._file is not None
        self._task = AppendRecords(
            self._file,
            self._mark,
            self._reserve,
            contents.end_position,
            writer.data(),
            writer.last_number,
            ready.entries,
            hard_state,
            may_use_reserve,
        )
        return self._task

    def save_snapshot(self, snapshot: Snapshot) -> SaveTask:
        """Return the task that replaces the log up to the snapshot by it; used as `save`."""
        self._check()
        assert self._contents.term_at(snapshot.index) == snapshot.term, "it is of what is in the log"
        contents = _contents_behind(snapshot, self._contents, self._contents.hard_state)
        contents.entries = list(self._contents.behind(snapshot.index))
        self._task = self._rewrite(snapshot, contents, may_use_reserve=False)  # a local snapshot is not urgent
        return self._task

    def _rewrite(self, snapshot: Snapshot | None, contents: LogContents, *, may_use_reserve: bool = True) -> RewriteLog:
        vfs, mark, reserve = self._vfs, self._mark, self._reserve
        return RewriteLog(vfs, mark, reserve, snapshot, contents, mark.index, may_use_reserve)

    def saved(self, task: SaveTask) -> None:
        """Handle a task whose `run` returned."""
        self._task = None
        if isinstance(task, AppendRecords):
            contents = self._contents
            contents.put(task.entries)
            contents.hard_state = task.hard_state
            contents.last_number = task.last_number
            contents.end_position += len(task.data)
            return
        if self._file is not None:
            self._file.close()
        self._file = task.file
        self._contents = task.contents
        self._snapshot = task.snapshot or self._snapshot

    def save_failed(self, task: SaveTask, error: BaseException) -> None:
        """Handle a task whose `run` raised. After a NotWrittenError it may be saved again; any other error is final."""
        assert task is self._task
        self._task = None
        if not isinstance(error, NotWrittenError):
            self._failed = error

    def keep_reserve(self) -> None:
        """Refill the reserve, as far as there is space. Cheap if it is full."""
        if self._task is None and self._failed is None:
            self._reserve.fill()

    def close(self) -> None:
        """Close the files; no task may be running."""
        assert self._task is None
        if self._file is not None:
            self._file.close()
        self._mark.close()
        self._reserve.close()

    def _check(self) -> None:
        assert self._task is None, "one task at a time"
        if self._failed is not None:
            raise OperationalError(f"the metadata log failed before ({self._failed}); restart the broker")


def _check_mark(mark: SyncedMark, contents: LogContents) -> None:
    """Raise CorruptionError if the mark is not this log's: a log with lost records would be taken for whole."""
    wanted = f"the mark of {LOG_PATH}, without which it cannot be known that nothing was cut off that log"
    if not mark.is_there:
        raise CorruptionError(MARK_PATH, 0, wanted, "no file")
    if mark.index < contents.synced_number:
        found = f"a mark at {mark.index}: an older file" if mark.index else "no mark"
        raise CorruptionError(MARK_PATH, 0, f"{wanted}, at record {contents.synced_number} or later", found)


def _contents_behind(snapshot: Snapshot, contents: LogContents, hard_state: HardState) -> LogContents:
    """Return an empty log that continues from `snapshot`."""
    return replace(
        contents,
        base_index=snapshot.index,
        base_term=snapshot.term,
        has_snapshot=True,
        hard_state=hard_state._replace(commit=max(hard_state.commit, snapshot.index)),
        entries=[],
    )
