"""Scrubbing: everything that lies in a log is read and verified, so that damage is found before anybody needs it.

Rules: as any reader, so that what is found is known to the log, and what is written anew or given up meanwhile is no
mistake. What the disk does not let it read is damage, too. Memory is bounded by one batch. What is in the page cache is
read there: it proves the disk only where the system has dropped it since.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.commitlog.errors import LogCutError, is_shortage
from penstock.commitlog.side_files import SideFiles
from penstock.commitlog.sliced import SlicedWork
from penstock.commitlog.view import LogView

DamageFound = Callable[[str, int, str], None]
"""(path, position, reason): the file does not hold what it should, from this byte on."""


class Scrub(SlicedWork):
    """Reads a view from offset `begin` to `end`. `read_bytes` and `damaged` say what it came to so far.

    `moved_bytes` counts something for each batch, too: small ones cost more time than their bytes.
    """

    def __init__(
        self, view: LogView, begin: int, end: int, damage_found: DamageFound, side_files: SideFiles | None = None
    ) -> None:
        """`damage_found` is told where the disk does not let it read; the view tells of all else.

        `side_files` are looked at in the end, and then for `Log.mend_side_files`. The log is flushed up to `end`.
        """
        self.side_files = side_files
        self.wrong_indexes = view.wrong_indexes  # which are written anew from their segments
        self.read_bytes = 0
        self.damaged = 0  # ranges
        self._view = view
        self._begin = begin
        self._end = end
        self._damage_found = damage_found
        super().__init__()

    def _work(self) -> Generator[int, None, None]:
        offset = max(self._begin, self._view.log_start)
        moved = 0
        failed_at = -1
        indexed = offset  # up to there the index files were looked at
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
                return  # retention, or somebody who deletes files: whoever reads it is told
            except OSError as error:
                if is_shortage(error):
                    raise  # the disk is well; the rest is read in the next pass
                if failed_at != offset:
                    failed_at = offset  # it may pass: it is read once more
                    yield moved
                    moved = 0
                else:
                    offset = self._unreadable(error, offset)
        if self.side_files is not None:
            self.side_files.run()
            moved += limits.SCRUB_BATCH_BYTES  # a log without messages costs time, too
        yield moved

    def _behind(self, error: RemoteError, offset: int) -> int:
        """Where to go on."""
        if error.code == ErrorCode.CORRUPT_RANGE:
            self.damaged += 1
            end = error.details.get("end_offset")
        elif error.code == ErrorCode.OFFSET_OUT_OF_RANGE:  # retention was quicker
            end = error.details.get("log_start")
        else:
            raise error
        return max(offset + 1, end) if isinstance(end, int) else self._end

    def _unreadable(self, error: OSError, offset: int) -> int:
        """The disk does not give what it was given."""
        segment = next(one for one in self._view.segments if offset < one.end_offset)
        self.damaged += 1
        self._damage_found(segment.path, 0, f"it cannot be read: {error.strerror or error}")
        return segment.end_offset
