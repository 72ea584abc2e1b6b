"""Sums up the rows of a log by subject: count, first and last offset.

Rules: rows are gathered, and summed up once they take SUBJECT_SUM_BYTES; a sum that stays large becomes a run, which is
kept as compressed blocks. So the memory for a segment is that limit, a few times, and some twentieth of the segment.
Arrow does all work for each row, without the interpreter.

    rows of batches ──sum──▶ sorted sum ──too large──▶ run, run, run ──merged block by block──▶ blocks in order
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.base import limits
from penstock.commitlog.subjects import blocks
from penstock.commitlog.subjects.blocks import SubjectRows
from penstock.hot.crc import crc32c

if TYPE_CHECKING:
    import pyarrow as pa

_BYTES_PER_ROW = 28  # beside the subject


def sum_of_rows(rows: Sequence[pa.RecordBatch]) -> SubjectRows:
    """Sum up rows of a log with the columns `offset` and `subject`; those without a subject do not count."""
    import pyarrow as pa

    table = pa.Table.from_batches(rows)
    if table.column("subject").null_count:
        table = table.filter(table.column("subject").is_valid())
    return _sorted(table, [("offset", "count"), ("offset", "min"), ("offset", "max")])


def sum_of(sums: Sequence[SubjectRows]) -> SubjectRows:
    """Add up sums."""
    import pyarrow as pa

    if len(sums) == 1:
        return sums[0]
    table = pa.Table.from_batches([one.batch for one in sums])
    return _sorted(table, [("count", "sum"), ("first_offset", "min"), ("last_offset", "max")])


def _sorted(table: pa.Table, sums: list[tuple[str, str]]) -> SubjectRows:
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = blocks.schema()
    found = pa.TableGroupBy(table, "subject", use_threads=False).aggregate(sums)
    found = found.select(["subject", *(f"{column}_{how}" for column, how in sums)])
    found = found.take(pc.sort_indices(found.column("subject"))).combine_chunks()
    columns = [
        pa.array([], field.type) if not column.num_chunks else column.chunk(0)
        for column, field in zip(found.columns, schema, strict=True)
    ]
    return SubjectRows(pa.RecordBatch.from_arrays(columns, schema=schema))


class _Packed(NamedTuple):
    data: bytes
    rows: int


class SubjectSum:
    """The sum of a range of a log, to which rows are added."""

    def __init__(self) -> None:
        self._rows: list[pa.RecordBatch] = []
        self._rows_bytes = 0
        self._sums: list[SubjectRows] = []
        self._runs: list[list[_Packed]] = []
        self.rows = 0  # number of rows with a subject

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows of the log with the columns `offset` and `subject`."""
        if not rows.num_rows:
            return
        subjects = rows.column("subject")
        self._rows.append(rows)
        self._rows_bytes += subjects.nbytes + _BYTES_PER_ROW * rows.num_rows
        self.rows += rows.num_rows - subjects.null_count
        if self._rows_bytes >= limits.SUBJECT_SUM_BYTES:
            self._sum_up()
            if self._sums and self._sums[0].batch.nbytes >= limits.SUBJECT_SUM_BYTES // 2:
                self._runs.append([_Packed(*one) for one in _packed(self._sums.pop())])

    def _sum_up(self) -> None:
        if self._rows:
            self._sums.append(sum_of_rows(self._rows))
            self._rows.clear()
            self._rows_bytes = 0
        if len(self._sums) > 1:
            self._sums = [sum_of(self._sums)]

    def in_memory(self) -> SubjectRows:
        """Return the whole sum; memory as all its subjects need. Nothing may be added afterwards."""
        return joined([*self.parts()])

    @property
    def subjects_max(self) -> int:
        """Upper bound of the number of subjects; exact unless there are runs."""
        self._sum_up()
        return sum(len(one) for one in self._sums) + sum(one.rows for run in self._runs for one in run)

    def parts(self) -> Iterator[SubjectRows]:
        """Yield the sum in order, in parts of any size. Nothing may be added afterwards."""
        self._sum_up()
        if not self._runs:
            yield from (one for one in self._sums if len(one))
            return
        sources: list[Iterator[SubjectRows]] = [map(_unpacked, run) for run in self._runs]
        sources += [iter([one]) for one in self._sums]
        yield from _merged(sources)


def joined(parts: Sequence[SubjectRows]) -> SubjectRows:
    """Return sums whose subjects follow one another as one."""
    import pyarrow as pa

    if len(parts) == 1:
        return parts[0]
    batches = pa.Table.from_batches([one.batch for one in parts], schema=blocks.schema()).combine_chunks().to_batches()
    return SubjectRows(batches[0] if batches else pa.RecordBatch.from_pylist([], schema=blocks.schema()))


def cut_to_blocks(rows: SubjectRows) -> Iterator[tuple[int, int]]:
    """Yield first row and number of rows of each block."""
    first = 0
    while first < len(rows):
        count = rows.room(first)
        yield first, count
        first += count


def _packed(rows: SubjectRows) -> Iterator[tuple[bytes, int]]:
    for first, count in cut_to_blocks(rows):
        yield blocks.encode(rows, first, count), count


def _unpacked(one: _Packed) -> SubjectRows:
    return blocks.decode(one.data, one.rows, crc32c(one.data), file="a run in memory", position=0)


def _merged(sources: list[Iterator[SubjectRows]]) -> Iterator[SubjectRows]:
    """Merge sorted sources: all rows up to the lowest last subject of the present blocks are complete."""
    heads: list[SubjectRows | None] = [next(one, None) for one in sources]
    while present := [one for one in heads if one is not None and len(one)]:
        bound = min(one.subject(len(one) - 1) for one in present) + b"\0"  # the next subject in order
        taken = []
        for number, head in enumerate(heads):
            if head is None:
                continue
            count = head.at_or_behind(bound)
            if count:
                taken.append(SubjectRows(head.batch.slice(0, count)))
            rest = head.batch.slice(count)
            heads[number] = SubjectRows(rest) if rest.num_rows else next(sources[number], None)
        yield sum_of(taken)
