"""Decisions on committed rows of a stream with a limit by subject, rollups or interest retention, in a disk thread.

Rules: only committed rows are decided on, so no row is hidden by one that could be truncated. Rows that are hidden
already hide none. What the memory of the leadership does not know of a subject is found by the subject indexes.
A few rows, by a limit of 1, are decided on on the event loop if the page cache has them and the table knows them: to
wake a disk thread and the loop again takes longer.

| limit  | memory         | what a row hides                                          | what a rollup hides            |
|--------|----------------|-----------------------------------------------------------|--------------------------------|
| none   |                |                                                           | all before it, by the indexes  |
| 1      | `SubjectTable` | the row of its subject before it, whether it is there     | the same                       |
| 2, …   | `LastRows`     | the oldest of the last `limit` rows that are still there  | all before it, by the memory   |

A message that was scheduled, or ends a schedule before its time, hides the schedules on the subject that it names
(`Nats-Scheduler`, ADR 111), whatever the limit is: so a schedule goes with what it has sent, in one step.

A rollup of all hides whatever is before it. What limit and rollups hide is the sum of both: a rollup takes the oldest
rows of a subject, so the last ones that are left are the same, whichever comes first.

With interest retention a row whose subject no consumer wants is hidden, and then takes part in no limit: it replaces
nothing. As in JetStream, a rollup takes effect all the same.

Rollups are found by the flags of their batches, so a stream without a limit reads only headers of the others. Rows of a
subject are looked for from the newest to the oldest, up to its rollup before: that one has hidden what is older.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.batch import codec, masking
from penstock.batch.codec import Buffer
from penstock.batch.header import MAY_ROLL_UP, BatchHeader
from penstock.commitlog import LiveCounts, LogView, SubjectQueries, TooManyRowsError, subject_rows
from penstock.hot.lifetimes import OF_ALL, OF_SUBJECT
from penstock.hot.rows import BatchRows
from penstock.hot.subject_table import SubjectTable, TableBudget
from penstock.ingest.schedules import ended
from penstock.live.last_rows import LastRows
from penstock.live.marks import ROWS_BYTES_MAX
from penstock.live.row_set import NONE, RowSet
from penstock.node.partition.log_queries import Query, QueryGivenUpError
from penstock.node.partition.wanted_subjects import WantedSubjects

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")
_OFFSET, _SUBJECT = 0, 1  # columns of the rows
_SCHEDULE_LINE = b"\r\nNats-Schedule:"
_NEXT_LINE = b"\r\nNats-Schedule-Next:"


class DecisionMemory:
    """The last rows of subjects up to `end`, where decisions go on; `taken`: see `Partition.taken`."""

    def __init__(self, limit: int, end: int, taken: int, budget: TableBudget) -> None:
        self.limit, self.end, self.taken = limit, end, taken
        self.table = SubjectTable(limits.SUBJECT_TABLE_MAX, end, budget) if limit == 1 else None
        self.rows = LastRows(limit, end) if limit > 1 else None

    def is_of(self, limit: int, begin: int, taken: int) -> bool:
        """True if decisions by this limit can go on with it at `begin`. A row alone may be gone: it hides none."""
        return (self.limit, self.end) == (limit, begin) and (limit <= 1 or self.taken == taken)

    def forget(self, rows_max: int) -> None:
        """Forget subjects that had no row for long. A table does so by itself."""
        if self.rows is not None:
            self.rows.forget(rows_max)


class DecideRows(Query):
    """Decides on the rows from `begin` to `end`, or to `decided_end` if these are too many: `hidden` are to be hidden.

    `has_others`: rows were hidden by others than the limit. `skips_damage`: no other replica has what cannot be read,
    so that nothing is to be decided on there. `rollups`: they take effect. `hides_gaps`: offsets that this log lacks
    are hidden, too, as each replica's cleaner has applied rollups alone until now. `ends_schedules`: the stream allows
    schedules. `wanted`: of the rows from `wanted_end` on those are hidden that it does not match.
    """

    def __init__(
        self,
        view: LogView,
        end: int,
        memory: DecisionMemory,
        *,
        has_others: bool,
        skips_damage: bool,
        rollups: bool = False,
        hides_gaps: bool = False,
        ends_schedules: bool = False,
        wanted: WantedSubjects | None = None,
        wanted_end: int = 0,
    ) -> None:
        super().__init__(view.as_stored())
        self._hidden_rows = view.hidden
        self.begin = max(memory.end, view.log_start)
        self._end = end
        self._wanted, self._wanted_end = wanted, max(self.begin, wanted_end)
        reads_subjects = memory.limit or (wanted is not None and wanted.depends)
        self.decided_end = min(end, self.begin + limits.DECIDED_ROWS_AT_ONCE) if reads_subjects else end
        self.hidden = NONE
        self.pieces: list[RowSet] = []  # the same, split for marks
        self.is_rollup = False  # a rollup hides more of these rows than the limit
        self.is_unwanted = False  # no consumer wants some of these rows
        self._unwanted = array("q")
        self._memory = memory
        self._has_others = has_others
        self._skips_damage = skips_damage
        self._rollups = rollups
        self._hides_gaps = hides_gaps
        self._ends_schedules = ends_schedules

    def run(self) -> None:
        """Raise RemoteError, CorruptionError, OSError or QueryGivenUpError; then the memory is to be dropped."""
        if self.is_cut:
            self._end_with_batch()
        hidden = array("q")
        if self._memory.table is not None:
            self._decide_by_table(self._memory.table, self._rows(), hidden)
        elif self._memory.rows is not None:
            self._decide_by_rows(self._memory.rows, hidden)
        elif self._wanted is not None and self._wanted.depends:
            for _ in self._rows():
                pass
        self._finish(hidden)

    def _end_with_batch(self) -> None:
        """Decide on whole batches of the log only: readers are shown what is decided, atomic batches as a whole."""
        _, extent = self._view.batch_at(self.decided_end)
        if extent.base_offset > self.begin:
            self.decided_end = min(self.decided_end, extent.base_offset)

    def run_if_cached(self) -> bool:
        """Of a few rows on known subjects, without rollups: see `Query.run_if_cached`. False: nothing has changed."""
        if self._run_without_reading():
            return True
        table, view = self._memory.table, self._view
        if table is None or self._rollups or self._end - self.begin > limits.DECIDED_ON_LOOP_MAX:
            return False
        vfs = view.vfs.cached(reads_max=limits.CACHED_READS_MAX, bytes_max=limits.CACHED_BYTES_MAX)
        if vfs is None:
            return False
        try:
            self._view = view.reading(vfs)
            rows = list(self._rows())
        except Exception:  # noqa: BLE001 (the disk is needed, or a disk thread meets it again and reports it)
            self._forget_look()
            return False
        finally:
            self._view = view
        hidden = array("q")
        if not all(self._knows(table, some) for some in rows):
            self._forget_look()
            return False
        self._decide_by_table(table, rows, hidden)
        self._finish(hidden)
        return True

    def _run_without_reading(self) -> bool:
        """Decide if it needs no row: all are wanted, or none is, and nothing else hides any."""
        if self._wanted is None or self._wanted.depends or self._memory.limit or self._rollups:
            return False
        self._finish(array("q"))
        return True

    def _forget_look(self) -> None:
        self.looked_bytes = 0
        del self._unwanted[:]

    def _knows(self, table: SubjectTable, rows: pa.RecordBatch) -> bool:
        if table.known_from <= self._view.log_start:
            return True
        subjects = map(str.encode, rows.column(_SUBJECT).to_pylist())
        return all(table.find(subject, 0, len(subject)) >= 0 for subject in subjects)

    def _finish(self, hidden: array[int]) -> None:
        self.hidden = RowSet.of(hidden)
        if self._rollups:
            by_limit = self.hidden.count
            of_all, of_subjects, ended_at = self._last_rollups()
            self.hidden |= self._roll_up(of_all, of_subjects)
            if later := {subject: offset for subject, offset in ended_at.items() if offset > of_all}:
                self.hidden |= self._earlier(later, max(self._view.log_start, of_all), only_schedules=True)
            if self._hides_gaps:
                self.hidden |= self._gaps()
            self.is_rollup = self.hidden.count > by_limit
        self._hide_unwanted()
        self.pieces = self.hidden.split(ROWS_BYTES_MAX)
        self._memory.end = self.decided_end

    def _hide_unwanted(self) -> None:
        begin, end, wanted = self._wanted_end, self.decided_end, self._wanted
        if wanted is None or wanted.is_all or begin >= end:
            return
        # What is behind `decided_end` is decided on next, when a consumer may be there that wants it.
        unwanted = RowSet.of(self._unwanted).between(begin, end) if wanted.depends else RowSet.of_runs([(begin, end)])
        self.is_unwanted = bool(unwanted)
        self.hidden |= unwanted

    @property
    def is_cut(self) -> bool:
        """True if there were too many rows to decide on at once."""
        return self.decided_end < self._end

    def _rows(self) -> Iterator[pa.RecordBatch]:
        """Yield offset and subject of the live rows to decide on; lower `decided_end` after enough bytes."""
        begin = self.begin
        for rows, size_bytes in self._past_damage(begin, self.decided_end, partial(subject_rows, self._view)):
            self._tell(size_bytes)
            if rows.num_rows:
                begin = rows.column(_OFFSET)[rows.num_rows - 1].as_py() + 1
            yield self._wanted_of(self._live(rows))
            if self.looked_bytes >= limits.DECIDED_BYTES_AT_ONCE and begin > self.begin:
                self.decided_end = begin
                return

    def _wanted_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that a consumer wants; note the others."""
        import pyarrow.compute as pc

        if self._wanted is None or self._wanted.is_all or not rows.num_rows:
            return rows
        offsets = rows.column(_OFFSET)
        stays = pc.or_(self._wanted.mask(rows.column(_SUBJECT)), pc.less(offsets, self._wanted_end))
        self._unwanted.extend(offsets.filter(pc.invert(stays)).to_pylist())
        return rows.filter(stays)

    def _past_damage(
        self, begin: int, end: int, read: Callable[[int, int], Iterator[_T]], *, reverse: bool = False
    ) -> Iterator[_T]:
        """Yield what `read` does from `begin` to `end`, but for what is damaged in the only replica."""
        while begin < end:
            try:
                yield from read(begin, end)
                return
            except RemoteError as error:
                damage = error.details.get("base_offset", 0), error.details.get("end_offset", 0)
                if error.code != ErrorCode.CORRUPT_RANGE or not self._skips_damage:
                    raise
                if damage[1] <= begin or damage[0] >= end:
                    raise
                begin, end = (begin, damage[0]) if reverse else (damage[1], end)

    def _live(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self._hidden_rows is None:
            return rows
        shown = masking.shown(rows.column("offset"), self._hidden_rows)
        return rows if shown is None else rows.filter(shown)

    def _decide_by_table(self, table: SubjectTable, some: Iterable[pa.RecordBatch], hidden: array[int]) -> None:
        is_whole = table.known_from <= self._view.log_start
        unknown: list[bytes] = []
        for rows in some:
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
        left = {subject: subject.encode() for subject, last in lasts if last >= 0}
        for begin, end in queries.ranges(left.values(), view.log_start, self.begin):
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
                    del left[subject]
        return wanted

    # Rollups.

    def _last_rollups(self) -> tuple[int, dict[str, int], dict[str, int]]:
        """Return the last rollup of all (or -1), that of each subject, and the last row that ends the schedule on each.

        Lower `decided_end` after enough bytes.
        """
        import pyarrow.compute as pc

        of_all, of_subjects, ended_at = -1, dict[str, int](), dict[str, int]()
        size_bytes = 0
        batches = partial(self._view.batches, wants=self._may_roll_up)
        for header, data in self._past_damage(self.begin, self.decided_end, batches):
            self._tell(len(data))
            stored = _with_kinds(header, data)
            if self._ends_schedules:
                ended_at |= self._ending(stored)
            live = self._live(stored)
            rows = live.filter(pc.greater(live.column("kind"), 0)).drop_columns("headers")
            for offset, subject, kind in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                if not self.begin <= offset < self.decided_end:
                    continue
                if kind == OF_ALL:
                    of_all = offset
                else:
                    of_subjects[subject] = offset
            size_bytes += len(data)
            if not self._memory.limit and size_bytes >= limits.DECIDED_BYTES_AT_ONCE:
                self.decided_end = min(self.decided_end, header.end_offset)
                break
        return of_all, of_subjects, ended_at

    def _ending(self, rows: pa.RecordBatch) -> dict[str, int]:
        """Return by subject which rows to decide on end the schedule there."""
        found = dict[str, int]()
        rows = rows.filter(_has_line(rows, _NEXT_LINE))
        for offset, block in zip(rows.column("offset").to_pylist(), rows.column("headers").to_pylist(), strict=True):
            if self.begin <= offset < self.decided_end and (subject := ended(block)) is not None:
                found[subject.decode("utf-8", "replace")] = offset
        return found

    def _may_roll_up(self, header: BatchHeader) -> bool:
        self._tell(0)
        return bool(header.flags & MAY_ROLL_UP)

    def _roll_up(self, of_all: int, of_subjects: Mapping[str, int]) -> RowSet:
        """Return the rows before these rollups."""
        start = self._view.log_start
        before = RowSet.of_runs([(start, of_all)]) if of_all > start else NONE
        later = {subject: offset for subject, offset in of_subjects.items() if offset > of_all}
        if not self._memory.limit:
            return before | self._earlier(later, max(start, of_all))
        if (memory := self._memory.rows) is not None:
            before |= RowSet.of(row for subject, offset in later.items() for row in memory.roll_up(subject, offset))
        return before

    def _earlier(self, rollups: Mapping[str, int], start: int, *, only_schedules: bool = False) -> RowSet:
        """Return the live rows from `start` on that are before the rollups of their subjects."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found = NONE
        left = {subject: subject.encode() for subject in rollups}
        queries = SubjectQueries(self._view, self.decided_end, self._tell)
        wants = self._may_show_schedules if only_schedules else self._may_show
        batches = partial(self._view.batches, reverse=True, wants=wants)
        for begin, end in self._ranges(queries, left.values(), start, max(rollups.values(), default=start)):
            names, bounds = pa.array([*left], pa.utf8()), pa.array([rollups[one] for one in left], pa.int64())
            for header, data in self._past_damage(begin, end, batches, reverse=True):
                self._tell(len(data))
                rows = self._live(_with_kinds(header, data))
                if only_schedules:
                    rows = rows.filter(_has_line(rows, _SCHEDULE_LINE))
                offsets, subjects, kinds, _ = rows.columns
                is_before = pc.less(offsets, bounds.take(pc.index_in(subjects, value_set=names)))
                goes = pc.and_(pc.fill_null(is_before, fill_value=False), pc.greater_equal(offsets, start))
                found |= RowSet.of(offsets.filter(goes).to_pylist())
                # A rollup that was decided on and is live until now has hidden all before it.
                is_decided = pc.and_(pc.equal(kinds, OF_SUBJECT), pc.less(offsets, self.begin))
                for subject in pc.unique(subjects.filter(pc.and_(goes, is_decided))).to_pylist():
                    left.pop(subject, None)
                if not left:
                    return found
        return found

    def _ranges(
        self, queries: SubjectQueries, subjects: Collection[bytes], start: int, end: int
    ) -> Iterator[tuple[int, int]]:
        """Yield ranges of the log with all rows of some subjects, the newest first; all of it if indexes cannot say."""
        try:
            yield from queries.ranges(subjects, start, end)
        except RemoteError as error:
            if error.code != ErrorCode.CORRUPT_RANGE or not self._skips_damage:
                raise
            yield start, end

    def _may_show(self, header: BatchHeader) -> bool:
        self._tell(0)
        return self._hidden_rows is None or self._hidden_rows.first_absent(header.base_offset) < header.end_offset

    def _may_show_schedules(self, header: BatchHeader) -> bool:
        return self._may_show(header) and self._may_roll_up(header)  # a schedule is a rollup of its subject

    def _gaps(self) -> RowSet:
        while True:
            try:
                return LiveCounts(self._view, self._end, self._tell).gone()
            except TooManyRowsError:  # it goes on where it has stopped
                continue
            except RemoteError as error:
                if error.code != ErrorCode.CORRUPT_RANGE or not self._skips_damage:
                    raise
                return NONE  # no other replica may lead, and show the rows that are missing here

    def _tell(self, size_bytes: int) -> None:
        self.looked_bytes += size_bytes
        if not self._is_wanted:
            raise QueryGivenUpError


def _with_kinds(header: BatchHeader, data: Buffer) -> pa.RecordBatch:
    """Return offset, subject, kind of rollup (0: none) and headers of the rows of a batch."""
    import pyarrow as pa

    rows = codec.check_rows(data)
    kinds = BatchRows(data, codec.LAYOUT).rollups() if header.flags & MAY_ROLL_UP else bytes(rows.num_rows)
    column = pa.Array.from_buffers(pa.uint8(), rows.num_rows, [None, pa.py_buffer(kinds)])
    names = ["offset", "subject", "kind", "headers"]
    return pa.record_batch([rows.column("offset"), rows.column("subject"), column, rows.column("headers")], names)


def _has_line(rows: pa.RecordBatch, line: bytes) -> pa.BooleanArray:
    """Return which rows have a header that begins so."""
    import pyarrow as pa
    import pyarrow.compute as pc

    blocks = rows.column("headers").cast(pa.binary())
    return pc.fill_null(pc.match_substring(blocks, line), fill_value=False)


def _indices(places: list[int]) -> pa.Array:
    import pyarrow as pa

    return pa.array(places, pa.int32())


def _is_absent(hidden: RowSet, offset: int) -> bool:
    return offset not in hidden
