"""Decisions on committed rows of a stream with a limit by subject, in a disk thread.

Rules: only committed rows are decided on, so no row is hidden by one that could be truncated. Rows that are hidden
already hide none. What the memory (`LastRows`) does not know of a subject is found by the subject indexes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.commitlog import LogView, SubjectQueries, subject_rows
from penstock.live.last_rows import LastRows
from penstock.live.row_set import NONE, RowSet
from penstock.node.partition.log_queries import Query, QueryGivenUpError

if TYPE_CHECKING:
    import pyarrow as pa


class DecideRows(Query):
    """Decides on the rows from `memory.end` to `end`, or to `decided_end` if these are too many.

    `has_others`: rows were hidden by others than the limit. `skips_damage`: no other replica has what cannot be read,
    so that nothing is to be decided on there.
    """

    def __init__(self, view: LogView, end: int, memory: LastRows, *, has_others: bool, skips_damage: bool) -> None:
        super().__init__(view.hiding(None))
        self._hidden_rows = view.hidden
        self.begin = max(memory.end, view.log_start)
        self.decided_end = min(end, self.begin + limits.DECIDED_ROWS_AT_ONCE)
        self.hidden = NONE
        self._memory = memory
        self._has_others = has_others
        self._skips_damage = skips_damage

    def run(self) -> None:
        """Raise RemoteError, CorruptionError, OSError or QueryGivenUpError; then the memory is to be dropped."""
        offsets, subjects = self._rows()
        if unknown := self._memory.unknown(dict.fromkeys(subjects)):
            self._memory.learn(self._last_rows(unknown))
        hidden = self._hidden_rows
        is_live = None if hidden is None or not self._has_others else partial(_is_absent, hidden)
        self.hidden = RowSet.of(self._memory.take(offsets, subjects, is_live))
        self._memory.end = self.decided_end

    def _rows(self) -> tuple[list[int], list[str]]:
        """Return offsets and subjects of the live rows to decide on; lower `decided_end` after enough bytes."""
        offsets, subjects = list[int](), list[str]()
        begin = self.begin
        while begin < self.decided_end:
            try:
                for rows, size_bytes in subject_rows(self._view, begin, self.decided_end):
                    self._tell(size_bytes)
                    if rows.num_rows:
                        begin = rows.column(0)[rows.num_rows - 1].as_py() + 1
                    live = self._live(rows)
                    offsets += live.column(0).to_pylist()
                    subjects += live.column(1).to_pylist()
                    if self.looked_bytes >= limits.DECIDED_BYTES_AT_ONCE and begin > self.begin:
                        self.decided_end = begin
                        break
                break
            except RemoteError as error:
                end = error.details.get("end_offset", 0)
                if error.code != ErrorCode.CORRUPT_RANGE or not self._skips_damage or end <= begin:
                    raise
                begin = end
        return offsets, subjects

    def _live(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        hidden = self._hidden_rows
        if hidden is None or not rows.num_rows:
            return rows
        offsets = rows.column(0).to_pylist()
        if not hidden.any_in(offsets[0], offsets[-1] + 1):
            return rows
        import pyarrow as pa

        return rows.filter(pa.array([offset not in hidden for offset in offsets], pa.bool_()))

    def _last_rows(self, subjects: Sequence[str]) -> dict[str, list[int]]:
        """Return the last live rows of these subjects before `begin`, `limit` of each at most."""
        view, limit = self._view, self._memory.limit
        queries = SubjectQueries(view, self.begin, self._tell)
        if limit == 1:  # the last one has hidden all before it, though it may be hidden itself
            found = ((subject, queries.last(subject)) for subject in subjects)
            return {subject: [] if last is None else [last] for subject, last in found}
        wanted: dict[str, list[int]] = {subject: [] for subject in subjects}
        left = {subject for subject in subjects if queries.of(subject) is not None}
        for begin, end in reversed(queries.ranges(sorted(left), view.log_start, self.begin)) if left else ():
            here: dict[str, list[int]] = {}
            for rows, size_bytes in subject_rows(view, begin, end):
                self._tell(size_bytes)
                live = self._live(rows)
                for offset, subject in zip(live.column(0).to_pylist(), live.column(1).to_pylist(), strict=True):
                    if subject in left:
                        here.setdefault(subject, []).append(offset)
            for subject, offsets in here.items():
                wanted[subject] = (offsets + wanted[subject])[-limit:]
                if len(wanted[subject]) == limit:
                    left.remove(subject)
            if not left:
                break
        return wanted

    def _tell(self, size_bytes: int) -> None:
        self.looked_bytes += size_bytes
        if not self._is_wanted:
            raise QueryGivenUpError


def _is_absent(hidden: RowSet, offset: int) -> bool:
    return offset not in hidden
