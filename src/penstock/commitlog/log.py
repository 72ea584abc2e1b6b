"""Log: one partition's messages, in segments; written by one task, read by any thread through views.

Rules: one writer. `append` writes to the page cache and returns; durability is another matter: `flush` gives a task for
a disk thread, and `flushed` tells the log that it is done. At most one flush is under way; what is appended meanwhile
goes with the next one, so one fdatasync serves all that waits. Recovery cuts nothing that the checkpoint says is on the
disk: `note_flushed` has it say so after each flush, once nobody waits for that any more.

Offsets: log_start <= flushed_end <= log_end. Timestamps never decrease: the caller stamps max(now, last_timestamp_us).
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from functools import partial

from penstock.base import limits
from penstock.batch.header import BatchHeader
from penstock.commitlog import files, segment
from penstock.commitlog import lineage as lineages
from penstock.commitlog.checkpoint import Checkpoint, CheckpointFile
from penstock.commitlog.errors import NotWritableError, StorageFailedError, storage_error
from penstock.commitlog.keeper import Keeper
from penstock.commitlog.known_damage import KnownDamage
from penstock.commitlog.lineage import Lineage, LineageEntry
from penstock.commitlog.open_files import OpenFiles
from penstock.commitlog.rebuild import RebuiltIndexes
from penstock.commitlog.recovery import Cut, Recovered, Recovery
from penstock.commitlog.retention import LogConfig, Retention
from penstock.commitlog.segment import ActiveSegment, Damage, Segment
from penstock.commitlog.state import LogState
from penstock.commitlog.tasks import DirtyFile, Flush, Removal, write_entries
from penstock.commitlog.view import LogView
from penstock.vfs import Buffer, File, Folder, Vfs

_NEVER = 2**63 - 1
_REST_US = limits.LOG_REST_MS * 1000
_WRITABLE = LogState.WRITABLE  # a member of an enum is slow to look up


class Log:
    """One partition's log. Make it with `Log.open`."""

    __slots__ = (
        "_active", "_checkpoint", "_config", "_damage", "_directory", "_flush", "_flushed_at", "_ids", "_keeper",
        "_lineage", "_lineage_file", "_names", "_noticed", "_open_files", "_rebuilt_indexes", "_roll_at_us", "_sealed",
        "_sealed_bytes", "_state", "_unflushed", "_vfs", "cuts", "fence_reason", "flushed_end", "last_timestamp_us",
        "leader_epoch", "log_end", "log_start", "notices",
    )  # fmt: skip

    def __init__(
        self,
        vfs: Vfs,
        directory: str,
        ids: tuple[int, int],
        config: LogConfig,
        found: Recovered,
        now_us: int,
        open_files: OpenFiles,
        noticed: Callable[[int], None] | None,
    ) -> None:
        """For `open` only."""
        self._vfs = vfs
        self._open_files = open_files
        self._noticed = noticed
        self.fence_reason = ""  # why the log takes no more messages
        self._directory = directory
        self._ids = ids
        self._config = config
        self._sealed = tuple(found.sealed)
        self._active: ActiveSegment | None = found.active
        self._state = LogState.READ_ONLY if found.damage else LogState.WRITABLE
        # Where the log stands; moved here only.
        self.log_start = found.log_start  # first offset that is kept
        self.log_end = found.log_end  # offset that the next message gets
        self.flushed_end = found.flushed_end  # everything before it survives a power loss
        self.last_timestamp_us = found.last_timestamp_us  # of the newest message there ever was; 0 before the first
        self.leader_epoch = found.leader_epoch  # the highest that the log knows of; 0 before the first
        self._sealed_bytes = sum(one.size_bytes for one in found.sealed)
        self._damage = KnownDamage(found.damage)
        self.cuts: tuple[Cut, ...] = tuple(found.cuts)
        self.notices: tuple[str, ...] = tuple(found.notices)
        # Where flushed_end lies, for the checkpoint.
        self._flushed_at = (0, 0) if self._active is None else (self._active.base_offset, self._active.size_bytes)
        self._unflushed: list[tuple[ActiveSegment, Segment]] = []  # sealed since the last flush
        self._flush: Flush | None = None
        # What the next flush has to sync beside segments: open already, so that it cannot fail for want of descriptors.
        self._names: Folder | None = None
        self._lineage_file: File | None = None
        self._checkpoint = CheckpointFile(vfs, directory, found.checkpoint.sequence if found.checkpoint else 0)
        self._checkpoint.begin(now_us)
        self._lineage = Lineage(vfs, directory, ())
        self._roll_at_us = _NEVER
        self._rebuilt_indexes = RebuiltIndexes()
        oldest_us = None if self.log_start == self.log_end else 0
        self._keeper = Keeper(now_us=now_us, oldest_us=oldest_us, removable=found.retired)
        self._set_roll_time()

    @classmethod
    def open(
        cls,
        vfs: Vfs,
        directory: str,
        stream_id: int,
        partition: int,
        config: LogConfig,
        *,
        now_us: int,
        must_exist: bool = False,
        open_files: OpenFiles | None = None,
        noticed: Callable[[int], None] | None = None,
    ) -> Log:
        """The log in `directory`, recovered; or a new one, whose files are durable. StorageFailedError.

        `must_exist`: it was made before, so that a new one is none; LogMissingError if nothing of it is there.
        `open_files`: where its open file is counted. It has none until its first message. `noticed` is told, in any
        thread, the id of the stream when a reader has found damage: the next tick takes it in.
        """
        try:
            found = Recovery(vfs, directory, stream_id, partition, must_exist=must_exist).run()
            open_files = OpenFiles() if open_files is None else open_files
            log = cls(vfs, directory, (stream_id, partition), config, found, now_us, open_files, noticed)
            log._open_lineage()
            if log._state is LogState.WRITABLE and not (must_exist and found.left_as(log._checkpoint_values())):
                # A log that was not known to be made: the folder's own name must be durable.
                log.checkpoint()
                if found.checkpoint is None:
                    vfs.sync_dir(directory)
            if log._active is not None:
                log._active.rest(log.log_end, log.last_timestamp_us)
        except OSError as error:
            raise storage_error(f"{directory} cannot be opened", error) from error
        return log

    @property
    def lineage(self) -> tuple[LineageEntry, ...]:
        """The leaderships, oldest first."""
        return self._lineage.entries

    @property
    def config(self) -> LogConfig:
        """The rules in force."""
        return self._config

    @property
    def state(self) -> LogState:
        """What may be done."""
        if self._damage.has_news:
            self._take_damage()
        return self._state

    @property
    def damage(self) -> tuple[Damage, ...]:
        """Ranges that cannot be read, as far as they are known."""
        self._take_damage()
        return self._damage.known

    @property
    def size_bytes(self) -> int:
        """Bytes of all segment files."""
        return self._sealed_bytes + (0 if self._active is None else self._active.size_bytes)

    @property
    def segment_count(self) -> int:
        """Segments, the active one too."""
        return len(self._sealed) + (self._active is not None)

    def configure(self, config: LogConfig) -> None:
        """Take other rules from now on."""
        self._config = config
        self._set_roll_time()

    # Writing.

    def append(self, data: Buffer, header: BatchHeader) -> None:
        """Write one batch (whose header is `header`) at the end. It begins where the log ends, in offset and time.

        StorageFullError, StorageFailedError: the log is as it was before. NotWritableError.
        """
        active = self._active
        if self._damage.has_news:
            self._take_damage()
        if self._state is not _WRITABLE or active is None:
            raise NotWritableError(f"{self._directory} is {self._state.value}")
        assert header.base_offset == self.log_end, (header.base_offset, self.log_end)
        assert header.min_timestamp_us >= self.last_timestamp_us, "timestamps never decrease"
        size = header.size_bytes
        assert len(data) == size, (len(data), size)
        if active.count and (
            active.size_bytes + size > self._config.segment_bytes or header.min_timestamp_us >= self._roll_at_us
        ):
            active = self._roll(active) if self._open_files.may_roll(self) else active
        file = self._woken(active) if active.file is None else active.file
        try:
            file.write_at(active.size_bytes, data)
        except OSError as error:
            self._undo(partial(file.truncate, active.size_bytes))
            raise storage_error(f"{active.path} cannot be written", error) from error
        active.add(header)
        if self.log_start == self.log_end:
            self._keeper.oldest_us = header.min_timestamp_us
        if active.count == 1:
            self._set_roll_time()
        self.log_end = header.end_offset
        self.last_timestamp_us = header.max_timestamp_us

    def _woken(self, active: ActiveSegment) -> File:
        """The file of the active segment, open again; StorageFailedError."""
        try:
            self._open_files.take(self)
            return active.opened(self._vfs)
        except OSError as error:
            self._open_files.give_back(self)
            if error.errno in (errno.ENOENT, errno.ESTALE):
                self._fence(f"{active.path} was removed or changed: {error.strerror}")
            raise storage_error(f"{active.path} cannot be written", error) from error

    @property
    def is_awake(self) -> bool:
        """Whether its file is open to be written."""
        return self._active is not None and self._active.file is not None

    @property
    def has_room(self) -> bool:
        """Whether an append would find a place among the open files."""
        return self._open_files.has_room(self)

    def start_epoch(self, leader_epoch: int) -> None:
        """A leadership begins at log_end; durable with the next flush. StorageFailedError, NotWritableError."""
        if self.state is not LogState.WRITABLE:
            raise NotWritableError(f"{self._directory} is {self._state.value}")
        assert leader_epoch > self.leader_epoch, (leader_epoch, self.leader_epoch)
        try:
            self._open_names()
            file = self._lineage.start(LineageEntry(leader_epoch, self.log_end))
        except OSError as error:
            raise storage_error(f"the lineage of {self._directory} cannot be written", error) from error
        self.leader_epoch = leader_epoch
        self._checkpoint.is_dirty = True
        _close(self._lineage_file)
        self._lineage_file = file

    def _open_names(self) -> None:
        if self._names is None:
            self._names = self._vfs.open_folder(self._directory)

    def _roll(self, active: ActiveSegment) -> ActiveSegment:
        self._woken(active)
        try:
            self._open_names()
            segment.clear_the_way(self._vfs, self._directory, self.log_end, *self._ids)
            try:
                new = segment.create(self._vfs, self._directory, self.log_end, *self._ids)
            except OSError:
                # A file of that name would stand in the way once the old segment goes on.
                self._undo(lambda: self._vfs.remove(files.segment_path(self._directory, self.log_end)))
                raise
        except OSError as error:
            raise storage_error(f"no new segment in {self._directory}", error) from error
        sealed = active.seen(self.log_end, self.last_timestamp_us)
        self._sealed = (*self._sealed, sealed)
        self._sealed_bytes += active.size_bytes
        self._unflushed.append((active, sealed))
        self._open_files.sealed(self)
        self._active = new
        self._set_roll_time()
        return new

    def _undo(self, undo: Callable[[], None]) -> None:
        try:
            undo()
        except OSError:
            self._fence("a write could not be undone")

    def _fence(self, reason: str) -> None:
        self._state = LogState.FENCED
        self.fence_reason = reason

    def _set_roll_time(self) -> None:
        first = None if self._active is None else self._active.first_timestamp_us()
        age = self._config.segment_age_us
        self._roll_at_us = _NEVER if first is None or age is None else first + age

    # Flushing.

    def flush(self, *, with_index: bool = False) -> Flush | None:
        """A task that makes durable all that was appended so far; None if nothing is to do, or one is under way.

        `with_index`: the index gets what it lacks. Without, one flush in many brings it.
        """
        active = self._active
        if self._flush is not None or self._state is LogState.FENCED or active is None:
            return None
        has_bytes = self.log_end != self.flushed_end or bool(self._unflushed)
        is_due = self._checkpoint.is_due
        has_rolled = active.base_offset != self._flushed_at[0]  # the sealed one's index is written as well
        with_index = with_index or is_due or has_rolled or active.is_index_behind
        has_entries = with_index and bool(active.places)
        if not (has_bytes or has_entries or self._names is not None or is_due):
            return None
        dirty = [
            DirtyFile(file, *one.take_places(), sealed, has_news=sealed.end_offset > self.flushed_end)
            for one, sealed in self._unflushed
            if (file := one.file) is not None
        ]
        if active.file is not None and (has_bytes or has_entries or self._names is not None):
            has_news = self.log_end > max(self.flushed_end, active.base_offset)
            entries = active.take_places() if with_index else (active.count, [])
            dirty.append(DirtyFile(active.file, *entries, None, has_news=has_news))
        self._flush = Flush(
            self._vfs,
            tuple(dirty),
            end=self.log_end,
            end_position=active.size_bytes,
            segment_base=active.base_offset,
            lineage=self._lineage_file,
            names=self._names,
            sync_last=self._checkpoint.sync if is_due else None,
            # An index would vouch for the damage at the next start; without it, that start reads the segment.
            indexes=self.state is LogState.WRITABLE,
        )
        self._unflushed = []
        self._names = self._lineage_file = None
        self._checkpoint.is_due = False
        return self._flush

    def flushed(self, flush: Flush) -> None:
        """`flush.run()` returned. `note_flushed` is to follow, behind the acks."""
        assert flush is self._flush
        self._flush = None
        if flush.end != self.flushed_end or flush.segment_base != self._flushed_at[0]:
            self._checkpoint.is_dirty = self._checkpoint.is_behind = True
        self.flushed_end = flush.end
        self._flushed_at = (flush.segment_base, flush.end_position)
        active = self._active
        self._open_files.synced(self, sum(dirty.sealed is not None for dirty in flush.dirty))
        for dirty in flush.dirty:
            is_indexed = dirty.file.path in flush.indexed
            if dirty.sealed is not None:
                dirty.file.close()
                if is_indexed:
                    dirty.sealed.entries = None
            elif is_indexed and active is not None and active.path == dirty.file.path:
                active.indexed(dirty.first_entry, len(dirty.places))

    def note_flushed(self) -> None:
        """Let the checkpoint name what has been flushed, so that no start takes damage in it for a torn tail.

        If it fails, it lags behind, and a later one names it.
        """
        if self._checkpoint.is_behind:
            with contextlib.suppress(OSError):
                self._checkpoint.write(self._checkpoint_values(), keeps_file=self.is_awake)

    def flush_failed(self, flush: Flush, error: OSError) -> None:
        """`flush.run()` raised: what it was to flush may be lost, now or later. The log is fenced until a restart."""
        assert flush is self._flush
        self._flush = None
        self._fence(str(error))
        self.notices = (*self.notices, f"{self._directory} is fenced: a sync failed: {error}")
        self._open_files.synced(self, sum(dirty.sealed is not None for dirty in flush.dirty))
        for dirty in flush.dirty:
            if dirty.sealed is not None:
                dirty.file.close()

    def rest(self) -> bool:
        """Give back the file and what is in memory of the batches, if all is on the disk; whether no file is open.

        An error of the disk is told to who has the file open: what is not known to be synced stays open.
        """
        active = self._active
        if active is None or active.file is None:
            return True
        waits = self.log_end != self.flushed_end or self._unflushed or self._names is not None
        is_fenced = self._state is LogState.FENCED  # nothing will be synced any more
        if (waits and not is_fenced) or self._flush is not None:
            return False
        if self._state is not LogState.WRITABLE:
            for one in (active, *(sealed for sealed, _ in self._unflushed)):
                _close(one.file)
                one.file = None
            self._checkpoint.rest()
            self._open_files.give_back(self)
            return True
        if active.places:
            first_entry, places = active.take_places()
            with contextlib.suppress(OSError):  # then they stay in memory
                if write_entries(self._vfs, active.file, first_entry, places):
                    active.indexed(first_entry, len(places))
        active.rest(self.log_end, self.last_timestamp_us)
        self._checkpoint.rest()
        self._open_files.give_back(self)
        return True

    def leave(self) -> None:
        """Another thread is about to close the log: nobody else is to touch its file any more."""
        self._open_files.give_back(self)

    # Reading.

    def view(self) -> LogView:
        """The log as it is now, for any thread."""
        self._take_damage()
        return self._view()

    def _view(self) -> LogView:
        segments = self._sealed
        if (active := self._active) is not None:
            damage = self._damage.of(active.path) if self._damage.known else ()
            segments = (*segments, active.seen(self.log_end, self.last_timestamp_us, damage))
        return LogView(self._vfs, segments, self.log_start, self.log_end, self._damage_noted, self._rebuilt_indexes)

    def damage_found(self, path: str, position: int, reason: str) -> None:
        """The file of a segment cannot be read from byte `position` on, although its index says so. Any thread.

        The log is read-only from then on, and the next slice that needs these bytes is refused.
        """
        self._damage.report(path, position, reason)
        if self._noticed is not None:
            self._noticed(self._ids[0])

    def _damage_noted(self, damage: Damage) -> None:
        self._damage.note(damage)
        if self._noticed is not None:
            self._noticed(self._ids[0])

    def _take_damage(self) -> None:
        if self._damage.has_news:
            self._damage.take_in(self._view().damage_from)
            if self._damage.known and self._state is LogState.WRITABLE:
                self._state = LogState.READ_ONLY

    # Time and retention.

    def tick(self, now_us: int) -> Retention | None:
        """Do what time asks for: roll by age, the checkpoint. Gives a task if messages may have to go.

        After a tick `flush` may have something to do, too. Call it about once a second, or as `due_us` says.
        """
        if self.state is not LogState.WRITABLE:
            return None
        if self._checkpoint.wants_sync(now_us):
            self._hasten_checkpoint()
        active = self._active
        assert active is not None
        if active.count and now_us >= self._roll_at_us:
            self._try_roll(active)
        if now_us - self.last_timestamp_us >= _REST_US:
            self.rest()
        if not self._keeper.wants_look(self._config, now_us=now_us, **self._extent()):
            return None
        look = Retention(self._config, self.view(), size_bytes=self.size_bytes, now_us=now_us, end=self.flushed_end)
        return self._keeper.look(look, now_us)

    def hasten(self) -> None:
        """Before the log is closed: the next flush is to do all the syncing that `close` would wait for."""
        if self.state is LogState.WRITABLE and self._checkpoint.is_dirty and self.flushed_end == self.log_end:
            self._hasten_checkpoint()

    def _hasten_checkpoint(self) -> None:
        with contextlib.suppress(OSError):  # the next time, then
            self._checkpoint.write(self._checkpoint_values())
            self._checkpoint.will_sync()

    def due_us(self, now_us: int) -> int | None:
        """When `tick` has something to do, as far as it is known now; None: not by time alone.

        An append, the end of a flush or of retention, another config and damage may bring it forward.
        """
        if self.state is not LogState.WRITABLE:
            return None
        dues = []
        active = self._active
        assert active is not None
        if self._checkpoint.is_dirty:
            dues.append(self._checkpoint.due_us)
        if active.count and self._roll_at_us != _NEVER:
            dues.append(self._roll_at_us)
        if active.file is not None:
            dues.append(self.last_timestamp_us + _REST_US)
        dues += self._keeper.dues_us(self._config, now_us=now_us, **self._extent())
        return min(dues, default=None)

    def _extent(self) -> dict[str, int]:
        return {"messages": self.log_end - self.log_start, "size_bytes": self.size_bytes}

    def retained(self, retention: Retention) -> Removal | None:
        """`retention.run()` returned or raised. Moves log_start, and gives a task if segments are to go with it."""
        if not self._keeper.looked(retention):
            return None  # the log was closed meanwhile
        if self.state is not LogState.WRITABLE:
            return None
        # With a config that has changed meanwhile more may be kept: the next tick looks again.
        if retention.log_start is not None and retention.config == self._config:
            try:
                self._move_start(retention.log_start)
            except StorageFailedError:
                return None  # a later tick tries again
            if retention.oldest_us is not None:
                self._keeper.oldest_us = retention.oldest_us
        paths = self._keeper.take_removable()
        return None if paths is None else Removal(self._vfs, self._directory, paths, self._checkpoint.sync)

    def removal_failed(self, removal: Removal) -> None:
        """`removal.run()` raised OSError: a later tick tries again."""
        self._keeper.failed(removal.paths)

    def _try_roll(self, active: ActiveSegment) -> None:
        try:
            self._roll(active)
        except StorageFailedError:
            # No harm: the segment goes on as it is, the next tick tries again, and an append reports a full disk.
            return

    def _move_start(self, log_start: int) -> None:
        if log_start <= self.log_start:
            return
        before, self.log_start = self.log_start, log_start
        try:
            self._checkpoint.write(self._checkpoint_values())
        except OSError as error:
            self.log_start = before
            raise storage_error(f"the checkpoint of {self._directory} cannot be written", error) from error
        active = self._active
        assert active is not None
        if log_start == self.log_end and active.count:
            self._try_roll(active)
        kept = tuple(one for one in self._sealed if one.end_offset > log_start)
        gone = self._sealed[: len(self._sealed) - len(kept)]
        # What is gone and not flushed stays with the next flush, which closes its file: one may be at it right now.
        self._sealed = kept
        self._sealed_bytes -= sum(one.size_bytes for one in gone)
        self._keeper.moved(tuple(one.path for one in gone))

    # Checkpoint, lineage, end.

    def checkpoint(self) -> None:
        """Write the checkpoint and sync it, in this thread. OSError."""
        self._checkpoint.write(self._checkpoint_values())
        self._checkpoint.sync()
        self._checkpoint.is_dirty = False

    def close(self) -> None:
        """Make everything durable, in this thread, and give back the files. No flush may be under way.

        StorageFailedError if a sync failed; the log is closed nevertheless.
        """
        assert self._flush is None, "a flush is under way"
        self._keeper.give_up()
        try:
            if (flush := self.flush(with_index=True)) is not None:
                try:
                    flush.run()
                except OSError as error:
                    self.flush_failed(flush, error)
                    raise
                self.flushed(flush)
            self.note_flushed()
            if self._state is LogState.WRITABLE and self._checkpoint.is_dirty:
                self.checkpoint()
        except OSError as error:
            raise storage_error(f"{self._directory} cannot be closed cleanly", error) from error
        finally:
            self._open_files.give_back(self)
            self._checkpoint.rest()
            active_file = None if self._active is None else self._active.file
            for opened in (*(one.file for one, _ in self._unflushed), active_file, self._names, self._lineage_file):
                _close(opened)

    def _checkpoint_values(self) -> Checkpoint:
        return Checkpoint(
            sequence=0,
            stream_id=self._ids[0],
            partition=self._ids[1],
            leader_epoch=self.leader_epoch,
            flushed_end=self.flushed_end,
            segment_base=self._flushed_at[0],
            segment_position=self._flushed_at[1],
            log_start=self.log_start,
            last_timestamp_us=self.last_timestamp_us,
        )

    def _open_lineage(self) -> None:
        found = lineages.read(self._vfs, self._directory)
        if found.entries:
            self.leader_epoch = max(self.leader_epoch, found.entries[-1].leader_epoch)
        if found.mistake is not None:
            self.notices = (*self.notices, str(found.mistake))
        entries = found.entries
        if self._state is LogState.WRITABLE:
            entries = lineages.recover(self._vfs, self._directory, found, self.log_start, self.log_end)
        self._lineage = Lineage(self._vfs, self._directory, entries)


def _close(opened: File | Folder | None) -> None:
    if opened is not None:
        opened.close()
