"""Part of `Log`: the high watermark (`committed_end`), and the tasks of the cleaner (see `cleaning`).

Rules: only sealed, committed and flushed segments are rewritten, so normally no truncation concerns them. A truncation
that does voids the running task; no file name is reused while a file of that name may yet be removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.commitlog.cleaner.cleaning import Cleaner, CleanerTask, Cleaning, Disposal
from penstock.commitlog.cleaner.compaction import Survey
from penstock.commitlog.cleaner.expiry import ExpirySurvey
from penstock.commitlog.files.open_files import OpenFiles
from penstock.commitlog.recovery.recovery import RecoveredLog
from penstock.commitlog.segment.segment import Segment
from penstock.commitlog.state import LogState
from penstock.commitlog.view.retention import LogConfig
from penstock.commitlog.writer import LogWriter
from penstock.vfs import Vfs

if TYPE_CHECKING:
    import pyarrow as pa


class CleanedLog(LogWriter):
    """A log's write path with its cleaner. Base class of `Log`."""

    __slots__ = ("_cleaner", "_committed_end", "_config")

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
        self._config = config
        self._cleaner = Cleaner()
        self._committed_end = min(found.checkpoint.committed_end, found.log_end) if found.checkpoint else 0

    @property
    def config(self) -> LogConfig:
        """The config in force."""
        return self._config

    def configure(self, config: LogConfig) -> None:
        """Replace the config."""
        if config.compression is not self._config.compression:
            self._cleaner.look_again()
        if config != self._config:
            self._cleaner.reconsider()
        self._config = config
        self._segments.configure(config)

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

    def wants_cleaning(self, now_us: int) -> bool:
        """True if `clean` has something to do."""
        cleaner = self._cleaner
        if self.state is not LogState.WRITABLE or cleaner.under_way is not None or cleaner.disposal is not None:
            return False
        if cleaner.compactor.is_under_way:
            return True
        return any(due_us <= now_us for due_us in self._cleaning_dues_us())

    def cleaning_due_us(self, now_us: int) -> int | None:
        """Time at which `wants_cleaning` may become true without further events; None if never."""
        return min((due_us for due_us in self._cleaning_dues_us() if due_us > now_us), default=None)

    def _cleaning_dues_us(self) -> list[int]:
        cleaner, sealed, config, end = self._cleaner, self._segments.sealed, self._config, self._cleanable_end
        dues = (
            cleaner.compactor.due_us(sealed, config, end),
            cleaner.expirer.due_us(sealed, config, end),
            cleaner.merge_due_us(sealed, end),
        )
        return [due_us for due_us in dues if due_us is not None]

    @property
    def _cleanable_end(self) -> int:
        return min(self.flushed_end, self.committed_end)

    def clean(self, now_us: int, *, may_survey: bool = True) -> CleanerTask | None:
        """Return a task that rewrites one sealed, committed and flushed segment, or that surveys which rows to remove;
        None if there is nothing to do. One task at a time. `may_survey`: a survey of all segments may begin. Small
        batches are merged once, unless the segment changes; with compression configured, all are compressed once.
        """
        if not self.wants_cleaning(now_us):
            return None
        cleaner = self._cleaner
        cleaner.under_way = self._compact_on(now_us) or self._expire_on() or self._merge(now_us)
        if cleaner.under_way is None and may_survey:
            cleaner.under_way = self._compact(now_us)
        if cleaner.under_way is None:
            cleaner.under_way = self._expire(now_us)
        return cleaner.under_way

    def _compact_on(self, now_us: int) -> Cleaning | None:
        """Return the rewrite of the pass's next segment; if there is none, end the pass and return None."""
        compactor = self._cleaner.compactor
        if not compactor.is_under_way:
            return None
        if not compactor.is_wanted(self._config):
            compactor.abandon(now_us)
        elif (judged := compactor.next_judged(self._segments.sealed)) is not None:
            return self._cleaning(judged.segment, judged.keep, is_ordered=judged.is_ordered)
        else:
            compactor.finish(now_us)
            self._cleaner.expirer.compacted()
        return None

    def _expire_on(self) -> Cleaning | None:
        """Return the rewrite of the segment whose survey just found expired rows."""
        judged = self._cleaner.expirer.take_judged(self._segments.sealed)
        return None if judged is None else self._cleaning(judged.segment, judged.keep, is_expiry=True)

    def _merge(self, now_us: int) -> Cleaning | None:
        due_us = self._cleaner.merge_due_us(self._segments.sealed, self._cleanable_end)
        segment = self._cleaner.next_of(self._segments.sealed, self._cleanable_end)
        if segment is None or due_us is None or due_us > now_us:
            return None
        self._cleaner.looks_at(segment)
        return self._cleaning(segment, None)

    def _cleaning(
        self, segment: Segment, keep: pa.BooleanArray | None, *, is_expiry: bool = False, is_ordered: bool = False
    ) -> Cleaning:
        config = self._config
        cleaning = Cleaning(
            self._vfs,
            segment,
            self._ids,
            self.view(),
            config.merged_bytes_max,
            keep,
            config.compression,
            is_expiry=is_expiry,
            is_ordered=is_ordered,
        )
        self._cleaner.writes(cleaning.cleaned_path)
        return cleaning

    def _compact(self, now_us: int) -> Survey | None:
        return self._cleaner.compactor.begin(
            self._vfs, self.view(), self._segments.sealed, self._config, self._cleanable_end, now_us
        )

    def _expire(self, now_us: int) -> ExpirySurvey | None:
        cleaner = self._cleaner
        sealed, end = self._segments.sealed, self._cleanable_end
        return cleaner.expirer.begin(self._vfs, self.view(), sealed, self._config, end, now_us, cleaner.compactor)

    def cleaned(self, task: CleanerTask, now_us: int) -> bool:
        """Take a task that succeeded, failed or was abandoned. Return True if a new segment replaced an old one; the
        old file stays for current readers until `dispose`. OSError.
        """
        self._cleaner.under_way = None
        compactor = self._cleaner.compactor
        if isinstance(task, Survey):
            compactor.surveyed(task, now_us)
            return False
        if isinstance(task, ExpirySurvey):
            self._cleaner.expirer.surveyed(task, now_us)
            return False
        has_replaced = False
        try:
            has_replaced = self._replaced(task)
        finally:
            self._written(task, now_us, has_replaced=has_replaced)
        return has_replaced

    def _written(self, task: Cleaning, now_us: int, *, has_replaced: bool) -> None:
        cleaner = self._cleaner
        if has_replaced:
            cleaner.merged()
            if task.is_expiry:
                cleaner.expirer.written()
        elif task.segment not in self._segments.sealed:
            return  # retention removed it meanwhile
        elif not task.takes_rows:
            if task.has_failed and not task.is_void:
                cleaner.not_merged(task.segment, now_us)
        elif task.is_expiry:
            cleaner.expirer.not_written(task.segment.base_offset, now_us)
        else:
            cleaner.compactor.abandon(now_us)

    def _replaced(self, cleaning: Cleaning) -> bool:
        old, new = cleaning.segment, cleaning.replacement
        if new is None:
            return False
        config, compactor = self._config, self._cleaner.compactor
        is_asked_for = config.expires if cleaning.is_expiry else compactor.is_wanted(config)
        is_unwanted = cleaning.is_void or (cleaning.takes_rows and not is_asked_for)
        if is_unwanted or self.state is not LogState.WRITABLE or old not in self._segments.sealed:
            self._cleaner.superseded(cleaning.cleaned_path)
            return False
        try:
            self._vfs.rename(cleaning.cleaned_path, new.path)
        except OSError:
            cleaning.has_failed = True
            self._cleaner.superseded(cleaning.cleaned_path)
            raise
        self._segments.swap(old, new)
        old.successor = new
        self._cleaner.superseded(old.path)
        return True

    def dispose(self, young: int = 0) -> Disposal | None:
        """Return a task that removes replaced files, except the newest `young` ones; then call `disposed`.

        None: there is nothing to remove, or a truncation is under way.
        """
        return None if self._state is LogState.TRUNCATING else self._cleaner.dispose(self._vfs, self._directory, young)

    def _dispose_now(self) -> None:
        """For `close`: no reader is left."""
        if (disposal := self.dispose()) is not None:
            with contextlib.suppress(OSError):  # the next start removes them
                disposal.run()
            self.disposed()

    @property
    def is_cleaned(self) -> bool:
        """True while a cleaner task is under way."""
        return self._cleaner.under_way is not None

    @property
    def is_disposing(self) -> bool:
        """True while a `Disposal` is under way: the log must not be truncated meanwhile."""
        return self._cleaner.disposal is not None

    def disposed(self, *, has_failed: bool = False) -> None:
        """End the `Disposal`; files it failed to remove go with the next one or the next start."""
        self._cleaner.disposed(has_failed=has_failed)
