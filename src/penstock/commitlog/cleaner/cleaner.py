"""Cleaner: what is rewritten next in one log, one task at a time (Kafka's log cleaner).

Rules: only sealed, committed and flushed segments are rewritten, so normally no truncation concerns them. A truncation
that does voids the running task; no file name is reused while a file of that name may yet be removed. The rows of each
segment are judged by a survey before it is rewritten.

| next task, the first that is due                         | owner        |
|----------------------------------------------------------|--------------|
| rewrite a segment without its secure rows                | `Eraser`     |
| rewrite the next segment of the running compaction pass  | `Compactor`  |
| rewrite the segment that was just found to have expired  | `Expirer`    |
| merge or compress a segment, once                        | `Cleaner`    |
| rewrite a segment without its hidden rows                | `Eraser`     |
| survey for a new compaction pass                         | `Compactor`  |
| survey one segment for expired messages                  | `Expirer`    |
| index the subjects of segments without a subject index   | `Cleaner`    |
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from penstock.base import limits
from penstock.base.clock import growing
from penstock.commitlog.cleaner.cleaning import Cleaning
from penstock.commitlog.cleaner.compaction import Survey
from penstock.commitlog.cleaner.compactor import Compactor
from penstock.commitlog.cleaner.eraser import Eraser
from penstock.commitlog.cleaner.expirer import Expirer
from penstock.commitlog.cleaner.expiry import ExpirySurvey
from penstock.commitlog.cleaner.indexing import SubjectIndexing
from penstock.commitlog.cleaner.retained_rows import RetainedRows
from penstock.commitlog.config import Deciding, LogConfig
from penstock.commitlog.files import files
from penstock.commitlog.files.files import LogFolder
from penstock.commitlog.segment.segment import Segment
from penstock.commitlog.segment.segments import Segments
from penstock.commitlog.view import LogView
from penstock.live.row_set import RowSet

CleanerTask = Cleaning | Survey | ExpirySurvey | SubjectIndexing
"""The cleaner task that a log has under way."""

_end_offset = attrgetter("end_offset")
_RETRY_US = limits.COMPACTION_RETRY_MS * 1_000
_RETRY_US_MAX = limits.COMPACTION_RETRY_MS_MAX * 1_000
_INDEXED_AT_ONCE = 64  # segments that one task looks at: at a start, most have an index
_SKIPPED_MAX = 64  # segments without an index file; they are skipped until a restart


class FoundHidden(NamedTuple):
    """Rows that a survey of the leader's log has found to go: marks are to hide them. Then call `Log.decided`."""

    survey: Survey | ExpirySurvey
    rows: RowSet
    pieces: Sequence[RowSet]  # the same, split for marks


class Disposal:
    """Removes files that the cleaner replaced. Run it in a disk thread; then call `Log.disposed` in any case.

    `sweep_end`: removes the side files, too, and unfinished files, that may hold rows before it: their segments begin
    before it. `written`: path of the unfinished file that is being written.
    """

    def __init__(self, folder: LogFolder, paths: tuple[str, ...], sweep_end: int = 0, written: str = "") -> None:
        self._folder = folder
        self.paths = paths
        self.sweep_end = sweep_end
        self._written = written

    def run(self) -> None:
        """Make the new files' names durable, then remove the old ones. OSError: it can be retried, also by a start."""
        self._folder.sync()
        for path in self.paths:
            self._folder.vfs.remove(path)
            files.remove_beside(self._folder.vfs, path)
        if self.sweep_end:
            for name in self._folder.vfs.list(self._folder.path):
                path = f"{self._folder.path}/{name}"
                if path != self._written and files.may_hold_aside(name, self.sweep_end):
                    self._folder.vfs.remove(path)
        if self.paths or self.sweep_end:
            self._folder.sync()


