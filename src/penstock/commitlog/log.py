"""Log: one partition's messages, in segments. One task writes it; any thread may read it through views.

Rules: `append` writes to the page cache and returns. Durability is separate (group commit): `flush` returns a task for
a disk thread, and `flushed` takes its result. At most one flush is running; what is appended meanwhile goes with the
next one, so one fdatasync serves all waiting messages. Recovery never truncates what the checkpoint declares flushed:
`note_flushed` writes it after each flush, once no ack waits for that any more.

Offsets: log_start (log start offset) <= flushed_end (flushed offset), committed_end (high watermark) <= log_end (log
end offset). Timestamps never decrease: the caller stamps max(now, last_timestamp_us).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.batch.header import BatchHeader
from penstock.commitlog import fetched
from penstock.commitlog.cleaned_log import CleanedLog
from penstock.commitlog.errors import NotWritableError, StorageFailedError, storage_error
from penstock.commitlog.fetched import FetchedAppend
from penstock.commitlog.files import checkpoint as checkpoints
from penstock.commitlog.files import files
from penstock.commitlog.files import lineage as lineages
from penstock.commitlog.files.checkpoint import Checkpoint
from penstock.commitlog.files.index import ENTRY_BYTES
from penstock.commitlog.files.lineage import BatchLineage, Lineage, LineageEntry
from penstock.commitlog.files.mistakes import FileMistake
from penstock.commitlog.files.open_files import OpenFiles
from penstock.commitlog.files.side_files import SideFiles
from penstock.commitlog.recovery import epochs
from penstock.commitlog.recovery.recovery import CutTail, RecoveredLog, Recovery
from penstock.commitlog.repair.segment_repair import SegmentRepair
from penstock.commitlog.segment.rebuild import RebuiltIndexes
from penstock.commitlog.segment.segment import ActiveSegment
from penstock.commitlog.segments import NEVER_US
from penstock.commitlog.state import LogState
from penstock.commitlog.tasks import Removal
from penstock.commitlog.truncation import TruncationTask
from penstock.commitlog.view.retention import LogConfig, Retention
from penstock.commitlog.view.view_validity import ViewValidity
from penstock.vfs import Buffer, Vfs

_REST_US = limits.LOG_IDLE_MS * 1000


class Log(CleanedLog):
    """One partition's log. Create it with `Log.open`."""

    __slots__ = ("_is_lineage_sure", "_lineage", "_removal", "cuts")

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
        super().__init__(vfs, directory, ids, config, found, now_us, open_files, noticed)
        self._lineage = Lineage(vfs, directory, ())
        self._is_lineage_sure = True  # False: some of it was lost
        self._removal: Removal | None = None  # the latest one
        self.cuts: tuple[CutTail, ...] = tuple(found.cuts)

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
        noticed: Callable[[int, int], None] | None = None,
    ) -> Log:
        """Open and recover the log in `directory`, or create a new, durable one. StorageFailedError.

        `must_exist`: the log was created before; LogMissingError if nothing of it is there. `open_files`: counts its
        open file; it opens none until its first message. `noticed` is called in any thread, with the stream id and the
        partition, when a reader has found corruption; the next tick takes that in.
        """
        try:
            found = Recovery(vfs, directory, stream_id, partition, must_exist=must_exist).run()
            open_files = OpenFiles() if open_files is None else open_files
            log = cls(vfs, directory, (stream_id, partition), config, found, now_us, open_files, noticed)
            log._open_lineage(found.told)
            if log._state is LogState.WRITABLE and not (must_exist and found.left_as(log._checkpoint_values())):
                if found.checkpoint is not None:
                    log._checkpoint.write_again(found.checkpoint)
                log.checkpoint()
                if found.checkpoint is None:
                    # The log may be new: make the folder's own name durable.
                    vfs.sync_dir(directory)
            if found.has_unused:
                checkpoints.clear_unused(vfs, directory)
            if found.active is not None:
                found.active.rest(log.log_end, log.last_timestamp_us)
        except OSError as error:
            raise storage_error(f"{directory} cannot be opened", error) from error
        return log

    @property
    def lineage(self) -> tuple[LineageEntry, ...]:
        """Leader epoch history, oldest first."""
        return self._lineage.entries

    def start_epoch(self, leader_epoch: int) -> None:
        """Begin a leadership at log_end; the next flush makes it durable. StorageFailedError, NotWritableError."""
        self._check_writable()
        assert leader_epoch > self.leader_epoch, (leader_epoch, self.leader_epoch)
        self._write_lineage(leader_epoch)

    def _check_writable(self) -> None:
        if self.state is not LogState.WRITABLE:
            raise NotWritableError(f"{self._directory} is {self._state.value}")

    def _write_lineage(self, leader_epoch: int) -> None:
        try:
            self._flush_state.open_names()
            file = self._lineage.start(LineageEntry(leader_epoch, self.log_end))
        except OSError as error:
            raise storage_error(f"the lineage of {self._directory} cannot be written", error) from error
        self.leader_epoch = max(self.leader_epoch, leader_epoch)
        self._checkpoint.is_dirty = True
        self._flush_state.add_lineage(file)

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

    # Following a leader.

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
            self._vfs,
            self._directory,
            self.view(ViewValidity()),  # its own: this truncation must not invalidate the task's view
            end,
            start=start,
            checkpoint=self._checkpoint,
            values=self._checkpoint_values(),
            lineage=self._lineage.entries,
            unsynced=self._flush_state.unsynced + (() if active.file is None else (active.file,)),
            note=self._damage.note,
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
        self._lineage = Lineage(self._vfs, self._directory, left.lineage)
        self._rebuilt_indexes = RebuiltIndexes()
        self._open_files.give_back(self)
        self._checkpoint.is_dirty = self._checkpoint.is_behind = self._checkpoint.is_due = False
        self.log_start, self.log_end, self.flushed_end = values.log_start, values.flushed_end, values.flushed_end
        self._committed_end = values.committed_end
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
            self.notices = (*self.notices, f"{self._directory} is fenced: it could not be truncated: {error}")
        elif self._removal is not None and self._removal.is_void:
            self._retention_tracker.failed(self._removal.paths)
            self._removal = None

    def repair(self) -> SegmentRepair:
        """Return a task that repairs corrupt segments from other replicas; reopen the log afterwards.

        The log must be read-only because of the corruption, and flushed.
        """
        assert self.state is LogState.READ_ONLY, self._state
        assert self.flushed_end == self.log_end, "something is to be flushed"
        segments = self._segments.seen(self.log_end, self.last_timestamp_us, ())
        lineage = self._lineage.entries if self._is_lineage_sure else None
        return SegmentRepair(
            self._vfs, self._directory, self._ids, segments, self.damage, self._checkpoint_values(), lineage
        )

    @property
    def awaits_opening(self) -> bool:
        """True if unflushed data can only be synced by reopening the log, since it was opened with corruption."""
        return self._segments.active is None and self.flushed_end != self.log_end

    def side_files(self) -> SideFiles:
        """Return a check of the files beside the segments; run it in a disk thread, then call `repair_side_files`."""
        return SideFiles(self._vfs, self._directory, self._lineage.entries)

    def repair_side_files(self, look: SideFiles) -> tuple[FileMistake, ...]:
        """Return the errors that `look.run()` found; if the log is writable, repair them from what it knows.

        The checkpoint's slots are rewritten at the next tick, which this call requests.
        """
        found = list(look.mistakes)
        may_mend = self.state is LogState.WRITABLE
        if may_mend and look.bad_slots:
            self._checkpoint.rewrite(look.bad_slots)
            self._damage.ask_for_visit()
        if look.lineage is self._lineage.entries and (wrong := look.lineage_mistake()) is not None:
            found.append(wrong)
            if may_mend:
                with contextlib.suppress(OSError):  # the next check finds it again
                    self._rewrite_lineage()
        if may_mend and (wrong := self._trim_index()) is not None:
            found.append(wrong)
        return tuple(found)

    def _rewrite_lineage(self) -> None:
        self._flush_state.open_names()
        self._flush_state.add_lineage(self._lineage.rewritten())
        self._damage.ask_for_visit()

    def _trim_index(self) -> FileMistake | None:
        """Truncate the active segment's index beyond its last batch; return what was wrong."""
        active = self._segments.active
        assert active is not None
        path, end_position = files.index_path(active.path), active.count * ENTRY_BYTES
        try:
            file = self._vfs.open(path)
        except OSError:
            return None  # the check against the batches reports it
        try:
            if (size := file.size()) <= end_position:
                return None
            with contextlib.suppress(OSError):
                file.truncate(end_position)
        finally:
            file.close()
        return FileMistake(path, end_position, None, None, "the end of the file", f"{size - end_position} bytes more")

    def supersede(self) -> None:
        """Close the log, as another one is opened on its files; its views raise LogCutError from now on.

        StorageFailedError: it is closed nevertheless.
        """
        self._validity.cut(0)
        self.close()

    def _end_cut(self) -> None:
        assert self._state is LogState.TRUNCATING
        self._validity = self._validity.later()
        self._state = LogState.READ_ONLY if self._damage.known else LogState.WRITABLE

    def follow_start(self, log_start: int) -> None:
        """Move log_start to the leader's, limited to flushed_end. Call it with every fetch response.

        If the log ends before the leader's start, call `reset`. StorageFailedError, NotWritableError.
        """
        self._check_writable()
        self._move_start(min(log_start, self.flushed_end))

    def note_flushed(self) -> None:
        """Record the flushed offset in the checkpoint, so that no start takes corruption below it for a torn tail.

        On failure the checkpoint lags behind until a later call succeeds.
        """
        if self._checkpoint.is_behind and self._state is not LogState.TRUNCATING:
            with contextlib.suppress(OSError):
                self._checkpoint.write(self._checkpoint_values(), keeps_file=self.is_awake)

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
        if active.count and now_us >= self._segments.roll_at_us:
            self._try_roll(active)
        if now_us - self.last_timestamp_us >= _REST_US:
            self.rest()
        if not self._retention_tracker.wants_look(self._config, now_us=now_us, **self._extent()):
            return None
        end = self.flushed_end if committed_end is None else min(self.flushed_end, committed_end)
        look = Retention(self._config, self.view(), size_bytes=self.size_bytes, now_us=now_us, end=end)
        return self._retention_tracker.begin(look, now_us)

    def hasten(self) -> None:
        """Before closing: have the next flush do the syncs that `close` would otherwise wait for."""
        if self.state is LogState.WRITABLE and self._checkpoint.is_dirty and self.flushed_end == self.log_end:
            self._hasten_checkpoint()

    def _hasten_checkpoint(self) -> None:
        with contextlib.suppress(OSError):  # retried next time
            self._checkpoint.write(self._checkpoint_values())
            self._checkpoint.will_sync()

    def due_us(self, now_us: int) -> int | None:
        """Time at which `tick` next has something to do, as far as known; None if time alone requires nothing.

        An append, the end of a flush or of retention, a config change and corruption may bring it forward.
        """
        if self.state is not LogState.WRITABLE:
            return None
        dues = []
        active = self._segments.active
        assert active is not None
        if self._checkpoint.is_dirty:
            dues.append(self._checkpoint.due_us)
        if active.count and self._segments.roll_at_us != NEVER_US:
            dues.append(self._segments.roll_at_us)
        if active.file is not None:
            dues.append(self.last_timestamp_us + _REST_US)
        dues += self._retention_tracker.dues_us(self._config, now_us=now_us, **self._extent())
        if (cleaning_us := self.cleaning_due_us(now_us)) is not None:
            dues.append(cleaning_us)
        return min(dues, default=None)

    def _extent(self) -> dict[str, int]:
        return {"messages": self.log_end - self.log_start, "size_bytes": self.size_bytes}

    def retained(self, retention: Retention) -> Removal | None:
        """Take the result of `retention.run()`: move log_start, and return a task if segments are to be removed."""
        if not self._retention_tracker.looked(retention):
            return None  # the log was closed or truncated meanwhile
        if self.state is not LogState.WRITABLE:
            return None
        # A config changed meanwhile may keep more: the next tick starts retention again.
        if retention.log_start is not None and retention.config == self._config:
            try:
                self._move_start(retention.log_start)
            except StorageFailedError:
                return None  # a later tick retries
            if retention.oldest_us is not None:
                self._retention_tracker.oldest_us = retention.oldest_us
        paths = self._retention_tracker.take_removable()
        if paths is None:
            return None
        self._removal = Removal(self._vfs, self._directory, paths, self._checkpoint.sync)
        return self._removal

    def not_retained(self, retention: Retention) -> None:
        """Discard a retention task, as the log is about to be truncated."""
        self._retention_tracker.looked(retention)

    def removed(self, removal: Removal) -> None:
        """Record that `removal.run()` returned."""
        if not removal.is_void:
            self._retention_tracker.removed()

    def removal_failed(self, removal: Removal) -> None:
        """Record that `removal.run()` raised OSError; a later tick retries with backoff."""
        if not removal.is_void:
            self._retention_tracker.failed(removal.paths)

    def _try_roll(self, active: ActiveSegment) -> None:
        try:
            self._roll(active)
        except StorageFailedError:
            # Harmless: the segment grows, the next tick retries, and an append reports a full disk.
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
        self._validity.give_up(log_start)  # at once: other threads may be reading
        active = self._segments.active
        assert active is not None
        if log_start == self.log_end and active.count:
            self._try_roll(active)
        # Removed but unflushed segments stay with the next flush, which closes their files: one may be running right
        # now.
        self._retention_tracker.moved(self._segments.give_up_below(log_start))

    # Checkpoint, close, lineage.

    def checkpoint(self) -> None:
        """Write and sync the checkpoint in this thread. OSError."""
        self._checkpoint.write(self._checkpoint_values())
        self._checkpoint.sync()
        self._checkpoint.is_dirty = False

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
            if self._state is LogState.WRITABLE and self._checkpoint.is_dirty:
                self.checkpoint()
            self._dispose_now()
        except OSError as error:
            raise storage_error(f"{self._directory} cannot be closed cleanly", error) from error
        finally:
            self._open_files.give_back(self)
            self._checkpoint.rest()
            self._flush_state.close()
            if self._segments.active is not None:
                self._segments.active.close()

    def _checkpoint_values(self) -> Checkpoint:
        return Checkpoint(
            sequence=0,
            stream_id=self._ids[0],
            partition=self._ids[1],
            leader_epoch=self.leader_epoch,
            flushed_end=self.flushed_end,
            segment_base=self._flush_state.end_place[0],
            segment_position=self._flush_state.end_place[1],
            log_start=self.log_start,
            last_timestamp_us=self.last_timestamp_us,
            committed_end=self._committed_end,
        )

    def _open_lineage(self, told: Sequence[BatchLineage]) -> None:
        found = lineages.read(self._vfs, self._directory)
        if found.entries:
            self.leader_epoch = max(self.leader_epoch, found.entries[-1].leader_epoch)
        if found.mistake is not None:
            self.notices = (*self.notices, str(found.mistake))
        entries = found.entries
        self._is_lineage_sure = not lineages.is_in_doubt(found, told)
        if self._state is LogState.WRITABLE:
            known = None
            if not self._is_lineage_sure:
                segments = self._segments.seen(self.log_end, self.last_timestamp_us, ())
                known = epochs.joined(epochs.epochs_in(self._vfs, one) for one in segments)
                self._is_lineage_sure = True
            entries = lineages.recover(self._vfs, self._directory, found, self.log_start, self.log_end, told, known)
        self._lineage = Lineage(self._vfs, self._directory, entries)
