"""Log: one partition's messages, in segments. One task writes it; any thread may read it through views.

Rules: `append` writes to the page cache and returns. A failed write is undone; if that fails, or a sync fails, the log
is fenced. Durability is separate (group commit): `flush` returns a task for a disk thread, and `flushed` takes its
result. At most one flush is running; what is appended meanwhile goes with the next one, so one fdatasync serves all
waiting messages. Recovery never truncates what the checkpoint declares flushed: `note_flushed` writes it after each
flush, once no ack waits for that any more. The segment file is open only while there is something to write: see
`open_files`.

Offsets: log_start (log start offset) <= flushed_end (flushed offset), committed_end (high watermark) <= log_end (log
end offset). Timestamps never decrease: the caller stamps max(now, last_timestamp_us).

| state     | append | flush | retention | entered by                                           | left by            |
|-----------|--------|-------|-----------|------------------------------------------------------|--------------------|
| WRITABLE  | yes    | yes   | yes       | open                                                 |                    |
| TRUNCATING| no     | no    | no        | `truncate`, `reset`                                  | the end of that    |
| READ_ONLY | no     | yes   | no        | corruption found, at open or by a reader             | repair, or restart |
| FENCED    | no     | no    | no        | a sync failed, or a failed write could not be undone | restart            |

Disk work is a task in each case: the log returns it, a disk thread runs it, and the log takes its result.

| part of the log         | its state of its own                                                    |
|-------------------------|-------------------------------------------------------------------------|
| `Segments`              | the sealed segments, the active one, and when it rolls                  |
| `FlushState`            | what is not yet synced, and the running flush                           |
| `RetentionTracker`      | the running retention, and files to remove                              |
| `Cleaner`               | the running cleaner task, what was judged, and replaced files           |
| `KnownDamage`           | corrupt ranges, with those that reader threads report                   |
| `ViewValidity`          | which offsets existing views may still read                             |
| `Lineage`               | leader epoch history                                                    |
| `CheckpointFile`        | which values are on disk                                                |
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.base.limits import OFFSET_MAX
from penstock.batch.header import BatchHeader
from penstock.commitlog import fetched
from penstock.commitlog.cleaner.cleaner import Cleaner, CleanerTask, Disposal, FoundHidden
from penstock.commitlog.cleaner.eraser import left_in
from penstock.commitlog.config import LogConfig
from penstock.commitlog.errors import FileMistake, NotWritableError, StorageFailedError, storage_error
from penstock.commitlog.fetched import FetchedAppend
from penstock.commitlog.files import checkpoint as checkpoints
from penstock.commitlog.files import lineage as lineages
from penstock.commitlog.files.checkpoint import Checkpoint, CheckpointFile
from penstock.commitlog.files.files import LogFolder
from penstock.commitlog.files.lineage import BatchLineage, Lineage, LineageEntry
from penstock.commitlog.files.open_files import OpenFiles
from penstock.commitlog.files.side_files import SideFiles
from penstock.commitlog.flush import Flush, FlushState, write_entries
from penstock.commitlog.recovery import CutTail, RecoveredLog, Recovery
from penstock.commitlog.repair import SegmentRepair
from penstock.commitlog.retention import Removal, Retention, RetentionTracker
from penstock.commitlog.segment import segment, segment_scan
from penstock.commitlog.segment.damage import Damage, KnownDamage
from penstock.commitlog.segment.segment import ActiveSegment
from penstock.commitlog.segment.segment_scan import RebuiltIndexes
from penstock.commitlog.segment.segments import NEVER_US, Segments
from penstock.commitlog.subjects.kept_filters import FilterBudget, LogFilters
from penstock.commitlog.truncation import TruncationTask
from penstock.commitlog.view import NEVER_OFFSET, LogView, ViewValidity
from penstock.live.row_set import NONE, RowSet
from penstock.vfs import Buffer, File

_IDLE_US = limits.LOG_IDLE_MS * 1000


class LogState(Enum):
    """State of a log. See the module's table."""

    WRITABLE = "writable"
    TRUNCATING = "truncating"
    READ_ONLY = "read_only"
    FENCED = "fenced"


_WRITABLE = LogState.WRITABLE  # an attribute lookup on an Enum is slow


class LastBatch(NamedTuple):
    """The batch appended last, as it was written."""

    base_offset: int
    end_offset: int
    data: bytes | bytearray


class Unerased(NamedTuple):
    """The number of rows whose content may still be in a log's files (0: only in files to be removed), and what the
    erasing waits for.
    """

    rows: int
    waits_for: str


