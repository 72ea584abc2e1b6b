"""The part of a log that knows what is committed, and has that written anew, segment by segment: see `cleaning`.

Rules: what is written anew is sealed, committed and on the disk, so that no cut concerns it in the normal course. One
that does concern it makes what is under way void; no name is used again while a file of that name may yet be removed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from penstock.base import limits
from penstock.commitlog.cleaning import Cleaner, Cleaning, Disposal
from penstock.commitlog.open_files import OpenFiles
from penstock.commitlog.recovery import Recovered
from penstock.commitlog.retention import LogConfig
from penstock.commitlog.segment import Segment
from penstock.commitlog.state import LogState
from penstock.commitlog.writer import LogWriter
from penstock.vfs import Vfs


class CleanedLog(LogWriter):
    """See the module."""

    __slots__ = ("_cleaner", "_committed_end", "_config")

    def __init__(
        self,
        vfs: Vfs,
        directory: str,
        ids: tuple[int, int],
        config: LogConfig,
        found: Recovered,
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
        """The rules in force."""
        return self._config

    @property
    def committed_end(self) -> int:
        """The end of what is known to be committed, also after a start; log_start where nothing is."""
        return max(self._committed_end, self.log_start)

    def note_committed(self, end: int) -> None:
        """What comes before `end` is committed. It never goes back, and gets into the next checkpoint."""
        end = min(end, self.log_end)
        if end > self._committed_end:
            self._committed_end = end
            self._checkpoint.is_dirty = True

    @property
    def wants_cleaning(self) -> bool:
        """Whether `clean` has something to do."""
        return self._next_to_clean() is not None

    def _next_to_clean(self) -> Segment | None:
        if self.state is not LogState.WRITABLE:
            return None
        return self._cleaner.next_of(self._segments.sealed, min(self.flushed_end, self.committed_end))

    def clean(self) -> Cleaning | None:
        """A task that writes a segment anew that is sealed, committed and on the disk; None: there is none to look at.

        One at a time, and each once, unless it has changed.
        """
        segment = self._next_to_clean()
        if segment is None:
            return None
        # So that `max_bytes`, which is exact to the batch, stays nearly so.
        bytes_max = limits.MERGED_BYTES_MAX
        if self._config.max_bytes is not None:
            bytes_max = min(bytes_max, self._config.max_bytes // limits.MERGED_SHARE)
        return self._cleaner.begin(Cleaning(self._vfs, segment, self._ids, self.view(), bytes_max))

    def cleaned(self, cleaning: Cleaning) -> bool:
        """`cleaning` is done, or has failed, or was given up: whether the new segment has taken the place of the old
        one, which stays for those who are about to read it, until `dispose`. OSError.
        """
        self._cleaner.under_way = None
        old, new = cleaning.segment, cleaning.replacement
        if new is None:
            return False
        if cleaning.is_void or self.state is not LogState.WRITABLE or old not in self._segments.sealed:
            self._cleaner.superseded(cleaning.cleaned_path)
            return False
        try:
            self._vfs.rename(cleaning.cleaned_path, new.path)
        except OSError:
            self._cleaner.superseded(cleaning.cleaned_path)
            raise
        self._segments.swap(old, new)
        old.successor = new
        self._cleaner.superseded(old.path)
        return True

    def dispose(self) -> Disposal | None:
        """A task that removes what `cleaned` has left; then `disposed`. None: nothing, or the log is being cut."""
        return None if self._state is LogState.TRUNCATING else self._cleaner.dispose(self._vfs, self._directory)

    def _dispose_now(self) -> None:
        """Before the log is closed: nobody reads any more."""
        if (disposal := self.dispose()) is not None:
            with contextlib.suppress(OSError):  # the next start does
                disposal.run()
            self.disposed()

    @property
    def is_disposing(self) -> bool:
        """Whether such a task is under way: the log is not to be cut meanwhile."""
        return self._cleaner.disposal is not None

    def disposed(self) -> None:
        """That task has ended; what it could not remove goes with the next start."""
        self._cleaner.disposal = None
