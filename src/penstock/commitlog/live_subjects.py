"""Queries by subject over live rows: as `SubjectQueries`, without hidden rows, which stay in segments and indexes.

Rules: answers are exact. Where a segment has hidden rows, these are read, and what an index says of their subjects is
corrected; all other subjects are answered as it says. Counts alone are subtracted; only if the first or last row of a
subject is hidden, the rows of the segment are read. If rows on very many subjects are hidden, all of it is summed up.

    index or sums ──┐
                    ├──▶ the same without hidden rows ──▶ queries
    hidden rows ────┘

The cleaner may remove hidden rows from a segment meanwhile: what was read of another file than the index is of is void,
and read again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from penstock.base import limits
from penstock.batch import codec, masking
from penstock.commitlog.errors import LogCutError
from penstock.commitlog.subject_queries import Piece, SubjectFilter, SubjectQueries, SubjectSource, subject_rows
from penstock.commitlog.subjects import blocks
from penstock.commitlog.subjects.blocks import OffsetSpan, SubjectRow, SubjectRows
from penstock.commitlog.subjects.reading import WantedSubjects
from penstock.commitlog.subjects.summing import SubjectSum, sum_of
from penstock.commitlog.view import LogView
from penstock.live.row_set import RowSet

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")
_TRIES = 5  # the cleaner may rewrite a segment again and again


class LiveSubjectQueries(SubjectQueries):
    """Queries of the rows of a view from its log_start to `end` that it does not hide.

    `next` of the base class is about stored rows.
    """

    def __init__(
        self,
        view: LogView,
        end: int,
        tell: Callable[[int], None] = lambda _: None,
        tell_subjects: Callable[[int], None] = lambda _: None,
        *,
        begin: int = 0,
    ) -> None:
        """`tell_subjects` is called with the bytes of subjects that are looked through; it may raise, too."""
        super().__init__(view, end, tell, begin=begin)
        self._hidden = view.hidden
        self._tell_subjects = tell_subjects

    def count_from(self, patterns: Sequence[str], begin: int) -> Iterator[tuple[int, int]]:
        """Yield how many rows match from `begin` on, and up to which offset, segment by segment: a caller may stop."""
        wanted = SubjectFilter(patterns)
        for piece in self._pieces():
            if piece.end > begin:
                rest = piece._replace(begin=max(begin, piece.begin))
                yield sum(self._use(rest, wanted.count)), piece.end

    def last_matching(self, patterns: Sequence[str]) -> int | None:
        """Return the offset of the last message whose subject matches; None: there is none."""
        wanted = SubjectFilter(patterns)
        for piece in reversed(self._pieces()):
            found = [one for one in self._use(piece, lambda source: _last_in(wanted, source)) if one is not None]
            if found:
                return max(found)
        return None

    def _use(
        self,
        piece: Piece,
        use: Callable[[SubjectSource], _T],
        *,
        is_last: bool = False,
        may_exceed: bool = False,
        keeps: bool = False,
    ) -> list[_T]:
        if may_exceed:  # of last rows, which the base class reads without hidden ones
            return super()._use(piece, use, may_exceed=True)
        hidden = self._hidden

        def told(source: SubjectSource) -> _T:
            return use(_Told(source, self._tell_subjects))

        if hidden is None or not hidden.any_in(piece.begin, piece.end):
            return super()._use(piece, told, is_last=is_last, keeps=keeps)
        for _ in range(_TRIES):
            latest = piece.segment.latest
            gone = self._gone(piece, hidden)
            if len(gone) > limits.LIVE_SUBJECTS_MAX or (latest is not piece.segment and not self._has_own_index(piece)):
                found = [use(self._summed_live(piece, hidden))]
            elif not len(gone):
                found = super()._use(piece, told)
            else:
                found = super()._use(piece, lambda source: told(self._without(source, gone, piece, hidden)))  # noqa: B023
            if piece.segment.latest is latest:
                return found
        raise LogCutError("the segment was rewritten again and again while it was read: read again")

    def _has_own_index(self, piece: Piece) -> bool:
        whole = piece.segment.base_offset, piece.segment.end_offset
        return piece.is_sealed and (piece.begin, piece.end) == whole

    def _summed(self, piece: Piece, *, may_exceed: bool) -> tuple[SubjectRows, ...]:
        """Return one sum where rows are hidden: what is hidden is subtracted once."""
        parts = super()._summed(piece, may_exceed=may_exceed)
        hidden = self._hidden
        if len(parts) > 1 and hidden is not None and hidden.any_in(piece.begin, piece.end):
            self._tell(sum(map(len, parts)))  # milliseconds for some thousand subjects: no work for the event loop
            memory, merged = piece.segment.subjects, (sum_of(parts),)
            if (known := memory.summed) is not None and known[2] == parts:
                memory.summed = (*known[:2], merged)
            return merged
        return parts

    def _gone(self, piece: Piece, hidden: RowSet) -> SubjectRows:
        """Sum up the hidden rows of a piece that are stored with their subject; of a segment, once if they are few."""
        if not self._has_own_index(piece):
            return self._read_gone(piece, hidden)
        latest, rows = piece.segment.latest, hidden.between(piece.begin, piece.end)
        known = latest.subjects.gone
        if known is not None and known[0] == rows:
            return known[1]
        found = self._read_gone(piece, hidden)
        if len(found) <= limits.GONE_SUBJECTS_KEPT_MAX and piece.segment.latest is latest:
            latest.subjects.gone = rows, found
        return found

    def _read_gone(self, piece: Piece, hidden: RowSet) -> SubjectRows:
        total = SubjectSum()
        offset = hidden.first_present(piece.begin)
        while offset is not None and offset < piece.end:
            for header, data in self._view.batches(offset, piece.end):
                self._tell(len(data))
                rows = codec.check_rows(data)
                shown = masking.shown(rows.column("offset"), hidden)
                if shown is not None:
                    total.add(_between(rows.select(["offset", "subject"]).filter(_inverted(shown)), piece))
                offset = hidden.first_present(header.end_offset)
                if offset is None or offset - header.end_offset > header.count:
                    break  # not in the next batch: look it up
            else:
                break
        return total.in_memory()

    def _live_rows(self, piece: Piece, hidden: RowSet, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        for rows, size_bytes in subject_rows(self._view, max(begin, piece.begin), min(end, piece.end)):
            self._tell(size_bytes)
            shown = masking.shown(rows.column("offset"), hidden)
            yield rows if shown is None else rows.filter(shown)

    def _summed_live(self, piece: Piece, hidden: RowSet) -> SubjectRows:
        total = SubjectSum()
        for rows in self._live_rows(piece, hidden, piece.begin, piece.end):
            total.add(rows)
        return total.in_memory()

    def _without(self, source: SubjectSource, gone: SubjectRows, piece: Piece, hidden: RowSet) -> SubjectSource:
        """Return a source without hidden rows."""
        corrected: dict[bytes, SubjectRow | None] = {}
        doubtful: list[SubjectRow] = []
        for number in range(len(gone)):
            lost = gone.row(number)
            if (stored := source.find(lost.subject.encode())) is None:
                continue
            left = stored._replace(messages=stored.messages - lost.messages)
            corrected[lost.subject.encode()] = left if left.messages > 0 else None
            if left.messages > 0 and (stored.first in hidden or stored.last in hidden):
                doubtful.append(stored)
        if doubtful:
            for row in self._again(doubtful, piece, hidden):
                corrected[row.subject.encode()] = row
        return _Corrected(source, corrected)

    def _again(self, doubtful: list[SubjectRow], piece: Piece, hidden: RowSet) -> Iterator[SubjectRow]:
        """Read the live rows of some subjects."""
        import pyarrow as pa
        import pyarrow.compute as pc

        names = pa.array([row.subject for row in doubtful], pa.utf8())
        total = SubjectSum()
        begin, end = min(row.first for row in doubtful), max(row.last for row in doubtful) + 1
        for rows in self._live_rows(piece, hidden, begin, end):
            total.add(rows.filter(pc.is_in(rows.column("subject"), names)))
        found = total.in_memory()
        return map(found.row, range(len(found)))


def _last_in(wanted: SubjectFilter, source: SubjectSource) -> int | None:
    import pyarrow.compute as pc

    return max((pc.max(batch.column(3)).as_py() for batch in wanted.select(source)), default=None)


class _Told:
    """A source of which it is told how much of it is looked through."""

    def __init__(self, source: SubjectSource, tell: Callable[[int], None]) -> None:
        self._source = source
        self._tell = tell

    def find(self, subject: bytes) -> SubjectRow | None:
        """Return the row of one subject; None if there is none."""
        return self._source.find(subject)

    def find_each(self, subjects: WantedSubjects) -> dict[bytes, OffsetSpan]:
        """Return the first and the last offset of those subjects that are there."""
        return self._source.find_each(subjects)

    def between(self, begin: bytes, end: bytes | None) -> Iterator[pa.RecordBatch]:
        """Yield the subjects from `begin` to `end` in order; None: to the last."""
        for batch in self._source.between(begin, end):
            self._tell(batch.nbytes)
            yield batch


class _Corrected:
    """A source in which some subjects have other rows, or none."""

    def __init__(self, source: SubjectSource, corrected: dict[bytes, SubjectRow | None]) -> None:
        self._source = source
        self._corrected = corrected
        self._names = sorted(corrected)

    def find(self, subject: bytes) -> SubjectRow | None:
        """Return the row of one subject; None if it has none."""
        return self._corrected[subject] if subject in self._corrected else self._source.find(subject)

    def find_each(self, subjects: WantedSubjects) -> dict[bytes, OffsetSpan]:
        """Return the first and the last offset of those subjects that are there."""
        found = self._source.find_each(subjects)
        for name in found.keys() & self._corrected.keys():
            row = self._corrected[name]
            if row is None:
                del found[name]
            else:
                found[name] = OffsetSpan(row.first, row.last)
        return found

    def between(self, begin: bytes, end: bytes | None) -> Iterator[pa.RecordBatch]:
        """Yield the subjects from `begin` to `end` in order; None: to the last."""
        for batch in self._source.between(begin, end):
            rows = SubjectRows(batch)
            first = bisect_left(self._names, rows.subject(0))
            if first == len(self._names) or self._names[first] > rows.subject(len(rows) - 1):
                yield batch
            elif (found := self._rows_of(rows)).num_rows:
                yield found

    def _rows_of(self, rows: SubjectRows) -> pa.RecordBatch:
        import pyarrow as pa

        stored = map(rows.row, range(len(rows)))
        found = (self._corrected.get(row.subject.encode(), row) for row in stored)
        return pa.RecordBatch.from_pydict(
            dict(zip(blocks.schema().names, _columns([row for row in found if row is not None]), strict=True)),
            schema=blocks.schema(),
        )


def _columns(rows: list[SubjectRow]) -> list[list[object]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in SubjectRow._fields]


def _between(rows: pa.RecordBatch, piece: Piece) -> pa.RecordBatch:
    """Return the rows that lie in a piece; the batch may go beyond it."""
    import pyarrow.compute as pc

    offsets = rows.column(0)
    return rows.filter(pc.and_(pc.greater_equal(offsets, piece.begin), pc.less(offsets, piece.end)))


def _inverted(mask: pa.BooleanArray) -> pa.BooleanArray:
    import pyarrow.compute as pc

    return pc.invert(mask)