class Log:
    """One partition's log. Create it with `Log.open`."""

    __slots__ = (
        "_checkpoint",
        "_cleaner",
        "_committed_end",
        "_config",
        "_damage",
        "_filters",
        "_flush_state",
        "_folder",
        "_is_lineage_sure",
        "_lineage",
        "_marked",
        "_open_files",
        "_rebuilt_indexes",
        "_removal",
        "_retention_tracker",
        "_segments",
        "_state",
        "_validity",
        "_vfs",
        "cuts",
        "fence_reason",
        "flushed_end",
        "hidden",
        "keeps_latest",
        "last_timestamp_us",
        "latest",
        "leader_epoch",
        "log_end",
        "log_start",
        "notices",
        "roll_end",
    )  # fmt: skip

    def __init__(
        self,
        folder: LogFolder,
        config: LogConfig,
        found: RecoveredLog,
        now_us: int,
        open_files: OpenFiles,
        noticed: Callable[[int, int], None] | None,
        filters: FilterBudget,
    ) -> None:
        self._folder = folder
        self._vfs = folder.vfs
        self._config = config
        self._open_files = open_files
        self._segments = Segments(found.sealed, found.active, config)
        self._flush_state = FlushState(folder, found.active)
        sequence = found.checkpoint.sequence if found.checkpoint else 0
        self._checkpoint = CheckpointFile(folder.vfs, folder.path, sequence, found.slot, is_alone=found.is_alone)
        self._checkpoint.begin(now_us)
        self._lineage = Lineage(folder.vfs, folder.path, ())
        self._is_lineage_sure = True  # False: some of it was lost
        self._rebuilt_indexes = RebuiltIndexes()
        self._validity = ViewValidity()
        self._filters = LogFilters(filters)
        self._damage = KnownDamage(found.damage, None if noticed is None else partial(noticed, *folder.ids))
        self._cleaner = Cleaner(folder, self._segments, config)
        self._state = LogState.READ_ONLY if found.damage else LogState.WRITABLE
        self.fence_reason = ""  # why the log is fenced
        self.notices: tuple[str, ...] = tuple(found.notices)
        self.cuts: tuple[CutTail, ...] = tuple(found.cuts)
        # Offsets and time of the log.
        self.log_start = found.log_start  # log start offset
        self.log_end = found.log_end  # log end offset: that of the next message
        self.flushed_end = found.flushed_end  # flushed offset: everything before it survives a power loss
        self._committed_end = min(found.checkpoint.committed_end, found.log_end) if found.checkpoint else 0
        self.last_timestamp_us = found.last_timestamp_us  # of the newest message ever; 0 before the first
        self.leader_epoch = found.leader_epoch  # the highest known; 0 before the first
        self.hidden: RowSet | None = None  # rows that readers are not shown; see `hide`
        self._marked: tuple[RowSet, RowSet, int] = (NONE, NONE, 0)  # arguments of `hide`
        self.roll_end = 0  # the next tick rolls a segment with rows before it
        self.keeps_latest = False  # `append` sets `latest`
        self.latest: LastBatch | None = None  # the last batch, while it is small and not committed
        oldest_us = None if self.log_start == self.log_end else 0
        self._retention_tracker = RetentionTracker(now_us=now_us, oldest_us=oldest_us, removable=found.retired)
        self._removal: Removal | None = None  # the latest one

    @classmethod
    def open(
        cls,
        folder: LogFolder,
        config: LogConfig,
        *,
        now_us: int,
        must_exist: bool = False,
        open_files: OpenFiles | None = None,
        noticed: Callable[[int, int], None] | None = None,
        filters: FilterBudget | None = None,
    ) -> Log:
        """Open and recover the log in `folder`, or create a new, durable one. StorageFailedError.

        `must_exist`: the log was created before; LogMissingError if nothing of it is there. `open_files`: counts its
        open file; it opens none until its first message. `noticed` is called in any thread, with the stream id and the
        partition, when a reader has found corruption; the next tick takes that in. `filters`: memory of look-ups.
        """
        try:
            found = Recovery(folder, must_exist=must_exist).run()
            files = OpenFiles() if open_files is None else open_files
            budget = FilterBudget() if filters is None else filters
            log = cls(folder, config, found, now_us, files, noticed, budget)
            log._open_lineage(found.told)
            if log._state is LogState.WRITABLE and not (must_exist and found.left_as(log._checkpoint_values())):
                if found.checkpoint is not None:
                    log._checkpoint.write_again(found.checkpoint)
                syncs = [] if found.checkpoint is not None else [folder.sync]  # the checkpoint's name
                if found.is_new and found.active is not None:
                    syncs.append(found.active.opened(folder.vfs).sync)
                log.checkpoint(*syncs)
            if found.has_unused:
                checkpoints.clear_unused(folder.vfs, folder.path)
            if found.active is not None:
                found.active.rest(log.log_end, log.last_timestamp_us)
        except OSError as error:
            raise storage_error(f"{folder.path} cannot be opened", error) from error
        return log

    def _open_lineage(self, told: Sequence[BatchLineage]) -> None:
        vfs, directory = self._vfs, self._folder.path
        found = lineages.read(vfs, directory)
        if found.entries:
            self.leader_epoch = max(self.leader_epoch, found.entries[-1].leader_epoch)
        if found.mistake is not None:
            self.notices = (*self.notices, str(found.mistake))
        entries = found.entries
        self._is_lineage_sure = not lineages.is_in_doubt(found, told, self.log_start, self.log_end)
        if self._state is LogState.WRITABLE:
            known = None
            if not self._is_lineage_sure:
                segments = self._segments.seen(self.log_end, self.last_timestamp_us, ())
                known = segment_scan.lineage_of(vfs, segments)
                self._is_lineage_sure = True
            entries = lineages.recover(vfs, directory, found, self.log_start, self.log_end, told, known)
        self._lineage = Lineage(vfs, directory, entries)

    @property
    def state(self) -> LogState:
        """Current state; takes in reported corruption first."""
        if self._damage.has_news:
            self._take_damage()
        return self._state

    @property
    def size_bytes(self) -> int:
        """Total size of all segment files in bytes."""
        return self._segments.size_bytes

    @property
    def live_bytes(self) -> int:
        """Total size of all segment files in bytes, less the share of the hidden rows that the cleaner will erase."""
        erasable = self._erasable
        return self._segments.live_bytes(erasable, self.log_end) if erasable else self.size_bytes

    @property
    def _erasable(self) -> RowSet:
        """Hidden rows that do not count for `max_bytes`; none if they cannot be erased, as it bounds the disk."""
        return NONE if self.hidden is None or self._cleaner.fails_to_erase else self.hidden

    @property
    def files_start(self) -> int:
        """First offset that a segment file may hold, at or below log_start."""
        return self._segments.first_base

    @property
    def segment_count(self) -> int:
        """Number of segments, including the active one."""
        return self._segments.count

    @property
    def has_rolled(self) -> bool:
        """True if a segment has begun, or ended, since the last flush began."""
        return self._flush_state.waits

    @property
    def is_awake(self) -> bool:
        """True if its file is open for writing."""
        active = self._segments.active
        return active is not None and active.file is not None

    @property
    def has_room(self) -> bool:
        """True if an append would find a place among the open files."""
        return self._open_files.has_room(self)

    @property
    def config(self) -> LogConfig:
        """The config in force."""
        return self._config

    def configure(self, config: LogConfig) -> None:
        """Replace the config."""
        self._config = config
        self._cleaner.configure(config)
        self._segments.configure(config)

    def _check_writable(self) -> None:
        if self.state is not LogState.WRITABLE:
            raise NotWritableError(f"{self._folder.path} is {self._state.value}")

    def _fence(self, reason: str) -> None:
        self._state = LogState.FENCED
        self.fence_reason = reason

    # Append.

    def append(self, data: bytes | bytearray, header: BatchHeader) -> None:
        """Append one batch with this header to the active segment. It must continue the log in offset and time.

        StorageFullError, StorageFailedError: the log is unchanged. NotWritableError.
        """
        segments = self._segments
        active = segments.active
        if self._damage.has_news:
            self._take_damage()
        if self._state is not _WRITABLE or active is None:
            raise NotWritableError(f"{self._folder.path} is {self._state.value}")
        assert header.base_offset == self.log_end, (header.base_offset, self.log_end)
        assert header.min_timestamp_us >= self.last_timestamp_us, "timestamps never decrease"
        size = header.size_bytes
        assert len(data) == size, (len(data), size)
        if active.count and (
            active.size_bytes + size > segments.roll_bytes or header.min_timestamp_us >= segments.roll_at_us
        ):
            active = self._roll(active) if self._open_files.may_roll(self) else active
        self._write(active, data)
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

    def append_fetched(self, data: Buffer) -> FetchedAppend:
        """Append whole batches of the leader's log, byte for byte; of a first one held in part, only the rest.

        RangeRefusedError: nothing was written. StorageFailedError: the same; if the disk fails after the first batches,
        those are appended, and the next call raises it. NotWritableError.
        """
        self._check_writable()
        begin = self.log_end
        view = fetched.without_overlap(fetched.as_bytes(data), begin)
        if view is None:
            raise fetched.extended(fetched.as_bytes(data), self._last_batch())
        last_timestamp_us = self.last_timestamp_us if self.log_start < begin else 0  # no batch is left to follow
        headers = fetched.checked(view, fetched.AppendPoint(begin, last_timestamp_us, self.last_epoch))
        size_bytes = batches = 0
        try:
            for leader_epoch, part, part_headers in fetched.by_epoch(view, headers):
                if not self._lineage.says(leader_epoch, self.log_end):
                    self._write_lineage(leader_epoch)
                while part_headers:
                    written = self._append_run(part, part_headers)
                    part_bytes = sum(header.size_bytes for header in part_headers[:written])
                    part, part_headers = part[part_bytes:], part_headers[written:]
                    size_bytes += part_bytes
                    batches += written
        except StorageFailedError:
            if self.log_end == begin:
                raise
        return FetchedAppend(self.log_end, size_bytes, batches)

    def _last_batch(self) -> tuple[BatchHeader, Buffer] | None:
        """Return the last batch, uncompressed; None: the log is empty. StorageFailedError."""
        if self.log_start == self.log_end:
            return None
        try:
            return next(self.view().batches(self.log_end - 1, self.log_end))
        except (RemoteError, OSError) as error:
            raise StorageFailedError(f"cannot read the last batch: {error}") from error

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
        self._write(active, data[: sum(header.size_bytes for header in run)])
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

    def _write(self, active: ActiveSegment, data: Buffer) -> None:
        file = self._woken(active) if active.file is None else active.file
        try:
            file.write_at(active.size_bytes, data)
        except OSError as error:
            self._undo(partial(file.truncate, active.size_bytes))
            raise storage_error(f"{active.path} cannot be written", error) from error

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

    def _undo(self, undo: Callable[[], None]) -> None:
        try:
            undo()
        except OSError:
            self._fence("a write could not be undone")

    def keep_latest(self, wanted: bool) -> None:
        """Choose whether to keep small batches in memory, so that followers get them without reading the file."""
        self.keeps_latest, self.latest = wanted, None

    # Roll.

    def _roll(self, active: ActiveSegment) -> ActiveSegment:
        """Seal the active segment and begin the next one. StorageFailedError: the log is unchanged."""
        self._woken(active)
        try:
            self._flush_state.open_names()
            new = self._create_next()
        except OSError as error:
            raise storage_error(f"no new segment in {self._folder.path}", error) from error
        self._flush_state.add_sealed(active, self._segments.seal(new, self.log_end, self.last_timestamp_us))
        self._open_files.sealed(self)
        return new

    def _create_next(self) -> ActiveSegment:
        segment.clear_the_way(self._folder, self.log_end)
        try:
            return segment.create(self._folder, self.log_end)
        except OSError:
            # The file would be in the way when the old segment continues.
            self._undo(partial(self._vfs.remove, self._folder.segment_path(self.log_end)))
            raise

    def _try_roll(self, active: ActiveSegment) -> None:
        # A failure is harmless: the segment grows, the next tick retries, and an append reports a full disk.
        with contextlib.suppress(StorageFailedError):
            self._roll(active)

    # Flush.

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
        if flush.end != self.flushed_end or flush.end_place[0] != self._flush_state.end_place[0]:
            self._checkpoint.is_dirty = self._checkpoint.is_behind = True
        self.flushed_end = flush.end
        self._open_files.synced(self, self._flush_state.ended(flush, self._segments.active))

    def flush_failed(self, flush: Flush, error: OSError) -> None:
        """Handle the failure of `flush.run()`: what it was to flush may be lost; the log is fenced until a restart."""
        closed = self._flush_state.failed(flush)
        self._fence(str(error))
        self.notices = (*self.notices, f"{self._folder.path} is fenced: a sync failed: {error}")
        self._open_files.synced(self, closed)

    def check_name(self) -> None:
        """Fence the log if the active segment's file was removed or moved: no later start would find its acked rows."""
        active = self._segments.active
        if self._state is not LogState.WRITABLE or active is None or active.file is None:
            return
        if not active.file.has_its_name():
            self._fence(f"{active.path} was removed or moved")

    def note_flushed(self) -> None:
        """Record the flushed offset in the checkpoint, so that no start takes corruption below it for a torn tail.

        On failure the checkpoint lags behind until a later call succeeds.
        """
        if self._checkpoint.is_behind and self._state is not LogState.TRUNCATING:
            try:  # not `suppress`: this runs for every sync
                self._checkpoint.write(self._checkpoint_values(), keeps_file=self.is_awake)
            except OSError:
                return

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

    # Views and corruption.

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
            self._filters,
        )

    @property
    def damage(self) -> tuple[Damage, ...]:
        """Known corrupt ranges."""
        self._take_damage()
        return self._damage.known

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

    # Time and retention.

    def tick(self, now_us: int, committed_end: int | None = None) -> Retention | None:
        """Do time-based work: roll, write the checkpoint. Return a retention task if messages may have to go.

        Retention removes only flushed and, if `committed_end` is given, committed messages. A flush may be due
        afterwards. Call it about once a second, or when `due_us` says.
        """
        if self.state is not LogState.WRITABLE:
            return None
        if self._checkpoint.wants_sync(now_us):
            self._hasten_checkpoint()
        active = self._segments.active
        assert active is not None
        if active.count and (now_us >= self._segments.roll_at_us or self._must_roll(active)):
            self._try_roll(active)
        if now_us - self.last_timestamp_us >= _IDLE_US:
            self.rest()
        if not self._retention_tracker.is_due(now_us, is_exceeded=self._exceeds_limit(now_us)):
            return None
        end = self.flushed_end if committed_end is None else min(self.flushed_end, committed_end)
        retention = Retention(
            self._config, self.view(), hidden=self._erasable, size_bytes=self.size_bytes, now_us=now_us, end=end
        )
        return self._retention_tracker.begin(retention, now_us)

    def _exceeds_limit(self, now_us: int) -> bool:
        return self._config.is_exceeded(
            messages=self.log_end - self.log_start,
            size_bytes=self.size_bytes,
            oldest_us=self._retention_tracker.oldest_us,
            now_us=now_us,
        )

    def due_us(self, now_us: int) -> int | None:
        """Time at which `tick` next has something to do, as far as known; None if time alone requires nothing.

        An append, the end of a flush or of retention, a config change and corruption may bring it forward.
        """
        if self.state is not LogState.WRITABLE:
            return None
        active = self._segments.active
        assert active is not None
        is_exceeded = self._exceeds_limit(now_us)
        dues = self._retention_tracker.dues_us(now_us, self._config.max_age_us, is_exceeded=is_exceeded)
        if self._checkpoint.is_dirty:
            dues.append(self._checkpoint.due_us)
        if active.count and self._segments.roll_at_us != NEVER_US:
            dues.append(self._segments.roll_at_us)
        if active.count and self._must_roll(active):
            dues.append(now_us)
        if active.file is not None:
            dues.append(self.last_timestamp_us + _IDLE_US)
        if (cleaning_us := self.cleaning_due_us(now_us)) is not None:
            dues.append(cleaning_us)
        return min(dues, default=None)

    def _must_roll(self, active: ActiveSegment) -> bool:
        """True if the active segment has rows that are to go at once: only sealed ones are rewritten or removed."""
        base_offset = active.base_offset
        return base_offset < self.roll_end or self._cleaner.wants_roll(base_offset, self.log_end)

    def apply_retention(self, retention: Retention) -> Removal | None:
        """Take the result of `retention.run()`: raise log_start, and return a task if segments are to be removed."""
        if not self._retention_tracker.end(retention):
            return None  # the log was closed or truncated meanwhile
        if self.state is not LogState.WRITABLE:
            return None
        # A config changed meanwhile may keep more: the next tick starts retention again.
        if retention.log_start is not None and retention.config == self._config:
            try:
                self._raise_start(retention.log_start)
            except StorageFailedError:
                return None  # a later tick retries
            if retention.oldest_us is not None:
                self._retention_tracker.oldest_us = retention.oldest_us
        paths = self._retention_tracker.take_removable()
        if paths is None:
            return None
        self._removal = Removal(self._folder, paths, self._checkpoint.sync)
        return self._removal

    def discard_retention(self, retention: Retention) -> None:
        """Discard a retention task, as the log is about to be truncated."""
        self._retention_tracker.end(retention)

    def removed(self, removal: Removal) -> None:
        """Record that `removal.run()` returned."""
        if not removal.is_void:
            self._retention_tracker.removed()

    def removal_failed(self, removal: Removal) -> None:
        """Record that `removal.run()` raised OSError; a later tick retries with backoff."""
        if not removal.is_void:
            self._retention_tracker.failed(removal.paths)

    def raise_start(self, log_start: int) -> None:
        """Raise log_start, up to flushed_end; a lower one has no effect. A follower calls it with each fetch response.

        If the log ends before the leader's start, call `reset`. StorageFailedError, NotWritableError.
        """
        self._check_writable()
        self._raise_start(min(log_start, self.flushed_end))

    def _raise_start(self, log_start: int) -> None:
        if log_start <= self.log_start:
            return
        before, self.log_start = self.log_start, log_start
        try:
            self._checkpoint.write(self._checkpoint_values())
        except OSError as error:
            self.log_start = before
            raise storage_error(f"the checkpoint of {self._folder.path} cannot be written", error) from error
        self._validity.give_up(log_start)  # at once: other threads may be reading
        active = self._segments.active
        assert active is not None
        if log_start == self.log_end and active.count:
            self._try_roll(active)
        # Removed but unflushed segments stay with the next flush, which closes their files: one may be running right
        # now.
        self._retention_tracker.start_raised(self._segments.give_up_below(log_start))

    # Hidden rows, high watermark and cleaning.

    def hide(self, hidden: RowSet, secure: RowSet = NONE, marked_epoch: int = 0) -> None:
        """Take the set of rows that readers are not shown: the cleaner removes them in time, and those in `secure` as
        soon as it may. A view of the log has them: see `LogView.hiding`.

        `marked_epoch`: the leader epoch in which the last of them was named; 0: they are this log's. Rows that a later
        leader wrote at the same offsets, because an election lost those that were named, are others, and are shown.
        """
        self._marked = hidden, secure, marked_epoch
        self._hide_own()

    def _hide_own(self) -> None:
        """Hide the rows that are named and are this log's."""
        hidden, secure, _ = self._marked
        end = self._marked_end
        if end < OFFSET_MAX:
            hidden, secure = hidden.between(0, end), secure.between(0, end)
        self.hidden = hidden or None
        # Below the log start nothing is hidden any more, but a segment that begins there still holds the bytes.
        self._cleaner.hide(hidden | secure.between(0, self.log_start), secure)

    @property
    def _marked_end(self) -> int:
        """End of the rows that are those named by marks; from there on a later leader wrote others."""
        return self.marked_end(self._marked[2])

    def unerased(self, rows: RowSet) -> Unerased | None:
        """Return how many of these rows, which are hidden for good, files of this log may hold the content of, and what
        the erasing waits for; None if nothing is left of them.
        """
        own = rows.between(0, self._marked_end)
        rows = own.between(self._segments.first_base, OFFSET_MAX)
        if rows and rows.end > self.log_end:
            return Unerased(rows.count_in(self.log_end, OFFSET_MAX), "it has not all messages of its leader yet")
        left = sum(left_in(one, rows) for one in self._segments.sealed)
        active = self._segments.active
        in_active = 0 if active is None else rows.count_in(active.base_offset, self.log_end)
        if not left + in_active:
            if self._cleaner.holds_aside(own):
                return Unerased(0, "files that were replaced, or kept aside, are being removed")
            is_pending = bool(self._retention_tracker.pending)
            return Unerased(0, "segments before the log start are being removed") if is_pending else None
        if self.state is not LogState.WRITABLE:
            why = f"its log is {self._state.value}"
        elif not self._config.erases:
            why = "nothing of the stream may be removed now: it is sealed, or its deletion is suspended"
        else:
            why = "segments are to be rewritten"
        return Unerased(left + in_active, why)

    def marked_end(self, epoch: int) -> int:
        """End of this log's rows that marks of a leader epoch can name; OFFSET_MAX: they may name all."""
        entries = self._lineage.entries
        is_earlier = bool(epoch and entries and entries[-1].leader_epoch > epoch)
        return self.epoch_end(epoch).start_offset if is_earlier else OFFSET_MAX

    @property
    def committed_end(self) -> int:
        """High watermark, also after a restart; log_start if nothing is known to be committed."""
        return max(self._committed_end, self.log_start)

    def note_committed(self, end: int) -> None:
        """Advance the high watermark to `end`. It never goes back, and the next checkpoint records it."""
        end = min(end, self.log_end)
        if end > self._committed_end:
            self._committed_end = end
            self._checkpoint.is_dirty = True
            if self.latest is not None and self.latest.end_offset <= end:
                self.latest = None

    @property
    def sealed_end(self) -> int:
        """End of the last sealed segment; 0 if there is none."""
        sealed = self._segments.sealed
        return sealed[-1].end_offset if sealed else 0

    @property
    def _cleanable_end(self) -> int:
        return min(self.flushed_end, self.committed_end)

    def wants_cleaning(self, now_us: int) -> bool:
        """True if `clean` has something to do."""
        return self.state is LogState.WRITABLE and self._cleaner.is_due(self._cleanable_end, now_us)

    def cleaning_due_us(self, now_us: int) -> int | None:
        """Time at which `wants_cleaning` may become true without further events; None if never."""
        return self._cleaner.due_us(self._cleanable_end, now_us)

    def wants_erasure(self, now_us: int) -> bool:
        """True if `clean` would rewrite a segment because of rows that are to be erased at once."""
        return self.state is LogState.WRITABLE and self._cleaner.wants_erasure(self._cleanable_end, now_us)

    def clean(
        self, now_us: int, *, may_survey: bool = True, may_tidy: bool = True, knows_hidden: bool = True
    ) -> CleanerTask | None:
        """Return a task that rewrites one sealed, committed and flushed segment, or that surveys which rows to remove;
        None if there is nothing to do. One task at a time. `may_survey`: a survey of all segments may begin;
        `knows_hidden`: `hide` was given all that is hidden. Small batches are merged once, unless the segment changes;
        with compression configured, all are compressed once. `may_tidy` False: only rows that are to be erased at once
        are removed.
        """
        if not self.wants_cleaning(now_us):
            return None
        return self._cleaner.begin(
            self.view(),
            self._cleanable_end,
            now_us,
            may_survey=may_survey,
            may_tidy=may_tidy,
            knows_hidden=knows_hidden,
        )

    def cleaned(self, task: CleanerTask, now_us: int) -> bool:
        """Take a task that succeeded, failed or was abandoned. Return True if a new segment replaced an old one; the
        old file stays for current readers until `dispose`. OSError.
        """
        return self._cleaner.ended(task, now_us, may_replace=self.state is LogState.WRITABLE)

    @property
    def found(self) -> FoundHidden | None:
        """Rows that a survey has found to go, which marks are to hide: then call `decided`. See `Deciding`."""
        return self._cleaner.found

    def decided(self, found: FoundHidden, now_us: int, *, is_hidden: bool) -> None:
        """Go on after what a survey found is hidden (`hide`), or could not be hidden now: it is surveyed again."""
        self._cleaner.decided(found, now_us, is_hidden=is_hidden)

    @property
    def is_cleaned(self) -> bool:
        """True while a cleaner task is under way."""
        return self._cleaner.under_way is not None

    def dispose(self, young: int = 0) -> Disposal | None:
        """Return a task that removes replaced files, except the newest `young` ones; then call `disposed`.

        None: there is nothing to remove, or a truncation is under way.
        """
        if self._state is LogState.TRUNCATING:
            return None
        # A read-only log may be under repair, whose unfinished files a sweep would remove.
        return self._cleaner.dispose(young, sweeps=self._state is LogState.WRITABLE)

    @property
    def owes_sweep(self) -> bool:
        """True if a `Disposal` is to remove side files, as they may hold rows that are to be erased at once."""
        return self._state is LogState.WRITABLE and self._cleaner.owes_sweep

    @property
    def is_disposing(self) -> bool:
        """True while a `Disposal` is under way: the log must not be truncated meanwhile."""
        return self._cleaner.disposal is not None

    def disposed(self, *, has_failed: bool = False) -> None:
        """End the `Disposal`; files it failed to remove go with the next one or the next start."""
        self._cleaner.disposed(has_failed=has_failed)

    # Leader epochs.

    @property
    def lineage(self) -> tuple[LineageEntry, ...]:
        """Leader epoch history, oldest first."""
        return self._lineage.entries

    def start_epoch(self, leader_epoch: int) -> None:
        """Begin a leadership at log_end; the next flush makes it durable. StorageFailedError, NotWritableError."""
        self._check_writable()
        assert leader_epoch > self.leader_epoch, (leader_epoch, self.leader_epoch)
        self._write_lineage(leader_epoch)

    def _write_lineage(self, leader_epoch: int) -> None:
        try:
            self._flush_state.open_names()
            file = self._lineage.start(LineageEntry(leader_epoch, self.log_end))
        except OSError as error:
            raise storage_error(f"the lineage of {self._folder.path} cannot be written", error) from error
        self.leader_epoch = max(self.leader_epoch, leader_epoch)
        self._checkpoint.is_dirty = True
        self._flush_state.add_lineage(file)
        if self._marked[0]:
            self._hide_own()

    @property
    def last_epoch(self) -> int:
        """Leader epoch of the newest batch, even if that is below log_start; 0: there was none."""
        return self._lineage.epoch_before(self.log_end)

    def epoch_end(self, leader_epoch: int) -> LineageEntry:
        """Return the last epoch known here up to `leader_epoch`, and its end offset (Kafka's OffsetsForLeaderEpoch).

        Two logs agree about an epoch that both know up to the lower of their two ends. Epoch 0, the `last_epoch` of an
        empty log, ends at log_end: nothing can differ. For an epoch older than all known ones the answer is 0 and the
        start offset of the oldest known epoch.
        """
        return self._lineage.epoch_end(leader_epoch, self.log_end) if leader_epoch else LineageEntry(0, self.log_end)

    # Truncate.

    def truncate(self, end: int) -> TruncationTask | None:
        """Return a task that truncates the log to `end`, or to the begin of the batch there; None if already so.

        Nothing below log_start is removed, except the batch that holds it. No flush may be running, and the log accepts
        nothing until `truncated`. NotWritableError.
        """
        self._check_writable()
        end = max(end, self.log_start)
        return None if end >= self.log_end else self._begin_cut(end, None)

    def reset(self, start: int) -> TruncationTask:
        """Return a task that discards the whole log and restarts it at offset `start`; see `truncate`.

        For a follower whose leader's log starts beyond this one's end, or shares nothing with it.
        """
        self._check_writable()
        assert start >= 0, start
        return self._begin_cut(0, start)

    def _begin_cut(self, end: int, start: int | None) -> TruncationTask:
        assert self._flush_state.under_way is None, "a flush is under way"
        assert self._cleaner.disposal is None, "files are being removed, whose names may be used again"
        self._cleaner.void()
        active = self._segments.active
        assert active is not None
        cut = TruncationTask(
            self._folder,
            self.view(ViewValidity()),  # its own: this truncation must not invalidate the task's view
            end,
            start=start,
            checkpoint=self._checkpoint,
            values=self._checkpoint_values(),
            lineage=self._lineage.entries,
            unsynced=self._flush_state.unsynced + (() if active.file is None else (active.file,)),
        )
        self._state = LogState.TRUNCATING
        self._validity.cut(end)  # at once: other threads may be reading
        if start is not None and self._removal is not None:
            self._removal.is_void = True
        return cut

    def truncated(self, truncation: TruncationTask) -> None:
        """Take the result of `truncation.run()`: the log continues from there, and all of it is on disk."""
        left = truncation.left
        assert left is not None
        self._end_cut()
        if self._segments.active is not None:
            self._segments.active.close()
        values = left.checkpoint
        self._segments.replace(left.sealed, left.active)
        self._flush_state.restart(left.active)
        self._cleaner.restart(left.active.base_offset)
        self._lineage = Lineage(self._vfs, self._folder.path, left.lineage)
        self._rebuilt_indexes = RebuiltIndexes()
        self._open_files.give_back(self)
        self._checkpoint.is_dirty = self._checkpoint.is_behind = self._checkpoint.is_due = False
        self.log_start, self.log_end, self.flushed_end = values.log_start, values.flushed_end, values.flushed_end
        self._committed_end = values.committed_end
        if self._marked[0]:
            self._hide_own()
        self.last_timestamp_us = values.last_timestamp_us
        self.leader_epoch = values.leader_epoch
        self._retention_tracker.restart(is_empty=self.log_start == self.log_end, forgets=truncation.start is not None)
        left.active.rest(self.log_end, self.last_timestamp_us)

    def truncate_failed(self, truncation: TruncationTask, error: Exception) -> None:
        """Handle the failure of `truncation.run()`: fence the log if files were changed; otherwise it is as it was."""
        self._end_cut()
        # Once files have changed, the checkpoint on disk is right: values known here must not overwrite it.
        self._checkpoint.is_dirty = self._checkpoint.is_behind = not truncation.has_changed
        if truncation.has_changed:
            self._fence(str(error))
            self.notices = (*self.notices, f"{self._folder.path} is fenced: it could not be truncated: {error}")
        elif self._removal is not None and self._removal.is_void:
            self._retention_tracker.failed(self._removal.paths)
            self._removal = None

    def _end_cut(self) -> None:
        assert self._state is LogState.TRUNCATING
        self._validity = self._validity.later()
        self._state = LogState.READ_ONLY if self._damage.known else LogState.WRITABLE

    # Repair.

    def repair(self) -> SegmentRepair:
        """Return a task that repairs corrupt segments from other replicas; reopen the log afterwards.

        The log must be read-only because of the corruption, and flushed.
        """
        assert self.state is LogState.READ_ONLY, self._state
        assert self.flushed_end == self.log_end, "something is to be flushed"
        segments = self._segments.seen(self.log_end, self.last_timestamp_us, ())
        lineage = self._lineage.entries if self._is_lineage_sure else None
        return SegmentRepair(self._folder, segments, self.damage, self._checkpoint_values(), lineage)

    @property
    def awaits_opening(self) -> bool:
        """True if unflushed data can only be synced by reopening the log, since it was opened with corruption."""
        return self._segments.active is None and self.flushed_end != self.log_end

    def side_files(self) -> SideFiles:
        """Return a check of the files beside the segments; run it in a disk thread, then call `repair_side_files`."""
        return SideFiles(self._vfs, self._folder.path, self._lineage.entries)

    def repair_side_files(self, checked: SideFiles) -> tuple[FileMistake, ...]:
        """Return the errors that `checked.run()` found; if the log is writable, repair them from what it knows.

        The checkpoint's slots are rewritten at the next tick, which this call requests.
        """
        found = list(checked.mistakes)
        active = self._segments.active if self.state is LogState.WRITABLE else None  # None: nothing may be written
        if active is not None and checked.bad_slots:
            self._checkpoint.rewrite(checked.bad_slots)
            self._damage.ask_for_visit()
        if checked.lineage is self._lineage.entries and (wrong := checked.lineage_mistake()) is not None:
            found.append(wrong)
            if active is not None:
                with contextlib.suppress(OSError):  # the next check finds it again
                    self._flush_state.open_names()
                    self._flush_state.add_lineage(self._lineage.rewritten())
                    self._damage.ask_for_visit()
        if active is not None and (wrong := active.trim_index(self._vfs)) is not None:
            found.append(wrong)
        return tuple(found)

    # Checkpoint and close.

    @property
    def is_on_disk(self) -> bool:
        """True if everything appended is on the disk, and so is the checkpoint that says it.

        Behind an older checkpoint the next start takes corruption for a torn tail, and cuts it off.
        """
        is_synced = self._flush_state.under_way is None and self.flushed_end == self.log_end
        is_noted = self._segments.active is None or not self._checkpoint.is_dirty
        return self._state is not LogState.FENCED and is_synced and is_noted

    def checkpoint(self, *syncs: Callable[[], None]) -> None:
        """Write and sync the checkpoint in this thread, together with other syncs. OSError."""
        self._checkpoint.write(self._checkpoint_values())
        self._vfs.together(self._checkpoint.sync, *syncs)
        self._checkpoint.is_dirty = False

    def hasten(self) -> None:
        """Before closing: have the next flush do the syncs that `close` would otherwise wait for."""
        if self.state is LogState.WRITABLE and self._checkpoint.is_dirty and self.flushed_end == self.log_end:
            self._hasten_checkpoint()

    def _hasten_checkpoint(self) -> None:
        with contextlib.suppress(OSError):  # retried next time
            self._checkpoint.write(self._checkpoint_values())
            self._checkpoint.will_sync()

    def _checkpoint_values(self) -> Checkpoint:
        return Checkpoint(
            sequence=0,
            stream_id=self._folder.stream_id,
            partition=self._folder.partition,
            leader_epoch=self.leader_epoch,
            flushed_end=self.flushed_end,
            segment_base=self._flush_state.end_place[0],
            segment_position=self._flush_state.end_place[1],
            log_start=self.log_start,
            last_timestamp_us=self.last_timestamp_us,
            committed_end=self._committed_end,
        )

    def close(self) -> None:
        """Make everything durable, in this thread, and close the files. No flush may be running.

        StorageFailedError if a sync failed; the log is closed nevertheless.
        """
        assert self._flush_state.under_way is None, "a flush is under way"
        assert self._state is not LogState.TRUNCATING, "a truncation is under way"
        self._cleaner.void()
        self._retention_tracker.give_up()
        try:
            if (flush := self.flush(with_index=True)) is not None:
                try:
                    flush.run()
                except OSError as error:
                    self.flush_failed(flush, error)
                    raise
                self.flushed(flush)
            self.note_flushed()
            # A log that was opened corrupt keeps its checkpoint: another one could hide what was wrong with that.
            if self._segments.active is not None and self._checkpoint.is_dirty and self._state is not LogState.FENCED:
                self.checkpoint()
            if (disposal := self.dispose()) is not None:  # no reader is left
                with contextlib.suppress(OSError):  # the next start removes them
                    disposal.run()
                self.disposed()
        except OSError as error:
            raise storage_error(f"{self._folder.path} cannot be closed cleanly", error) from error
        finally:
            self._open_files.give_back(self)
            self._checkpoint.rest()
            self._flush_state.close()
            if self._segments.active is not None:
                self._segments.active.close()

    def supersede(self) -> None:
        """Close the log, as another one is opened on its files; its views raise LogCutError from now on.

        StorageFailedError: it is closed nevertheless.
        """
        self._validity.cut(0)
        self.close()

    def leave(self) -> None:
        """Prepare for another thread to close the log and remove its files: no other code touches them from now on."""
        self._validity.give_up(NEVER_OFFSET)
        self._open_files.give_back(self)
