"""The write path of a log: append, flush, close the file when idle; and views.

Rules: one task writes. A failed write is undone; if that fails, or a sync fails, the log is fenced. The segment file is
open only while there is something to write: see `open_files`.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from penstock.base import limits
from penstock.batch.header import BatchHeader
from penstock.commitlog.errors import NotWritableError, storage_error
from penstock.commitlog.files.checkpoint import CheckpointFile
from penstock.commitlog.files.open_files import OpenFiles
from penstock.commitlog.flush_state import FlushState
from penstock.commitlog.recovery.recovery import RecoveredLog
from penstock.commitlog.retention_tracker import RetentionTracker
from penstock.commitlog.segment.known_damage import KnownDamage
from penstock.commitlog.segment.rebuild import RebuiltIndexes
from penstock.commitlog.segment.segment import ActiveSegment, Damage
from penstock.commitlog.segments import Segments
from penstock.commitlog.state import LogState
from penstock.commitlog.tasks import Flush, write_entries
from penstock.commitlog.view.retention import LogConfig
from penstock.commitlog.view.view import LogView
from penstock.commitlog.view.view_validity import NEVER_OFFSET, ViewValidity
from penstock.vfs import File, Vfs

_WRITABLE = LogState.WRITABLE  # an attribute lookup on an Enum is slow


class LastBatch(NamedTuple):
    """The batch appended last, as it was written."""

    base_offset: int
    end_offset: int
    data: bytes | bytearray


class LogWriter:
    """The part of `Log` that writes, and creates views."""

    __slots__ = (
        "_checkpoint",
        "_damage",
        "_directory",
        "_flush_state",
        "_ids",
        "_open_files",
        "_rebuilt_indexes",
        "_retention_tracker",
        "_segments",
        "_state",
        "_validity",
        "_vfs",
        "fence_reason",
        "flushed_end",
        "keeps_latest",
        "last_timestamp_us",
        "latest",
        "leader_epoch",
        "log_end",
        "log_start",
        "notices",
    )  # fmt: skip

    def __init__(
        self,
        vfs: Vfs,
        directory: str,
        ids: tuple[int, int],
        config: LogConfig,
        found: RecoveredLog,
        now_us: int,
        open_files: OpenFiles,
        noticed: Callable[[int, int], None] | None,
    ) -> None:
        self._vfs = vfs
        self._open_files = open_files
        self._directory = directory
        self._ids = ids
        self._segments = Segments(vfs, directory, ids, found.sealed, found.active, config)
        self._flush_state = FlushState(vfs, directory, found.active)
        sequence = found.checkpoint.sequence if found.checkpoint else 0
        self._checkpoint = CheckpointFile(vfs, directory, sequence, found.slot, is_alone=found.is_alone)
        self._checkpoint.begin(now_us)
        self._rebuilt_indexes = RebuiltIndexes()
        self._validity = ViewValidity()
        self._damage = KnownDamage(found.damage, None if noticed is None else partial(noticed, *ids))
        self._state = LogState.READ_ONLY if found.damage else LogState.WRITABLE
        self.fence_reason = ""  # why the log is fenced
        self.notices: tuple[str, ...] = tuple(found.notices)
        # Offsets and time of the log.
        self.log_start = found.log_start  # log start offset
        self.log_end = found.log_end  # log end offset: that of the next message
        self.flushed_end = found.flushed_end  # flushed offset: everything before it survives a power loss
        self.last_timestamp_us = found.last_timestamp_us  # of the newest message ever; 0 before the first
        self.leader_epoch = found.leader_epoch  # the highest known; 0 before the first
        self.keeps_latest = False  # `append` sets `latest`
        self.latest: LastBatch | None = None  # the last batch, while it is small and not committed
        oldest_us = None if self.log_start == self.log_end else 0
        self._retention_tracker = RetentionTracker(now_us=now_us, oldest_us=oldest_us, removable=found.retired)

    @property
    def state(self) -> LogState:
        """Current state; takes in reported corruption first."""
        if self._damage.has_news:
            self._take_damage()
        return self._state

    @property
    def damage(self) -> tuple[Damage, ...]:
        """Known corrupt ranges."""
        self._take_damage()
        return self._damage.known

    @property
    def size_bytes(self) -> int:
        """Total size of all segment files in bytes."""
        return self._segments.size_bytes

    @property
    def segment_count(self) -> int:
        """Number of segments, including the active one."""
        return self._segments.count

    @property
    def is_awake(self) -> bool:
        """True if its file is open for writing."""
        active = self._segments.active
        return active is not None and active.file is not None

    @property
    def has_room(self) -> bool:
        """True if an append would find a place among the open files."""
        return self._open_files.has_room(self)

    # Writing.

    def append(self, data: bytes | bytearray, header: BatchHeader) -> None:
        """Append one batch with this header to the active segment. It must continue the log in offset and time.

        StorageFullError, StorageFailedError: the log is unchanged. NotWritableError.
        """
        segments = self._segments
        active = segments.active
        if self._damage.has_news:
            self._take_damage()
        if self._state is not _WRITABLE or active is None:
            raise NotWritableError(f"{self._directory} is {self._state.value}")
        assert header.base_offset == self.log_end, (header.base_offset, self.log_end)
        assert header.min_timestamp_us >= self.last_timestamp_us, "timestamps never decrease"
        size = header.size_bytes
        assert len(data) == size, (len(data), size)
        if active.count and (
            active.size_bytes + size > segments.roll_bytes or header.min_timestamp_us >= segments.roll_at_us
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
            self._retention_tracker.oldest_us = header.min_timestamp_us
        if active.count == 1:
            segments.set_roll_time()
        self.log_end = header.end_offset
        self.last_timestamp_us = header.max_timestamp_us
        if self.keeps_latest:
            is_small = size <= limits.REPLICA_MEMORY_BYTES_MAX
            self.latest = LastBatch(header.base_offset, self.log_end, data) if is_small else None

    def _append_run(self, data: memoryview, headers: Sequence[BatchHeader]) -> int:
        """Append, in one write, the first of these batches that fit into one segment; return how many were written.

        `data` begins with them. Errors as in `append`.
        """
        segments = self._segments
        active = segments.active
        assert active is not None
        count = segments.room_for(headers)
        if not count and self._open_files.may_roll(self):
            active = self._roll(active)
            count = segments.room_for(headers)
        count = max(1, count)  # the segment grows while no other one can be begun
        run = headers[:count]
        file = self._woken(active)
        try:
            file.write_at(active.size_bytes, data[: sum(header.size_bytes for header in run)])
        except OSError as error:
            self._undo(partial(file.truncate, active.size_bytes))
            raise storage_error(f"{active.path} cannot be written", error) from error
        if self.log_start == self.log_end:
            self._retention_tracker.oldest_us = run[0].min_timestamp_us
        for header in run:
            active.add(header)
        if active.count == count:
            segments.set_roll_time()
        self.latest = None
        self.log_end = run[-1].end_offset
        self.last_timestamp_us = run[-1].max_timestamp_us
        return count

    def _woken(self, active: ActiveSegment) -> File:
        """Return the active segment's file, reopened if needed; StorageFailedError."""
        try:
            self._open_files.take(self)
            return active.opened(self._vfs)
        except OSError as error:
            self._open_files.give_back(self)
            if error.errno in (errno.ENOENT, errno.ESTALE):
                self._fence(f"{active.path} was removed or changed: {error.strerror}")
            raise storage_error(f"{active.path} cannot be written", error) from error

    def _roll(self, active: ActiveSegment) -> ActiveSegment:
        self._woken(active)
        try:
            self._flush_state.open_names()
            new = self._segments.create_next(self.log_end, self._undo)
        except OSError as error:
            raise storage_error(f"no new segment in {self._directory}", error) from error
        self._flush_state.add_sealed(active, self._segments.seal(new, self.log_end, self.last_timestamp_us))
        self._open_files.sealed(self)
        return new

    def _undo(self, undo: Callable[[], None]) -> None:
        try:
            undo()
        except OSError:
            self._fence("a write could not be undone")

    def _fence(self, reason: str) -> None:
        self._state = LogState.FENCED
        self.fence_reason = reason

    # Flushing.

    def flush(self, *, with_index: bool = False) -> Flush | None:
        """Return a task that makes durable everything appended so far; None if nothing is to do or a flush is running.

        `with_index`: write missing index entries; otherwise only one flush in many does.
        """
        active = self._segments.active
        may_flush = self._state is not LogState.FENCED and self._state is not LogState.TRUNCATING
        if self._flush_state.under_way is not None or not may_flush or active is None:
            return None
        return self._flush_state.begin(
            active,
            self._checkpoint,
            log_end=self.log_end,
            flushed_end=self.flushed_end,
            with_index=with_index,
            # With an index, the next start would trust corrupt batches; without it, that start reads the segment.
            indexes=self.state is LogState.WRITABLE,
        )

    def flushed(self, flush: Flush) -> None:
        """Take the result of `flush.run()`. Call `note_flushed` afterwards, behind the acks."""
        if flush.end != self.flushed_end or flush.segment_base != self._flush_state.end_place[0]:
            self._checkpoint.is_dirty = self._checkpoint.is_behind = True
        self.flushed_end = flush.end
        self._open_files.synced(self, self._flush_state.ended(flush, self._segments.active))

    def flush_failed(self, flush: Flush, error: OSError) -> None:
        """Handle the failure of `flush.run()`: what it was to flush may be lost; the log is fenced until a restart."""
        closed = self._flush_state.failed(flush)
        self._fence(str(error))
        self.notices = (*self.notices, f"{self._directory} is fenced: a sync failed: {error}")
        self._open_files.synced(self, closed)

    def rest(self) -> bool:
        """Close the file and free the entries if everything is synced; return True if no file is open.

        The kernel reports disk errors to open descriptors: a file with unsynced bytes stays open.
        """
        active = self._segments.active
        if active is None or active.file is None:
            return True
        waits = self.log_end != self.flushed_end or self._flush_state.waits
        is_fenced = self._state is LogState.FENCED  # nothing will be synced any more
        is_busy = self._flush_state.under_way is not None or self._state is LogState.TRUNCATING
        if (waits and not is_fenced) or is_busy:
            return False
        if self._state is LogState.WRITABLE:
            with contextlib.suppress(OSError):  # on failure the entries stay in memory
                self._write_entries(active)
            active.rest(self.log_end, self.last_timestamp_us)
        else:
            active.close()
            self._flush_state.close_segments()
        self._checkpoint.rest()
        self._open_files.give_back(self)
        return True

    def _write_entries(self, active: ActiveSegment) -> None:
        if active.places and active.file is not None:
            first_entry, places = active.take_places()
            if write_entries(self._vfs, active.file, first_entry, places):
                active.indexed(first_entry + len(places))

    def keep_latest(self, wanted: bool) -> None:
        """Choose whether to keep small batches in memory, so that followers get them without reading the file."""
        self.keeps_latest, self.latest = wanted, None

    def leave(self) -> None:
        """Prepare for another thread to close the log and remove its files: no other code touches them from now on."""
        self._validity.give_up(NEVER_OFFSET)
        self._open_files.give_back(self)

    # Reading.

    def view(self, validity: ViewValidity | None = None) -> LogView:
        """Return the log as it is now, for any thread. `validity`: a separate one for a truncation task."""
        self._take_damage()
        return self._view(validity)

    def _view(self, validity: ViewValidity | None = None) -> LogView:
        active = self._segments.active
        damage = self._damage.of(active.path) if active is not None and self._damage.known else ()
        segments = self._segments.seen(self.log_end, self.last_timestamp_us, damage)
        return LogView(
            self._vfs,
            segments,
            self.log_start,
            self.log_end,
            self._damage.note,
            self._rebuilt_indexes,
            validity or self._validity,
        )

    def damage_found(self, path: str, position: int, reason: str) -> None:
        """Report that a segment file cannot be read from byte `position` on, although its index says so. Any thread.

        The log is read-only from then on, and later slices that need these bytes are refused.
        """
        # The end of a truncated range is no corruption.
        if self._state is not LogState.TRUNCATING and self._segments.has_byte(path, position):
            self._damage.report(path, position, reason)

    def _take_damage(self) -> None:
        if self._damage.has_news:
            self._damage.take_in(self._view().damage_from)
            if self._damage.known and self._state is LogState.WRITABLE:
                self._state = LogState.READ_ONLY