class Cleaner:
    """Cleaning of one log: one task at a time (`under_way`), and one open disposal.

    `end`, in all methods: end offset of what may be rewritten, which is committed and flushed.
    """

    __slots__ = ("_compactor", "_config", "_done_end", "_eraser", "_expirer", "_failed_base", "_failures", "_folder",
                 "_index_failures", "_index_not_before_us", "_indexed_end", "_not_before_us", "_segments",
                 "_stale", "_sweep_end", "disposal", "found", "under_way")  # fmt: skip

    def __init__(self, folder: LogFolder, segments: Segments, config: LogConfig) -> None:
        self.under_way: CleanerTask | None = None
        self.disposal: Disposal | None = None
        self.found: FoundHidden | None = None  # waits until marks hide it; meanwhile no survey begins
        self._folder = folder
        self._segments = segments
        self._config = config
        self._compactor = Compactor()
        self._expirer = Expirer()
        self._eraser = Eraser()
        self._done_end = 0  # segments up to here were checked for batches to merge
        self._failed_base = 0  # of the segment whose merge failed last …
        self._failures = 0  # … so many times in a row
        self._not_before_us = 0
        self._indexed_end = 0  # segments up to here have a subject index, or cannot have one
        self._index_failures = 0  # in a row
        self._index_not_before_us = 0
        self._stale: list[str] = []  # replaced files, to be removed
        self._sweep_end = 0  # side files may hold secure rows before it; 0: none may

    def configure(self, config: LogConfig) -> None:
        """Replace the config; void what expiry has found if it differs, and what was found to be hidden."""
        if config.deciding is not self._config.deciding:
            self._forget_passes()
        elif config != self._config and self.found is not None:
            self._forget_found(self.found)
        if config.compression is not self._config.compression:
            self._done_end = 0  # check all segments again
        if config != self._config:
            self._expirer.reconsider()
            if isinstance(self.under_way, Cleaning) and self.under_way.is_expiry:
                self.under_way.is_void = True
        self._config = config

    def _forget_passes(self) -> None:
        """Begin all surveys anew: another part decides from now on."""
        self.found = None
        self._compactor.restart()
        self._expirer.restart()
        if isinstance(self.under_way, Survey | ExpirySurvey):
            self.under_way.is_void = True

    def _forget_found(self, found: FoundHidden) -> None:
        self.found = None
        if isinstance(found.survey, Survey):
            self._compactor.interrupt()
        else:
            self._expirer.not_written(found.survey.segment.base_offset, 0, is_voided=True)

    def hide(self, hidden: RowSet, secure: RowSet) -> None:
        """Replace the set of hidden rows; `secure`: those that are erased without waiting for others."""
        if not secure.is_within(self._eraser.secure):
            self._sweep_end = max(self._sweep_end, secure.end)
        self._eraser.hide(hidden, secure)

    def wants_roll(self, begin: int, end: int) -> bool:
        """True if a segment from one offset to another has secure rows: it must be sealed to be rewritten."""
        return self._config.erases and self._eraser.secure.any_in(begin, end)

    def wants_erasure(self, end: int, now_us: int) -> bool:
        """True if `begin` would rewrite a segment because of secure rows."""
        is_free = self.under_way is None and self.disposal is None
        return is_free and self._next_secure(end, now_us) is not None

    def _next_secure(self, end: int, now_us: int) -> Segment | None:
        judged = self._compactor.judged
        return self._eraser.next_secure(self._segments.sealed, self._config, end, now_us, judged)

    def holds_aside(self, rows: RowSet) -> bool:
        """True if a replaced file that still exists, or a side file, may hold one of these rows."""
        if self._sweep_end or (self.disposal is not None and self.disposal.sweep_end):
            return True
        paths = self._stale if self.disposal is None else [*self._stale, *self.disposal.paths]
        if not paths:
            return False
        ends = {one.base_offset: one.end_offset for one in self._segments.sealed}
        for path in paths:
            base_offset = files.owner_of(path.rpartition("/")[2])
            assert base_offset is not None, path
            if rows.any_in(base_offset, ends.get(base_offset, limits.OFFSET_MAX)):
                return True
        return False

    @property
    def owes_sweep(self) -> bool:
        """True if a `Disposal` is to remove side files."""
        return self._sweep_end > 0

    # The next task.

    def is_due(self, end: int, now_us: int) -> bool:
        """True if `begin` has something to do."""
        if self.under_way is not None or self.disposal is not None:
            return False
        is_rewriting = self._compactor.is_under_way and self.found is None
        return is_rewriting or any(due_us <= now_us for due_us in self._dues_us(end, now_us))

    def due_us(self, end: int, now_us: int) -> int | None:
        """Time at which `is_due` may become true without further events; None if never."""
        return min((due_us for due_us in self._dues_us(end, now_us) if due_us > now_us), default=None)

    def _dues_us(self, end: int, now_us: int) -> list[int]:
        sealed, config = self._segments.sealed, self._config
        dues = (
            self._compactor.due_us(sealed, config, end) if self.found is None else None,
            self._expirer.due_us(sealed, config, end) if self.found is None else None,
            self._eraser.due_us(sealed, config, end, now_us),
            None if self._next_to_merge(end) is None else self._not_before_us,
            self._index_not_before_us if self._to_index(end) else None,
        )
        return [due_us for due_us in dues if due_us is not None]

    def begin(
        self,
        view: LogView,
        end: int,
        now_us: int,
        *,
        may_survey: bool,
        may_tidy: bool = True,
        knows_hidden: bool = True,
    ) -> CleanerTask | None:
        """Return the next task of those in the table; None if none is due. `may_survey`: a compaction pass may begin.
        `may_tidy` False: only secure rows are erased.

        `view`: the log as it is now. `knows_hidden` False: rows may be hidden, and this log does not know which yet, so
        nothing is surveyed that would take them for live ones.
        """
        if (segment := self._next_secure(end, now_us)) is not None:
            self.under_way = self._cleaning(view, segment, now_us, is_erasure=True)
        if self.under_way is not None or not may_tidy:
            return self.under_way
        if self.found is None:
            self.under_way = self._compact_on(view, now_us) or self._expire_on(view, now_us)
        folder, sealed, config = self._folder, self._segments.sealed, self._config
        if self.under_way is None:
            self.under_way = self._merge(view, end, now_us) or self._erase(view, end, now_us)
        hidden = self._eraser.hidden or None
        is_free = knows_hidden and self.found is None
        if self.under_way is None and may_survey and is_free:
            self.under_way = self._compactor.begin(folder.vfs, view, sealed, config, end, now_us, hidden)
        if self.under_way is None and is_free:
            compactor = self._compactor
            self.under_way = self._expirer.begin(folder.vfs, view, sealed, config, end, now_us, compactor, hidden)
        if self.under_way is None and self._index_not_before_us <= now_us and (segments := self._to_index(end)):
            self.under_way = SubjectIndexing(view, segments)
        return self.under_way

    def _compact_on(self, view: LogView, now_us: int) -> Cleaning | None:
        """Return the rewrite of the pass's next segment; if there is none, end the pass and return None."""
        compactor = self._compactor
        if not compactor.is_under_way:
            return None
        if not compactor.is_wanted(self._config):
            compactor.abandon(now_us)
        elif (judged := compactor.next_judged(self._segments.sealed)) is not None:
            return self._cleaning(view, judged.segment, now_us, judged)
        else:
            compactor.finish(now_us)
            self._expirer.compacted()
        return None

    def _expire_on(self, view: LogView, now_us: int) -> Cleaning | None:
        """Return the rewrite of the segment whose survey just found expired rows."""
        judged = self._expirer.take_judged(self._segments.sealed)
        return None if judged is None else self._cleaning(view, judged.segment, now_us, judged, is_expiry=True)

    def _erase(self, view: LogView, end: int, now_us: int) -> Cleaning | None:
        """Return the rewrite of a segment whose hidden rows are due to go."""
        segment = self._eraser.next_segment(self._segments.sealed, self._config, end, now_us)
        return None if segment is None else self._cleaning(view, segment, now_us, is_erasure=True)

    def _merge(self, view: LogView, end: int, now_us: int) -> Cleaning | None:
        segment = self._next_to_merge(end)
        if segment is None or self._not_before_us > now_us:
            return None
        self._done_end = segment.end_offset
        return self._cleaning(view, segment, now_us)

    def _next_to_merge(self, end: int) -> Segment | None:
        """Return the first segment below `end` that was not checked; None: there is none."""
        sealed = self._segments.sealed
        number = bisect_right(sealed, self._done_end, key=_end_offset)
        for segment in sealed[number : number + _SKIPPED_MAX]:
            if segment.end_offset > end:
                return None
            if segment.entries is None and segment.base_offset < segment.end_offset:
                return segment
        return None

    def _to_index(self, end: int) -> tuple[Segment, ...]:
        """Return the next segments that may lack a subject index; merges come first."""
        if not self._config.indexes_subjects:
            return ()
        sealed = self._segments.sealed
        number = bisect_right(sealed, self._indexed_end, key=_end_offset)
        return tuple(one for one in sealed[number : number + _INDEXED_AT_ONCE] if one.end_offset <= end)

    def _cleaning(
        self,
        view: LogView,
        segment: Segment,
        now_us: int,
        retained: RetainedRows | None = None,
        *,
        is_expiry: bool = False,
        is_erasure: bool = False,
    ) -> Cleaning:
        assert self.disposal is None, "files are being removed"
        erased = self._eraser.erasable(segment, self._config, now_us)
        cleaning = Cleaning(
            self._folder,
            view,
            segment,
            self._config,
            retained,
            is_expiry=is_expiry,
            erased=erased,
            is_erasure=is_erasure,
        )
        if cleaning.cleaned_path in self._stale:
            self._stale.remove(cleaning.cleaned_path)
        return cleaning

    # Its end.

    def ended(self, task: CleanerTask, now_us: int, *, may_replace: bool) -> bool:
        """Take a task that succeeded, failed or was abandoned. Return True if a new segment replaced an old one; the
        old file stays for current readers until a `Disposal`. `may_replace` False: the log is not writable. OSError.
        """
        self.under_way = None
        if isinstance(task, Survey | ExpirySurvey):
            self._surveyed(task, now_us)
            return False
        if isinstance(task, SubjectIndexing):
            self._indexed(task, now_us)
            return False
        has_replaced = False
        try:
            has_replaced = self._replaced(task, may_replace=may_replace)
        finally:
            self._written(task, now_us, has_replaced=has_replaced)
        return has_replaced

    def _surveyed(self, task: Survey | ExpirySurvey, now_us: int) -> None:
        if isinstance(task, Survey):
            is_whole = self._compactor.surveyed(task, now_us)
        else:
            is_whole = self._expirer.surveyed(task, now_us)
        if is_whole and task.found:
            self.found = FoundHidden(task, task.found, task.pieces)

    def decided(self, found: FoundHidden, now_us: int, *, is_hidden: bool) -> None:
        """Go on after what was found is hidden, or could not be hidden now."""
        if found is not self.found:
            return  # the config has changed, or the log was truncated
        self.found = None
        if not isinstance(found.survey, Survey):
            if is_hidden:
                self._expirer.written()
            else:
                self._expirer.not_written(found.survey.segment.base_offset, now_us, is_voided=False)
        elif not is_hidden:
            self._compactor.abandon(now_us)

    def _replaced(self, cleaning: Cleaning, *, may_replace: bool) -> bool:
        old, new = cleaning.segment, cleaning.replacement
        if new is None:
            if cleaning.is_left:
                self._stale.append(cleaning.cleaned_path)
            return False
        is_asked_for = self._config.expires if cleaning.is_expiry else self._compactor.is_wanted(self._config)
        is_asked_for = is_asked_for and self._config.deciding is Deciding.ALONE
        is_unwanted = cleaning.is_void or (cleaning.takes_rows and not is_asked_for)
        is_unwanted = is_unwanted or (cleaning.erases and not self._config.erases)
        if is_unwanted or not may_replace or old not in self._segments.sealed:
            self._stale.append(cleaning.cleaned_path)
            return False
        try:
            self._folder.vfs.rename(cleaning.cleaned_path, new.path)
        except OSError:
            cleaning.has_failed = True
            self._stale.append(cleaning.cleaned_path)
            raise
        self._segments.swap(old, new)
        if self._eraser.secure.any_in(old.base_offset, old.end_offset):
            self._sweep_end = max(self._sweep_end, self._eraser.secure.end)
        self._indexed_end = min(self._indexed_end, old.base_offset)
        old.successor = new
        old.file_state.is_rewritten = True
        self._stale.append(old.path)  # readers may still use it
        return True

    def _indexed(self, task: SubjectIndexing, now_us: int) -> None:
        if not task.is_void:
            self._indexed_end = task.end_offset
        self._index_failures = self._index_failures + 1 if task.has_failed else 0
        self._index_not_before_us = 0
        if task.has_failed:
            self._index_not_before_us = now_us + growing(_RETRY_US, self._index_failures, _RETRY_US_MAX)

    def _written(self, task: Cleaning, now_us: int, *, has_replaced: bool) -> None:
        if task.found is not None:
            self._segments.looked_at(task.segment, task.found)
        if has_replaced or task.found is not None:
            self._eraser.looked()
        if has_replaced:
            self._failures = self._not_before_us = 0
            if task.is_expiry:
                self._expirer.written()
        elif task.segment not in self._segments.sealed:
            return  # retention removed it meanwhile
        elif task.is_erasure:
            if task.found is None and not task.is_void:
                self._eraser.failed(now_us)
        elif not task.takes_rows:
            if task.has_failed and not task.is_void:
                self._merge_later(task.segment, now_us)
        elif task.is_expiry:
            is_voided = task.is_void and not task.has_failed
            self._expirer.not_written(task.segment.base_offset, now_us, is_voided=is_voided)
        else:
            self._compactor.abandon(now_us)

    def _merge_later(self, segment: Segment, now_us: int) -> None:
        """Back off, and retry the segment unless MERGE_TRIES_MAX is reached."""
        self._failures = self._failures + 1 if segment.base_offset == self._failed_base else 1
        self._failed_base = segment.base_offset
        if self._failures < limits.MERGE_TRIES_MAX:
            self._done_end = min(self._done_end, segment.base_offset)
        self._not_before_us = now_us + growing(_RETRY_US, self._failures, _RETRY_US_MAX)

    @property
    def fails_to_erase(self) -> bool:
        """True if hidden rows stay in their files, as rewrites fail again and again."""
        return self._eraser.is_failing

    # Removing replaced files.

    def dispose(self, young: int, *, sweeps: bool) -> Disposal | None:
        """Return a task that removes all replaced files but the newest `young`; None: there are none.

        `sweeps`: and the side files that may hold rows which are to be erased at once.
        """
        count = len(self._stale) - young
        sweep_end = self._sweep_end if sweeps else 0
        if self.disposal is None and (count > 0 or sweep_end):
            written = self.under_way.cleaned_path if isinstance(self.under_way, Cleaning) else ""
            self.disposal = Disposal(self._folder, tuple(self._stale[: max(0, count)]), sweep_end, written)
            del self._stale[: max(0, count)]
            self._sweep_end -= sweep_end
        return self.disposal

    def disposed(self, *, has_failed: bool) -> None:
        """End the disposal; if it failed, requeue its files."""
        if has_failed and self.disposal is not None:
            self._stale[:0] = self.disposal.paths
            self._sweep_end = max(self._sweep_end, self.disposal.sweep_end)
        self.disposal = None

    # Truncation and close.

    def void(self) -> None:
        """Void the running task: the log is about to be truncated or closed."""
        if self.under_way is not None:
            self.under_way.is_void = True

    def restart(self, active_base: int) -> None:
        """Forget what lies behind `active_base` after a truncation: file names from there on may be reused."""
        self._done_end = min(self._done_end, active_base)
        self._indexed_end = min(self._indexed_end, active_base)
        self.found = None
        self._compactor.cut(active_base)
        self._expirer.cut(active_base)
        owners = ((files.owner_of(path.rpartition("/")[2]), path) for path in self._stale)
        self._stale = [path for owner, path in owners if owner is not None and owner < active_base]
