"""Searches for the committed rows that a request is to delete, in a disk thread.

Rules: rows that are hidden already are not found, because the view does not show them; a secure deletion names those
that files still hold, too, but does not count them as `deleted`. A search of a subject reads about PURGED_BYTES_AT_ONCE
and finds about PURGED_ROWS_AT_ONCE rows at most; the next one goes on where it has ended, also if it has only looked
for the last ones, which stay.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from penstock.base import limits
from penstock.batch import codec
from penstock.batch.subject_patterns import SubjectPatterns
from penstock.commitlog import LogView
from penstock.live.marks import ROWS_BYTES_MAX
from penstock.live.row_set import NONE, RowSet
from penstock.node.partition.log_queries import Query


class FindOffsets(Query):
    """Finds which of these offsets, in rising order and below `committed_end`, have a row.

    `shown_start`: the readers' log start; below it a file may hold rows that are to be erased, and are no messages.
    """

    def __init__(
        self, view: LogView, shown_start: int, committed_end: int, offsets: Sequence[int], *, is_secure: bool = False
    ) -> None:
        super().__init__(view)
        self.found = array("q")
        self.rows = NONE  # the same, made here, as that takes long
        self.pieces: list[RowSet] = []  # the same, in pieces for marks
        self.deleted = 0  # of these, the number of those that were not hidden
        self._is_secure = is_secure
        self._shown_start = shown_start
        self._committed_end = committed_end
        self._offsets = offsets

    def run(self) -> None:
        """Raise RemoteError (corrupt_range), OSError or QueryGivenUpError."""
        wanted = self._offsets
        number = bisect_left(wanted, self._view.log_start)
        end = bisect_left(wanted, self._committed_end)
        while number < end:
            for header, data in self._batches(wanted[number], wanted[number] + 1, as_stored=self._is_secure):
                stop = bisect_left(wanted, header.end_offset, number, end)
                offsets = codec.offsets(data)
                for offset in wanted[number:stop]:
                    row = bisect_left(offsets, offset)
                    if row < len(offsets) and offsets[row] == offset:
                        self.found.append(offset)
                number = stop
                break
            else:
                number += 1
        self.rows = RowSet.of(self.found)
        self.pieces = self.rows.split(ROWS_BYTES_MAX)
        self.deleted = _not_hidden(self.rows.between(self._shown_start, limits.OFFSET_MAX), self._view)


class FindSubject(Query):
    """Finds the rows in [`start`, `before`) on subjects that match a pattern; the last `keep` of them are left out.

    `shown_start`: see `FindOffsets`.
    """

    is_search = True

    def __init__(
        self,
        view: LogView,
        shown_start: int,
        subject: str,
        start: int,
        before: int,
        keep: int,
        *,
        is_secure: bool = False,
    ) -> None:
        super().__init__(view)
        self.found = array("q")
        self.rows = NONE  # the same, made here, as that takes long
        self.pieces: list[RowSet] = []  # the same, in pieces for marks
        self.deleted = 0  # of these, the number of those that were not hidden
        self._is_secure = is_secure
        self.before = before  # lowered if some are kept
        self.next_offset: int | None = None  # where the next search begins; None: all was searched
        self.keep = keep  # after `run`: of these, so many are still to be found before `before`; nothing was searched
        self._shown_start = shown_start
        self._start = max(start, view.log_start)
        self._patterns = SubjectPatterns([subject])

    def run(self) -> None:
        """Raise RemoteError (corrupt_range), OSError or QueryGivenUpError."""
        if self.keep:
            self._leave_kept()
        if self.keep:
            return
        for header, data in self._batches(self._start, self.before, as_stored=self._is_secure):
            self.found.frombytes(self._matching(data, self._start))
            if self.looked_bytes >= limits.PURGED_BYTES_AT_ONCE or len(self.found) >= limits.PURGED_ROWS_AT_ONCE:
                if header.end_offset < self.before:
                    self.next_offset = header.end_offset
                break  # without it all is read: rows before `before` that are hidden or compacted are in no batch
        self.rows = RowSet.of(self.found)
        self.pieces = self.rows.split(ROWS_BYTES_MAX)
        self.deleted = _not_hidden(self.rows.between(self._shown_start, limits.OFFSET_MAX), self._view)

    def _leave_kept(self) -> None:
        """Lower `before` to the offset of the first row that is kept; to `start` if all are. With `keep` left it ends
        early, as it has read much.
        """
        start = min(max(self._start, self._shown_start), self.before)
        for header, data in self._batches(start, self.before, reverse=True):
            matching = self._matching(data, start).cast("B").cast("q")
            if len(matching) >= self.keep:
                self.before, self.keep = matching[-self.keep], 0
                break
            self.keep -= len(matching)
            if self.looked_bytes >= limits.PURGED_BYTES_AT_ONCE and header.base_offset > start:
                self.before = header.base_offset
                return
        else:
            self.before, self.keep = start, 0
        self.looked_bytes = 0

    def _matching(self, data: codec.Buffer, start: int) -> memoryview:
        """Return the offsets of matching rows in [`start`, `before`), as bytes of int64."""
        import pyarrow.compute as pc

        rows = codec.check_rows(data)
        wanted = self._patterns.mask(rows.column("subject"))
        offsets = rows.column("offset").filter(wanted)
        inside = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, self.before))
        found = offsets.filter(inside)
        numbers = found.buffers()[1]
        begin = 8 * found.offset
        return memoryview(b"" if numbers is None else numbers)[begin : begin + 8 * len(found)]


def matches_any(patterns: Sequence[str], subjects: Sequence[bytes]) -> bool:
    """True if one of the subjects matches one of the patterns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = pa.array([one.decode() for one in subjects], pa.utf8())
    return bool(pc.any(SubjectPatterns(patterns).mask(names)).as_py())


def _not_hidden(rows: RowSet, view: LogView) -> int:
    hidden = view.hidden
    return rows.count if hidden is None else (rows | hidden).count - hidden.count
