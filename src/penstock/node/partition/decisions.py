"""Decisions on committed rows of a stream with a limit by subject, in a disk thread.

Rules: only committed rows are decided on, so no row is hidden by one that could be truncated. Rows that are hidden
already hide none. What the memory of the leadership does not know of a subject is found by the subject indexes.

| limit  | memory         | what a row hides                                          |
|--------|----------------|-----------------------------------------------------------|
| 1      | `SubjectTable` | the row of its subject before it, whether it is there     |
| 2, …   | `LastRows`     | the oldest of the last `limit` rows that are still there  |
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.commitlog import LogView, SubjectQueries, subject_rows
from penstock.hot.subject_table import SubjectTable, TableBudget
from penstock.live.last_rows import LastRows
from penstock.live.marks import ROWS_BYTES_MAX
from penstock.live.row_set import NONE, RowSet
from penstock.node.partition.log_queries import Query, QueryGivenUpError

if TYPE_CHECKING:
    import pyarrow as pa

_OFFSET, _SUBJECT = 0, 1  # columns of the rows


class DecisionMemory:
    """The last rows of subjects up to `end`, where decisions go on; `taken`: see `Partition.taken`."""

    def __init__(self, limit: int, end: int, taken: int, budget: TableBudget) -> None:
        self.limit, self.end, self.taken = limit, end, taken
        self.table = SubjectTable(limits.SUBJECT_TABLE_MAX, end, budget) if limit == 1 else None
        self.rows = LastRows(limit, end)

    def is_of(self, limit: int, begin: int, taken: int) -> bool:
        """True if decisions by this limit can go on with it at `begin`. A row alone may be gone: it hides none."""
        return (self.limit, self.end) == (limit, begin) and (limit == 1 or self.taken == taken)

    def forget(self, rows_max: int) -> None:
        """Forget subjects that had no row for long. A table does so by itself."""
        self.rows.forget(rows_max)


class DecideRows(Query):
    """Decides on the rows from `begin` to `end`, or to `decided_end` if these are too many: `hidden` are to be hidden.

    `has_others`: rows were hidden by others than the limit. `skips_damage`: no other replica has what cannot be read,
    so that nothing is to be decided on there.
    """

    def __init__(
        self, view: LogView, end: int, memory: DecisionMemory, *, has_others: bool, skips_damage: bool
    ) -> None:
        super().__init__(view.as_stored())
        self._hidden_rows = view.hidden
        self.begin = max(memory.end, view.log_start)
        self._end = end
        self.decided_end = min(end, self.begin + limits.DECIDED_ROWS_AT_ONCE)
        self.hidden = NONE
        self._memory = memory
        self._has_others = has_others
        self._skips_damage = skips_damage

    def run(self) -> None:
        """Raise RemoteError, CorruptionError, OSError or QueryGivenUpError; then the memory is to be dropped."""
        hidden = array("q")
        if self._memory.table is not None:
            self._decide_by_table(self._memory.table, hidden)
        else:
            self._decide_by_rows(self._memory.rows, hidden)
        self.hidden = next(iter(RowSet.of(hidden).split(ROWS_BYTES_MAX)), NONE)  # one piece, and it has its bytes
        self._memory.end = self.decided_end

    @property
    def is_cut(self) -> bool:
        """True if there were too many rows to decide on at once."""
        return self.decided_end < self._end

    def _rows(self) -> Iterator[pa.RecordBatch]:
        """Yield offset and subject of the live rows to decide on; lower `decided_end` after enough bytes."""
        begin = self.begin
        while begin < self.decided_end:
            try:
                for rows, size_bytes in subject_rows(self._view, begin, self.decided_end):
                    self._tell(size_bytes)
                    if rows.num_rows:
                        begin = rows.column(_OFFSET)[rows.num_rows - 1].as_py() + 1
                    yield self._live(rows)
                    if self.looked_bytes >= limits.DECIDED_BYTES_AT_ONCE and begin > self.begin:
                        self.decided_end = begin
                        return
                return
            except RemoteError as error:
                end = error.details.get("end_offset", 0)
                if error.code != ErrorCode.CORRUPT_RANGE or not self._skips_damage or end <= begin:
                    raise
                begin = end

    def _live(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        hidden = self._hidden_rows
        if hidden is None or not rows.num_rows:
            return rows
        offsets = rows.column(_OFFSET).to_pylist()
        if not hidden.any_in(offsets[0], offsets[-1] + 1):
            return rows
        import pyarrow as pa

        return rows.filter(pa.array([offset not in hidden for offset in offsets], pa.bool_()))

    def _decide_by_table(self, table: SubjectTable, hidden: array[int]) -> None:
        is_whole = table.known_from <= self._view.log_start
        unknown: list[bytes] = []
        for rows in self._rows():
            if not rows.num_rows:
                continue
            offsets, subjects = rows.column(_OFFSET), rows.column(_SUBJECT)
            _, ends, data = subjects.buffers()
            before = table.take(
                memoryview(ends)[4 * subjects.offset :],
                memoryview(data or b""),
                memoryview(offsets.buffers()[1])[8 * offsets.offset :],
                0,
                rows.num_rows,
            )
            hidden.extend(offset for offset in before if offset >= 0)
            if not is_whole and (places := [row for row, offset in enumerate(before) if offset < 0]):
                unknown += map(str.encode, subjects.take(_indices(places)).to_pylist())
        if unknown:
            queries = SubjectQueries(self._view, self.begin, self._tell)
            # The last one has hidden all before it, also if it is hidden itself.
            hidden.extend(offset for offset in queries.last_of_many(unknown) if offset >= 0)
        table.written()

    def _decide_by_rows(self, memory: LastRows, hidden: array[int]) -> None:
        offsets, subjects = list[int](), list[str]()
        for rows in self._rows():
            offsets += rows.column(_OFFSET).to_pylist()
            subjects += rows.column(_SUBJECT).to_pylist()
        if memory.known_from > self._view.log_start and (unknown := memory.unknown(dict.fromkeys(subjects))):
            memory.learn(self._last_rows(unknown))
        members = self._hidden_rows
        is_live = None if members is None or not self._has_others else partial(_is_absent, members)
        hidden.extend(memory.take(offsets, subjects, is_live))

    def _last_rows(self, subjects: Sequence[str]) -> dict[str, list[int]]:
        """Return the last live rows of these subjects before `begin`, `limit` of each at most."""
        view, limit = self._view, self._memory.limit
        queries = SubjectQueries(view, self.begin, self._tell)
        wanted: dict[str, list[int]] = {subject: [] for subject in subjects}
        lasts = zip(subjects, queries.last_of_many([one.encode() for one in subjects]), strict=True)
        left = {subject for subject, last in lasts if last >= 0}
        for begin, end in (
            reversed(queries.ranges([one.encode() for one in sorted(left)], view.log_start, self.begin)) if left else ()
        ):
            here: dict[str, list[int]] = {}
            for rows, size_bytes in subject_rows(view, begin, end):
                self._tell(size_bytes)
                live = self._live(rows)
                pairs = zip(live.column(_OFFSET).to_pylist(), live.column(_SUBJECT).to_pylist(), strict=True)
                for offset, subject in pairs:
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


def _indices(places: list[int]) -> pa.Array:
    import pyarrow as pa

    return pa.array(places, pa.int32())


def _is_absent(hidden: RowSet, offset: int) -> bool:
    return offset not in hidden
