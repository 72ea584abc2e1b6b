"""Scrubbing: reads and verifies a whole log, so that corruption is found before a reader needs the data.

Rules: it reads as any reader does, so the log learns of corruption, and data rewritten or removed meanwhile is no
error. Read errors of the disk count as corruption, too. Memory is bounded by one batch. Data in the page cache is read
from there, which proves the disk only after the kernel has dropped it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.commitlog.errors import LogCutError, is_shortage
from penstock.commitlog.files.side_files import SideFiles
from penstock.commitlog.incremental_task import IncrementalTask
from penstock.commitlog.subject_queries import check_subject_indexes
from penstock.commitlog.view import LogView

DamageFound = Callable[[str, int, str], None]
"""(path, position, reason): the file cannot be read, or is corrupt, from this byte on."""


class Scrub(IncrementalTask):
    """Reads a view from offset `begin` to `end`. `read_bytes` and `damaged` hold the results so far.

    `moved_bytes` adds a constant per batch, since small batches cost more time than their bytes.
    """

    def __init__(
        self, view: LogView, begin: int, end: int, damage_found: DamageFound, side_files: SideFiles | None = None
    ) -> None:
        """`damage_found` is called for read errors of the disk; the view reports everything else.

        `side_files` are checked last; then call `Log.repair_side_files`. The log must be flushed up to `end`.
        """
        self.side_files = side_files
        self.wrong_indexes = view.wrong_indexes  # they are rebuilt from their segments
        self.read_bytes = 0
        self.damaged = 0  # number of corrupt ranges
        self._view = view
        self._begin = begin
        self._end = end
        self._damage_found = damage_found
        super().__init__()

    def _work(self) -> Generator[int, None, None]:
        offset = max(self._begin, self._view.log_start)
        moved = 0
        failed_at = -1
        indexed = offset  # index files were checked up to here
        while offset < self._end or indexed < offset:
            try:
                for header, _ in self._view.batches(offset, self._end):
                    offset = header.end_offset
                    self.read_bytes += header.size_bytes
                    moved += header.size_bytes + limits.SCRUB_BATCH_BYTES
                    if moved >= limits.SCRUB_SLICE_BYTES:
                        begin, indexed = indexed, offset
                        self._view.check_indexes(begin, offset, self._end)
                        yield moved
                        moved = 0
                begin, indexed = indexed, offset
                self._view.check_indexes(begin, offset, self._end)
            except LogCutError:
                return
            except RemoteError as error:
                offset = self._behind(error, offset)
            except FileNotFoundError:
                return  # retention, or files deleted by hand: a reader reports it
            except OSError as error:
                if is_shortage(error):
                    raise  # the disk is fine; the rest is read in the next pass
                if failed_at != offset:
                    failed_at = offset  # the error may be transient: read once more
                    yield moved
                    moved = 0
                else:
                    offset = self._unreadable(error, offset)
        for size_bytes in check_subject_indexes(self._view, self._begin, self._end):
            moved += size_bytes
            if moved >= limits.SCRUB_SLICE_BYTES:
                yield moved
                moved = 0
        if self.side_files is not None:
            self.side_files.run()
            moved += limits.SCRUB_BATCH_BYTES  # a log without messages costs time, too
        yield moved

    def _behind(self, error: RemoteError, offset: int) -> int:
        """Return the offset at which to continue."""
        if error.code == ErrorCode.CORRUPT_RANGE:
            self.damaged += 1
            end = error.details.get("end_offset")
        elif error.code == ErrorCode.OFFSET_OUT_OF_RANGE:  # retention removed it
            end = error.details.get("log_start")
        else:
            raise error
        return max(offset + 1, end) if isinstance(end, int) else self._end

    def _unreadable(self, error: OSError, offset: int) -> int:
        """Report a segment that the disk cannot read."""
        segment = next(one for one in self._view.segments if offset < one.end_offset)
        self.damaged += 1
        self._damage_found(segment.path, 0, f"it cannot be read: {error.strerror or error}")
        return segment.end_offset
